"""Some ranks and steps of a run, as pages see them, are what they are in the whole run."""

from pathlib import Path

import numpy as np
import pytest
from support.runs.indexes import explained, recorded

from tracelens import load
from tracelens.errors import InvalidArgument
from tracelens.lod import narrowed, opening
from tracelens.lod.run_data import Run
from tracelens.model.choice import Choice
from tracelens.simulator.synthetic import Fault, Scenario

SLOW = Fault("backprop", (2,), steps=(20, 39), factor=1.6)
SERVED = Scenario(ranks=4, steps=60, shards=2, faults=(SLOW,))
DEVICES = Scenario(ranks=4, steps=60, on_device=True, faults=(SLOW,))
CHOSEN = Choice.parse("1-2")


@pytest.fixture(scope="module", params=[SERVED, DEVICES], ids=["shards", "devices"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Each run, opened by its index, so that its columns are decoded where they are looked at."""
    folder = recorded(tmp_path_factory.mktemp("narrowed") / "run", request.param)
    explained(folder)
    indexed = opening.open_indexed(folder)
    assert indexed
    return indexed


@pytest.mark.slow
def test_ranks_take_what_they_took(run: Run) -> None:
    """Times, residuals against all peers, and the rows of the timeline."""
    narrowed_run = narrowed.select_ranks(run, CHOSEN)
    assert narrowed_run.category_times.ranks == narrowed_run.residuals.ranks == (1, 2)
    categories = run.category_times.categories
    assert np.array_equal(
        narrowed_run.category_times.sum_time_ns(categories),
        run.category_times.sum_time_ns(categories)[1:3],
        equal_nan=True,
    )
    assert np.array_equal(narrowed_run.residuals.residual_ns, run.residuals.residual_ns[1:3])
    for lanes, run_lanes in (
        (narrowed_run.scene.span_lanes, run.scene.span_lanes),
        (narrowed_run.scene.step_lanes, run.scene.step_lanes),
    ):
        for row, lane in enumerate(lanes.owners):
            run_row = run_lanes.owners.index(lane)
            narrowed_values, run_values = (
                lanes_of.starts_ns[slice(*lanes_of.item_offsets[lane_row : lane_row + 2].tolist())]
                for lanes_of, lane_row in ((lanes, row), (run_lanes, run_row))
            )
            assert np.array_equal(narrowed_values, run_values)
    shown_ranks = {lane.rank for lane in narrowed_run.scene.span_lanes.owners if lane.role != "ps"}
    assert shown_ranks == {1, 2}
    servers = [lane for lane in run.scene.span_lanes.owners if lane.role == "ps"]
    assert [lane for lane in narrowed_run.scene.span_lanes.owners if lane.role == "ps"] == servers
    assert narrowed_run.scene.colour_pyramid is not None
    assert narrowed_run.report is run.report


@pytest.mark.slow
def test_tables_hold_the_ranks_alone(run: Run) -> None:
    """Those that are not about ranks are as they were."""
    part = narrowed.select_ranks(run, CHOSEN)
    for name, table in part.tables.items():
        if "rank" in table.columns:
            assert set(table["rank"].drop_nulls()) <= {1, 2}, name
        else:
            assert table.equals(run.tables[name]), name


def test_all_ranks_are_the_run_itself(run: Run) -> None:
    """Nothing is copied then; ranks that the run lacks are refused."""
    assert narrowed.select_ranks(run, Choice.parse("0-")) is run
    with pytest.raises(InvalidArgument, match="it has ranks 0-3"):
        narrowed.select_ranks(run, Choice.parse("7"))


def test_steps_are_analyzed_alone(tmp_path: Path) -> None:
    """A rank that is slow in other steps is no finding of these."""
    trace = load.open(recorded(tmp_path / "run", SERVED))
    narrowed_run = opening.explain_trace(narrowed.select_steps(trace, Choice.parse("0", "40-59")))
    assert narrowed_run.step_windows["step"].to_list() == list(range(40, 60))
    assert [
        finding.ranks for finding in narrowed_run.report.findings if finding.kind == "straggler"
    ] == []
    assert narrowed_run.workers.height == SERVED.ranks
