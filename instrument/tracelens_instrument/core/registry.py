"""What a process names once: definitions, communicators, and rows of the thread table.

Numbers are fixed when something is first named and hold for the life of the process, in every
recording it makes, so that handles can be made before recording starts. A program that makes up names
without end gets the last ones as one.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from threading import RLock, local

from tracelens.schema.record import NO_INDEX, NO_SHORT
from tracelens.schema.side import MAX_NAME, Communicator, Definition, Thread, format_line
from tracelens_instrument.core.failures import Counter, warn_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Final

__all__ = ["LAST_THREAD", "MOST_CHARACTERS", "MOST_NAMES", "REGISTRY", "Registry"]

LAST_THREAD: Final = NO_SHORT
MOST_NAMES: Final = 1 << 16  # definitions, and as many groups
MOST_CHARACTERS: Final = 1 << 24  # of all names together; a member of a group counts as one

_OTHERS: Final = "(other names)"
_OTHER_THREADS: Final = Thread(LAST_THREAD, "(other threads)", in_flight=True)


class _Local(local):
    index: int


class Registry:
    """Assigns numbers, and passes each new row of the side file to a listener (the recording).

    `overflow_counter` counts what was to be named when there were too many names.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._definition_by_id: dict[int, Definition] = {}
        self._id_by_definition: dict[Definition, int] = {}
        self._unused_ids = itertools.count(1)
        self._communicators: list[tuple[str, list[int], int]] = []
        self._group_counts: dict[tuple[str, tuple[int, ...]], int] = {}
        self._tracks: dict[str, Thread] = {}
        self._threads = itertools.count()
        self._local = _Local()
        self._characters_left = MOST_CHARACTERS
        self._job = ""
        self._listener: Callable[[bytes], None] | None = None
        self.overflow_counter = Counter()

    def definition_id(
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
        return self.id_of(row)

    def id_of(self, row: Definition) -> int:
        """Return the number of a definition that was numbered elsewhere, or not at all."""
        key = replace(row, id=0)
        known = self._id_by_definition.get(key)
        return self._new_number(key) if known is None else known

    def _new_number(self, key: Definition) -> int:
        with self._lock:
            known = self._id_by_definition.get(key)
            if known is not None:
                return known
            if len(self._id_by_definition) >= MOST_NAMES or not self._reserve_characters(
                len(key.name)
            ):
                return self._number_of_overflow(key)
            return self._enter(key)

    def _enter(self, key: Definition) -> int:
        row = replace(key, id=next(self._unused_ids))
        self._pass_on(format_line("definitions", row))
        self._definition_by_id[row.id] = row
        self._id_by_definition[key] = row.id
        return row.id

    def _number_of_overflow(self, key: Definition) -> int:
        """Return the number of all names of this kind that there is no room for."""
        self._count_overflow()
        other = Definition(0, _OTHERS, key.kind, key.type, key.op)
        known = self._id_by_definition.get(other)
        return self._enter(other) if known is None else known

    def definition_of(self, number: int) -> Definition:
        """Return the definition of a number."""
        return self._definition_by_id[number]

    def communicator(self, ranks: Sequence[int], name: str) -> int:
        """Number a group of global ranks; each call makes a new group; -1 if there are too many."""
        members = [int(rank) for rank in ranks]
        with self._lock:
            index = len(self._communicators)
            if index >= MOST_NAMES or not self._reserve_characters(len(name) + len(members)):
                self._count_overflow()
                return NO_INDEX
            group = (name, tuple(members))
            equal_groups = self._group_counts.get(group, 0)  # so far
            self._communicators.append((name, members, equal_groups))
            self._group_counts[group] = equal_groups + 1
            self._pass_on(format_line("communicators", self._describe_communicator(index)))
            return index

    def track(self, name: str, device: int | None = None) -> int:
        """Return the thread table's row for operations in flight called `name`, which may be new."""
        name = name[:MAX_NAME]
        with self._lock:
            if name not in self._tracks:
                number = self._next_thread()
                if number == LAST_THREAD:
                    return number
                self._enter_track(Thread(number, name, in_flight=True, device=device))
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
        number = next(self._threads)
        if number < LAST_THREAD:
            return number
        with self._lock:
            if _OTHER_THREADS.name not in self._tracks:
                self._enter_track(_OTHER_THREADS)
        return LAST_THREAD

    def _enter_track(self, row: Thread) -> None:
        self._tracks[row.name] = row
        self._pass_on(format_line("threads", row))

    def listen(self, listener: Callable[[bytes], None], job: str) -> None:
        """Pass all rows of the side file so far, and each new one later, to `listener` as lines."""
        with self._lock:
            self._job = job  # part of the unique ids of communicators
            for definition in list(self._definition_by_id.values()):
                listener(format_line("definitions", definition))
            for index in range(len(self._communicators)):
                listener(format_line("communicators", self._describe_communicator(index)))
            for track_row in list(self._tracks.values()):
                listener(format_line("threads", track_row))
            self._listener = listener

    def stop_listening(self) -> None:
        """Stop passing rows to the listener."""
        self._listener = None

    def after_fork(self) -> None:
        """Replace a lock that another thread of the parent may have held."""
        self._lock = RLock()
        self._listener = None

    def _reserve_characters(self, characters: int) -> bool:
        """Reserve room for `characters` characters; return False if there is too little."""
        fits = characters <= self._characters_left
        if fits:
            self._characters_left -= characters
        return fits

    def _count_overflow(self) -> None:
        self.overflow_counter.add()
        warn_once(
            f"there are more than {MOST_NAMES:,} names, or {MOST_CHARACTERS:,} characters in names: "
            f"further ones are recorded as {_OTHERS!r}",
            "names",
        )

    def _pass_on(self, line: bytes) -> None:
        if self._listener is not None:
            self._listener(line)

    def _describe_communicator(self, index: int) -> Communicator:
        name, ranks, equal_groups = self._communicators[index]
        import hashlib  # noqa: PLC0415 - it loads OpenSSL, which takes long, and few have groups

        identity = repr((self._job, name, ranks, equal_groups)).encode()
        return Communicator(index, hashlib.sha256(identity).hexdigest()[:16], name, ranks)


REGISTRY: Final = Registry()
