"""Asynchronous training: staleness, shares of service, and the cost of waiting for a turn."""

from typing import Any

import pytest

import tracelens as tl
from tracelens.accounting import phases
from tracelens.analyses.servers import asynchrony
from tracelens.facts import Facts
from tracelens.verdicts.report import analyze

MS = 10**6


def _span(
    role: str, rank: int, kind: str, begin: float, end: float, **values: Any
) -> dict[str, Any]:
    """One row of a table; times in milliseconds."""
    times = {"start_ns": int(begin * MS), "end_ns": int(end * MS)}
    return {
        "role": role,
        "rank": rank,
        "host": "here",
        "thread": 0,
        "kind": kind,
        **times,
        **values,
    }


def _async_run(lengths: list[float], until: float) -> list[dict[str, Any]]:
    """Simulate workers with these step lengths that push to one server; it serves immediately."""
    rows = [_span("ps", 0, "step", 0, 0.1, step=0, shard=0)]
    begin_ms = [0.0] * len(lengths)
    seen_version = [0] * len(lengths)
    version = request = 0
    steps = [0] * len(lengths)
    while True:
        rank = min(range(len(lengths)), key=lambda r: begin_ms[r] + lengths[r])
        start, end = begin_ms[rank], begin_ms[rank] + lengths[rank]
        if end > until:
            return rows
        version, request = version + 1, request + 1
        about = {"request": request, "shard": 0, "bytes": 1000, "step": steps[rank]}
        rows += [
            _span("worker", rank, "step", start, end + 1, step=steps[rank]),
            _span("worker", rank, "backprop", start, end, step=steps[rank]),
            _span("worker", rank, "ps", end, end + 1, op="push", seq=seen_version[rank], **about),
            _span("ps", 0, "ps", end + 0.4, end + 0.5, op="apply", seq=version, peer=rank, **about),
        ]
        seen_version[rank], begin_ms[rank], steps[rank] = version, end + 1, steps[rank] + 1


def _trace(rows: list[dict[str, Any]]) -> tl.Trace:
    names = sorted({name for row in rows for name in row})
    return tl.Trace.from_table({name: [row.get(name) for row in rows] for name in names})


def _result(rows: list[dict[str, Any]]) -> asynchrony.Asynchrony:
    trace = _trace(rows)
    return asynchrony.run(Facts(trace, phases.run(trace)))


def test_a_slow_worker_is_stale() -> None:
    """Rank 2 takes four times as long, so the others update eight times in between."""
    result = _result(_async_run([10, 10.3, 43], until=3000))
    (finding,) = result.findings
    assert (finding.kind, finding.ranks, finding.phase) == ("stale_worker", (2,), "backprop")
    assert finding.saving == pytest.approx(0, abs=0.02)
    by_rank = {row["rank"]: row for row in result.workers.iter_rows(named=True)}
    assert by_rank[2]["staleness"] == pytest.approx(7.8, abs=0.5)
    assert by_rank[2]["rate"] < 0.5
    assert by_rank[0]["rate"] > 1.0


def test_why_it_is_stale_and_what_that_delays_are_told_with_it() -> None:
    """It takes three times as long for its 100 steps, and is not accused as a straggler as well."""
    rows = _async_run([10, 10.3, 32], until=3400)
    found = analyze(_trace([row for row in rows if row["step"] < 100])).findings
    (finding,) = [one for one in found if one.category == "fault"]
    assert finding.kind == "stale_worker"
    assert finding.slowdown == pytest.approx(3.15, abs=0.1)
    assert finding.saving == pytest.approx(0.66, abs=0.02)


def test_equal_workers_are_not() -> None:
    """Each sees the updates of the two others in between."""
    result = _result(_async_run([10, 10.3, 10.7], until=1500))
    assert result.findings == ()
    assert result.workers["staleness"].to_list() == pytest.approx([2, 2, 2], abs=0.2)
    assert result.workers["rate"].to_list() == pytest.approx([1, 1, 1], abs=0.05)


def test_what_comes_after_the_first_worker_has_ended_does_not_count() -> None:
    """A worker that goes on alone is never stale then, and that would hide that it was."""
    rows = _async_run([10, 10.3, 43], until=3000)
    ends = {0: 1500 * MS, 1: 1500 * MS, 2: 3000 * MS}
    of = {row["request"]: row["rank"] for row in rows if row.get("op") == "push"}
    kept = [row for row in rows if row["end_ns"] <= ends[of.get(row.get("request"), row["rank"])]]
    (finding,) = _result(kept).findings
    assert finding.ranks == (2,)


def test_synchronous_updates_have_no_staleness() -> None:
    """An update that takes the pushes of all is nobody's own."""
    rows = _async_run([10, 10], until=500)
    pushes = [row["request"] for row in rows if row.get("op") == "push"]
    applied = set(pushes[::2])
    rows = [row for row in rows if row.get("op") != "apply" or row["request"] in applied]
    assert _result(rows).workers.is_empty()


def _turns(workers: int, passes: int) -> list[dict[str, Any]]:
    """A server that serves one worker after the other: 1 ms down, 8 ms compute, 1 ms up."""
    rows = [_span("ps", 0, "step", 0, 0.1, step=0, shard=0)]
    for step in range(passes):
        for rank in range(workers):
            turn = 10.0 * (step * workers + rank)
            waited = 10.0 * (step * workers + rank - workers + 1) if step else 0.0
            about = {"step": step}
            rows += [
                _span("worker", rank, "step", waited, turn + 10, **about),
                _span("worker", rank, "elastic", waited, turn, op="turn_wait", **about),
                _span("worker", rank, "elastic", turn, turn + 1, op="weights_down", **about),
                _span("worker", rank, "backprop", turn + 1, turn + 9, **about),
                _span("worker", rank, "elastic", turn + 9, turn + 10, op="weights_up", **about),
                _span("ps", 0, "elastic", turn, turn + 1, op="weights_down", shard=0, **about),
                _span("ps", 0, "elastic", turn + 9, turn + 10, op="weights_up", shard=0, **about),
            ]
    return [row for row in rows if row["end_ns"] > row["start_ns"]]


def test_turns_are_priced() -> None:
    """Four workers stand three quarters of the time in line; that is what serving all would save."""
    result = _result(_turns(workers=4, passes=50))
    (finding,) = result.findings
    assert (finding.kind, finding.category) == ("exposed_communication", "opportunity")
    assert finding.saving == pytest.approx(0.74, abs=0.02)
    assert finding.cost == pytest.approx(0.74, abs=0.02)  # which it claims of the ledger
    assert "74 % of the time waiting for their turn" in finding.sentence
    assert result.workers["turn_share"].to_list() == pytest.approx([0.74] * 4, abs=0.02)


def test_waiting_for_a_turn_is_no_waiting_for_late_ranks() -> None:
    rows = _turns(workers=4, passes=50)
    names = sorted({name for row in rows for name in row})
    trace = tl.Trace.from_table({name: [row.get(name) for row in rows] for name in names})
    report = analyze(trace)
    assert report.efficiency is not None
    shares = {share.cause: share.share for share in report.efficiency.waterfall}
    assert shares["ps_queue"] == pytest.approx(0.74, abs=0.02)
    assert shares.get("late_ranks", 0.0) == 0.0
    assert [finding for finding in report.findings if finding.category == "fault"] == []
