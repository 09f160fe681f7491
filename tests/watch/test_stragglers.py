"""Late ranks are named while the job runs, and once."""

import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest
from support.watch.late_ranks import (
    MS,
    FakeCoreWaits,
    LateRanksJob,
    make_straggler_watch,
    watch_steps,
)

from tracelens.schema.host import host_name
from tracelens.schema.side import Process
from tracelens.watch.core_waits import CoreWaits
from tracelens.watch.job import JobProcess
from tracelens.watch.stragglers import StragglerWatch


def test_rank_is_late_and_on_time_again() -> None:
    job, stragglers = LateRanksJob(ranks=3, seed=1), make_straggler_watch()
    assert watch_steps(job, stragglers, 100) == []
    (alarm,) = watch_steps(job, stragglers, 60, straggler=2, lag_ns=15 * MS)
    assert (alarm.rank, alarm.is_over) == (2, False)
    assert 100 <= alarm.first_step < alarm.last_step <= 130
    assert 0.1 < alarm.lag < 0.25
    assert watch_steps(job, stragglers, 40, straggler=2, lag_ns=15 * MS) == []
    (resolved,) = watch_steps(job, stragglers, 150)
    assert (resolved.rank, resolved.is_over) == (2, True)


def test_healthy_ranks_are_never_late() -> None:
    for seed in range(5):
        assert watch_steps(LateRanksJob(ranks=4, seed=seed), make_straggler_watch(), 500) == []


def test_other_ranks_begin_anew() -> None:
    job, stragglers = LateRanksJob(ranks=3, seed=2), make_straggler_watch()
    watch_steps(job, stragglers, 60, straggler=1, lag_ns=20 * MS)
    del job.processes[2]
    assert watch_steps(job, stragglers, 60, straggler=1, lag_ns=20 * MS)[0].rank == 1


def test_rank_alone_is_never_late() -> None:
    assert watch_steps(LateRanksJob(ranks=1, seed=3), make_straggler_watch(), 50) == []


@pytest.mark.parametrize("shares", [(0.05, 0.05, 0.2), (0.2, 0.2, 0.05), (0.0, 0.0, math.inf)])
def test_rank_that_may_wait_for_a_core_is_not_late(shares: tuple[float, ...]) -> None:
    """It comes 15 ms of 100 ms after its peers, and waits for cores may explain it."""
    stragglers = make_straggler_watch(*shares)
    job = LateRanksJob(ranks=3, seed=4)
    assert watch_steps(job, stragglers, 300, straggler=2, lag_ns=15 * MS) == []


def test_rank_that_is_later_than_waits_explain_is_late() -> None:
    """It comes 60 ms of 100 ms after its peers, and waits for a core for 20 ms."""
    stragglers = make_straggler_watch(0.02, 0.02, 0.2)
    job = LateRanksJob(ranks=3, seed=5)
    assert [one.rank for one in watch_steps(job, stragglers, 100, straggler=2, lag_ns=60 * MS)] == [
        2
    ]


def test_waits_of_unlucky_ranks_raise_no_alarm() -> None:
    """Another rank for each 100 steps shares its core: it waits for 30 ms of each of these steps."""
    for seed in range(5):
        job, waits = LateRanksJob(ranks=3, seed=seed), FakeCoreWaits(0.0, 0.0, 0.0)
        stragglers = StragglerWatch(cast("CoreWaits", waits))
        for unlucky_rank in (0, 2, 1, 2):
            waits.shares = tuple(0.35 * (rank == unlucky_rank) for rank in range(3))
            assert watch_steps(job, stragglers, 100, straggler=unlucky_rank, lag_ns=30 * MS) == []


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
