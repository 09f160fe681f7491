"""Ranks that a recording leaves in a collective say whom they waited for."""

from dataclasses import replace

import polars as pl
import pytest
from support.runs.analysed import trace as simulated
from support.runs.traces import call, span, trace_of

from tracelens.accounting.standstill import find_standstill
from tracelens.load import prepare
from tracelens.model.trace import Alignment, HostClock, Trace
from tracelens.simulator.synthetic import Scenario
from tracelens.verdicts.report import analyze

MS = 1_000_000


def make_hang(*, absent_ended: bool) -> Trace:
    """Let three ranks meet twice; then ranks 0 and 2 are in a call that rank 1 never enters."""
    rows = []
    for rank in range(3):
        for step in range(2):
            begin_ns = 10 * step * MS
            rows.append(span(rank, "step", begin_ns, begin_ns + 10 * MS, step=step))
            rows.append(span(rank, "backprop", begin_ns, begin_ns + 5 * MS, step=step, depth=1))
            rows.append(call(rank, step, begin_ns + 5 * MS, begin_ns + 6 * MS, step=step))
        rows.append(span(rank, "step", 20 * MS, None, step=2))
        last = span(rank, "backprop", 20 * MS, None if rank == 1 else 25 * MS, step=2, depth=1)
        rows.append(last)
        if rank != 1:
            rows.append(call(rank, 2, 25 * MS, None, step=2))
    complete = [absent_ended if rank == 1 else False for rank in range(3)]
    return prepare(trace_of(rows, ranks=3, complete=complete))


def test_the_killed_rank_is_the_one_waited_for() -> None:
    """Where it was, who stood where for it, and that nobody else is blamed."""
    main_finding, *further_findings = analyze(make_hang(absent_ended=False)).findings
    assert (main_finding.kind, main_finding.ranks, main_finding.phase, main_finding.steps) == (
        "truncated_trace",
        (1,),
        "backprop",
        (2, 2),
    )
    assert (
        "ranks 0 and 2 were blocked, since it never entered allreduce #2" in main_finding.sentence
    )
    assert main_finding.evidence["waiting"] == [0, 2]
    assert "ended after it" not in main_finding.sentence
    assert [other.kind for other in further_findings if other.category == "fault"] == []


def test_a_rank_that_left_in_good_order_hangs_the_others() -> None:
    """It was not killed: it does not make the calls that the others make."""
    kinds = {finding.kind: finding for finding in analyze(make_hang(absent_ended=True)).findings}
    hang = kinds["hang"]
    assert (hang.ranks, hang.steps, hang.evidence["waiting"]) == ((1,), (2, 2), [0, 2])
    assert "do not make the same calls" in hang.sentence


def test_a_rank_that_ended_its_loop_had_fewer_batches() -> None:
    """It has no backprop in the step in which the others wait; a killed rank is a different case."""
    for absent_ended in (True, False):
        trace = make_hang(absent_ended=absent_ended)
        is_extra = (pl.col("rank") == 1) & (pl.col("step") == 2) & (pl.col("kind") == "backprop")
        report = analyze(trace.with_(events=trace.events.filter(~is_extra)))
        assert ("algorithms.join" in report.verdict.action) == absent_ended


def stands_still(*last: dict[str, object]) -> Trace:
    """Let four ranks meet once in the world; then each is in its given call, if any."""
    rows = [call(rank, 0, 0, MS) for rank in range(4)]
    trace = trace_of([*rows, *last], ranks=4)
    pair = trace.communicators.with_columns(
        communicator=pl.lit("pair", pl.Categorical()), name=pl.lit("pair"), ranks=pl.lit([1, 3])
    )
    pair = pair.cast(trace.communicators.schema)
    return prepare(trace.with_(communicators=pl.concat([trace.communicators, pair])))


def test_a_rank_that_waits_in_another_group_is_a_victim() -> None:
    """Ranks 0 and 2 wait for rank 1, which waits for rank 3 in a pair: only rank 3 is at fault."""
    waiting = [call(rank, 1, 2 * MS, None) for rank in (0, 2)]
    report = analyze(stands_still(*waiting, call(1, 0, 2 * MS, None, communicator="pair")))
    hangs = [finding for finding in report.findings if finding.kind == "hang"]
    assert [(hang.ranks, hang.evidence["victims"]) for hang in hangs] == [((3,), [0, 1, 2])]


def test_a_rank_that_waits_for_a_message_is_a_victim() -> None:
    """Rank 1 receives from rank 3, which has sent nothing; if it has, neither is at fault."""
    waiting = [call(rank, 1, 2 * MS, None) for rank in (0, 2)]
    receives = call(1, 7, 2 * MS, None, op="recv", peer=3, communicator="pair")
    sends = call(3, 7, 2 * MS, None, op="send", peer=1, communicator="pair")
    roots = find_standstill(stands_still(*waiting, receives)).roots
    assert [root.ranks for root in roots] == [(3,)]
    assert find_standstill(stands_still(*waiting, receives, sends)).roots == ()


@pytest.mark.parametrize("jumps", [(), (500_000,)])
def test_a_jump_of_a_clock_is_told_and_is_no_fault(jumps: tuple[int, ...]) -> None:
    """Times are corrected for it, so it comes last and costs nothing."""
    clocks = Alignment("collective_exits", (HostClock("node7", "boot", 0, 0.0, 900, jumps),))
    trace = replace(simulated(Scenario(ranks=2, steps=5)), alignment=clocks)
    found = [f for f in analyze(trace).findings if f.kind == "clock_jump"]
    assert [(f.category, f.hosts, f.saving) for f in found] == (
        [("opportunity", ("node7",), None)] if jumps else []
    )
