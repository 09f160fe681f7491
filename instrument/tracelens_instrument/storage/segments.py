"""Segments: memory-mapped files that hold records until they become Arrow.

Space is reserved when a segment is made: a full disk is then an error right away, instead of killing the
training by SIGBUS when a page is first touched. A killed process loses nothing, because its dirty
pages belong to the kernel.
"""

from __future__ import annotations

import mmap
import os
from functools import cache
from operator import length_hint
from sys import getrefcount
from threading import RLock

from tracelens.schema.record import BYTE_ORDER, HEADER, MAGIC, RECORD_BYTES
from tracelens.schema.vocabulary import SCHEMA_VERSION, SEGMENT_SUFFIX
from tracelens_instrument.core.backend import FREE_THREADED, NATIVE
from tracelens_instrument.core.failures import Tolerated
from tracelens_instrument.core.state import WORD
from tracelens_instrument.storage.descriptors import LimitsAsErrors, mapped

if NATIVE:
    from tracelens_instrument._native import Slots, redirect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Final, Self

    from tracelens_instrument.core.failures import Counter
    from tracelens_instrument.core.state import OpenRecording, Slot

__all__ = [
    "MIN_CONVERTED_SEGMENTS",
    "SEGMENT_BYTES",
    "Segment",
    "count_records",
    "create_segment",
    "sink",
]

# Small, so that bringing one into memory between two steps takes a tenth of a millisecond.
SEGMENT_BYTES: Final = 1 << 18
MIN_CONVERTED_SEGMENTS: Final = 20  # full ones: of fewer none becomes Arrow while training goes on
_DEFINITION_WORD: Final = RECORD_BYTES // 4 - 1  # of 4 bytes; the header has zeros there
_OWN_REFERENCES: Final = 2  # the segment's, and that of asking
_POPULATE_WRITE: Final = 23  # MADV_POPULATE_WRITE, which the mmap module does not name


class Segment:
    """Slots to write records into.

    ``next(segment.slots)`` reserves one and returns where it is, in one step that neither a thread nor a
    signal handler can come between; StopIteration says that the segment is full. A `Slot` is where a
    record begins, in words of 8 bytes and in bytes: ``segment.ends[word]`` is its end, what is before
    that its start. Whoever holds a segment may close its spans, also after it is full.
    """

    __slots__ = (
        "__weakref__",
        "_mapped_memory",
        "ends",
        "is_touched",
        "memory",
        "number",
        "path",
        "recording",
        "slots",
    )

    def __init__(
        self,
        memory: mmap.mmap | bytearray,
        recording: OpenRecording,
        *,
        path: Path | None = None,
        number: int = -1,
        slots: Iterator[Slot] | None = None,
    ) -> None:
        self.path = path
        self.number = number
        self._mapped_memory = memory
        self.memory = memoryview(memory)  # written to quicker than what it is a view of
        self.ends = _view_ends(memory)
        self.recording = recording
        self.is_touched = False
        self.slots = slots or _make_slots(memory)

    def count_free_slots(self) -> int:
        """Count the free slots."""
        return length_hint(self.slots)

    def touch(self) -> None:
        """Bring the pages into memory now, so that no span has to wait for them; once."""
        if not self.is_touched and isinstance(self._mapped_memory, mmap.mmap):
            self.is_touched = True
            with Tolerated(OSError):  # before Linux 5.14: they come when first written
                self._mapped_memory.madvise(_POPULATE_WRITE)

    def is_held(self) -> bool:
        """Return True if anything besides the segment itself refers to its slots."""
        return getrefcount(self.slots) > _OWN_REFERENCES

    def detach(self) -> None:
        """Redirect further writes to private memory (a forked child must not touch the file)."""
        scratch = bytearray(len(self.memory))
        self._mapped_memory = scratch
        self.memory = memoryview(scratch)
        self.ends = _view_ends(scratch)
        if NATIVE:
            redirect(self.slots, scratch)


def _view_ends(memory: mmap.mmap | bytearray) -> memoryview[int]:
    """Return the memory as words from the first record's end on."""
    return memoryview(memory)[8:].cast(WORD)


def _make_slots(memory: mmap.mmap | bytearray) -> Iterator[Slot]:
    if NATIVE:
        return Slots(memory)
    slots = iter(_list_slots(len(memory)))
    return _SharedSlots(slots) if FREE_THREADED else slots


_slots_by_size: dict[int, tuple[Slot, ...]] = {}


def _list_slots(size: int) -> tuple[Slot, ...]:
    """Return the slots of a segment, made once: spans would take longer to compute them."""
    slots = _slots_by_size.get(size)
    if slots is None:
        slots = tuple((offset // 8, offset) for offset in range(RECORD_BYTES, size, RECORD_BYTES))
        _slots_by_size[size] = slots
    return slots


class _SharedSlots:
    """Gives each slot once also where the GIL does not see to it."""

    def __init__(self, slots: Iterator[Slot]) -> None:
        self._slots = slots
        self._lock = RLock()  # a signal handler may come in between

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Slot:
        with self._lock:
            return next(self._slots)

    def __length_hint__(self) -> int:
        return length_hint(self._slots)


def create_segment(folder: Path, number: int, recording: OpenRecording) -> Segment:
    """Make segment `number` of a recording in `folder`, its space reserved, and write its header.

    Raises:
        OSError: there is no room, or the folder cannot be written.
    """
    segment_path = folder / f"{number:06d}{SEGMENT_SUFFIX}"
    descriptor = _new_file(segment_path)
    try:
        with LimitsAsErrors():
            os.posix_fallocate(descriptor, 0, SEGMENT_BYTES)
            os.pwrite(descriptor, _zeros(SEGMENT_BYTES), 0)
        memory = mapped(descriptor, SEGMENT_BYTES)
    except BaseException:
        segment_path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    capacity = SEGMENT_BYTES // RECORD_BYTES - 1
    HEADER.pack_into(
        memory, 0, MAGIC, BYTE_ORDER, SCHEMA_VERSION, RECORD_BYTES, capacity, os.getpid()
    )
    return Segment(memory, recording, path=segment_path, number=number)


@cache
def _zeros(size: int) -> bytes:
    """Return zeros without a copy: nothing is ever written to them.

    Written to a new file they bring its pages into memory in large pieces, without the GIL: a third of
    what it takes to map them one by one (ext4 on Linux 6.18).
    """
    return bytes(size)


def _new_file(file: Path) -> int:
    """Create a file exclusively; one that exists was left by an interrupted attempt."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    try:
        return os.open(file, flags, 0o644)
    except FileExistsError:
        file.unlink(missing_ok=True)
        return os.open(file, flags, 0o644)


def count_records(content: bytes) -> int:
    """Count the used slots of a segment."""
    definitions = memoryview(content).cast("I")[_DEFINITION_WORD :: RECORD_BYTES // 4]
    return len(definitions) - definitions.tolist().count(0)


def sink(recording: OpenRecording, lost: Counter) -> Segment:
    """Make a segment that counts its records and keeps none."""
    return Segment(bytearray(RECORD_BYTES), recording, slots=_NoSlots(lost))


class _NoSlots:
    """Returns the same slot each time, and counts how often."""

    def __init__(self, lost: Counter) -> None:
        self._lost = lost

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Slot:
        self._lost.add()
        return 0, 0

    def __length_hint__(self) -> int:
        return 0
