"""Tasks that a rank hands out: who holds them how long, and what that says where steps do not."""

from typing import Any

import pytest
from support.runs.traces import call, span, trace_of

import tracelens as tl
from tracelens.accounting import phases
from tracelens.accounting.stages import find_server_rank
from tracelens.load import prepare
from tracelens.model.trace import Trace
from tracelens.verdicts.tasks import Tasks, measure_tasks

MS = 10**6
MESSAGE = MS // 10


def hand_out_tasks(
    lengths: list[int], count: int, *, last: int = 0, unasked: bool = False
) -> list[dict[str, Any]]:
    """Let rank 0 hand out tasks, which take worker r `lengths[r - 1]` ms, the last one `last` more.

    Each worker asks at first, or is given a first task unasked.
    """
    rows: list[dict[str, Any]] = []
    counts: dict[tuple[int, int], int] = {}

    def message(sender: int, receiver: int, posted: int, at: int) -> None:
        """Write one that is sent at a moment, and waited for from another on."""
        seq = counts[sender, receiver] = counts.get((sender, receiver), -1) + 1
        fields: dict[str, Any] = {
            "key": 1,
            "seq": seq,
            "communicator": "c",
            "bytes": 8,
            "thread": 0,
        }
        end = at + MESSAGE
        rows.append(span(sender, "reduction", at, end, op="send", peer=receiver, **fields))
        rows.append(span(receiver, "reduction", posted, end, op="recv", peer=sender, **fields))

    workers = range(1, len(lengths) + 1)
    free, server, given_count = dict.fromkeys(workers, MS), 0, 0
    for worker in workers if unasked else ():
        message(0, worker, 0, server)
        server += MESSAGE
        free[worker] = server + lengths[worker - 1] * MS
        given_count += 1
    for number in range(given_count, count + len(lengths)):
        worker = min(free, key=lambda one: free[one])
        asked = max(free.pop(worker), server)
        message(worker, 0, server, asked)
        answered = asked + MESSAGE
        message(0, worker, answered, answered)
        server = answered + MESSAGE
        if number < count:
            longer = last if number == count - 1 else 0
            free[worker] = server + (lengths[worker - 1] + longer) * MS
    return rows


def pool(lengths: list[int], count: int, *more: dict[str, Any], **how: Any) -> Trace:
    """Return a run of it, with some spans more."""
    rows = [*hand_out_tasks(lengths, count, **how), *more]
    ordered = sorted(rows, key=lambda row: (row["process"], row["start_ns"], -row["end_ns"]))
    return prepare(trace_of(ordered, ranks=len(lengths) + 1))


def tasks_of(trace: Trace) -> Tasks:
    """Find the tasks of a run."""
    found = measure_tasks(trace, phases.run(trace), find_server_rank(trace))
    assert found
    return found


@pytest.mark.parametrize("unasked", [False, True])
def test_who_holds_tasks_longest(*, unasked: bool) -> None:
    """Worker 2 makes fewer of them meanwhile, each for 12 ms."""
    tasks = tasks_of(pool([4, 12, 4], 40, unasked=unasked))
    assert {rank: int(ns[0]) for rank, ns in tasks.held_ns_by_rank.items()} == {
        1: 4 * MS,
        2: 12 * MS,
        3: 4 * MS,
    }
    assert sum(map(len, tasks.held_ns_by_rank.values())) == 40
    assert (tasks.server_rank, tasks.slowest_rank, tasks.slowness_ratio) == (0, 2, 3.0)
    assert tasks.is_slower
    assert not tasks.may_be_chance
    assert tasks.server_wait_share > 0.9


def test_few_tasks_may_be_long_by_chance() -> None:
    """Two of eight: which is no reason to call the run healthy."""
    trace = pool([4, 12, 4], 8)
    assert tasks_of(trace).may_be_chance
    verdict = tl.analyze(trace).verdict
    assert verdict.headline.endswith("3.0 times as long for a task, maybe by chance")
    assert "whether the worker is slow or its tasks are longer" in verdict.action


def test_machines_differ_a_little() -> None:
    """A tenth more for each task is no reason to doubt."""
    assert not tasks_of(pool([10, 11, 10], 200)).is_slower


def test_the_verdict_names_it() -> None:
    """Where there are too few steps to judge it."""
    verdict = tl.analyze(pool([4, 12, 4], 40)).verdict
    assert verdict.headline == "INCONCLUSIVE: rank 2 takes 3.0 times as long for a task"
    assert verdict.why.startswith("Rank 2 holds a task longest, for 12.0 ms (6 tasks); the others")
    assert "rank 0, which hands them out, waits 9" in verdict.why


def test_who_is_waited_for_but_takes_no_longer_is_said_so() -> None:
    """Of one step, which begins later on a rank: it takes as long there, not "0 ns" longer."""
    rows: list[dict[str, Any]] = []
    for rank in range(3):
        begin_ns = 20 * MS if rank == 1 else 0
        rows += [
            span(rank, "step", begin_ns, 80 * MS, step=0),
            span(rank, "forward", begin_ns, begin_ns + 50 * MS, step=0, depth=1),
            call(rank, 0, begin_ns + 50 * MS, 80 * MS, step=0, thread=0, depth=1),
        ]
    verdict = tl.analyze(prepare(trace_of(rows, 3))).verdict
    assert verdict.state == "inconclusive"
    assert "for rank 1, whose own time is no longer than that of the others." in verdict.why


def test_a_worker_that_has_taken_its_last_task_has_not_left() -> None:
    """The last task takes as long as fifty others, and the others are over before."""
    run_report = tl.analyze(pool([4, 7, 5], 201, last=200))
    assert [one.kind for one in run_report.findings] == []
    assert run_report.ledger
    assert run_report.ledger.unexplained < 0.05


def test_times_in_collectives_are_not_the_workers_own() -> None:
    """What is between a receive and a send that has a collective in it is no task."""
    pool_run = pool([4, 4, 4], 40)
    begin_ns = int(pool_run.program_messages.filter(rank=2, op="recv")["end_ns"].sort()[3]) + MS
    together = [call(rank, 0, begin_ns, begin_ns + MS, thread=1) for rank in range(4)]
    after = tasks_of(pool([4, 4, 4], 40, *together))
    assert len(after.held_ns_by_rank[2]) == len(tasks_of(pool_run).held_ns_by_rank[2]) - 1


def test_who_is_given_a_task_unasked_is_served_nevertheless() -> None:
    assert find_server_rank(pool([4, 4, 4], 12, unasked=True)) == 0
