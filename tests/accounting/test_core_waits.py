"""Time in run queues is told from work: of a busy machine no rank is accused, of more work it is."""

from typing import Any

import polars as pl
import pytest
from support.runs.traces import call, span, trace_of

import tracelens as tl
from tracelens.load import prepare
from tracelens.model.findings import Finding
from tracelens.model.trace import Trace

MS = 10**6
RANKS, STEPS = 3, 60
WORK_MS = 20.0


def build_trace(
    works: list[float], queued: list[float], *, slow: range | None = None, readings: int = 20
) -> Trace:
    """Let ranks work `works` ms a step without the share `queued` of it that they wait for a core.

    They meet at the end of each step and wait there asleep. In the steps `slow` all of them wait for a
    core for as long again as they work.
    """
    rows: list[dict[str, Any]] = []
    ran_ms, waited_ms = [[0.0] * RANKS], [[0.0] * RANKS]
    begin_ms, begins_ms = 0.0, [0.0]
    for step in range(STEPS):
        noise = [1 + 0.01 * ((step * 7 + rank * 5) % 3 - 1) for rank in range(RANKS)]
        core_ms = [work * factor for work, factor in zip(works, noise, strict=True)]
        took_ms = [one / (1 - share) for one, share in zip(core_ms, queued, strict=True)]
        if slow is not None and step in slow:
            took_ms = [one * 2 for one in took_ms]
        end_ms = begin_ms + max(took_ms) + 1
        for rank in range(RANKS):
            begin_ns, arrival_ns, end_ns = (
                int(moment_ms * MS) for moment_ms in (begin_ms, begin_ms + took_ms[rank], end_ms)
            )
            rows += [
                span(rank, "step", begin_ns, end_ns, step=step),
                span(rank, "backprop", begin_ns, arrival_ns, step=step, depth=1),
                call(rank, step, arrival_ns, end_ns, step=step, thread=0, depth=1),
            ]
        ran_ms.append([a + b for a, b in zip(ran_ms[-1], core_ms, strict=True)])
        waited_ms.append(
            [a + b - c for a, b, c in zip(waited_ms[-1], took_ms, core_ms, strict=True)]
        )
        begin_ms = end_ms
        begins_ms.append(begin_ms)
    read_steps = sorted(
        {round(reading_index * STEPS / readings) for reading_index in range(readings + 1)}
    )
    clocks = [
        {
            "process": rank,
            "method": "local",
            "monotonic_ns": int(begins_ms[step] * MS),
            "window_ns": 100,
            "wall_ns": int(begins_ms[step] * MS),
            "ran_ns": int(ran_ms[step][rank] * MS),
            "queued_ns": int(waited_ms[step][rank] * MS),
        }
        for rank in range(RANKS)
        for step in read_steps
    ]
    run = trace_of(rows, RANKS, clocks=clocks)
    main = pl.when(pl.col("thread") == 0).then(pl.lit("MainThread")).otherwise("name")
    return prepare(run.with_(threads=run.threads.with_columns(name=main)))


def single_finding_of(run: Trace) -> tuple[Finding, tl.Report]:
    """Return the one finding on slow ranks, and its report."""
    report = tl.analyze(run)
    (finding,) = (
        candidate for candidate in report.findings if candidate.kind in ("straggler", "slow_all")
    )
    return finding, report


def test_a_rank_that_waits_for_a_core_is_not_accused() -> None:
    """All do as much, and share the cores with others; chance has rank 1 wait most."""
    finding, report = single_finding_of(build_trace([WORK_MS] * RANKS, [0.3, 0.5, 0.3]))
    assert (finding.category, finding.ranks) == ("opportunity", (1,))
    assert finding.evidence["core_wait"]["explains"] == pytest.approx(1.0, abs=0.05)
    assert "Rank 1 waited for a core for 49 % of the time, the others for 21 %" in finding.sentence
    assert report.verdict.state == "inconclusive"
    assert report.verdict.headline.startswith(
        "INCONCLUSIVE: the machine was busy: rank 1 waited for a core"
    )
    assert "cores of its own" in report.verdict.action


def test_a_rank_whose_core_alone_is_shared_is_a_straggler_for_that_reason() -> None:
    """It will be so again: something is bound to its core."""
    found, report = single_finding_of(build_trace([WORK_MS] * RANKS, [0.0, 0.5, 0.0]))
    assert (found.category, found.ranks) == ("fault", (1,))
    assert "Rank 1 waited for a core for" in found.sentence
    assert report.verdict.headline.startswith("STRAGGLER rank 1")


@pytest.mark.parametrize("queued", [0.0, 0.3, 0.6])
def test_a_rank_that_has_more_to_do_is_a_straggler_on_a_busy_machine_too(queued: float) -> None:
    """With the time in run queues and without it, it takes twice as long."""
    works = [WORK_MS, 2 * WORK_MS, WORK_MS]
    finding, report = single_finding_of(build_trace(works, [queued] * RANKS))
    assert (finding.category, finding.ranks) == ("fault", (1,))
    assert finding.evidence["core_wait"]["explains"] == pytest.approx(0.0, abs=0.05)
    assert "waited for a core" not in finding.sentence
    assert report.verdict.headline.startswith("STRAGGLER rank 1")


def test_steps_in_which_all_wait_for_cores_are_the_machines() -> None:
    """No rank, and not what they compute, is slow then."""
    finding, report = single_finding_of(
        build_trace([WORK_MS] * RANKS, [0.0] * RANKS, slow=range(30, 45))
    )
    assert (finding.kind, finding.category) == ("slow_all", "opportunity")
    assert "All ranks waited for a core for" in finding.sentence
    assert "the machine was busy: ranks waited" in report.verdict.headline


@pytest.mark.parametrize("readings", [20, 1])
def test_no_run_is_healthy_whose_ranks_wait_for_cores(readings: int) -> None:
    """Nobody is slower than the others, but who would be need not show."""
    report = tl.analyze(build_trace([WORK_MS] * RANKS, [0.3] * RANKS, readings=readings))
    assert report.findings == ()
    assert report.verdict.state == "inconclusive"
    assert report.verdict.headline == (
        "INCONCLUSIVE: the machine was busy: ranks waited for a core 29 % of the time"
    )
    assert "cores of its own" in report.verdict.action


def test_who_hardly_waits_for_cores_is_healthy() -> None:
    """As on every machine on which anything else runs."""
    report = tl.analyze(build_trace([WORK_MS] * RANKS, [0.1] * RANKS))
    assert report.verdict.state == "healthy"
    assert "core" not in report.verdict.scope


def test_a_fault_on_a_busy_machine_may_hide_others() -> None:
    report = tl.analyze(build_trace([WORK_MS, 2 * WORK_MS, WORK_MS], [0.5] * RANKS))
    assert report.verdict.headline.startswith("STRAGGLER rank 1")
    assert "not known: who else is slow (ranks waited for a core" in report.verdict.scope


@pytest.mark.parametrize(("queued", "category"), [(0.4, "opportunity"), (0.05, "fault")])
def test_steps_of_which_nothing_was_read_are_no_fault_of_a_busy_machine(
    queued: float, category: str
) -> None:
    """Times were read before the first step and after the last one."""
    finding, _ = single_finding_of(
        build_trace([WORK_MS] * RANKS, [queued] * RANKS, slow=range(38, 44), readings=1)
    )
    assert (finding.kind, finding.category) == ("slow_all", category)
    assert finding.evidence["core_wait"]["explains"] is None
    assert ("was not read" in finding.sentence) == (category == "opportunity")


def test_what_was_not_read_explains_nothing() -> None:
    """Readings of other threads, or of none: the rank is accused as ever."""
    run = build_trace([WORK_MS] * RANKS, [0.3, 0.5, 0.3])
    nothing = run.clocks.with_columns(queued_ns=pl.lit(None, pl.Int64))
    other = run.threads.with_columns(name=pl.lit("Thread-1"))
    for one in (run.with_(clocks=nothing), run.with_(threads=other)):
        found, report = single_finding_of(one)
        assert (found.category, found.evidence["core_wait"]) == ("fault", None)
        assert report.verdict.state == "fault"
