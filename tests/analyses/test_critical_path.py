"""The critical path is as long as the job, and shortening it shortens the job; slack can be used up."""

from dataclasses import replace
from typing import Any, cast

import polars as pl
import pytest
from support.runs.analysed import RUNS, report, trace
from support.runs.traces import span, trace_of

from tracelens.accounting import phases
from tracelens.accounting.phases import job_ns
from tracelens.analyses import critical_path
from tracelens.analyses.critical_path import CriticalPath
from tracelens.load import prepare
from tracelens.replay.path import Lanes, walk_path
from tracelens.simulator.synthetic import Fault, Scenario, duration_ns, random_clocks

QUIET = Scenario(ranks=4, steps=60, noise=0.01, exit_skew_us=0.0)
LATE = Fault("backprop", (2,), factor=1.5)


def find_path(scenario: Scenario) -> CriticalPath:
    """Return the critical path of a simulated run."""
    return cast("CriticalPath", report(scenario).results["critical_path"])


def share(scenario: Scenario, rank: int, category: str) -> float:
    """Return the share of a rank's category."""
    shares = find_path(scenario).shares
    return float(
        shares.filter(pl.col("rank") == rank, pl.col("category") == category)["share"].sum()
    )


@pytest.mark.parametrize("run", RUNS)
def test_the_path_is_as_long_as_the_job(run: str) -> None:
    """Its intervals touch, and its shares sum to one."""
    path = find_path(RUNS[run][0])
    assert path.shares["share"].sum() == pytest.approx(1, abs=1e-9)
    assert path.path["end_ns"][1:].to_list() == path.path["start_ns"][:-1].to_list()
    assert path.shares["ns"].sum() == job_ns(trace(RUNS[run][0]))


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("hosts", [1, 2])
def test_the_path_goes_through_the_late_rank(*, overlap: bool, hosts: int) -> None:
    """The late rank has nearly all of the path, also with skewed clocks."""
    clocks = random_clocks(hosts) if hosts > 1 else ()
    scenario = replace(QUIET, ranks=4 * hosts, overlap=overlap, clocks=clocks, faults=(LATE,))
    shares = find_path(scenario).shares
    assert float(shares.filter(pl.col("rank") == 2)["share"].sum()) > 0.95
    assert shares.row(0)[:2] == (2, "backprop")


def test_the_path_follows_who_is_late() -> None:
    """First one rank, then another: each has the steps in which it is the last."""
    one, other = Fault("forward", (1,), (0, 29), 2.0), Fault("forward", (3,), (30, 59), 2.0)
    scenario = replace(QUIET, faults=(one, other))
    by_rank = dict(
        find_path(scenario).shares.group_by("rank").agg(pl.col("share").sum()).iter_rows()
    )
    assert by_rank[1] == pytest.approx(0.5, abs=0.03)
    assert by_rank[3] == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("phase", ["forward", "backprop", "update"])
def test_what_shortens_the_path_shortens_the_job(phase: str) -> None:
    """A tenth off what the late rank has on the path takes a tenth of that share off the job."""
    scenario = replace(QUIET, faults=(LATE,))
    faster = replace(scenario, faults=(LATE, Fault(phase, (2,), factor=0.9)))  # type: ignore[arg-type]  # a word of the parameters
    gone = 1 - duration_ns(faster) / duration_ns(scenario)
    assert gone == pytest.approx(0.1 * share(scenario, 2, phase), rel=0.05)


def test_what_is_not_on_the_path_does_not() -> None:
    """Ranks that wait can be slower for free, by their slack."""
    scenario = replace(QUIET, overlap=False, faults=(LATE,))
    slack = dict(find_path(scenario).slack.select("rank", "slack_ns").iter_rows())
    assert slack[2] == 0
    for rank in (0, 1, 3):
        assert slack[rank] == pytest.approx(5e6, rel=0.15)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(("of_slack", "longer"), [(0.95, False), (1.3, True)])
def test_slack_can_be_used_up(*, overlap: bool, of_slack: float, longer: bool) -> None:
    """Later by less than its slack in every step, a rank costs nothing; later by more, it does."""
    scenario = replace(QUIET, overlap=overlap, faults=(LATE,))
    row = find_path(scenario).slack.filter(pl.col("rank") == 0).row(0, named=True)
    extra = of_slack * (row["least_slack_ns"] if not longer else row["slack_ns"]) / 1e6
    later = replace(scenario, faults=(LATE, Fault("forward", (0,), extra_ms=extra)))
    grown = duration_ns(later) / duration_ns(scenario) - 1
    assert (grown > 0.005) is longer
    assert longer or grown < 1e-4


def test_the_last_rank_has_no_slack() -> None:
    """In nearly every step somebody can spare nothing."""
    slack = find_path(replace(QUIET, faults=(LATE,))).slack
    critical = dict(slack.select("rank", "critical_steps").iter_rows())
    assert critical[2] > 0.95
    assert max(critical[rank] for rank in (0, 1, 3)) < 0.1


def test_without_collectives_nobody_waits() -> None:
    """A single rank is the path."""
    alone = find_path(Scenario(ranks=1, steps=40))
    assert set(alone.shares["rank"]) == {0}
    assert alone.path.height == 1


@pytest.mark.parametrize("run", RUNS)
def test_pieces_of_the_path_add_up_to_its_shares(run: str) -> None:
    """By rank and category, over all steps; what lies outside of steps is no piece."""
    path = find_path(RUNS[run][0])
    by = ["rank", "category"]
    summed = path.cells.group_by(by).agg(pl.col("ns").sum()).sort(by)
    told = path.shares.filter(pl.col("category") != "outside").select(*by, "ns").sort(by)
    assert summed.rows() == told.rows()


def test_the_longest_pieces_are_the_planted_ones() -> None:
    """Backprop of the late rank, one a step, the longest first, with the span's name."""
    longest = find_path(replace(QUIET, overlap=False, faults=(LATE,))).longest
    longest_50 = longest.head(50)
    assert set(longest_50.select("rank", "category").rows()) == {(2, "backprop")}
    assert longest_50["step"].n_unique() == 50
    lasted = (longest["end_ns"] - longest["start_ns"]).to_list()
    assert lasted == sorted(lasted, reverse=True)
    assert longest_50["name"].is_not_null().all()


def test_neighbouring_steps_of_a_long_run_share_a_cell() -> None:
    """The sum is unchanged, and each cell names its number of steps."""
    count = critical_path.MAX_STEPS_OF_CELLS + 501
    rows = [(0, step, "forward", None, 10 * step, 10 * step + 7) for step in range(count)]
    segments = pl.DataFrame(rows, schema=critical_path.PATH_SEGMENT_COLUMNS, orient="row")
    cells = critical_path.path_cells(segments)
    assert cells["ns"].sum() == 7 * count
    assert cells["steps"].sum() == count
    assert cells["step"].to_list() == list(range(0, count, 2))
    assert cells["steps"][-1] == 1


def test_the_path_goes_back_along_messages() -> None:
    """To who sent late: of a chain of three, the first one is what the others waited for."""

    def message(op: str, rank: int, peer: int, start_ns: int, end_ns: int) -> dict[str, Any]:
        more: dict[str, Any] = {"op": op, "peer": peer, "seq": 0, "depth": 1}
        return span(rank, "reduction", start_ns, end_ns, **more)

    rows = [
        *(span(rank, "step", 0, end, step=0) for rank, end in enumerate((80, 90, 100))),
        message("send", 0, 1, 70, 72),
        message("recv", 1, 0, 10, 71),
        message("send", 1, 2, 85, 86),
        message("recv", 2, 1, 10, 86),
    ]
    chained = prepare(trace_of(rows, ranks=3))
    path = walk_path(Lanes(chained, phases.run(chained)))
    assert path.rows() == [(2, 85, 100), (1, 70, 85), (0, 0, 70)]
