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
    split,
    to_batch,
)
from tracelens.conversion.definitions import TYPES, UNKNOWN, Meanings, meanings_of
from tracelens.conversion.folder import Progress
from tracelens.conversion.retention import Sampled, Sampling, groups, phases, thin
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

    def at(self, where: Indices) -> _Spans:
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
        before = progress or Progress()
        self.lost = Counter(before.lost)
        self.thinned = Counter(before.thinned)
        self.latest_ns = before.latest_ns
        self.sorted = before.sorted
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
        """Return whether the definition of each of these records is known."""
        return bool((self._meanings.rows(records["definition"]) != UNKNOWN).all())

    def feed(self, given: RecordChunk, ahead: Records, wants: ChunkMode) -> RecordChunk:
        """Convert a chunk; return what is held back, with its depths.

        Args:
            given: What comes next, and what was held back before.
            ahead: What comes after it. Unless something may be held back, nothing that begins later
                is converted before it, so that rows are sorted.
            wants: How.
        """
        events, on_device = self._events(given, ahead)
        pool = RecordChunk.concatenated([self._waiting, events]).sorted()
        turn = self._turn(pool.records["start_ns"], ahead, wants)
        self._waiting = pool.part(turn, None)
        chunk = pool.part(0, turn)
        return self._convert(chunk, on_device, wants) if turn else chunk

    def _events(self, given: RecordChunk, ahead: Records) -> tuple[RecordChunk, OnDevice]:
        """Separate what is no event, or none that makes sense, and count the latter."""
        row = self._meanings.rows(given.records["definition"])
        types = self._meanings.type[row]
        end = given.records["end_ns"]
        known = row != UNKNOWN
        forward = (types != _SPAN) | (end == 0) | (np.abs(end) >= given.records["start_ns"])
        self.lost["unknown definition"] += len(row) - int(known.sum())
        self.lost[NEGATIVE] += int((known & ~forward).sum())
        events = given.where(known & forward & (types != _DEVICE))
        if not self._meanings.times_devices:
            return events, OnDevice.of(None)
        following = self._meanings.type[self._meanings.rows(ahead["definition"])] == _DEVICE
        self._device = [*self._device[-1:], pick(given.records, np.flatnonzero(types == _DEVICE))]
        found = [*self._device, pick(ahead, np.flatnonzero(following))]
        return events, OnDevice.of(join(found))

    def _turn(self, starts: Ints, ahead: Records, wants: ChunkMode) -> int:
        """Return how many of the sorted records are to be converted now."""
        if wants.hold or wants.last or len(starts) > self._max_waiting or not len(ahead):
            return len(starts)
        return int(np.searchsorted(starts, ahead["start_ns"].min()))

    def _convert(self, chunk: RecordChunk, on_device: OnDevice, wants: ChunkMode) -> RecordChunk:
        fields = split(chunk.records)
        rows = self._meanings.rows(fields["definition"])
        types = self._meanings.type.take(rows)
        ends = ends_of(fields, types)
        mine = _Spans(fields["thread"], fields["start_ns"], ends, fields["step"], rows)
        spans = self._around.and_(mine)
        count = len(self._around.start)
        deep = depths(spans.thread, spans.start, spans.end)
        depth = np.where(chunk.depth == UNKNOWN_DEPTH, deep[count:], chunk.depth)
        still_open = (ends == FOREVER) & (types == _SPAN)
        kept, held = self._choose(chunk, spans, deep, wants)
        if wants.hold:
            released_open = still_open & np.isin(chunk.origin, wants.released)
            self.lost[OUTLASTED] += int(released_open.sum())
            held |= still_open & ~released_open
        self._count_thinned(rows[~kept & ~held])
        self._emit(kept & ~held, fields, rows, depth, on_device)
        self._remember(spans, np.append(np.zeros(count, np.bool_), held))
        back = np.flatnonzero(held)
        kept_back = RecordChunk(pick(chunk.records, back), chunk.origin[back], depth[back])
        if wants.hold:
            return kept_back
        self._waiting = RecordChunk.concatenated([kept_back, self._waiting])
        return kept_back.at(back[:0])

    def _choose(
        self, chunk: RecordChunk, spans: _Spans, deep: Ints, wants: ChunkMode
    ) -> tuple[Flags, Flags]:
        """Return which events are to be kept, and for which that is not known yet."""
        size = len(chunk.records)
        if self._sampling is None:
            return np.ones(size, np.bool_), np.zeros(size, np.bool_)
        meanings, earlier = self._meanings, len(spans.start) - size
        over = np.append(spans.end[:earlier] != FOREVER, chunk.records["end_ns"] > 0)
        events = Sampled(
            thread=spans.thread,
            start=spans.start,
            end=spans.end,
            step=spans.step,
            depth=deep,
            phase=phases(meanings.kind, meanings.op)[spans.row],
            group=groups(
                meanings.kind.codes, meanings.op.codes, meanings.communicator, meanings.shard
            )[spans.row],
            span=meanings.type[spans.row] == _SPAN,
            over=over,
            waited=np.append(np.zeros(earlier, np.bool_), chunk.depth != UNKNOWN_DEPTH),
        )
        chosen = thin(
            events, self._sampling, self._in_flight, continues=wants.hold, last=wants.last
        )
        return chosen.kept[earlier:], chosen.undecided[earlier:]

    def _count_thinned(self, rows: Int32s) -> None:
        kinds = self._meanings.kind
        counts = np.bincount(kinds.codes[rows], minlength=len(kinds.words))
        for word, count in zip(kinds.words.to_pylist(), counts.tolist(), strict=True):
            self.thinned[str(word)] += count

    def _emit(
        self,
        taken: Flags,
        fields: Fields,
        rows: Int32s,
        depth: Ints,
        on_device: OnDevice,
    ) -> None:
        if not taken.all():
            fields = {name: values[taken] for name, values in fields.items()}
            rows, depth = rows[taken], depth[taken]
        parts = -(-len(rows) // self._batch_rows)
        bounds = np.linspace(0, len(rows), parts + 1, dtype=int).tolist()
        for part in itertools.starmap(slice, itertools.pairwise(bounds)):
            some = {name: values[part] for name, values in fields.items()}
            start = some["start_ns"]
            self.sorted &= self.latest_ns <= int(start[0])
            self.latest_ns = max(self.latest_ns, int(start[-1]))
            self._sink(to_batch(some, rows[part], depth[part], self._meanings, on_device))

    def _remember(self, spans: _Spans, held: Flags) -> None:
        """Keep spans that may contain later events; what is held back is fed again.

        That is what lasts longer than all that its own thread began: other threads may be far ahead.
        """
        latest = np.full(int(spans.thread.max()) + 1, spans.start.min())
        np.maximum.at(latest, spans.thread, spans.start)
        reaching = np.flatnonzero((spans.end > latest[spans.thread]) & ~held)
        self._around = spans.at(reaching[-_MOST_REACHING:])


def _keep_memory() -> None:
    """Make the C library keep freed memory, or a third of the time goes into getting it again.

    glibc returns a block to the kernel at once, unless one as large was freed before.
    """
    np.empty(_MOST_KEPT, np.int8)
