"""The wall time of a job's life is divided exactly, and each use gets what it took."""

import polars as pl
import pytest
from support.runs.lives import MS, WALL_BEGIN_NS, S, write_restarted
from support.runs.traces import span, trace_of
from support.watch.lives import BEGIN_NS, STEPS, PlantedLife, plant_life

from tracelens.accounting.life.attempts import find_attempts
from tracelens.accounting.life.ledger import measure_life, name_uses
from tracelens.analyses.life import sum_shares
from tracelens.reports.messages import describe_life
from tracelens.schema.life import Ended, Exited, Launched


@pytest.mark.parametrize("seed", range(30))
def test_each_use_gets_what_it_took(seed: int) -> None:
    job = plant_life(seed)
    life = measure_life(job.trace())
    assert life is not None
    measured = dict(life.uses.group_by("use").agg(pl.col("ns").sum()).iter_rows())
    assert sum(measured.values()) == life.wall_ns == job.now_ns - BEGIN_NS
    assert life.attempts.height == len(job.clocks)
    for use in {*measured, *job.truth}:
        assert measured.get(use, 0) == pytest.approx(job.truth[use], abs=0.01 * life.wall_ns), use


def test_attempts_of_several_ranks_are_told_apart_by_when_they_lived() -> None:
    begins_s = [1, 1, 20, 20, 50, 50]
    ends_s = [10, 11, 40, 40, 60, 60]
    trace = trace_of(
        [
            span(process, "step", begin_s * S, (begin_s + 1) * S, step=0)
            for process, begin_s in enumerate(begins_s)
        ],
        6,
        clocks=[
            {"process": process, "method": "local", "monotonic_ns": 0, "wall_ns": WALL_BEGIN_NS}
            for process in range(6)
        ],
        rank=[0, 1] * 3,
        complete=[False] * 6,
        child=[False] * 6,
        first_ns=[begin_s * S for begin_s in begins_s],
        last_ns=[end_s * S for end_s in ends_s],
    )
    members = [[life.process for life in attempt.lives] for attempt in find_attempts(trace)]
    assert members == [[0, 1], [2, 3], [4, 5]]


def test_worker_that_comes_back_while_the_others_go_on_is_no_new_attempt() -> None:
    trace = trace_of(
        [span(process, "step", 1 * S, 2 * S, step=0) for process in range(4)],
        4,
        clocks=[
            {"process": process, "method": "local", "monotonic_ns": 0, "wall_ns": WALL_BEGIN_NS}
            for process in range(4)
        ],
        rank=[0, 1, 2, 0],
        complete=[False, True, True, True],
        child=[False] * 4,
        first_ns=[1 * S, 1 * S, 1 * S, 30 * S],
        last_ns=[20 * S, 90 * S, 90 * S, 90 * S],
    )
    assert [len(attempt.lives) for attempt in find_attempts(trace)] == [4]


def test_steps_that_each_attempt_counts_from_0_leave_open_what_was_kept() -> None:
    job = PlantedLife(seed=1)
    job.attempt("killed", 9)  # before the first checkpoint
    job.attempt("complete", STEPS)
    life = measure_life(job.trace())
    assert life is not None
    assert not life.is_kept_known


def test_failed_step_of_a_single_attempt_was_not_done_again() -> None:
    life = measure_life(write_restarted(("ValueError", "bad"), worlds=(2,)))
    assert life is not None
    assert not life.share("repeated")
    assert life.share("failed_step") > 0


def test_kept_steps_are_null_where_they_are_not_known() -> None:
    job = PlantedLife(seed=1)
    job.attempt("killed", 9)
    job.attempt("complete", STEPS)
    life = measure_life(job.trace())
    assert life is not None
    assert life.attempts["kept_steps"].to_list() == [None, STEPS]
    shares = sum_shares(life)
    assert ": at least 22 % of it in steps that were kept" in describe_life(shares)
    uses = name_uses(shares.uses, is_kept_known=False)
    assert (
        "at most 0.9 % steps done again later" in uses
        or "at most 1.0 % steps done again later" in uses
    )


def test_attempts_that_recorded_nothing_are_counted_by_their_launches_and_exits() -> None:
    job = PlantedLife(seed=3)
    job.attempt("killed", 30)
    job.journal.append(Ended(at_ns=WALL_BEGIN_NS + job.now_ns, code=1))
    job.now_ns += 1 * S
    job.journal.append(Launched(at_ns=WALL_BEGIN_NS + job.now_ns))
    job.now_ns += 5 * S
    job.journal.append(Ended(at_ns=WALL_BEGIN_NS + job.now_ns, code=1))
    job.now_ns += 1 * S
    for rank in (0, 1):
        began_ns = WALL_BEGIN_NS + job.now_ns + rank
        ended_ns = began_ns + 4 * S
        job.journal.append(Exited(ended_ns, "worker", rank, "host", 900 + rank, began_ns, 3))
    job.now_ns += 6 * S
    job.journal.append(Launched(at_ns=WALL_BEGIN_NS + job.now_ns))
    job.attempt("complete", STEPS)
    life = measure_life(job.trace())
    assert life is not None
    assert life.attempts["ranks"].to_list() == [1, 0, 2, 1]
    assert life.attempts["failure"].to_list()[1:] == [
        "the command failed before anything was recorded",
        "all 2 ranks failed before anything was recorded: exit code 3",
        None,
    ]
    assert life.uses["ns"].sum() == life.wall_ns
    assert len(life.lives) == 2


def test_launches_of_several_hosts_at_a_time_are_one_attempt() -> None:
    job = PlantedLife(seed=4)
    job.journal.append(Launched(at_ns=WALL_BEGIN_NS + job.now_ns + 1, host="other"))
    job.attempt("killed", 30)
    job.journal.append(Ended(at_ns=WALL_BEGIN_NS + job.now_ns - 1, code=1))
    trace = job.trace()
    journal = (*trace.journal[:-1], Ended(at_ns=WALL_BEGIN_NS + job.now_ns, code=1))
    assert len(find_attempts(trace.with_(journal=journal))) == 1


def find_unrecorded(ranks: dict[int, int | None], at_ns: int) -> tuple[Exited, ...]:
    """Return the exits of processes that started and left no recording, by rank the code."""
    begin_ns = WALL_BEGIN_NS + at_ns
    return tuple(
        Exited(begin_ns + S, "worker", rank, "host", 900 + rank, begin_ns, code, has_recorded=False)
        for rank, code in ranks.items()
    )


def test_attempts_that_recorded_nothing_count_if_their_starts_were_seen() -> None:
    """The processes died before their first event: between two attempts, and after the last one."""
    trace = write_restarted(("ValueError", "bad"), ("ValueError", "bad"), worlds=(2, 2))
    between, after = (find_unrecorded({0: 5, 1: 5}, ns) for ns in (15 * S, 40 * S))
    life = measure_life(trace.with_(journal=(*between, *after)))
    assert life is not None
    failures = life.attempts["failure"].to_list()
    assert failures[1] == "all 2 ranks failed before anything was recorded: exit code 5"
    assert failures[3] == failures[1]
    assert life.uses["ns"].sum() == life.wall_ns
    assert (len(failures), len(life.lives), life.numbers) == (4, 2, (1, 3))


def test_rank_that_recorded_nothing_belongs_to_the_attempt_of_the_others() -> None:
    """It died at its start, and the others noticed that they could not reach it."""
    refused = ("ConnectionRefusedError", "Connection refused")
    trace = write_restarted(("ValueError", "bad"), refused, worlds=(2, 1), failed_starts=[1])
    exits = find_unrecorded({1: 5}, 20 * S + 500 * MS)
    life = measure_life(trace.with_(journal=exits))
    assert life is not None
    assert life.attempts["failure"][1] == (
        "rank 1 failed first before anything was recorded: exit code 5"
    )


def test_process_that_recorded_later_is_not_counted_twice() -> None:
    """Its start was seen before its recording was."""
    trace = write_restarted(("ValueError", "bad"), None, worlds=(2, 2))
    begin_ns = WALL_BEGIN_NS + S
    exited = Exited(
        begin_ns + 12 * S, "worker", 0, "host", 100, begin_ns - S, 1, has_recorded=False
    )
    attempts = find_attempts(trace.with_(journal=(exited,)))
    assert [len(attempt.lives) for attempt in attempts] == [2, 2]


def test_failure_of_each_attempt_is_told_with_rank_step_message_and_line() -> None:
    trace = write_restarted(("RuntimeError", "cosmic ray"), None, worlds=(3, 2))
    life = measure_life(trace)
    assert life is not None
    failure = "rank 2 failed first in step 10: RuntimeError (cosmic ray) at <module> (train.py:9)"
    assert life.attempts["failure"].to_list() == [failure, None]
    shares = sum_shares(life)
    assert shares.failure == failure
    assert shares.worlds == (3, 2)
    assert describe_life(shares).startswith("2 attempts (attempt 2 with 2 of 3 ranks) in ")


def test_same_exception_of_all_ranks_is_one_failure_of_all() -> None:
    life = measure_life(write_restarted(("ValueError", "all"), None, worlds=(3, 3)))
    assert life is not None
    assert life.attempts["failure"][0].startswith("all 3 ranks failed in step 10: ValueError (all)")
    assert describe_life(sum_shares(life)).startswith("2 attempts in ")


def test_attempt_that_was_ended_from_outside_names_no_rank() -> None:
    life = measure_life(write_restarted(("SIGTERM", ""), None, worlds=(2, 2)))
    assert life is not None
    assert life.attempts["failure"][0] == "its ranks were ended from outside (SIGTERM)"


def test_exit_that_was_noticed_after_the_next_attempt_began_is_of_the_earlier_one() -> None:
    """A shell starts the job again at once; who looks after it looks once a second."""
    trace = write_restarted(("ValueError", "bad"), None, worlds=(3, 2))
    exits = [
        Exited(
            WALL_BEGIN_NS + 21 * S + 300 * MS,
            "worker",
            rank,
            "host",
            100 + rank,
            WALL_BEGIN_NS + S,
            1,
        )
        for rank in range(3)
    ]
    attempts = find_attempts(trace.with_(journal=tuple(exits)))
    assert [len(attempt.lives) for attempt in attempts] == [3, 2]
