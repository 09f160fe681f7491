"""Reads the live records of one process, each once, and again as long as its span is open."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tracelens.conversion.columns import SLOT, join_rows, pick_rows
from tracelens.conversion.folder import SLOT_BITS, SegmentFile, list_segment_files
from tracelens.errors import NotATrace
from tracelens.schema.gate import open_regular
from tracelens.schema.record import RECORD_BYTES
from tracelens.schema.vocabulary import SEGMENT_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import FileIO

    from tracelens.arrays import Flags, Ints, UInt32s
    from tracelens.conversion.columns import Records

__all__ = ["LiveSegments", "NewRecords"]

# segments that existed before the first look: a watch that begins late reads no more [policy]
MAX_SEGMENTS_AT_FIRST: Final = 256
# looks: a slot that stays empty so long was given back, and is not looked at again [chosen]
MAX_LOOKS_AT_EMPTY_SLOT: Final = 10
# slots: so many show whether a segment is in use from a slot on [policy]
_SLOTS_TO_PEEK: Final = 64


class _Part(NamedTuple):
    """Records, their origins, and whether they are spans that are still open, [record]."""

    records: Records
    origins: Ints
    is_open: Flags


class NewRecords(NamedTuple):
    """What changed since the last look, [record]; an origin is the number of a slot in a recording.

    `ended` are records of spans that have closed, and of counters and instants. `opened` are spans that
    are still open. `dropped_origins` are those of spans that were open and were taken back.
    """

    ended: Records
    ended_origins: Ints
    opened: Records
    opened_origins: Ints
    dropped_origins: Ints


@dataclass(eq=False)
class _SegmentReader:
    """An open segment file; `position` is the first slot that was never seen in use.

    `waiting_slots` before it are looked at again: their spans were open, or they were empty.
    `empty_looks` counts the looks at a slot since it was first found empty; 0 for an open span.
    """

    number: int
    file: FileIO
    slot_count: int
    position: int = 0
    waiting_slots: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    empty_looks: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    @classmethod
    def open(cls, segment: SegmentFile) -> _SegmentReader:
        """Open a segment.

        Raises:
            NotATrace, OSError: it cannot be read.
        """
        file = open_regular(segment.path, "segment")
        size = os.fstat(file.fileno()).st_size
        return cls(segment.number, file, max(size // RECORD_BYTES - 1, 0))

    @property
    def is_full(self) -> bool:
        """Whether every slot was seen in use."""
        return self.position >= self.slot_count

    def has_slots_in_use(self, first_slot: int = 0) -> bool:
        """Check whether one of some slots from `first_slot` on holds a record."""
        size = _SLOTS_TO_PEEK * RECORD_BYTES
        content = os.pread(self.file.fileno(), size, (first_slot + 1) * RECORD_BYTES)
        slots: Records = np.frombuffer(content, SLOT, count=len(content) // RECORD_BYTES)
        return bool(slots["definition"].any())

    def read(self, find_spans: Callable[[UInt32s], Flags], *, is_closed: bool) -> _Part:
        """Return the records that are new, or that waited and have changed.

        Args:
            find_spans: Returns True for each definition number of spans.
            is_closed: A later segment is in use, so the slots that are still empty are in no order.
        """
        first_slot = int(self.waiting_slots.min(initial=self.position))
        size = (self.slot_count - first_slot) * RECORD_BYTES
        content = os.pread(self.file.fileno(), size, (first_slot + 1) * RECORD_BYTES)
        slots: Records = np.frombuffer(content.ljust(size, b"\0"), SLOT)  # it may be cut off
        is_used = slots["definition"] != 0
        used_indices = np.flatnonzero(is_used)
        end_slot = first_slot + (int(used_indices[-1]) + 1 if len(used_indices) else 0)
        end_slot = max(self.slot_count if is_closed else end_slot, self.position)
        new_slots = np.arange(self.position, end_slot)
        slot_numbers = np.concatenate([self.waiting_slots, new_slots])
        looks = np.concatenate([self.empty_looks, np.zeros(len(new_slots), np.int64)])
        has_waited = np.arange(len(slot_numbers)) < len(self.waiting_slots)
        records = pick_rows(slots, slot_numbers - first_slot) if len(slot_numbers) else slots[:0]
        is_empty = records["definition"] == 0
        was_open = has_waited & (looks == 0)
        is_open = ~is_empty & (records["end_ns"] == 0)
        is_open[is_open] = find_spans(records["definition"][is_open])
        looks[is_empty] += 1
        is_waiting = is_open | (is_empty & ~was_open & (looks <= MAX_LOOKS_AT_EMPTY_SLOT))
        self.position = end_slot
        self.waiting_slots = slot_numbers[is_waiting]
        self.empty_looks = np.where(is_open, 0, looks)[is_waiting]
        is_news = (~is_empty & ~(is_open & was_open)) | (is_empty & was_open)
        origins = slot_numbers[is_news] + (self.number << SLOT_BITS)
        news = pick_rows(records, np.flatnonzero(is_news))
        return _Part(news, origins, is_open[is_news])


class LiveSegments:
    """Reads on in the segments of a folder, in the order in which they come into use.

    A segment stays open as long as it has open spans: it may become Arrow and be removed meanwhile, and
    its spans are still closed in it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._readers: dict[int, _SegmentReader] = {}
        self._spare: _SegmentReader | None = None  # the next segment, made ahead of its use
        numbers = [segment.number for segment in list_segment_files(folder) if segment.number >= 0]
        self._current = min(numbers[-MAX_SEGMENTS_AT_FIRST:], default=0) - 1

    def read_new(self, find_spans: Callable[[UInt32s], Flags]) -> NewRecords:
        """Return the records that are new or have changed since the last look.

        Args:
            find_spans: Returns True for each definition number of spans: only these end.
        """
        news_parts: list[_Part] = []
        for number, reader in sorted(self._readers.items()):
            news_parts.append(reader.read(find_spans, is_closed=number < self._current))
            self._close_if_done(reader)
        while (following := self._find_next()) is not None:
            current = self._readers.get(self._current)
            if current is not None and not current.is_full:
                news_parts.append(current.read(find_spans, is_closed=True))
            self._current, previous = following.number, current
            self._readers[following.number] = following
            news_parts.append(following.read(find_spans, is_closed=False))
            if previous is not None:
                self._close_if_done(previous)
        return _split_news(news_parts)

    def has_new_records(self) -> bool:
        """Check whether anything was recorded since the last reading, without reading it."""
        current = self._readers.get(self._current)
        if current is None or current.is_full or not current.has_slots_in_use(current.position):
            return self._spare is not None and self._spare.has_slots_in_use()
        return True

    def _close_if_done(self, reader: _SegmentReader) -> None:
        if reader.number < self._current and reader.is_full and not len(reader.waiting_slots):
            reader.file.close()
            del self._readers[reader.number]

    def close(self) -> None:
        """Close all files."""
        self._drop_spare()
        for reader in self._readers.values():
            reader.file.close()
        self._readers.clear()

    def _find_next(self) -> _SegmentReader | None:
        """Return a reader of the segment after the current one; None if none is in use."""
        current = self._readers.get(self._current)
        if current is not None and current.position == 0:
            return None
        spare = self._spare  # one that is in use is read on, also if its file was removed
        if spare is None or not (spare.has_slots_in_use() or os.path.exists(self._name_next())):  # noqa: PTH110
            self._drop_spare()
            self._spare = self._open_next()
        if self._spare is None or not self._spare.has_slots_in_use():
            return None
        following, self._spare = self._spare, None
        return following

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._spare.file.close()
            self._spare = None

    def _open_next(self) -> _SegmentReader | None:
        for segment in self._list_later():
            with suppress(NotATrace, OSError):
                return _SegmentReader.open(segment)
        return None

    def _name_next(self) -> str:
        """Return the path that the segment after the current one usually has."""
        return f"{self._folder}/{self._current + 1:06d}{SEGMENT_SUFFIX}"

    def _list_later(self) -> Iterator[SegmentFile]:
        """Yield segments after the current one; the folder is only listed if the next is missing."""
        path = Path(self._name_next())
        if path.exists():
            yield SegmentFile(self._current + 1, path)
        else:
            yield from (
                one for one in list_segment_files(self._folder) if one.number > self._current
            )


def _split_news(news_parts: list[_Part]) -> NewRecords:
    """Divide records into those that ended, those that are open, and those that were taken back."""
    records = join_rows([part.records for part in news_parts])
    origins = np.concatenate([np.empty(0, np.int64), *(part.origins for part in news_parts)])
    is_open = np.concatenate([np.empty(0, np.bool_), *(part.is_open for part in news_parts)])
    is_dropped = records["definition"] == 0
    is_ended = ~is_dropped & ~is_open
    return NewRecords(
        ended=pick_rows(records, np.flatnonzero(is_ended)),
        ended_origins=origins[is_ended],
        opened=pick_rows(records, np.flatnonzero(is_open)),
        opened_origins=origins[is_open],
        dropped_origins=origins[is_dropped],
    )
