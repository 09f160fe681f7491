"""Jobs that the page Live watches, as `tracelens watch` does, without writing into their folders."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Final

from tracelens.watch.watcher import News, Watcher

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.watch.stalls import Stall
    from tracelens.watch.status import JobStatus

__all__ = ["JobView", "WatchedJobs"]

LOOK_EVERY_S: Final = 1.0  # seconds between two looks, however many pages ask [policy]
# seconds: a job for which no page has asked is watched no more [policy]
FORGET_AFTER_S: Final = 60.0
MAX_NEWS_SHOWN: Final = 50  # messages: older ones are forgotten [policy]


@dataclass(frozen=True)
class JobView:
    """What the last look at a job found; `status` is None before its first process.

    `timed_news` are (wall time in seconds, message), the newest first.
    """

    status: JobStatus | None
    stall: Stall | None
    timed_news: tuple[tuple[float, News], ...]


@dataclass(eq=False)
class _WatchedJob:
    watcher: Watcher
    timed_news: deque[tuple[float, News]] = field(
        default_factory=lambda: deque(maxlen=MAX_NEWS_SHOWN)
    )
    last_look_s: float = float("-inf")  # monotonic time
    last_request_s: float = 0.0  # monotonic time
    lock: Lock = field(default_factory=Lock)

    def look(self) -> JobView:
        """Return the state of the job, looked at again if the last look was long ago."""
        with self.lock:
            now_s = time.monotonic()
            if now_s - self.last_look_s >= LOOK_EVERY_S:
                self.last_look_s = now_s
                self.timed_news.extendleft((time.time(), item) for item in self.watcher.look())
            watcher = self.watcher
            return JobView(watcher.status, watcher.stall, tuple(self.timed_news))

    def close(self) -> None:
        with self.lock:
            self.watcher.close()


class WatchedJobs:
    """The jobs that pages watch now, by trace folder."""

    def __init__(self) -> None:
        self._jobs: dict[Path, _WatchedJob] = {}
        self._lock = Lock()

    def look(self, folder: Path) -> JobView:
        """Look at the job that records into a folder, and forget those that no page asks for."""
        now_s = time.monotonic()
        with self._lock:
            if folder not in self._jobs:
                self._jobs[folder] = _WatchedJob(Watcher(folder, is_writing=False))
            job = self._jobs[folder]
            job.last_request_s = now_s
            forgotten_folders = [
                other_folder
                for other_folder, other_job in self._jobs.items()
                if now_s - other_job.last_request_s > FORGET_AFTER_S
            ]
            forgotten_jobs = [self._jobs.pop(other_folder) for other_folder in forgotten_folders]
        for forgotten_job in forgotten_jobs:
            forgotten_job.close()
        return job.look()

    def close(self) -> None:
        """End all watches."""
        with self._lock:
            jobs = [self._jobs.pop(folder) for folder in list(self._jobs)]
        for job in jobs:
            job.close()
