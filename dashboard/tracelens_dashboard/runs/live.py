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
from tracelens.distil.places import fingerprint
from tracelens.errors import TraceLensError
from tracelens.readers.native.recordings import recordings
from tracelens.schema.vocabulary import TRACE_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_LEAST_S: Final = 0.5  # between two readings
_LOOKED_S: Final = 3.0  # between two looks at the files of a run that is complete, however many ask


@dataclass(frozen=True)
class Standing:
    """How what is shown stands to what is on disk.

    `edition` counts how often it was read again, `age_s` is since when the last reading began, null for
    a run that is not recorded any more. `missing`: the folder is gone; `replaced`: it holds other files,
    `unreadable` if these cannot be read.
    """

    edition: int = 0
    age_s: float | None = None
    missing: bool = False
    replaced: bool = False
    unreadable: bool = False


@dataclass(eq=False)
class Followed:
    """A run whose folder is looked at from time to time."""

    path: Path
    recorded: bool = False  # when it was read
    digest: str | None = None
    edition: int = 0
    _begun: float = field(default_factory=time.monotonic)
    _ended: float = field(default_factory=time.monotonic)
    reading: Thread | None = None  # the last one
    _now: str | None = None  # the digest when it was last looked at,
    _refused: str | None = None  # and that of files that could not be read
    _looked: float = 0.0
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        """Note the present files."""
        self.recorded = is_recorded(self.path)
        self.digest = self._now = fingerprint(self.path)

    def look(self, read_again: Callable[[], None], *, paused: bool) -> Standing:
        """Return its standing; read a growing run again in the background, unless `paused`."""
        if not self.path.exists():
            return Standing(self.edition, missing=True)
        with self._lock:
            now_s = time.monotonic()
            is_replaced = not self.recorded and self._digest_at(now_s) != self.digest
            is_unreadable = is_replaced and self._now == self._refused
            is_due = now_s - self._ended >= max(self._ended - self._begun, _LEAST_S)
            is_wanted = self.recorded or (is_replaced and not is_unreadable)
            if is_wanted and is_due and not paused and not self._is_reading:
                self.reading = Thread(target=self._read, args=(read_again,), daemon=True)
                self.reading.start()
            age_s = now_s - self._begun if self.recorded else None
            return Standing(self.edition, age_s, replaced=is_replaced, unreadable=is_unreadable)

    @property
    def _is_reading(self) -> bool:
        return self.reading is not None and self.reading.is_alive()

    def _digest_at(self, now_s: float) -> str | None:
        if now_s - self._looked >= _LOOKED_S:
            self._now, self._looked = fingerprint(self.path), now_s
        return self._now

    def _read(self, read_again: Callable[[], None]) -> None:
        """Read the run again; note the files as read, or as those that cannot be read."""
        begun_s = time.monotonic()
        # Before it is read: what comes later is read once more.
        was_recorded, digest = is_recorded(self.path), fingerprint(self.path)
        try:
            read_again()
        except (TraceLensError, OSError):  # of a recording the next reading may find it whole
            self._refused = digest
        else:
            self.recorded, self._begun = was_recorded, begun_s
            self.digest = self._now = digest
            self.edition += 1
        finally:
            self._ended = time.monotonic()


def follow(path: Path) -> Followed | None:
    """Return the follower of a run, if it is a folder that TraceLens records into."""
    return Followed(path) if path.is_dir() and recordings(path) else None


def is_recorded(path: Path) -> bool:
    """Return True if a process of this machine still records into a folder."""
    if not path.is_dir():
        return False
    for recording in recordings(path):
        if not recording.name.endswith(TRACE_SUFFIX):
            with suppress(TraceLensError, OSError):
                if is_live(recording):
                    return True
    return False
