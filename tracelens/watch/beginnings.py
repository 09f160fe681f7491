"""Jobs that never record: whether anything of them is left on this host, while nothing was recorded.

Each process of a recorded job has the trace folder in its environment, also the launcher. Processes of
other hosts, and of other users, are not seen. So a job whose processes were never seen may still begin.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from tracelens.watch.starts import find_pids

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["BeginningWatch", "Nothing"]

# ns: the processes of this host are looked through so often, as long as none records [policy]
LOOK_EVERY_NS: Final = 5 * 10**9
# ns: a watch reports once that nothing was recorded for so long [chosen]
REPORT_AFTER_NS: Final = 60 * 10**9
# ns: the job has ended if all of its processes were gone for so long; a loop may start it again [chosen]
MIN_ABSENCE_NS: Final = 15 * 10**9


@dataclass(frozen=True)
class Nothing:
    """Nothing was recorded for `waited_ns`; `pids` are the processes of the job on this host.

    `has_ended`: they are all gone, so that nothing will be recorded.
    """

    waited_ns: int
    pids: tuple[int, ...]
    has_ended: bool
    has_folder: bool

    def to_facts(self) -> dict[str, object]:
        """Return it as facts for programs."""
        return asdict(self)


class BeginningWatch:
    """Reports once that nothing was recorded for long, and once that a job ended without recording."""

    def __init__(self, folder: Path, begun_ns: int) -> None:
        self._folder = folder.absolute()
        self._begun_ns = begun_ns
        self._next_look_ns = begun_ns
        self._last_seen_ns: int | None = None
        self._is_reported = False
        self.has_ended = False

    def look(self, now_ns: int) -> Nothing | None:
        """Look if it is time, as long as nothing was recorded; return news of it, once."""
        if now_ns < self._next_look_ns or self.has_ended:
            return None
        self._next_look_ns = now_ns + LOOK_EVERY_NS
        pids = tuple(pid for pid in find_pids(self._folder) if pid != os.getpid())
        if pids:
            self._last_seen_ns = now_ns
        elif self._last_seen_ns is not None and now_ns - self._last_seen_ns >= MIN_ABSENCE_NS:
            self.has_ended = True
        waited_ns = now_ns - self._begun_ns
        if not self.has_ended and (self._is_reported or waited_ns < REPORT_AFTER_NS):
            return None
        self._is_reported = True
        return Nothing(waited_ns, pids, self.has_ended, self._folder.is_dir())
