"""Records become columns: vectorised, without a Python loop over events.

With two that no single record holds: the depth of a span (how many spans of its thread were open
when it began), and its times on a device. A device tells its times later than the host, so they
come in records of their own, which name their span by an equal `request` (see
`tracelens.schema.record`).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tracelens.arrays import Array
from tracelens.conversion.definitions import NO_INDEX
from tracelens.schema.arrow import EVENT_SCHEMA
from tracelens.schema.record import (
    ESTIMATED,
    NO_REQUEST,
    NO_SEQ,
    NO_SHORT,
    RECORD_BYTES,
    TIMED_ON_DEVICE,
)
from tracelens.schema.vocabulary import EVENT_TYPES, STATUSES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from tracelens.arrays import Flags, Indices, Int8s, Int32s, Ints, UInt16s, UInt64s
    from tracelens.conversion.definitions import Column, DefinitionTable

UNKNOWN_DEPTH: Final = -1  # depth of what was not fed before

Records = np.ndarray[Any, np.dtype[np.void]]
Fields = dict[str, Array]  # of records, each one after the other

SLOT: Final = np.dtype(
    [
        ("start_ns", "i8"),
        ("end_ns", "i8"),
        ("bytes", "i8"),
        ("request", "u8"),
        ("seq", "u4"),
        ("step", "i4"),
        ("key", "i4"),
        ("bucket", "i4"),
        ("peer", "i4"),
        ("thread", "u2"),
        ("micro_step", "u2"),
        ("queue_depth", "u2"),
        ("flags", "u2"),
        ("definition", "u4"),
    ]
)
assert SLOT.itemsize == RECORD_BYTES
_WORD_BYTES: Final = 8
_RECORDS_PER_BLOCK: Final = 512  # records, which fit into the fastest cache

FOREVER: Final = np.iinfo(np.int64).max
_SPAN, _INSTANT, _COUNTER = (EVENT_TYPES.index(word) for word in ("span", "instant", "counter"))
_CLOSED, _OPEN, _EXCEPTION, _ESTIMATED = range(len(STATUSES))
_MOST_BYTES: Final = 8 << 16  # of a column: 8 bytes a row, see BATCH_ROWS
_NOTHING: Final = pa.py_buffer(bytes(_MOST_BYTES))
_TYPE_WORDS: Final = pa.array(EVENT_TYPES)
_STATUS_WORDS: Final = pa.array(STATUSES)
_NUMBER_BITS = np.uint64(48)
_DEVICE_MARK = np.uint64(TIMED_ON_DEVICE) >> _NUMBER_BITS


def pick_rows(records: Records, indices: Indices) -> Records:
    """Select records by index; as rows of integers: numpy copies structures field by field."""
    if len(indices) == len(records) and bool((np.diff(indices) == 1).all()):
        return records
    picked: Records = _as_words(records)[indices].reshape(-1).view(SLOT)
    return picked


def join_rows(parts: Sequence[Records]) -> Records:
    """Put records one after the other; as rows of integers: numpy copies structures field by field."""
    nonempty_parts = [part for part in parts if len(part)]
    if len(nonempty_parts) == 1:
        return nonempty_parts[0]
    word_rows = [
        np.empty((0, RECORD_BYTES // _WORD_BYTES), np.int64),
        *map(_as_words, nonempty_parts),
    ]
    joined: Records = np.concatenate(word_rows).reshape(-1).view(SLOT)
    return joined


def _as_words(records: Records) -> Ints:
    return np.ascontiguousarray(records).view(np.int64).reshape(-1, RECORD_BYTES // _WORD_BYTES)


def split_fields(records: Records) -> Fields:
    """Copy each field into an array of its own, [record]; by blocks, which fit into a CPU cache."""
    word_rows = _as_words(records)
    word_columns = np.empty((word_rows.shape[1], len(word_rows)), np.int64)
    for first_row in range(0, len(word_rows), _RECORDS_PER_BLOCK):
        block_rows = slice(first_row, first_row + _RECORDS_PER_BLOCK)
        word_columns[:, block_rows] = word_rows[block_rows].T
    return {name: _extract_field(word_columns, name) for name in SLOT.names or ()}


def _extract_field(word_columns: Ints, name: str) -> Array:
    """Return one field of all records, [record], from their 8-byte words, [word, record]."""
    assert SLOT.fields is not None
    dtype, offset, *_ = SLOT.fields[name]
    word_index, byte_offset = divmod(offset, _WORD_BYTES)
    values_per_word = _WORD_BYTES // dtype.itemsize
    return np.ascontiguousarray(
        word_columns[word_index].view(dtype)[byte_offset // dtype.itemsize :: values_per_word]
    )


def compute_ends(fields: Fields, type_codes: Int8s) -> Ints:
    """Return the end of each event, ns: `FOREVER` if it is open, its begin if it is no span."""
    ends_ns: Ints = np.abs(fields["end_ns"])
    ends_ns[ends_ns == 0] = FOREVER
    is_no_span = type_codes != _SPAN
    ends_ns[is_no_span] = fields["start_ns"][is_no_span]
    return ends_ns


def make_batch(
    fields: Fields,
    definition_rows: Int32s,
    depths: Ints,
    definitions: DefinitionTable,
    device_times: DeviceTimes,
) -> pa.RecordBatch:
    """Build a batch in `EVENT_SCHEMA` of at least one event; all arrays are [event].

    `definition_rows` are rows of `definitions`; `depths` count the spans around each event. The field
    `request` is the id of a request to a server. Of a counter it is the bits of its value (float64),
    and of a span with device times the id under which `device_times` has these.
    """
    type_codes = definitions.type_codes.take(definition_rows)
    is_span, is_counter = type_codes == _SPAN, type_codes == _COUNTER
    start_ns, request = fields["start_ns"], fields["request"]
    end_ns = compute_ends(fields, type_codes)
    has_no_request = is_counter | (request == NO_REQUEST) | device_times.is_timing_request(request)
    columns: dict[str, pa.Array[Any]] = {
        "start_ns": _wrap_array(start_ns),
        "duration_ns": _null_where(end_ns - start_ns, end_ns == FOREVER),
        "type": _make_word_column(type_codes, _TYPE_WORDS),
        "status": _make_word_column(_code_statuses(fields, is_span), _STATUS_WORDS),
        "thread": _wrap_array(fields["thread"]),
        "depth": _wrap_array(np.minimum(depths, NO_SHORT).astype(np.uint16)),
        "step": _wrap_array(fields["step"]),
        "request": _null_where(request, has_no_request),
        "value": _null_where(request.view(np.float64), ~is_counter),
        **{n: _null_where(fields[n], fields[n] == NO_SHORT) for n in ("micro_step", "queue_depth")},
        "seq": _null_where(fields["seq"], fields["seq"] == NO_SEQ),
        **{n: _null_where(fields[n], fields[n] < 0) for n in ("bytes", "bucket", "peer", "key")},
        **_make_definition_columns(definition_rows, definitions),
        **device_times.make_columns(np.where(is_span, request, NO_REQUEST)),
    }
    arrays = [
        columns.get(field.name) or null_column(len(start_ns), field.type) for field in EVENT_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)


def _code_statuses(fields: Fields, is_span: Flags) -> Int8s:
    estimated_flag = fields["flags"] & ESTIMATED
    status_codes = (estimated_flag * _ESTIMATED).astype(np.int8)
    signed_end_ns = fields["end_ns"]
    status_codes[is_span & (signed_end_ns < 0)] = _EXCEPTION
    status_codes[is_span & (signed_end_ns == 0)] = _OPEN
    return status_codes


def _null_where(values: Array, is_absent: Flags) -> pa.Array[Any]:
    """Make a column that is null where values are absent; most columns are complete or empty."""
    null_count = int(np.count_nonzero(is_absent))
    if null_count == len(values):
        return null_column(null_count, pa.from_numpy_dtype(values.dtype))
    validity = _wrap_buffer(np.packbits(~is_absent, bitorder="little")) if null_count else None
    return _wrap_array(values, validity, null_count)


def _wrap_array(values: Array, validity: pa.Buffer | None = None, nulls: int = 0) -> pa.Array[Any]:
    """Wrap contiguous values as a column; `pa.array` would load numpy.ma, which takes long."""
    buffers = [validity, _wrap_buffer(values)]
    value_type = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(value_type, len(values), buffers, null_count=nulls)


def _wrap_buffer(values: Array) -> pa.Buffer:
    return pa.py_buffer(values.data)


def null_column(row_count: int, kind: pa.DataType) -> pa.Array[Any]:
    """Return a column of `row_count` nulls of a type; all such columns share the same memory."""
    if isinstance(kind, pa.DictionaryType):
        codes = null_column(row_count, kind.index_type)
        return pa.DictionaryArray.from_arrays(codes, pa.array([], kind.value_type), safe=False)
    zeros = _NOTHING if row_count << 3 <= _MOST_BYTES else pa.py_buffer(bytes(row_count << 3))
    return pa.Array.from_buffers(kind, row_count, [zeros, zeros], null_count=row_count)


def _make_word_column(codes: Array, words: pa.Array[Any]) -> pa.Array[Any]:
    # Without negative codes: some readers look at what is null, too.
    non_negative_codes = _null_where(np.maximum(codes, 0), codes < 0)
    return pa.DictionaryArray.from_arrays(non_negative_codes, words, safe=False)


def _make_definition_columns(
    definition_rows: Int32s, definitions: DefinitionTable
) -> dict[str, pa.Array[Any]]:
    """Return columns by name, [event], from the rows of `definitions`, [event], that events refer to."""

    def decode_words(column: Column) -> pa.Array[Any]:
        return _make_word_column(column.codes.take(definition_rows), column.words)

    def decode_numbers(column: Ints) -> pa.Array[Any]:
        numbers = column.take(definition_rows)
        return _null_where(numbers.astype(np.int32), numbers == NO_INDEX)

    return {
        "name": decode_words(definitions.name),
        "kind": decode_words(definitions.kind),
        "op": decode_words(definitions.op),
        "algorithm": decode_words(definitions.algorithm),
        "communicator": decode_numbers(definitions.communicator_indices),
        "shard": decode_numbers(definitions.shard_numbers),
    }


@dataclass(frozen=True, eq=False)
class DeviceTimes:
    """Times of a process's spans on its device, [span], sorted by the request that names the span.

    `may_exist` is False where no definition of the process is that of device times.
    """

    may_exist: bool
    request_ids: UInt64s
    begins_ns: Ints
    durations_ns: Ints
    stream_numbers: UInt16s

    @classmethod
    def from_records(cls, records: Records | None) -> DeviceTimes:
        """Read records of device times, [span]; skip unsound ones. None: the process defines none.

        Their `bytes` are the begin on the device, ns, their `thread` is the stream's track.
        """
        times = np.empty(0, SLOT) if records is None else records
        duration_ns = times["end_ns"] - times["start_ns"]
        is_sound = (times["bytes"] >= 0) & (times["end_ns"] > 0) & (duration_ns >= 0)
        rows = np.flatnonzero(is_sound)
        rows = rows[np.argsort(times["request"][rows], kind="stable")]
        request, begin_ns, stream = (times[name][rows] for name in ("request", "bytes", "thread"))
        return cls(records is not None, request, begin_ns, duration_ns[rows], stream)

    def is_timing_request(self, requests: UInt64s) -> Flags:
        """Return True for each request that names a device time, recorded or not."""
        return np.asarray((requests >> _NUMBER_BITS == _DEVICE_MARK) & self.may_exist)

    def make_columns(self, requests: UInt64s) -> dict[str, pa.Array[Any]]:
        """Make the device columns of spans with these requests, [span]; null = not timed."""
        if not len(self.request_ids):
            return {}
        indices = np.minimum(np.searchsorted(self.request_ids, requests), len(self.request_ids) - 1)
        is_missing = (self.request_ids[indices] != requests) | ~self.is_timing_request(requests)
        return {
            "device_start_ns": pa.array(self.begins_ns[indices], mask=is_missing),
            "device_duration_ns": pa.array(self.durations_ns[indices], mask=is_missing),
            "stream": pa.array(self.stream_numbers[indices], mask=is_missing),
        }


def count_depths(thread: Array, start_ns: Ints, end_ns: Ints) -> Ints:
    """Count, for each event, the earlier spans of its thread that end after it starts, [event].

    Of two that start together the longer counts as earlier, of equal ones the first given. A span
    without length contains nothing. On a track of operations in flight this counts the overlapping.
    """
    all_depths = np.zeros(len(start_ns), np.int64)
    for rows in group_by_thread(thread, start_ns, end_ns):
        all_depths[rows] = _count_depths_on_thread(start_ns[rows], end_ns[rows])
    return all_depths


def group_by_thread(thread: Array, start_ns: Ints, end_ns: Ints) -> list[Indices]:
    """Return the indices of each thread's events by start, of equal starts the longer first.

    `thread`, the number of its thread, and the times, ns, are [event].
    """
    if (np.diff(start_ns) > 0).all():  # as records mostly are
        order = np.argsort(thread.astype(np.uint16), kind="stable")
    else:
        order = np.lexsort((-end_ns, start_ns, thread))
    thread_bounds = np.flatnonzero(np.diff(thread[order], prepend=-1, append=-1))
    return [order[first:last] for first, last in itertools.pairwise(thread_bounds)]


def _count_depths_on_thread(start_ns: Ints, end_ns: Ints) -> Ints:
    """Return how many events enclose each, [event]; sorted by start, longest first."""
    has_length = end_ns > start_ns
    started_before: Ints = np.cumsum(has_length) - has_length
    ended_before: Ints = np.searchsorted(np.sort(end_ns[has_length]), start_ns, side="right")
    return started_before - ended_before


class RecordChunk(NamedTuple):
    """Records with the origin of each, a unique number, and its depth, else `UNKNOWN_DEPTH`."""

    records: Records
    origins: Ints
    depths: Ints

    @classmethod
    def from_records(cls, records: Records, origin: Ints) -> Self:
        """Make a chunk of records that were not fed before."""
        return cls(records, origin, np.full(len(records), UNKNOWN_DEPTH))

    @classmethod
    def from_chunks(cls, chunks: Sequence[RecordChunk]) -> Self:
        """Put chunks one after the other."""
        empty = np.empty(0, np.int64)
        return cls(
            join_rows([chunk.records for chunk in chunks]),
            np.concatenate([empty, *(chunk.origins for chunk in chunks)]),
            np.concatenate([empty, *(chunk.depths for chunk in chunks)]),
        )

    def select(self, is_chosen: Flags) -> RecordChunk:
        """Select by a mask, which mostly selects all."""
        return self if is_chosen.all() else self.take(np.flatnonzero(is_chosen))

    def sort_by_start(self) -> RecordChunk:
        """Return the records in the order of their begin, in which they mostly are."""
        start_ns = np.ascontiguousarray(self.records["start_ns"])
        is_sorted = (start_ns[1:] >= start_ns[:-1]).all()
        return self if is_sorted else self.take(np.argsort(start_ns, kind="stable"))

    def slice_records(self, first: int, end: int | None) -> RecordChunk:
        """Return a slice."""
        part = slice(first, end)
        return RecordChunk(self.records[part], self.origins[part], self.depths[part])

    def take(self, indices: Indices) -> RecordChunk:
        """Select by indexes."""
        return RecordChunk(
            pick_rows(self.records, indices), self.origins[indices], self.depths[indices]
        )
