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
    DeviceTimes,
    RecordChunk,
    compute_ends,
    count_depths,
    join_rows,
    make_batch,
    pick_rows,
    split_fields,
)
from tracelens.conversion.definitions import TYPES, UNKNOWN, DefinitionTable, tabulate_definitions
from tracelens.conversion.folder import Progress
from tracelens.conversion.retention import SampledEvents, Sampling, number_phases, number_rows, thin
from tracelens.schema.rules import NEGATIVE
from tracelens.schema.vocabulary import OUTLASTED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa

    from tracelens.arrays import Array, Flags, Indices, Int32s, Ints
    from tracelens.conversion.columns import Fields, Records
    from tracelens.schema.side import Definition, Retention, Thread

BATCH_ROWS: Final = 1 << 16
_MAX_RECORDS_WAITING: Final = 1 << 20  # records that wait for their turn
_BYTES_KEPT_BY_LIBRARY: Final = 24 << 20  # bytes
_MAX_SPANS_REMEMBERED: Final = 1 << 16  # depths end there, too
_SPAN, _DEVICE = TYPES.index("span"), TYPES.index("device")


class ChunkMode(NamedTuple):
    """How a chunk is to be converted.

    `holds_back`: events that may still change are returned, not converted. `is_last`: none follows.
    `released_origins`: open spans of these origins are not held back any longer.
    """

    holds_back: bool = False
    is_last: bool = False
    released_origins: Ints = np.empty(0, np.int64)


class _Spans(NamedTuple):
    """Columns of events, [event]; `end_ns` is `FOREVER` of an open span."""

    thread: Array
    start_ns: Ints
    end_ns: Ints
    step: Array
    definition_row: Array

    @classmethod
    def empty(cls) -> Self:
        return cls(*(np.empty(0, np.int64) for _ in cls._fields))

    def append(self, other: _Spans) -> _Spans:
        return _Spans(*map(np.append, self, other)) if len(self.start_ns) else other

    def take(self, where: Indices) -> _Spans:
        return _Spans(*(values[where] for values in self))


class Conversion:
    """Makes batches of the records fed to it, and passes them to `sink`.

    It resumes at the `progress` of an earlier conversion. `lost_by_reason` counts unusable events,
    `thinned_by_kind` those that sampling removed. `latest_start_ns` is the last row's begin; if
    `is_sorted`, no row before it began later.
    """

    def __init__(
        self,
        sink: Callable[[pa.RecordBatch], None],
        retention: Retention,
        progress: Progress | None = None,
        *,
        batch_rows: int = BATCH_ROWS,
        max_waiting: int = _MAX_RECORDS_WAITING,
    ) -> None:
        """Start; batches go to `sink`; at most `max_waiting` events wait for ones that begin earlier."""
        _keep_memory()
        self._batch_rows = batch_rows
        self._max_waiting = max_waiting
        earlier_progress = progress or Progress()
        self.lost_by_reason = Counter(earlier_progress.lost)
        self.thinned_by_kind = Counter(earlier_progress.thinned)
        self.latest_start_ns = earlier_progress.latest_ns
        self.is_sorted = earlier_progress.sorted
        self._sink = sink
        every = retention.every
        self._sampling = None if every is None else Sampling(every, retention.burst)
        self._enclosing_spans = _Spans.empty()
        self._waiting = RecordChunk.from_chunks(())
        self._device_records: list[Records] = []
        self._definition_count = 0
        self._definitions: DefinitionTable = tabulate_definitions(definitions=())
        self._in_flight = np.zeros(1, np.bool_)  # [thread]

    def set_definitions(self, definitions: Sequence[Definition], threads: Iterable[Thread]) -> None:
        """Replace the definitions by these, which include all earlier ones, and the threads."""
        if len(definitions) != self._definition_count:
            self._definition_count = len(definitions)
            self._definitions = tabulate_definitions(definitions)
        flight_threads = [thread.index for thread in threads if thread.in_flight]
        self._in_flight = np.zeros(max(flight_threads, default=-1) + 2, np.bool_)  # [thread]
        self._in_flight[flight_threads] = True

    def has_all_definitions(self, records: Records) -> bool:
        """Return True if the definitions of all these records are known."""
        return bool((self._definitions.find_rows(records["definition"]) != UNKNOWN).all())

    def convert_chunk(
        self, chunk: RecordChunk, next_records: Records, mode: ChunkMode
    ) -> RecordChunk:
        """Convert a chunk; return the events held back, with their depths, to be fed again.

        Args:
            chunk: The next records, and those that an earlier call held back.
            next_records: The records after the chunk. Unless the mode holds back, events that begin
                after the first of them wait for a later call, so that rows are sorted.
            mode: What to hold back.
        """
        events, device_times = self._split_chunk(chunk, next_records)
        pool = RecordChunk.from_chunks([self._waiting, events]).sort_by_start()
        ready_count = self._count_ready(pool.records["start_ns"], next_records, mode)
        self._waiting = pool.slice_records(ready_count, end=None)
        ready_chunk = pool.slice_records(first=0, end=ready_count)
        return self._convert(ready_chunk, device_times, mode) if ready_count else ready_chunk

    def _split_chunk(
        self, chunk: RecordChunk, next_records: Records
    ) -> tuple[RecordChunk, DeviceTimes]:
        """Return the usable events of a chunk, and the device times in it and in records around it.

        Events of no known definition, or that end before they begin, count in `lost_by_reason`.
        """
        table = self._definitions
        definition_rows = table.find_rows(chunk.records["definition"])
        type_codes = table.type_codes[definition_rows]
        ends_ns = chunk.records["end_ns"]
        is_known = definition_rows != UNKNOWN
        is_forward = (
            (type_codes != _SPAN) | (ends_ns == 0) | (np.abs(ends_ns) >= chunk.records["start_ns"])
        )
        self.lost_by_reason["unknown definition"] += len(definition_rows) - int(is_known.sum())
        self.lost_by_reason[NEGATIVE] += int((is_known & ~is_forward).sum())
        events = chunk.select(is_known & is_forward & (type_codes != _DEVICE))
        if not table.has_device_times:
            return events, DeviceTimes.from_records(records=None)
        next_type_codes = table.type_codes[table.find_rows(next_records["definition"])]
        chunk_times = pick_rows(chunk.records, np.flatnonzero(type_codes == _DEVICE))
        next_times = pick_rows(next_records, np.flatnonzero(next_type_codes == _DEVICE))
        # Of the chunk before and of this one.
        self._device_records = [*self._device_records[-1:], chunk_times]
        device_records = join_rows([*self._device_records, next_times])
        return events, DeviceTimes.from_records(device_records)

    def _count_ready(self, starts_ns: Ints, next_records: Records, mode: ChunkMode) -> int:
        """Return the number of records that begin at `starts_ns`, sorted, to convert now."""
        count = len(starts_ns)
        if mode.holds_back or mode.is_last or count > self._max_waiting or not len(next_records):
            return count
        return int(np.searchsorted(starts_ns, next_records["start_ns"].min()))

    def _convert(
        self, chunk: RecordChunk, device_times: DeviceTimes, mode: ChunkMode
    ) -> RecordChunk:
        """Pass on the events to keep as batches, and return those that are held back.

        Depths and sampling also see the spans of earlier chunks that may enclose this one's.
        """
        fields = split_fields(chunk.records)
        definition_rows = self._definitions.find_rows(fields["definition"])
        type_codes = self._definitions.type_codes.take(definition_rows)
        ends_ns = compute_ends(fields, type_codes)
        threads, starts_ns, steps = (fields[name] for name in ("thread", "start_ns", "step"))
        chunk_spans = _Spans(threads, starts_ns, ends_ns, steps, definition_rows)
        spans = self._enclosing_spans.append(chunk_spans)
        remembered_count = len(self._enclosing_spans.start_ns)
        span_depths = count_depths(spans.thread, spans.start_ns, spans.end_ns)
        new_depths = span_depths[remembered_count:]
        depths = np.where(chunk.depths == UNKNOWN_DEPTH, new_depths, chunk.depths)
        is_open = (ends_ns == FOREVER) & (type_codes == _SPAN)
        is_kept, is_held = self._choose_events(chunk, spans, span_depths, mode)
        if mode.holds_back:
            is_released = is_open & np.isin(chunk.origins, mode.released_origins)
            self.lost_by_reason[OUTLASTED] += int(is_released.sum())
            is_held |= is_open & ~is_released
        self._count_thinned(definition_rows[~is_kept & ~is_held])
        self._pass_on_batches(is_kept & ~is_held, fields, definition_rows, depths, device_times)
        self._remember(spans, np.append(np.zeros(remembered_count, np.bool_), is_held))
        held_chunk = chunk._replace(depths=depths).take(np.flatnonzero(is_held))
        if mode.holds_back:
            return held_chunk
        self._waiting = RecordChunk.from_chunks([held_chunk, self._waiting])
        return RecordChunk.from_chunks(())

    def _choose_events(
        self, chunk: RecordChunk, spans: _Spans, span_depths: Ints, mode: ChunkMode
    ) -> tuple[Flags, Flags]:
        """Return whether sampling keeps each event, and whether that is undecided yet, both [event].

        `spans`, and their depths, are remembered ones, then the events of the chunk.
        """
        chunk_size = len(chunk.records)
        if self._sampling is None:
            return np.ones(chunk_size, np.bool_), np.zeros(chunk_size, np.bool_)
        table, rows = self._definitions, spans.definition_row
        first_row = len(spans.step) - chunk_size
        was_fed_before = chunk.depths != UNKNOWN_DEPTH
        columns_of_group = (
            table.kind.codes,
            table.op.codes,
            table.communicator_indices,
            table.shard_numbers,
        )
        events = SampledEvents(
            thread=spans.thread,
            start_ns=spans.start_ns,
            end_ns=spans.end_ns,
            step=spans.step,
            depth=span_depths,
            phase_codes=number_phases(table.kind, table.op)[rows],
            call_group_codes=number_rows(*columns_of_group)[rows],
            is_span=table.type_codes[rows] == _SPAN,
            has_ended=np.append(spans.end_ns[:first_row] != FOREVER, chunk.records["end_ns"] > 0),
            was_undecided=np.append(np.zeros(first_row, np.bool_), was_fed_before),
        )
        is_kept, is_undecided = thin(
            events, self._sampling, self._in_flight, continues=mode.holds_back, is_last=mode.is_last
        )
        return is_kept[first_row:], is_undecided[first_row:]

    def _count_thinned(self, definition_rows: Int32s) -> None:
        kinds = self._definitions.kind
        counts = np.bincount(kinds.codes[definition_rows], minlength=len(kinds.words))
        for kind, count in zip(kinds.words.to_pylist(), counts.tolist(), strict=True):
            self.thinned_by_kind[str(kind)] += count

    def _pass_on_batches(
        self,
        is_kept: Flags,
        fields: Fields,
        definition_rows: Int32s,
        depths: Ints,
        device_times: DeviceTimes,
    ) -> None:
        """Make batches of the events that are kept, and pass each to the sink; arrays are [event]."""
        if not is_kept.all():
            fields = {name: values[is_kept] for name, values in fields.items()}
            definition_rows, depths = definition_rows[is_kept], depths[is_kept]
        batch_count = -(-len(definition_rows) // self._batch_rows)
        batch_bounds = np.linspace(0, len(definition_rows), batch_count + 1, dtype=int).tolist()
        for batch_rows in itertools.starmap(slice, itertools.pairwise(batch_bounds)):
            batch_fields = {name: values[batch_rows] for name, values in fields.items()}
            start_ns = batch_fields["start_ns"]
            self.is_sorted &= self.latest_start_ns <= int(start_ns[0])
            self.latest_start_ns = max(self.latest_start_ns, int(start_ns[-1]))
            self._sink(
                make_batch(
                    batch_fields,
                    definition_rows[batch_rows],
                    depths[batch_rows],
                    self._definitions,
                    device_times,
                )
            )

    def _remember(self, spans: _Spans, is_held: Flags) -> None:
        """Remember spans that may contain later events, except those held back: they are fed again.

        These spans end after the latest begin on their own thread: other threads may be far ahead.
        """
        latest_start_ns = np.full(int(spans.thread.max()) + 1, spans.start_ns.min())  # [thread]
        np.maximum.at(latest_start_ns, spans.thread, spans.start_ns)
        is_lasting = (spans.end_ns > latest_start_ns[spans.thread]) & ~is_held
        self._enclosing_spans = spans.take(np.flatnonzero(is_lasting)[-_MAX_SPANS_REMEMBERED:])


def _keep_memory() -> None:
    """Make the C library keep freed memory, or a third of the time goes into getting it again.

    glibc returns a freed block to the kernel, unless one as large was freed before.
    """
    np.empty(_BYTES_KEPT_BY_LIBRARY, np.int8)
