"""Runs that are still recorded, or that change on disk: what is shown is read again meanwhile.

Only files are read, so a training goes on untouched; reading takes at most half of the time of a core,
as it waits between for as long as it took.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock, Thread
from typing import TYPE_CHECKING, Final

from tracelens.conversion.segments import is_live
from tracelens.distil.places import compute_fingerprint
from tracelens.errors import TraceLensError
from tracelens.readers.native.recordings import list_recordings
from tracelens.schema.vocabulary import TRACE_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_LEAST_S: Final = 0.5  # between two readings
_LOOK_EVERY_S: Final = 3.0  # at the files of a run that is complete, however many ask


@dataclass(frozen=True)
class Freshness:
    """How what is shown of a run stands to what is on disk.

    `edition_number` counts how often it was read again; `age_s` is the time since the last one began,
    None for a run that is not recorded any more. `is_missing`: the folder is gone; `is_replaced`:
    it holds other files, `is_unreadable` if these cannot be read.
    """

    edition_number: int = 0
    age_s: float | None = None
    is_missing: bool = False
    is_replaced: bool = False
    is_unreadable: bool = False


@dataclass(eq=False)
class FolderFollower:
    """Looks at a run's folder from time to time; digests are of its files (`fingerprint`)."""

    path: Path
    was_recorded: bool = False  # still, when it was read
    digest_as_read: str | None = None
    edition_number: int = 0
    _reading_begun_s: float = field(default_factory=time.monotonic)
    _reading_ended_s: float = field(default_factory=time.monotonic)
    reading_thread: Thread | None = None  # the last one
    _current_digest: str | None = None  # when it was last looked at
    _unreadable_digest: str | None = None  # of files that could not be read
    _last_look_s: float = 0.0
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        """Note the present files."""
        self.was_recorded = is_recorded(self.path)
        self.digest_as_read = self._current_digest = compute_fingerprint(self.path)

    def check_folder(self, read_again: Callable[[], None], *, paused: bool) -> Freshness:
        """Compare the run as read with its folder; call `read_again` in a thread, unless `paused`."""
        # A run that was still recorded is read again; a complete one if other files are there now.
        # A reading begins at the earliest when as much time has passed as the last one took.
        if not self.path.exists():
            return Freshness(self.edition_number, is_missing=True)
        with self._lock:
            now_s = time.monotonic()
            is_replaced = not self.was_recorded and self._find_digest(now_s) != self.digest_as_read
            is_unreadable = is_replaced and self._current_digest == self._unreadable_digest
            last_reading_s = self._reading_ended_s - self._reading_begun_s
            is_due = now_s - self._reading_ended_s >= max(last_reading_s, _LEAST_S)
            is_wanted = self.was_recorded or (is_replaced and not is_unreadable)
            if is_wanted and is_due and not paused and not self._is_reading:
                self.reading_thread = Thread(target=self._read, args=(read_again,), daemon=True)
                self.reading_thread.start()
            age_s = now_s - self._reading_begun_s if self.was_recorded else None
            return Freshness(
                self.edition_number, age_s, is_replaced=is_replaced, is_unreadable=is_unreadable
            )

    @property
    def _is_reading(self) -> bool:
        return self.reading_thread is not None and self.reading_thread.is_alive()

    def _find_digest(self, now_s: float) -> str | None:
        if now_s - self._last_look_s >= _LOOK_EVERY_S:
            self._current_digest, self._last_look_s = compute_fingerprint(self.path), now_s
        return self._current_digest

    def _read(self, read_again: Callable[[], None]) -> None:
        """Call `read_again`, and note the files as read, or as those that cannot be read."""
        begun_s = time.monotonic()
        # Before it is read: what comes later is read once more.
        was_recorded, digest = is_recorded(self.path), compute_fingerprint(self.path)
        try:
            read_again()
        except (TraceLensError, OSError):  # of a recording the next reading may find it whole
            self._unreadable_digest = digest
        else:
            self.was_recorded, self._reading_begun_s = was_recorded, begun_s
            self.digest_as_read = self._current_digest = digest
            self.edition_number += 1
        finally:
            self._reading_ended_s = time.monotonic()


def follow(path: Path) -> FolderFollower | None:
    """Return the follower of a run, if it is a folder that TraceLens records into."""
    return FolderFollower(path) if path.is_dir() and list_recordings(path) else None


def is_recorded(path: Path) -> bool:
    """Return True if a process of this machine still records into a folder."""
    if not path.is_dir():
        return False
    for recording in list_recordings(path):
        if not recording.name.endswith(TRACE_SUFFIX):
            with suppress(TraceLensError, OSError):
                if is_live(recording):
                    return True
    return False
