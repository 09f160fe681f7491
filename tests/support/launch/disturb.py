"""Disturbs one rank of a recorded run from outside: by signals, or by a quota of a processor."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Final

from tracelens.schema.vocabulary import SEGMENTS_SUFFIX, parse_stem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Burden = Callable[[int, float], list[int]]

PATIENCE_S: Final = 60
LOOK_EVERY_S: Final = 0.05
STOPPED_S, RUNNING_S = 0.06, 0.09
LONG_STOP_S, LONG_RUN_S = 0.6, 2.4
GROUPS: Final = Path("/sys/fs/cgroup/cpu")
PERIOD_US: Final = 50_000
QUOTA: Final = 0.2  # of a processor


class Disturber:
    """Burdens a rank for a while, some seconds after it began to record.

    `moments_ns` are the truth: when it really was burdened, on the machine's monotonic clock.
    """

    def __init__(
        self, folder: Path, rank: int, burden: Burden, after_s: float, for_s: float
    ) -> None:
        self._folder, self._rank, self._burden = folder, rank, burden
        self._after_s, self._for_s = after_s, for_s
        self.moments_ns: list[int] = []

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Disturb beside the body."""
        thread = Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            thread.join()

    def _run(self) -> None:
        pid = _pid_of(self._folder, self._rank)
        if pid is None:
            return
        time.sleep(self._after_s)
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile: there is no truth then
            self.moments_ns = self._burden(pid, self._for_s)


def _pid_of(folder: Path, rank: int) -> int | None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        for place in folder.glob(f"*{SEGMENTS_SUFFIX}"):
            known = parse_stem(place.name)
            if known and known[:2] == ("worker", rank):
                return known[2]
        time.sleep(LOOK_EVERY_S)
    return None


def stop_repeatedly(
    pid: int, for_s: float, stop_s: float = STOPPED_S, run_s: float = RUNNING_S
) -> list[int]:
    """Stop a process for 60 ms again and again, as by a hypervisor that gives its processor away."""
    end, moments = time.monotonic() + for_s, []
    try:
        while time.monotonic() < end:
            moments.append(time.monotonic_ns())
            os.kill(pid, signal.SIGSTOP)
            time.sleep(stop_s)
            os.kill(pid, signal.SIGCONT)
            time.sleep(run_s)
    finally:
        os.kill(pid, signal.SIGCONT)
    return moments


def stopped_long(pid: int, for_s: float) -> list[int]:
    """Stop a process for 0.6 s of every 3 s, until it ends."""
    return stop_repeatedly(pid, for_s, LONG_STOP_S, LONG_RUN_S)


def throttled(pid: int, for_s: float) -> list[int]:
    """Let a process have a fifth of a processor, as a container with too small a limit (as root)."""
    begin_ns = time.monotonic_ns()
    group = GROUPS / f"tracelens-{pid}"
    group.mkdir()
    (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
    (group / "cpu.cfs_quota_us").write_text(str(round(QUOTA * PERIOD_US)))
    try:
        (group / "cgroup.procs").write_text(str(pid))
        time.sleep(for_s)
    finally:
        for member in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (GROUPS / "cgroup.procs").write_text(member)
        group.rmdir()
    return [*range(begin_ns, time.monotonic_ns(), PERIOD_US * 1000)]
