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
    from tracelens.conversion.definitions import Column, Meanings

__all__ = [
    "FOREVER",
    "SLOT",
    "UNKNOWN_DEPTH",
    "Fields",
    "OnDevice",
    "RecordChunk",
    "Records",
    "by_thread",
    "depths",
    "ends_of",
    "join",
    "null_column",
    "pick",
    "split_fields",
    "to_batch",
]

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
_WORD: Final = 8
_BLOCK: Final = 512  # records, which fit into the fastest cache

FOREVER: Final = np.iinfo(np.int64).max
_SPAN, _INSTANT, _COUNTER = (EVENT_TYPES.index(word) for word in ("span", "instant", "counter"))
_CLOSED, _OPEN, _EXCEPTION, _ESTIMATED = range(len(STATUSES))
_MOST_BYTES: Final = 8 << 16  # of a column: 8 bytes a row, see BATCH_ROWS
_NOTHING: Final = pa.py_buffer(bytes(_MOST_BYTES))
_TYPE_WORDS: Final = pa.array(EVENT_TYPES)
_STATUS_WORDS: Final = pa.array(STATUSES)
_NUMBER_BITS = np.uint64(48)
_DEVICE_MARK = np.uint64(TIMED_ON_DEVICE) >> _NUMBER_BITS


def pick(records: Records, where: Indices) -> Records:
    """Select records; as rows of integers, because numpy copies structures field by field."""
    if len(where) == len(records) and bool((np.diff(where) == 1).all()):
        return records
    picked: Records = _as_words(records)[where].reshape(-1).view(SLOT)
    return picked


def join(parts: Sequence[Records]) -> Records:
    """Put records one after the other; as rows of integers, for the same reason."""
    filled = [part for part in parts if len(part)]
    if len(filled) == 1:
        return filled[0]
    words = [np.empty((0, RECORD_BYTES // _WORD), np.int64), *map(_as_words, filled)]
    joined: Records = np.concatenate(words).reshape(-1).view(SLOT)
    return joined


def _as_words(records: Records) -> Ints:
    return np.ascontiguousarray(records).view(np.int64).reshape(-1, RECORD_BYTES // _WORD)


def split_fields(records: Records) -> Fields:
    """Copy each field into an array of its own: block by block, which is kind to caches."""
    word_rows = _as_words(records)
    word_columns = np.empty((word_rows.shape[1], len(word_rows)), np.int64)
    for first in range(0, len(word_rows), _BLOCK):
        block = slice(first, first + _BLOCK)
        word_columns[:, block] = word_rows[block].T
    return {name: _field(word_columns, name) for name in SLOT.names or ()}


def _field(word_columns: Ints, name: str) -> Array:
    assert SLOT.fields is not None
    dtype, offset, *_ = SLOT.fields[name]
    word_index, byte_offset = divmod(offset, _WORD)
    values_per_word = _WORD // dtype.itemsize
    return np.ascontiguousarray(
        word_columns[word_index].view(dtype)[byte_offset // dtype.itemsize :: values_per_word]
    )


def ends_of(fields: Fields, types: Int8s) -> Ints:
    """Return the end of each event, ns: `FOREVER` if it is open, its begin if it is no span."""
    end: Ints = np.abs(fields["end_ns"])
    end[end == 0] = FOREVER
    momentary = types != _SPAN
    end[momentary] = fields["start_ns"][momentary]
    return end


def to_batch(
    fields: Fields,
    rows: Int32s,
    depth: Ints,
    meanings: Meanings,
    on_device: OnDevice,
) -> pa.RecordBatch:
    """Build the columns of records whose definitions are the `rows` of `meanings`, at least one."""
    types = meanings.type.take(rows)
    spans, counters = types == _SPAN, types == _COUNTER
    start, request = fields["start_ns"], fields["request"]
    ends = ends_of(fields, types)
    no_request = counters | (request == NO_REQUEST) | on_device.named_by(request)
    columns: dict[str, pa.Array[Any]] = {
        "start_ns": _array(start),
        "duration_ns": _unless(ends - start, ends == FOREVER),
        "type": _coded(types, _TYPE_WORDS),
        "status": _coded(_statuses(fields, spans), _STATUS_WORDS),
        "thread": _array(fields["thread"]),
        "depth": _array(np.minimum(depth, NO_SHORT).astype(np.uint16)),
        "step": _array(fields["step"]),
        "request": _unless(request, no_request),
        "value": _unless(request.view(np.float64), ~counters),
        **{name: _unless_is(fields[name], NO_SHORT) for name in ("micro_step", "queue_depth")},
        "seq": _unless_is(fields["seq"], NO_SEQ),
        **{name: _unless_negative(fields[name]) for name in ("bytes", "bucket", "peer", "key")},
        **_of_definitions(rows, meanings),
        **on_device.columns(np.where(spans, request, NO_REQUEST)),
    }
    arrays = [
        columns.get(field.name) or null_column(len(start), field.type) for field in EVENT_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)


def _statuses(fields: Fields, spans: Flags) -> Int8s:
    estimated = fields["flags"] & ESTIMATED
    codes = (estimated * _ESTIMATED).astype(np.int8)
    end = fields["end_ns"]
    codes[spans & (end < 0)] = _EXCEPTION
    codes[spans & (end == 0)] = _OPEN
    return codes


def _unless_is(values: Array, absent: int) -> pa.Array[Any]:
    return _unless(values, values == absent)


def _unless_negative(values: Array) -> pa.Array[Any]:
    return _unless(values, values < 0)


def _unless(values: Array, absent: Flags) -> pa.Array[Any]:
    """Return values, null where they are absent; most columns are complete or empty."""
    nulls = int(np.count_nonzero(absent))
    if nulls == len(values):
        return null_column(nulls, pa.from_numpy_dtype(values.dtype))
    validity = _buffer(np.packbits(~absent, bitorder="little")) if nulls else None
    return _array(values, validity, nulls)


def _array(values: Array, validity: pa.Buffer | None = None, nulls: int = 0) -> pa.Array[Any]:
    """Wrap values that lie one after the other; `pa.array` would load numpy.ma, which takes long."""
    buffers = [validity, _buffer(values)]
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), buffers, null_count=nulls)


def _buffer(values: Array) -> pa.Buffer:
    return pa.py_buffer(values.data)


def null_column(count: int, kind: pa.DataType) -> pa.Array[Any]:
    """Return `count` rows of a column without values, which all share the same memory."""
    if isinstance(kind, pa.DictionaryType):
        none = null_column(count, kind.index_type)
        return pa.DictionaryArray.from_arrays(none, pa.array([], kind.value_type), safe=False)
    nothing = _NOTHING if count << 3 <= _MOST_BYTES else pa.py_buffer(bytes(count << 3))
    return pa.Array.from_buffers(kind, count, [nothing, nothing], null_count=count)


def _coded(codes: Array, words: pa.Array[Any]) -> pa.Array[Any]:
    absent = codes < 0
    indexes = _unless(np.maximum(codes, 0), absent)  # some readers look at what is null, too
    return pa.DictionaryArray.from_arrays(indexes, words, safe=False)


def _of_definitions(rows: Int32s, meanings: Meanings) -> dict[str, pa.Array[Any]]:
    """Columns that are constant for a definition."""

    def decode_words(column: Column) -> pa.Array[Any]:
        return _coded(column.codes.take(rows), column.words)

    def indexes(column: Ints) -> pa.Array[Any]:
        values = column.take(rows)
        return _unless(values.astype(np.int32), values == NO_INDEX)

    return {
        "name": decode_words(meanings.name),
        "kind": decode_words(meanings.kind),
        "op": decode_words(meanings.op),
        "algorithm": decode_words(meanings.algorithm),
        "communicator": indexes(meanings.communicator),
        "shard": indexes(meanings.shard),
    }


@dataclass(frozen=True, eq=False)
class OnDevice:
    """The device times of a process, sorted by the name of their span; `used`: it may have some."""

    used: bool
    names: UInt64s
    begin: Ints
    length: Ints
    stream: UInt16s

    @classmethod
    def from_records(cls, records: Records | None) -> OnDevice:
        """Read the records that are device times; those without a sense are passed over."""
        if records is None:
            none = np.empty(0, np.int64)
            return cls(False, none.astype(np.uint64), none, none, none.astype(np.uint16))
        length = records["end_ns"] - records["start_ns"]
        is_sound = (records["bytes"] >= 0) & (records["end_ns"] > 0) & (length >= 0)
        order = np.flatnonzero(is_sound)
        order = order[np.argsort(records["request"][order], kind="stable")]
        return cls(
            True,
            records["request"][order],
            records["bytes"][order],
            length[order],
            records["thread"][order],
        )

    def named_by(self, request: UInt64s) -> Flags:
        """Return True for each request that names a device time, even one that was never recorded."""
        return np.asarray((request >> _NUMBER_BITS == _DEVICE_MARK) & self.used)

    def columns(self, request: UInt64s) -> dict[str, pa.Array[Any]]:
        """Return the columns of the spans with these requests; null where a span has none."""
        if not len(self.names):
            return {}
        indices = np.minimum(np.searchsorted(self.names, request), len(self.names) - 1)
        is_missing = (self.names[indices] != request) | ~self.named_by(request)
        return {
            "device_start_ns": pa.array(self.begin[indices], mask=is_missing),
            "device_duration_ns": pa.array(self.length[indices], mask=is_missing),
            "stream": pa.array(self.stream[indices], mask=is_missing),
        }


def depths(thread: Array, start: Ints, end: Ints) -> Ints:
    """Count, for each event, the earlier spans of its thread that end after it starts.

    Of two that start together the longer one counts as earlier, of equal ones the first given. What
    takes no time holds nothing. On a track of operations in flight this is how many overlap.
    """
    all_depths = np.zeros(len(start), np.int64)
    for rows in by_thread(thread, start, end):
        all_depths[rows] = _depths_of_thread(start[rows], end[rows])
    return all_depths


def by_thread(thread: Array, start: Ints, end: Ints) -> list[Indices]:
    """Return the events of each thread, in the order in which they began; the longer one first."""
    if (np.diff(start) > 0).all():  # as records mostly are
        order = np.argsort(thread.astype(np.uint16), kind="stable")
    else:
        order = np.lexsort((-end, start, thread))
    bounds = np.flatnonzero(np.diff(thread[order], prepend=-1, append=-1))
    return [order[first:last] for first, last in itertools.pairwise(bounds)]


def _depths_of_thread(start: Ints, end: Ints) -> Ints:
    """Count starts before each event minus ends before it; sorted by start, longest first."""
    has_length = end > start
    begun_before: Ints = np.cumsum(has_length) - has_length
    ended_before: Ints = np.searchsorted(np.sort(end[has_length]), start, side="right")
    return begun_before - ended_before


class RecordChunk(NamedTuple):
    """Records, where each comes from (any number), and its depth, else `UNKNOWN_DEPTH`."""

    records: Records
    origin: Ints
    depth: Ints

    @classmethod
    def new(cls, records: Records, origin: Ints) -> Self:
        """Make a chunk of records that were not fed before."""
        return cls(records, origin, np.full(len(records), UNKNOWN_DEPTH))

    @classmethod
    def concatenated(cls, parts: Sequence[RecordChunk]) -> Self:
        """Put parts one after the other."""
        empty = np.empty(0, np.int64)
        return cls(
            join([part.records for part in parts]),
            np.concatenate([empty, *(part.origin for part in parts)]),
            np.concatenate([empty, *(part.depth for part in parts)]),
        )

    def where(self, chosen: Flags) -> RecordChunk:
        """Select by a mask, which mostly selects all."""
        return self if chosen.all() else self.take(np.flatnonzero(chosen))

    def sorted(self) -> RecordChunk:
        """Put them in the order of their begin, as they mostly are."""
        start = np.ascontiguousarray(self.records["start_ns"])
        in_order = (start[1:] >= start[:-1]).all()
        return self if in_order else self.take(np.argsort(start, kind="stable"))

    def slice_rows(self, first: int, end: int | None) -> RecordChunk:
        """Return a slice."""
        part = slice(first, end)
        return RecordChunk(self.records[part], self.origin[part], self.depth[part])

    def take(self, where: Indices) -> RecordChunk:
        """Select by indexes."""
        return RecordChunk(pick(self.records, where), self.origin[where], self.depth[where])
