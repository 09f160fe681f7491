"""Who is accused of a stall, and when: after a pause that is longer than its kind may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from support.watch.jobs import S, enter, job_of, rank_of

from tracelens.watch.pauses import (
    BETWEEN_STEPS,
    END,
    MIN_PAUSES_TO_KNOW,
    UNKNOWN_LIMITS_NS,
    SeenPauses,
    pause_of_stack,
)
from tracelens.watch.stalls import StallDetector

if TYPE_CHECKING:
    from tracelens.watch.job import JobProcess
    from tracelens.watch.stalls import Stall

WORLD = [0, 1, 2]
DONE = (0, "allreduce", 1, 2)


def waiting_ranks(**facts: Any) -> list[JobProcess]:
    """Three ranks of which all but rank 1 are in their second call since second 10."""
    ranks = [enter(rank_of(rank), "w", WORLD, DONE) for rank in (0, 2)]
    for one in ranks:
        enter(one, "w", WORLD, (1, "allreduce", 10, None))
    return [*ranks, enter(rank_of(1, **facts), "w", WORLD, DONE)]


def judge(*ranks: JobProcess, at_s: float) -> Stall | None:
    return StallDetector().look(job_of(*ranks), int(at_s * S))


def test_the_rank_that_others_wait_for_is_the_culprit() -> None:
    assert judge(*waiting_ranks(), at_s=14) is None
    stall = judge(*waiting_ranks(), at_s=16)
    assert stall is not None
    assert (stall.culprits, stall.waiting, stall.since_ns) == ((1,), (0, 2), 2 * S)
    assert stall.call is not None
    assert (stall.call.op, stall.call.seq, stall.communicator) == ("allreduce", 1, "w")


def test_a_rank_that_makes_progress_is_no_culprit() -> None:
    """It computes for longer than the others, and closes spans."""
    assert judge(*waiting_ranks(progress_ns=29 * S), at_s=30) is None


def test_long_steps_have_long_pauses() -> None:
    """The usual step is a tenth of a second here, and 2 seconds there."""
    ranks = waiting_ranks()
    for one in ranks:
        recording = cast("Any", one.recording)
        recording.steps = [step._replace(end_ns=step.start_ns + 2 * S) for step in recording.steps]
    assert judge(*ranks, at_s=29) is None
    assert judge(*ranks, at_s=31) is not None


@pytest.mark.parametrize("kind", [kind for kind in UNKNOWN_LIMITS_NS if kind != END])
def test_a_pause_of_its_own_kind_has_a_limit_of_its_own(kind: str) -> None:
    """None of it was seen before."""
    limit_s = UNKNOWN_LIMITS_NS[kind] / S
    step_count = 0 if kind == "start" else 100
    ranks = waiting_ranks(pause=kind, step_count=step_count)
    assert judge(*ranks, at_s=10 + limit_s - 1) is None
    assert judge(*ranks, at_s=10 + limit_s + 1) is not None


def test_a_pause_may_take_twice_as_long_as_the_longest_so_far() -> None:
    """With one checkpoint less than enough it is not known how long one takes; here up to 8 s."""
    few = MIN_PAUSES_TO_KNOW - 1
    ranks = waiting_ranks(pause="checkpoint", pauses={"checkpoint": SeenPauses(few + 1, 8 * S)})
    assert judge(*ranks, at_s=25) is None
    assert judge(*ranks, at_s=27) is not None
    ranks = waiting_ranks(pause="checkpoint", pauses={"checkpoint": SeenPauses(few, 8 * S)})
    assert judge(*ranks, at_s=27) is None


def test_a_pause_that_ended_teaches_its_kind() -> None:
    """Between two steps nothing was recorded for 25 s, as rank 1 evaluated."""
    detector = StallDetector()
    alone = rank_of(0, progress_ns=10 * S, pause=BETWEEN_STEPS)
    assert detector.look(job_of(alone), 39 * S) is None
    cast("Any", alone.recording).progress_ns = 35 * S
    assert detector.look(job_of(alone), 36 * S) is None
    assert detector.look(job_of(alone), 84 * S) is None
    assert detector.look(job_of(alone), 86 * S) is not None


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"state": "stopped"}, "is stopped"),
        ({"state": "gone", "is_over": True}, "has died"),
        ({"is_complete": True, "is_over": True}, "has ended its recording"),
    ],
)
def test_what_will_not_go_on_is_accused_at_once(facts: dict[str, Any], reason: str) -> None:
    """Whatever kind of pause it makes."""
    stall = judge(*waiting_ranks(pause="checkpoint", **facts), at_s=16)
    assert stall is not None
    assert (stall.culprits, stall.reason) == ((1,), reason)


def test_a_process_that_died_in_a_call_is_not_in_it_any_more() -> None:
    ranks = waiting_ranks(state="gone", is_over=True)
    enter(ranks[2], "w", WORLD, (1, "allreduce", 10, None))
    stall = judge(*ranks, at_s=16)
    assert stall is not None
    assert stall.culprits == (1,)


def test_another_operation_under_the_same_number() -> None:
    ranks = waiting_ranks()
    enter(ranks[2], "w", WORLD, (1, "broadcast", 10, None))
    stall = judge(*ranks, at_s=16)
    assert stall is not None
    assert (stall.culprits, stall.reason, stall.other_op) == (
        (1,),
        "made another call",
        "broadcast",
    )
    assert stall.call is not None
    assert stall.call.op == "allreduce"


def test_two_ranks_that_make_different_calls() -> None:
    first = enter(rank_of(0), "w", [0, 1], (0, "allreduce", 10, None))
    second = enter(rank_of(1), "w", [0, 1], (0, "broadcast", 10, None))
    stall = judge(first, second, at_s=16)
    assert stall is not None
    assert (stall.culprits, stall.reason) == ((0, 1), "made different calls")


def test_a_victim_in_another_group_is_no_culprit() -> None:
    """Rank 0 waits for rank 1 in the world, which waits for rank 3 in a pair."""
    ranks = waiting_ranks()
    enter(ranks[2], "pair", [1, 3], (0, "allreduce", 4, None))
    ranks.append(enter(rank_of(3), "pair", [1, 3]))
    stall = judge(*ranks, at_s=16)
    assert stall is not None
    assert (stall.culprits, stall.waiting) == ((3,), (1,))


def test_two_groups_wait_for_each_other() -> None:
    """Two ranks entered two communicators in different order."""
    first = enter(rank_of(0), "a", [0, 1], (0, "allreduce", 10, None))
    second = enter(rank_of(1), "b", [0, 1], (0, "allreduce", 10, None))
    enter(first, "b", [0, 1])
    enter(second, "a", [0, 1])
    stall = judge(first, second, at_s=16)
    assert stall is not None
    assert (stall.culprits, stall.reason) == ((0, 1), "wait for each other")


def test_all_are_in_a_call_that_does_not_complete() -> None:
    ranks = [enter(rank_of(rank), "w", WORLD, (0, "allreduce", 10, None)) for rank in WORLD]
    stall = judge(*ranks, at_s=16)
    assert stall is not None
    assert (stall.culprits, stall.waiting) == ((), (0, 1, 2))


def test_a_receive_waits_for_its_sender() -> None:
    """Rank 0 receives from rank 1, which does nothing."""
    receiver = rank_of(0, progress_ns=10 * S, messages=[("w", "recv", 1, 5)])
    stall = judge(receiver, rank_of(1), at_s=16)
    assert stall is not None
    assert (stall.culprits, stall.waiting) == ((1,), (0,))


def test_a_pause_that_a_stack_explains_is_judged_by_its_kind() -> None:
    """Until there is progress."""
    detector, ranks = StallDetector(), waiting_ranks()
    stall = detector.look(job_of(*ranks), 16 * S)
    assert stall is not None
    detector.excuse(stall, {1: ranks[2]}, "checkpoint")
    limit_s = 10 + UNKNOWN_LIMITS_NS["checkpoint"] // S
    assert detector.look(job_of(*ranks), (limit_s - 1) * S) is None
    assert detector.look(job_of(*ranks), (limit_s + 1) * S) is not None


@pytest.mark.parametrize(
    ("frame", "pause"),
    [
        ("save (torch/serialization.py:966)", "checkpoint"),
        ("save_model (train.py:3)", "checkpoint"),
        ("evaluate (train.py:3)", "evaluation"),
        ("compile_fx (torch/_inductor/compile_fx.py:7)", "start"),
        ("load_features (train.py:3)", None),
        ("main (retrieval.py:3)", None),
    ],
)
def test_stacks_show_pauses(frame: str, pause: str | None) -> None:
    assert pause_of_stack(["read (io.py:1)", frame, "<module> (train.py:9)"]) == pause


def test_a_rank_on_another_host_is_not_accused() -> None:
    """Its calls are not seen here: it may be in them."""
    ranks = [enter(rank_of(rank), "w", WORLD, (0, "allreduce", 10, None)) for rank in (1, 2)]
    stall = StallDetector().look(job_of(*ranks, other_hosts={0: "far"}), 16 * S)
    assert stall is not None
    assert (stall.culprits, stall.waiting) == ((), (1, 2))
    enter(ranks[0], "w", WORLD, (0, "allreduce", 10, 11))
    ranks[1] = enter(rank_of(2), "w", WORLD, (0, "allreduce", 10, 11))
    enter(ranks[0], "w", WORLD, (1, "allreduce", 12, None))
    stall = StallDetector().look(job_of(*ranks, other_hosts={0: "far"}), 20 * S)
    assert stall is not None
    assert stall.culprits == (2,)


def test_a_stall_lasts_until_there_is_progress() -> None:
    """It is the same one meanwhile, so that it is reported once."""
    detector, ranks = StallDetector(), waiting_ranks()
    stall = detector.look(job_of(*ranks), 16 * S)
    assert stall is not None
    assert detector.look(job_of(*ranks), 60 * S) is stall
    enter(ranks[2], "w", WORLD, (1, "allreduce", 61, None))
    assert detector.look(job_of(*ranks), 62 * S) is stall
    for one in ranks:
        enter(one, "w", WORLD, (1, "allreduce", 61, 62))
    assert detector.look(job_of(*ranks), 63 * S) is None
    assert not detector.has_ended


def test_a_call_that_fails_does_not_go_on() -> None:
    """It timed out; the ranks clean up and end one after the other, and the last one is ended."""
    detector, ranks = StallDetector(), waiting_ranks()
    stall = detector.look(job_of(*ranks), 16 * S)
    assert stall is not None
    for one in ranks[:2]:
        enter(one, "w", WORLD, (1, "allreduce", 10, -40))
        assert detector.look(job_of(*ranks), 41 * S) is stall
        one.is_over = one.is_complete = True
        assert detector.look(job_of(*ranks), 42 * S) is stall
    ranks[2].is_over = True
    assert detector.look(job_of(*ranks), 60 * S) is None
    assert detector.has_ended


def test_the_end_of_the_recording_of_the_culprit_is_no_progress() -> None:
    """An exception left its step, and it cleans up for a while before it ends."""
    detector, ranks = StallDetector(), waiting_ranks()
    stall = detector.look(job_of(*ranks), 16 * S)
    cast("Any", ranks[2].recording).progress_ns = 20 * S
    ranks[2].is_over = ranks[2].is_complete = True
    assert detector.look(job_of(*ranks), 21 * S) is stall
    assert stall is not None


def test_ranks_that_are_started_again_have_not_resumed() -> None:
    detector, ranks = StallDetector(), waiting_ranks()
    assert detector.look(job_of(*ranks), 16 * S) is not None
    again = [rank_of(rank, incarnation=30 * S, progress_ns=32 * S) for rank in range(3)]
    assert detector.look(job_of(*again), 33 * S) is None
    assert detector.has_ended


def test_a_job_without_calls_resumes_with_its_next_step() -> None:
    detector, alone = StallDetector(), rank_of(0, progress_ns=10 * S)
    stall = detector.look(job_of(alone), 60 * S)
    assert stall is not None
    cast("Any", alone.recording).progress_ns = 61 * S
    assert detector.look(job_of(alone), 62 * S) is stall
    cast("Any", alone.recording).completed_ns = 62 * S
    assert detector.look(job_of(alone), 63 * S) is None
    assert not detector.has_ended


def test_the_end_of_a_job_is_no_stall() -> None:
    """Two ranks have ended, the third still saves."""
    ended = [rank_of(rank, is_over=True, is_complete=True, state="gone") for rank in (0, 2)]
    assert judge(*ended, rank_of(1), at_s=200) is None
    assert judge(*ended, rank_of(1), at_s=400) is not None
