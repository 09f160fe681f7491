"""Late ranks are named while the job runs, and once."""

import math
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tracelens.schema.host import host_name
from tracelens.schema.side import Process
from tracelens.schema.vocabulary import COLLECTIVES
from tracelens.watch.core_waits import CoreWaits
from tracelens.watch.job import JobProcess
from tracelens.watch.recording import Call, Step
from tracelens.watch.stragglers import Straggler, StragglerWatch

MS = 1_000_000
STEP_NS = 100 * MS
ALLREDUCE = COLLECTIVES.index("allreduce")


class Job:
    """Ranks whose steps end in an allreduce; each rank's clock has an offset of its own."""

    def __init__(self, ranks: int, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.offsets_ns = self.random.integers(0, 10**15, ranks)
        self.processes: dict[int, Any] = {
            rank: SimpleNamespace(
                is_over=False,
                rank=rank,
                recording=SimpleNamespace(steps=[], call_logs={"world": SimpleNamespace(calls={})}),
            )
            for rank in range(ranks)
        }
        self.step = 0

    def run(self, steps: int, straggler: int | None = None, lag_ns: int = 0) -> None:
        for _ in range(steps):
            work_ns = self.random.normal(60 * MS, MS, len(self.processes)).astype(np.int64)
            if straggler is not None:
                work_ns[straggler] += lag_ns
            begin_ns, end_ns = self.step * STEP_NS, self.step * STEP_NS + work_ns.max() + MS
            for rank, process in self.processes.items():
                offset_ns = int(self.offsets_ns[rank])
                entered_ns = begin_ns + int(work_ns[rank]) + offset_ns
                process.recording.steps.append(
                    Step(self.step, begin_ns + offset_ns, int(end_ns) + offset_ns)
                )
                process.recording.call_logs["world"].calls[self.step] = Call(
                    self.step, ALLREDUCE, self.step, -1, 8, 0, -1, entered_ns,
                    int(end_ns) + offset_ns,
                )  # fmt: skip
            self.step += 1


class FakeCoreWaits:
    """Ranks wait for cores for shares of all time; each step of theirs takes `STEP_NS`."""

    def __init__(self, *shares: float) -> None:
        self.shares = shares or (0.0,) * 8
        self.now_steps = 0

    def look(self, processes: dict[int, Any]) -> None:
        self.now_steps = len(processes[0].recording.steps)

    def measure_ns(self, member: Any, since_monotonic_ns: int) -> float:
        first_step_ns = member.recording.steps[0].start_ns
        length_ns = first_step_ns + self.now_steps * STEP_NS - since_monotonic_ns
        return float(self.shares[member.rank] * length_ns)


def watch_without_waits() -> StragglerWatch:
    return StragglerWatch(cast("CoreWaits", FakeCoreWaits()))


def watch(job: Job, stragglers: StragglerWatch, steps: int, **late: Any) -> list[Straggler]:
    """Run steps, with a look after every ten of them."""
    changes = []
    for _ in range(0, steps, 10):
        job.run(10, **late)
        changes += stragglers.look(job.processes)
    return changes


def test_rank_is_late_and_on_time_again() -> None:
    job, stragglers = Job(ranks=3, seed=1), watch_without_waits()
    assert watch(job, stragglers, 100) == []
    (alarm,) = watch(job, stragglers, 60, straggler=2, lag_ns=15 * MS)
    assert (alarm.rank, alarm.is_over) == (2, False)
    assert 100 <= alarm.first_step < alarm.last_step <= 130
    assert 0.1 < alarm.lag < 0.25
    assert watch(job, stragglers, 40, straggler=2, lag_ns=15 * MS) == []
    (resolved,) = watch(job, stragglers, 150)
    assert (resolved.rank, resolved.is_over) == (2, True)


def test_healthy_ranks_are_never_late() -> None:
    for seed in range(5):
        assert watch(Job(ranks=4, seed=seed), watch_without_waits(), 500) == []


def test_other_ranks_begin_anew() -> None:
    job, stragglers = Job(ranks=3, seed=2), watch_without_waits()
    watch(job, stragglers, 60, straggler=1, lag_ns=20 * MS)
    del job.processes[2]
    assert watch(job, stragglers, 60, straggler=1, lag_ns=20 * MS)[0].rank == 1


def test_rank_alone_is_never_late() -> None:
    assert watch(Job(ranks=1, seed=3), StragglerWatch(), 50) == []


@pytest.mark.parametrize("shares", [(0.05, 0.05, 0.2), (0.2, 0.2, 0.05), (0.0, 0.0, math.inf)])
def test_rank_that_may_wait_for_a_core_is_not_late(shares: tuple[float, ...]) -> None:
    """It comes 15 ms of 100 ms after its peers, and waits for cores may explain it."""
    stragglers = StragglerWatch(cast("CoreWaits", FakeCoreWaits(*shares)))
    job = Job(ranks=3, seed=4)
    assert watch(job, stragglers, 300, straggler=2, lag_ns=15 * MS) == []


def test_rank_that_is_later_than_waits_explain_is_late() -> None:
    """It comes 60 ms of 100 ms after its peers, and waits for a core for 20 ms."""
    stragglers = StragglerWatch(cast("CoreWaits", FakeCoreWaits(0.02, 0.02, 0.2)))
    job = Job(ranks=3, seed=5)
    assert [one.rank for one in watch(job, stragglers, 100, straggler=2, lag_ns=60 * MS)] == [2]


def test_waits_of_unlucky_ranks_raise_no_alarm() -> None:
    """Another rank for each 100 steps shares its core: it waits for 30 ms of each of these steps."""
    for seed in range(5):
        job, waits = Job(ranks=3, seed=seed), FakeCoreWaits(0.0, 0.0, 0.0)
        stragglers = StragglerWatch(cast("CoreWaits", waits))
        for unlucky_rank in (0, 2, 1, 2):
            waits.shares = tuple(0.35 * (rank == unlucky_rank) for rank in range(3))
            assert watch(job, stragglers, 100, straggler=unlucky_rank, lag_ns=30 * MS) == []


def test_waits_for_a_core_are_read() -> None:
    """Two processes share one core, so one of them waits while the other one runs."""
    core = min(os.sched_getaffinity(0))
    program = f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"
    spinners = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2)]
    try:
        waits = CoreWaits()
        member = _member_of(spinners[0].pid)
        begin_ns = time.time_ns()
        assert math.isinf(waits.measure_ns(member, begin_ns))
        for _ in range(2):
            waits.look({0: member})
            time.sleep(0.7)
        assert math.isinf(waits.measure_ns(member, begin_ns))
        waits.look({0: member})
        since_ns = time.time_ns() - 10**9
        assert waits.measure_ns(member, since_ns) > 10**8
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def _member_of(pid: int) -> Any:
    process = Process(host=host_name(), pid=pid, incarnation=time.time_ns())
    return JobProcess(process, None, Path("none"))
