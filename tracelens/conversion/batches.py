"""Turns the records of a recording into batches of rows, however long it is, with little memory.

Records come nearly in the order in which they began: chunk by chunk, each with a look ahead at the
next. While the recording goes on, what may still change is handed back, to be fed again with the next
chunk.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np

from tracelens.conversion.columns import (
    FOREVER,
    UNKNOWN_DEPTH,
    OnDevice,
    RecordChunk,
    depths,
    ends_of,
    join,
    pick,
    split_fields,
    to_batch,
)
from tracelens.conversion.definitions import TYPES, UNKNOWN, Meanings, meanings_of
from tracelens.conversion.folder import Progress
from tracelens.conversion.retention import SampledEvents, Sampling, groups, phases, thin
from tracelens.schema.rules import NEGATIVE
from tracelens.schema.vocabulary import OUTLASTED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa

    from tracelens.arrays import Array, Flags, Indices, Int32s, Ints
    from tracelens.conversion.columns import Fields, Records
    from tracelens.schema.side import Definition, Retention, Thread

__all__ = ["BATCH_ROWS", "ChunkMode", "Conversion"]

BATCH_ROWS: Final = 1 << 16
_MOST_WAITING: Final = 1 << 20  # records that wait for their turn
_MOST_KEPT: Final = 24 << 20  # bytes
_MOST_REACHING: Final = 1 << 16  # depths end there, too
_SPAN, _DEVICE = TYPES.index("span"), TYPES.index("device")


class ChunkMode(NamedTuple):
    """How a chunk is to be converted.

    `hold` back what may change; `last`: there is no more; spans of some origins
    (`released`) are not held any longer.
    """

    hold: bool = False
    last: bool = False
    released: Ints = np.empty(0, np.int64)


class _Spans(NamedTuple):
    """Events as the search for what lies around them needs them; `row` of the meanings."""

    thread: Array
    start: Ints
    end: Ints
    step: Array
    row: Array

    @classmethod
    def none(cls) -> Self:
        return cls(*(np.empty(0, np.int64) for _ in cls._fields))

    def and_(self, other: _Spans) -> _Spans:
        return _Spans(*map(np.append, self, other)) if len(self.start) else other

    def take(self, where: Indices) -> _Spans:
        return _Spans(*(values[where] for values in self))


class Conversion:
    """Makes batches of the records fed to it, and passes them to `sink`.

    It goes on where `folder` says that an earlier one stopped, and counts on from there.
    """

    def __init__(
        self,
        sink: Callable[[pa.RecordBatch], None],
        retention: Retention,
        progress: Progress | None = None,
        *,
        batch_rows: int = BATCH_ROWS,
        max_waiting: int = _MOST_WAITING,
    ) -> None:
        _keep_memory()
        self._batch_rows = batch_rows
        self._max_waiting = max_waiting
        earlier_progress = progress or Progress()
        self.lost = Counter(earlier_progress.lost)
        self.thinned = Counter(earlier_progress.thinned)
        self.latest_ns = earlier_progress.latest_ns
        self.sorted = earlier_progress.sorted
        self._sink = sink
        every = retention.every
        self._sampling = None if every is None else Sampling(every, retention.burst)
        self._around = _Spans.none()
        self._waiting = RecordChunk.concatenated(())
        self._device: list[Records] = []
        self._known = 0
        self._meanings: Meanings = meanings_of(())
        self._in_flight = np.zeros(1, np.bool_)

    def learn(self, definitions: Sequence[Definition], threads: Iterable[Thread]) -> None:
        """Take the definitions of the numbers in records: all those of before, and more."""
        if len(definitions) != self._known:
            self._known = len(definitions)
            self._meanings = meanings_of(definitions)
        flying = [row.index for row in threads if row.in_flight]
        self._in_flight = np.zeros(max(flying, default=-1) + 2, np.bool_)
        self._in_flight[flying] = True

    def knows_all(self, records: Records) -> bool:
        """Return True if the definitions of all these records are known."""
        return bool((self._meanings.rows(records["definition"]) != UNKNOWN).all())

    def feed(self, chunk: RecordChunk, ahead: Records, mode: ChunkMode) -> RecordChunk:
        """Convert a chunk; return what is held back, with its depths.

        Args:
            chunk: What comes next, and what was held back before.
            ahead: What comes after it. Unless something may be held back, nothing that begins later
                is converted before it, so that rows are sorted.
            mode: How.
        """
        events, on_device = self._events(chunk, ahead)
        pool = RecordChunk.concatenated([self._waiting, events]).sorted()
        count = self._ready_count(pool.records["start_ns"], ahead, mode)
        self._waiting = pool.slice_rows(count, None)
        ready_chunk = pool.slice_rows(0, count)
        return self._convert(ready_chunk, on_device, mode) if count else ready_chunk

    def _events(self, chunk: RecordChunk, ahead: Records) -> tuple[RecordChunk, OnDevice]:
        """Separate what is no event, or none that makes sense, and count the latter."""
        rows = self._meanings.rows(chunk.records["definition"])
        types = self._meanings.type[rows]
        ends_ns = chunk.records["end_ns"]
        is_known = rows != UNKNOWN
        is_forward = (
            (types != _SPAN) | (ends_ns == 0) | (np.abs(ends_ns) >= chunk.records["start_ns"])
        )
        self.lost["unknown definition"] += len(rows) - int(is_known.sum())
        self.lost[NEGATIVE] += int((is_known & ~is_forward).sum())
        events = chunk.where(is_known & is_forward & (types != _DEVICE))
        if not self._meanings.times_devices:
            return events, OnDevice.from_records(None)
        is_device_time = self._meanings.type[self._meanings.rows(ahead["definition"])] == _DEVICE
        self._device = [*self._device[-1:], pick(chunk.records, np.flatnonzero(types == _DEVICE))]
        device_records = [*self._device, pick(ahead, np.flatnonzero(is_device_time))]
        return events, OnDevice.from_records(join(device_records))

    def _ready_count(self, starts: Ints, ahead: Records, mode: ChunkMode) -> int:
        """Return the number of sorted records to convert now."""
        if mode.hold or mode.last or len(starts) > self._max_waiting or not len(ahead):
            return len(starts)
        return int(np.searchsorted(starts, ahead["start_ns"].min()))

    def _convert(self, chunk: RecordChunk, on_device: OnDevice, mode: ChunkMode) -> RecordChunk:
        fields = split_fields(chunk.records)
        rows = self._meanings.rows(fields["definition"])
        types = self._meanings.type.take(rows)
        ends = ends_of(fields, types)
        chunk_spans = _Spans(fields["thread"], fields["start_ns"], ends, fields["step"], rows)
        spans = self._around.and_(chunk_spans)
        remembered_count = len(self._around.start)
        all_depths = depths(spans.thread, spans.start, spans.end)
        depth = np.where(chunk.depth == UNKNOWN_DEPTH, all_depths[remembered_count:], chunk.depth)
        is_open = (ends == FOREVER) & (types == _SPAN)
        is_kept, is_held = self._choose(chunk, spans, all_depths, mode)
        if mode.hold:
            is_released = is_open & np.isin(chunk.origin, mode.released)
            self.lost[OUTLASTED] += int(is_released.sum())
            is_held |= is_open & ~is_released
        self._count_thinned(rows[~is_kept & ~is_held])
        self._emit(is_kept & ~is_held, fields, rows, depth, on_device)
        self._remember(spans, np.append(np.zeros(remembered_count, np.bool_), is_held))
        held_rows = np.flatnonzero(is_held)
        held_chunk = RecordChunk(
            pick(chunk.records, held_rows), chunk.origin[held_rows], depth[held_rows]
        )
        if mode.hold:
            return held_chunk
        self._waiting = RecordChunk.concatenated([held_chunk, self._waiting])
        return held_chunk.take(held_rows[:0])

    def _choose(
        self, chunk: RecordChunk, spans: _Spans, depths: Ints, mode: ChunkMode
    ) -> tuple[Flags, Flags]:
        """Return, for each event of the chunk, whether it is kept, and whether that is undecided yet."""
        chunk_size = len(chunk.records)
        if self._sampling is None:
            return np.ones(chunk_size, np.bool_), np.zeros(chunk_size, np.bool_)
        meanings, remembered_count = self._meanings, len(spans.start) - chunk_size
        is_over = np.append(spans.end[:remembered_count] != FOREVER, chunk.records["end_ns"] > 0)
        events = SampledEvents(
            thread=spans.thread,
            start=spans.start,
            end=spans.end,
            step=spans.step,
            depth=depths,
            phase=phases(meanings.kind, meanings.op)[spans.row],
            group=groups(
                meanings.kind.codes, meanings.op.codes, meanings.communicator, meanings.shard
            )[spans.row],
            span=meanings.type[spans.row] == _SPAN,
            over=is_over,
            waited=np.append(np.zeros(remembered_count, np.bool_), chunk.depth != UNKNOWN_DEPTH),
        )
        thinned = thin(events, self._sampling, self._in_flight, continues=mode.hold, last=mode.last)
        return thinned.kept[remembered_count:], thinned.undecided[remembered_count:]

    def _count_thinned(self, rows: Int32s) -> None:
        kinds = self._meanings.kind
        counts = np.bincount(kinds.codes[rows], minlength=len(kinds.words))
        for word, count in zip(kinds.words.to_pylist(), counts.tolist(), strict=True):
            self.thinned[str(word)] += count

    def _emit(
        self,
        is_kept: Flags,
        fields: Fields,
        rows: Int32s,
        depth: Ints,
        on_device: OnDevice,
    ) -> None:
        if not is_kept.all():
            fields = {name: values[is_kept] for name, values in fields.items()}
            rows, depth = rows[is_kept], depth[is_kept]
        batch_count = -(-len(rows) // self._batch_rows)
        bounds = np.linspace(0, len(rows), batch_count + 1, dtype=int).tolist()
        for batch in itertools.starmap(slice, itertools.pairwise(bounds)):
            batch_fields = {name: values[batch] for name, values in fields.items()}
            start_ns = batch_fields["start_ns"]
            self.sorted &= self.latest_ns <= int(start_ns[0])
            self.latest_ns = max(self.latest_ns, int(start_ns[-1]))
            self._sink(
                to_batch(
                    batch_fields,
                    rows[batch],
                    depth[batch],
                    self._meanings,
                    on_device,
                )
            )

    def _remember(self, spans: _Spans, is_held: Flags) -> None:
        """Keep spans that may contain later events; what is held back is fed again.

        That is what lasts longer than all that its own thread began: other threads may be far ahead.
        """
        latest_begins = np.full(int(spans.thread.max()) + 1, spans.start.min())
        np.maximum.at(latest_begins, spans.thread, spans.start)
        reaching_spans = np.flatnonzero((spans.end > latest_begins[spans.thread]) & ~is_held)
        self._around = spans.take(reaching_spans[-_MOST_REACHING:])


def _keep_memory() -> None:
    """Make the C library keep freed memory, or a third of the time goes into getting it again.

    glibc returns a freed block to the kernel, unless one as large was freed before.
    """
    np.empty(_MOST_KEPT, np.int8)
