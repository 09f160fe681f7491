"""A job that ended is reported by what explains its end, not by whose call failed first."""

from typing import Any

import pytest
from support.runs.ended_jobs import CLOSED, RANKS, S, ended_job
from support.runs.traces import call, span

from tracelens.load import prepare
from tracelens.model.findings import Finding
from tracelens.model.trace import Trace
from tracelens.verdicts.report import analyze

TIMED_OUT = ("RuntimeError", "[unbound_buffer.cc:78] Timed out waiting 10000ms for recv")


def make_steps(last_calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Two steps of a second with a call each; in the third one ranks make `last_calls`."""
    rows = []
    for step in range(3):
        begin_ns = (step + 1) * S
        for rank in RANKS:
            end_ns = begin_ns + S if step < 2 else None
            rows.append(span(rank, "step", begin_ns, end_ns, step=step))
            if step < 2:
                rows.append(call(rank, step, begin_ns + S // 2, begin_ns + S - 1, step=step))
    return [*rows, *last_calls]


def last_call(rank: int, end_s: float | None = None, **fields: Any) -> dict[str, Any]:
    """The call of the third step, open at the end, or ended by an exception."""
    status: dict[str, Any] = {} if end_s is None else {"status": "exception"}
    end_ns = None if end_s is None else int(end_s * S)
    return call(rank, 2, 4 * S, end_ns, step=2, **status, **fields)


def report_first(trace: Trace) -> Finding:
    return analyze(prepare(trace)).findings[0]


def test_a_time_limit_of_a_collective_names_the_rank_that_was_awaited() -> None:
    rows = make_steps([last_call(0, 14), last_call(1, 14)])
    endings = {0: (14.2, *TIMED_OUT), 1: (14.1, *TIMED_OUT), 2: (17.0, "SIGTERM", "")}
    codes = {0: (17.1, 1), 1: (17.0, 1), 2: (17.2, -15)}
    finding = report_first(ended_job(endings, codes, rows=rows, launcher_code=1))
    assert (finding.kind, finding.ranks, finding.evidence["waiting"]) == ("hang", (2,), [0, 1])


@pytest.mark.parametrize("left_s", [13.0, 14.5], ids=["before", "noted a moment later"])
def test_a_rank_that_left_explains_connections_that_were_closed(left_s: float) -> None:
    rows = make_steps([last_call(0, 14), last_call(2, 14)])
    endings = {0: (14.0, *CLOSED), 2: (14.1, *CLOSED)}
    codes = {0: (16.0, -15), 1: (left_s, 0), 2: (15.0, 1)}
    trace = ended_job(endings, codes, rows=rows, complete=(1,), launcher_code=1)
    finding = report_first(trace)
    assert (finding.kind, finding.ranks) == ("crash", (1,))
    assert "Rank 1 ended by itself" in finding.sentence


@pytest.mark.parametrize("is_aborted", [False, True])
def test_calls_that_do_not_match_are_reported_instead_of_the_hang_or_crash(
    *, is_aborted: bool
) -> None:
    size = {"bytes": 4000} if is_aborted else {"op": "broadcast"}
    rows = make_steps([last_call(0), last_call(1, **size), last_call(2)])
    endings = dict.fromkeys(RANKS, (20.0, "SIGTERM", ""))
    codes = dict.fromkeys(RANKS, (20.1, -15))
    if is_aborted:
        endings = {1: (20.0, *CLOSED), 2: (20.0, *CLOSED)}
        codes = {0: (19.0, -6), 1: (20.1, 1), 2: (20.1, 1)}
    trace = ended_job(endings, codes, rows=rows, launcher_code=1)
    report = analyze(prepare(trace))
    assert (report.findings[0].kind, report.findings[0].ranks) == ("desync", (1,))
    assert "The job then ended (" in report.findings[0].sentence
    assert not {"hang", "crash"} & {finding.kind for finding in report.findings}


def test_ranks_that_wait_for_each_other_are_a_circle() -> None:
    rows = make_steps([last_call(2)])
    rows += [
        call(rank, 3, 4 * S, None, op="recv", peer=1 - rank, step=2, communicator="pair")
        for rank in (0, 1)
    ]
    endings = dict.fromkeys(RANKS, (20.0, "SIGTERM", ""))
    codes = dict.fromkeys(RANKS, (20.1, -15))
    finding = report_first(ended_job(endings, codes, rows=rows, launcher_code=1))
    assert (finding.kind, finding.ranks) == ("hang", (0, 1))
    assert "wait for each other" in finding.sentence


def test_a_rank_whose_recording_ended_is_said_to_have_ended() -> None:
    rows = make_steps([last_call(0), last_call(2)])
    endings = dict.fromkeys((0, 2), (20.0, "SIGINT", ""))
    codes = {0: (20.1, -2), 1: (20.1, -2), 2: (20.1, -2)}
    finding = report_first(ended_job(endings, codes, rows=rows, complete=(1,), launcher_code=1))
    assert (finding.kind, finding.ranks) == ("hang", (1,))
    assert "its recording had ended" in finding.sentence
