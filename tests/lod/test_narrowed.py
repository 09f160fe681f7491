"""Some ranks and steps of a run, as pages see them, are what they are in the whole run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.runs.indexes import explained, recorded

from tracelens import load
from tracelens.errors import InvalidArgument
from tracelens.lod import narrowed, opening
from tracelens.model.choice import Choice
from tracelens.simulator.synthetic import Fault, Scenario

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.lod.run_data import Run

SLOW = Fault("backprop", (2,), steps=(20, 39), factor=1.6)
SERVED = Scenario(ranks=4, steps=60, shards=2, faults=(SLOW,))
DEVICES = Scenario(ranks=4, steps=60, on_device=True, faults=(SLOW,))
CHOSEN = Choice.parse("1-2")


@pytest.fixture(scope="module", params=[SERVED, DEVICES], ids=["shards", "devices"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Each run, opened by its index, so that its columns are decoded where they are looked at."""
    folder = recorded(tmp_path_factory.mktemp("narrowed") / "run", request.param)
    explained(folder)
    run = opening.indexed(folder)
    assert run
    return run


@pytest.mark.slow
def test_ranks_take_what_they_took(whole: Run) -> None:
    """Times, residuals against all peers, and the rows of the timeline."""
    part = narrowed.of_ranks(whole, CHOSEN)
    assert part.times.ranks == part.residuals.ranks == (1, 2)
    categories = whole.times.categories
    assert np.array_equal(
        part.times.time_in(categories), whole.times.time_in(categories)[1:3], equal_nan=True
    )
    assert np.array_equal(part.residuals.residual_ns, whole.residuals.residual_ns[1:3])
    for lanes, every in (
        (part.scene.lanes, whole.scene.lanes),
        (part.scene.steps, whole.scene.steps),
    ):
        for row, lane in enumerate(lanes.lanes):
            same = every.lanes.index(lane)
            mine, theirs = (
                one.starts[slice(*one.offsets[at : at + 2].tolist())]
                for one, at in ((lanes, row), (every, same))
            )
            assert np.array_equal(mine, theirs)
    shown = {lane.rank for lane in part.scene.lanes.lanes if lane.role != "ps"}
    assert shown == {1, 2}
    servers = [lane for lane in whole.scene.lanes.lanes if lane.role == "ps"]
    assert [lane for lane in part.scene.lanes.lanes if lane.role == "ps"] == servers
    assert part.scene.pyramid is not None
    assert part.report is whole.report


@pytest.mark.slow
def test_tables_hold_the_ranks_alone(whole: Run) -> None:
    """Those that are not about ranks are as they were."""
    part = narrowed.of_ranks(whole, CHOSEN)
    for name, table in part.tables.items():
        if "rank" in table.columns:
            assert set(table["rank"].drop_nulls()) <= {1, 2}, name
        else:
            assert table.equals(whole.tables[name]), name


def test_all_ranks_are_the_run_itself(whole: Run) -> None:
    """Nothing is copied then; ranks that the run lacks are refused."""
    assert narrowed.of_ranks(whole, Choice.parse("0-")) is whole
    with pytest.raises(InvalidArgument, match="it has ranks 0-3"):
        narrowed.of_ranks(whole, Choice.parse("7"))


def test_steps_are_analyzed_alone(tmp_path: Path) -> None:
    """A rank that is slow in other steps is no finding of these."""
    trace = load.open(recorded(tmp_path / "run", SERVED))
    part = opening.explained(narrowed.of_steps(trace, Choice.parse("0", "40-59")))
    assert part.windows["step"].to_list() == list(range(40, 60))
    assert [one.ranks for one in part.report.findings if one.kind == "straggler"] == []
    assert part.workers.height == SERVED.ranks
