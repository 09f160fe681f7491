"""The rank that failed first is told from its victims, whatever order their ends were noted in."""

from typing import Any

import polars as pl
import pytest
from support.runs.traces import span, trace_of

from tracelens.accounting.life.attempts import find_attempts
from tracelens.accounting.life.failures import Failure, describe_end, find_failures
from tracelens.model.trace import ENDING_COLUMNS, Trace
from tracelens.schema.life import Exited

S = 1_000_000_000
CLOSED: tuple[str, str] = ("RuntimeError", "[pair.cc:553] Connection closed by peer [127.0.0.1]")


def failed_trace(
    endings: dict[int, tuple[float, str, str]], codes: dict[int, tuple[float, int]] | None = None
) -> Trace:
    """Return a job of three ranks that ended so.

    Args:
        endings: What ranks noted: seconds, cause, message.
        codes: What `record` saw: seconds and exit code, negative for a signal.
    """
    codes = codes or {}
    ranks = range(3)
    trace = trace_of(
        [span(rank, "step", S, 9 * S, step=0) for rank in ranks],
        3,
        clocks=[
            {"process": rank, "method": "local", "monotonic_ns": 0, "wall_ns": 0} for rank in ranks
        ],
        complete=[False] * 3,
        child=[False] * 3,
        incarnation=[1] * 3,
        first_ns=[S] * 3,
        last_ns=[9 * S] * 3,
    )
    rows: list[dict[str, Any]] = [
        {"process": rank, "at_ns": int(at_s * S), "cause": cause, "message": message, "frames": []}
        for rank, (at_s, cause, message) in endings.items()
    ]
    journal = tuple(
        Exited(
            at_ns=int(at_s * S), rank=rank, host="host", pid=100 + rank, incarnation=1, code=code
        )
        for rank, (at_s, code) in codes.items()
    )
    return trace.with_(endings=pl.DataFrame(rows, schema=ENDING_COLUMNS), journal=journal)


def find_first(trace: Trace) -> Failure:
    (attempt,) = find_attempts(trace)
    return find_failures(trace, attempt)[0]


def test_exception_comes_before_those_of_ranks_that_lost_their_peer() -> None:
    trace = failed_trace({0: (10.2, *CLOSED), 1: (10.0, "ValueError", "bad"), 2: (10.1, *CLOSED)})
    assert (find_first(trace).rank, find_first(trace).cause) == (1, "ValueError")


def test_victims_that_noted_their_end_first_stay_victims() -> None:
    trace = failed_trace({0: (9.9, *CLOSED), 2: (9.8, *CLOSED)}, {1: (10.0, -9)})
    assert (find_first(trace).rank, find_first(trace).cause) == (1, "SIGKILL")


def test_rank_that_the_launcher_ended_is_a_victim() -> None:
    trace = failed_trace({0: (10.0, "SIGTERM", ""), 2: (9.9, "SIGTERM", "")}, {1: (10.1, 7)})
    assert (find_first(trace).rank, find_first(trace).cause) == (1, "exit code 7")


@pytest.mark.parametrize("rank", range(3))
def test_earliest_of_several_own_failures_comes_first(rank: int) -> None:
    endings = {other: (11.0 + other, "IndexError", "") for other in range(3)}
    endings[rank] = (10.0, "KeyError", "'x'")
    assert find_first(failed_trace(endings)).rank == rank


def test_out_of_memory_is_no_order_of_the_launcher() -> None:
    trace = failed_trace({0: (9.9, "SIGTERM", ""), 2: (9.9, "SIGTERM", "")})
    killed = Exited(10 * S, "worker", 1, "host", 101, 1, -9, is_out_of_memory=True)
    first = find_first(trace.with_(journal=(killed,)))
    assert (first.rank, first.text) == (1, "SIGKILL, out of memory")


def test_job_that_ended_well_has_no_failures() -> None:
    trace = failed_trace({})
    whole = trace.with_(processes=trace.processes.with_columns(complete=pl.lit(value=True)))
    (attempt,) = find_attempts(whole)
    assert find_failures(whole, attempt) == []


def test_no_rank_is_named_of_a_job_that_was_ended_from_outside() -> None:
    """As after a hang: the code of a rank that only waited would mislead."""
    orders = [Failure(rank, rank, 10 * S, "SIGTERM", user_frame="wait (a.py:3)") for rank in (0, 1)]
    assert describe_end(orders) == "ended from outside (SIGTERM)"
    assert describe_end([Failure(1, 1, 10 * S, "ValueError", "bad"), *orders]) == "ValueError (bad)"
    assert describe_end([]) is None
