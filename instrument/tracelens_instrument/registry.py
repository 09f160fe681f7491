"""What a process names once: definitions, communicators, and rows of the thread table.

Numbers are fixed when something is first named and hold for the life of the process, in every
recording it makes, so that handles can be made before recording starts.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tracelens.schema.record import NO_SHORT
from tracelens.schema.side import MAX_NAME, Communicator, Definition, Thread, to_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["REGISTRY", "Registry"]

_LAST_THREAD: Final = NO_SHORT


class _Local(threading.local):
    index: int


class Registry:
    """Numbers things, and tells a listener (the recording) of each new row of the side file."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._definitions: dict[int, Definition] = {}
        self._numbers: dict[Definition, int] = {}
        self._unused = itertools.count(1)
        self._communicators: list[tuple[str, list[int], int]] = []
        self._tracks: dict[str, Thread] = {}
        self._threads = itertools.count()
        self._local = _Local()
        self._job = ""
        self._listener: Callable[[bytes], None] | None = None

    def definition(
        self,
        name: str,
        kind: str,
        event_type: str = "span",
        *,
        op: str | None = None,
        algorithm: str | None = None,
        communicator: int | None = None,
        shard: int | None = None,
    ) -> int:
        """Return the number of a definition; equal ones share it."""
        row = Definition(0, name[:MAX_NAME], kind, event_type, op, algorithm, communicator, shard)
        return self.number(row)

    def number(self, row: Definition) -> int:
        """Return the number of a definition that was numbered elsewhere, or not at all."""
        key = replace(row, id=0)
        known = self._numbers.get(key)
        return self._new_number(key) if known is None else known

    def _new_number(self, key: Definition) -> int:
        with self._lock:
            known = self._numbers.get(key)
            if known is not None:
                return known
            row = replace(key, id=next(self._unused))
            self._tell(to_line("definitions", row))
            self._definitions[row.id] = row
            self._numbers[key] = row.id
            return row.id

    def lookup(self, number: int) -> Definition:
        """Return what a number stands for."""
        return self._definitions[number]

    def communicator(self, ranks: Sequence[int], name: str) -> int:
        """Number a group of global ranks; each call stands for a new group."""
        members = [int(rank) for rank in ranks]
        with self._lock:
            index = len(self._communicators)
            earlier = sum(known[:2] == (name, members) for known in self._communicators)
            self._communicators.append((name, members, earlier))
            self._tell(to_line("communicators", self._communicator(index)))
            return index

    def track(self, name: str, device: int | None = None) -> int:
        """Number a row of the thread table for operations that run beside the code."""
        with self._lock:
            if name not in self._tracks:
                row = Thread(self._next_thread(), name, in_flight=True, device=device)
                self._tracks[name] = row
                self._tell(to_line("threads", row))
            return self._tracks[name].index

    def thread_index(self) -> int:
        """Return the calling thread's number, given when it first records."""
        try:
            return self._local.index
        except AttributeError:
            self._local.index = self._next_thread()
            return self._local.index

    def _next_thread(self) -> int:
        """Number a thread; the few numbers there are may run out, then the last is shared."""
        return min(next(self._threads), _LAST_THREAD)

    def listen(self, listener: Callable[[bytes], None], job: str) -> None:
        """Tell `listener` all rows known and, from now on, each new one."""
        with self._lock:
            self._job = job
            for definition in list(self._definitions.values()):
                listener(to_line("definitions", definition))
            for index in range(len(self._communicators)):
                listener(to_line("communicators", self._communicator(index)))
            for track in list(self._tracks.values()):
                listener(to_line("threads", track))
            self._listener = listener

    def deafen(self) -> None:
        """Tell nobody any more."""
        self._listener = None

    def after_fork(self) -> None:
        """Replace a lock that another thread of the parent may have held."""
        self._lock = threading.RLock()
        self._listener = None

    def _tell(self, line: bytes) -> None:
        if self._listener is not None:
            self._listener(line)

    def _communicator(self, index: int) -> Communicator:
        name, ranks, order = self._communicators[index]
        what = repr((self._job, name, ranks, order)).encode()
        return Communicator(index, hashlib.sha256(what).hexdigest()[:16], name, ranks)


REGISTRY: Final = Registry()
