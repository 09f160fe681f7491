"""The rank that failed first is told from its victims, whatever order their ends were noted in."""

import polars as pl
import pytest
from support.runs.ended_jobs import CLOSED, S, ended_job
from support.runs.traces import call, span

from tracelens.accounting.life.attempts import find_attempts
from tracelens.accounting.life.failures import Failure, describe_end, find_failures
from tracelens.load import prepare
from tracelens.model.trace import Trace
from tracelens.schema.life import Exited


def find_first(trace: Trace) -> Failure:
    (attempt,) = find_attempts(trace)
    return find_failures(trace, attempt)[0]


def test_exception_comes_before_those_of_ranks_that_lost_their_peer() -> None:
    trace = ended_job({0: (10.2, *CLOSED), 1: (10.0, "ValueError", "bad"), 2: (10.1, *CLOSED)})
    assert (find_first(trace).rank, find_first(trace).cause) == (1, "ValueError")


def test_victims_that_noted_their_end_first_stay_victims() -> None:
    trace = ended_job({0: (9.9, *CLOSED), 2: (9.8, *CLOSED)}, {1: (10.0, -9)})
    assert (find_first(trace).rank, find_first(trace).cause) == (1, "SIGKILL")


def test_rank_that_the_launcher_ended_is_a_victim() -> None:
    trace = ended_job({0: (10.0, "SIGTERM", ""), 2: (9.9, "SIGTERM", "")}, {1: (10.1, 7)})
    assert (find_first(trace).rank, find_first(trace).cause) == (1, "exit code 7")


@pytest.mark.parametrize("rank", range(3))
def test_earliest_of_several_own_failures_comes_first(rank: int) -> None:
    endings = {other: (11.0 + other, "IndexError", "") for other in range(3)}
    endings[rank] = (10.0, "KeyError", "'x'")
    assert find_first(ended_job(endings)).rank == rank


def test_out_of_memory_is_no_order_of_the_launcher() -> None:
    trace = ended_job({0: (9.9, "SIGTERM", ""), 2: (9.9, "SIGTERM", "")})
    killed = Exited(10 * S, "worker", 1, "host", 101, 1, -9, is_out_of_memory=True)
    first = find_first(trace.with_(journal=(killed,)))
    assert (first.rank, first.text) == (1, "SIGKILL, out of memory")


def test_job_that_ended_well_has_no_failures() -> None:
    trace = ended_job({})
    whole = trace.with_(processes=trace.processes.with_columns(complete=pl.lit(value=True)))
    (attempt,) = find_attempts(whole)
    assert find_failures(whole, attempt) == []


def test_no_rank_is_named_of_a_job_that_was_ended_from_outside() -> None:
    """As after a hang: the code of a rank that only waited would mislead."""
    orders = [Failure(rank, rank, 10 * S, "SIGTERM", user_frame="wait (a.py:3)") for rank in (0, 1)]
    assert describe_end(orders) == "ended from outside (SIGTERM)"
    assert describe_end([Failure(1, 1, 10 * S, "ValueError", "bad"), *orders]) == "ValueError (bad)"
    assert describe_end([]) is None


def call_that_rank_1_never_entered(*, is_awaited: bool = True) -> list[dict[str, object]]:
    """Rows of a step in which ranks 0 and 2 are in a call, and rank 1 too unless it `is_awaited`."""
    steps = [span(rank, "step", S, None, step=0) for rank in range(3)]
    ranks_inside = (0, 2) if is_awaited else (0, 1, 2)
    first_calls = [call(rank, 0, S, 2 * S, step=0) for rank in range(3)]
    return [*steps, *first_calls, *(call(rank, 1, 3 * S, None, step=0) for rank in ranks_inside)]


KILLED = {1: (10.0, -9), 0: (10.01, -9), 2: (10.02, -9)}


def test_a_launcher_that_kills_all_ends_victims_of_the_rank_that_was_killed_first() -> None:
    """As mpiexec does; rank 1 was awaited, and it died before the others."""
    trace = prepare(ended_job({}, KILLED, rows=call_that_rank_1_never_entered(), launcher_code=9))
    (attempt,) = find_attempts(trace)
    first, *others = find_failures(trace, attempt)
    assert (first.rank, first.cause, first.is_ordered) == (1, "SIGKILL", False)
    assert all(failure.is_ordered for failure in others)


@pytest.mark.parametrize(
    ("is_awaited", "launcher_code"), [(False, 9), (True, 1)], ids=["nobody waits", "torchrun"]
)
def test_ranks_that_were_all_killed_from_outside_have_no_first(
    *, is_awaited: bool, launcher_code: int
) -> None:
    rows = call_that_rank_1_never_entered(is_awaited=is_awaited)
    trace = prepare(ended_job({}, KILLED, rows=rows, launcher_code=launcher_code))
    (attempt,) = find_attempts(trace)
    assert all(failure.is_ordered for failure in find_failures(trace, attempt))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            "[/a/b/pair.cc:553] Connection closed by peer. This is typically caused by a crash.",
            "Connection closed by peer",
        ),
        ("[enforce fail at alloc_cpu.cpp:127] err == 0. No memory", "err == 0; No memory"),
        ("list[3] is missing.", "list[3] is missing"),
    ],
)
def test_a_message_has_its_reason_and_no_lines_of_a_library(message: str, reason: str) -> None:
    assert (
        find_first(ended_job({1: (10.0, "RuntimeError", message)}, complete=(0, 2))).message
        == reason
    )


def test_a_line_that_a_handler_hides_is_taken_from_a_later_note() -> None:
    trace = ended_job({1: (10.0, "SIGTERM", "")}, complete=(0, 2))
    note = trace.endings.with_columns(
        at_ns=pl.col("at_ns") + 1,
        cause=pl.lit("KeyboardInterrupt"),
        user_frame=pl.lit("main (train.py:20)"),
    )
    first = find_first(trace.with_(endings=pl.concat([trace.endings, note])))
    assert (first.cause, first.user_frame) == ("SIGTERM", "main (train.py:20)")
