"""Ranks that a recording leaves in a collective say whom they waited for."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from support.runs.analysed import trace as simulated
from support.runs.traces import call, span, trace_of

from tracelens.load import prepare
from tracelens.model.trace import Alignment, HostClock, Trace
from tracelens.simulator.synthetic import Scenario
from tracelens.verdicts.report import analyze

MS = 1_000_000


def left(*, absent_ended: bool) -> Trace:
    """Three ranks meet twice; then ranks 0 and 2 stand in a call that rank 1 never enters."""
    rows = []
    for rank in range(3):
        for step in range(2):
            begin = 10 * step * MS
            rows.append(span(rank, "step", begin, begin + 10 * MS, step=step))
            rows.append(span(rank, "backprop", begin, begin + 5 * MS, step=step, depth=1))
            rows.append(call(rank, step, begin + 5 * MS, begin + 6 * MS, step=step))
        rows.append(span(rank, "step", 20 * MS, None, step=2))
        last = span(rank, "backprop", 20 * MS, None if rank == 1 else 25 * MS, step=2, depth=1)
        rows.append(last)
        if rank != 1:
            rows.append(call(rank, 2, 25 * MS, None, step=2))
    complete = [absent_ended if rank == 1 else False for rank in range(3)]
    return prepare(trace_of(rows, ranks=3, complete=complete))


def test_the_killed_rank_is_the_one_waited_for() -> None:
    """Where it was, who stood where for it, and that nobody else is blamed."""
    first, *others = analyze(left(absent_ended=False)).findings
    assert (first.kind, first.ranks, first.phase, first.steps) == (
        "truncated_trace",
        (1,),
        "backprop",
        (2, 2),
    )
    assert "ranks 0 and 2 were blocked, since it never entered allreduce #2" in first.sentence
    assert first.evidence["waiting"] == [0, 2]
    assert "ended after it" not in first.sentence
    assert [other.kind for other in others if other.category == "fault"] == []


def test_a_rank_that_left_in_good_order_hangs_the_others() -> None:
    """It was not killed: it does not make the calls that the others make."""
    kinds = {finding.kind: finding for finding in analyze(left(absent_ended=True)).findings}
    hang = kinds["hang"]
    assert (hang.ranks, hang.steps, hang.evidence["waiting"]) == ((1,), (2, 2), [0, 2])
    assert "do not make the same calls" in hang.sentence


def test_a_rank_that_ended_its_loop_had_fewer_batches() -> None:
    """It made no backprop of the step in which the others wait; who was killed is another matter."""
    for absent_ended in (True, False):
        trace = left(absent_ended=absent_ended)
        is_extra = (pl.col("rank") == 1) & (pl.col("step") == 2) & (pl.col("kind") == "backprop")
        report = analyze(trace.with_(events=trace.events.filter(~is_extra)))
        assert ("algorithms.join" in report.verdict.action) == absent_ended


@pytest.mark.parametrize("jumps", [(), (500_000,)])
def test_a_jump_of_a_clock_is_told_and_is_no_fault(jumps: tuple[int, ...]) -> None:
    """Times are corrected for it, so it comes last and costs nothing."""
    clocks = Alignment("collective_exits", (HostClock("node7", "boot", 0, 0.0, 900, jumps),))
    trace = replace(simulated(Scenario(ranks=2, steps=5)), alignment=clocks)
    found = [f for f in analyze(trace).findings if f.kind == "clock_jump"]
    assert [(f.category, f.hosts, f.saving) for f in found] == (
        [("opportunity", ("node7",), None)] if jumps else []
    )
