"""Ranks that join or leave are told, with their steps; ranks that only begin or end apart are not."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from support.runs.analysed import faults, report, trace

from tracelens import load
from tracelens.errors import InvalidArgument
from tracelens.simulator.synthetic import Fault, Scenario, write
from tracelens.verdicts.report import analyze

ELASTIC = Scenario(ranks=6, steps=80, present=((4, (20, 79)), (5, (20, 79)), (1, (0, 49))))


def test_who_joins_and_leaves_is_told() -> None:
    """With the steps, and how many ranks there are then."""
    (finding,) = faults(report(ELASTIC))
    assert (finding.kind, finding.ranks, finding.steps) == ("world_change", (1, 4, 5), (20, 50))
    assert finding.saving is None
    assert "ranks 4 and 5 joined in step 20 (6 ranks then)" in finding.sentence
    assert "rank 1 left after step 49 (5 ranks then)" in finding.sentence


def test_the_run_is_divided_by_who_is_there() -> None:
    """From step to step, with how many ranks."""
    table = report(ELASTIC).tables["epochs"]
    assert table.select("first_step", "last_step", "ranks").rows() == [
        (0, 19, 4),
        (20, 49, 6),
        (50, 79, 5),
    ]
    assert table["left"].to_list() == [None, None, "rank 1"]


def test_a_late_rank_is_found_all_the_same() -> None:
    """Ranks are compared in the steps that they share."""
    slow = Fault("backprop", (3,), factor=1.5)
    kinds = {found.kind: found for found in faults(report(replace(ELASTIC, faults=(slow,))))}
    assert set(kinds) == {"world_change", "straggler"}
    assert kinds["straggler"].ranks == (3,)


def test_files_tell_the_same(tmp_path: Path) -> None:
    """Each rank's file knows the worlds that it was in."""
    write(ELASTIC, tmp_path / "run")
    (found,) = faults(analyze(load.open(tmp_path / "run")))
    assert found.kind == "world_change"


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(ranks=4, steps=60),
        Scenario(ranks=4, steps=60, present=((2, (2, 59)),)),
        Scenario(ranks=4, steps=60, present=((2, (0, 57)),)),
        Scenario(ranks=4, steps=40, shards=2),
        Scenario(ranks=1, steps=40),
    ],
    ids=["healthy", "begins two steps later", "ends two steps earlier", "servers", "alone"],
)
def test_all_the_time_is_no_change(scenario: Scenario) -> None:
    """Nothing is said, and the run has one part."""
    found = report(scenario)
    assert [one.kind for one in found.findings if one.kind == "world_change"] == []
    assert found.tables["epochs"].height == 1


def test_a_rank_without_which_others_meet_anew_has_left() -> None:
    """A launcher let the others go on in a communicator of their own: that is no end of inputs."""
    (found,) = faults(report(Scenario(ranks=4, steps=80, present=((1, (0, 49)),))))
    assert (found.kind, found.ranks) == ("world_change", (1,))


def test_a_rank_cut_off_has_not_left() -> None:
    """What it did after that is unknown; another finding tells of it."""
    recorded = trace(Scenario(ranks=4, steps=60))
    processes = recorded.processes.with_columns(complete=pl.col("rank") != 2)
    events = recorded.events.collect().filter((pl.col("rank") != 2) | (pl.col("step") < 30))
    cut = recorded.with_(
        processes=processes,
        events=events.lazy(),
        steps=recorded.steps.filter((pl.col("rank") != 2) | (pl.col("step") < 30)),
    )
    kinds = [found.kind for found in faults(analyze(cut))]
    assert "world_change" not in kinds
    assert "truncated_trace" in kinds


def test_another_world_size_is_told() -> None:
    """A restart with more ranks leaves processes that report different worlds."""
    whole = trace(Scenario(ranks=4, steps=40))
    worlds = pl.when(pl.col("rank") < 2).then(2).otherwise(4).cast(pl.Int32)
    found = analyze(whole.with_(processes=whole.processes.with_columns(world=worlds)))
    (told,) = (one for one in found.findings if one.kind == "world_change")
    assert "worlds of 2, then 4 ranks" in told.sentence


def test_servers_do_not_come_and_go() -> None:
    """The simulator says what it cannot do."""
    with pytest.raises(InvalidArgument, match="no shards and no hops"):
        Scenario(shards=2, present=((0, (0, 5)),))
