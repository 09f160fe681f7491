"""Ranks that were started under `record` and do not begin to record are told, with what they do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from tracelens.schema.host import host_name
from tracelens.watch import sentences, starts
from tracelens.watch.stacks import Stacks
from tracelens.watch.starts import Absence, StartWatch, find_started_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

    from tracelens.watch.job import LiveJob

SLEEP = "import time; time.sleep(60)"
TORCHRUN = ("RANK", "WORLD_SIZE")
MPICH = ("PMI_RANK", "PMI_SIZE")


@contextmanager
def started(
    folder: Path, ranks: int, world: int, names: tuple[str, str] = TORCHRUN, program: str = SLEEP
) -> Iterator[list[int]]:
    """Start ranks as a launcher does; yield their pids."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={
                **os.environ,
                "TRACELENS_DIR": str(folder),
                names[0]: str(rank),
                names[1]: str(world),
            },
        )
        for rank in range(ranks)
    ]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def job_of_pids(*pids: int, world: int = 0) -> LiveJob:
    """Make a job in which these processes record."""
    members = [
        SimpleNamespace(process=SimpleNamespace(pid=pid), is_over=False, host=host_name())
        for pid in pids
    ]
    job: Any = SimpleNamespace(
        all_processes=members, ranks=dict(enumerate(members)), other_hosts={}, world=world
    )
    return cast("LiveJob", job)


def look_for(watch: StartWatch, job: LiveJob, looks: int = 3) -> Absence | None:
    """Look at moments 20 s apart, and wait for stacks."""
    now_ns = time.time_ns()
    for index in range(looks):
        absence = watch.look(job, now_ns + index * 20 * 10**9)
        while absence is None and watch._pending is not None:
            time.sleep(0.1)
            absence = watch.look(job, now_ns)
        if absence is not None:
            return absence
    return None


def test_ranks_are_found_by_their_environment(tmp_path: Path) -> None:
    with started(tmp_path, 2, 3) as pids, started(tmp_path / "other", 1, 1):
        ranks = find_started_ranks(tmp_path)
        assert {rank: one.pid for rank, one in ranks.items()} == dict(enumerate(pids))
        assert {one.world for one in ranks.values()} == {3}


def test_idle_ranks_are_told_once(tmp_path: Path) -> None:
    """Rank 0 records, rank 1 sleeps, and no process is there of rank 2."""
    with started(tmp_path, 2, 3, MPICH) as pids:
        watch, job = StartWatch(tmp_path), job_of_pids(pids[0], world=3)
        absence = look_for(watch, job)
        assert absence is not None
        assert (absence.ranks, absence.world, absence.unseen) == ((1,), 3, (2,))
        assert absence.idle_ns >= starts.MIN_IDLE_NS
        assert look_for(watch, job, looks=4) is None


def test_ranks_that_compute_are_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They import or compile, and may do so for five minutes."""
    cpu_ns = iter(range(0, 10**15, 5 * 10**9))
    monkeypatch.setattr(starts, "read_cpu_ns", lambda _pid: next(cpu_ns))
    with started(tmp_path, 2, 2):
        assert look_for(StartWatch(tmp_path), job_of_pids(), looks=15) is None
        assert look_for(StartWatch(tmp_path), job_of_pids(), looks=17) is not None


def test_ranks_that_all_record_are_not_looked_for(tmp_path: Path) -> None:
    with started(tmp_path, 2, 2) as pids:
        assert look_for(StartWatch(tmp_path), job_of_pids(*pids, world=2)) is None


def test_sentence_names_what_ranks_do() -> None:
    stacks = Stacks(
        {"2": ["clock_nanosleep (libc.so.6)", "<module> (train.py:2)"]}, {"0": "it ended"}
    )
    seconds = 10**9
    absence = Absence(
        (0, 2), 3, 50 * seconds, (2,), 33 * seconds, {0: 4 * seconds, 2: seconds}, (1,), stacks
    )
    begin = (
        "ranks 0 and 2 of 3, started 50.0 s ago, do not record yet; rank 2 has not computed for 33.0 s; "
        "no process of rank 1 is on this host"
    )
    assert sentences.describe_absence(absence).splitlines() == [
        begin,
        "rank 2: clock_nanosleep (libc.so.6) < <module> (train.py:2); computed for 1.00 s in all",
        "no stacks of rank 0: it ended",
    ]
