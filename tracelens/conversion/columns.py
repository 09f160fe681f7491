"""Records become columns: vectorised, without a Python loop over events.

With two that no single record holds: the depth of a span (how many spans of its thread were open
when it began), and its times on a device. A device tells its times later than the host, so they
come in records of their own, each of which names its span by an equal `request` (see
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
    "split",
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
    picked: Records = _words(records)[where].reshape(-1).view(SLOT)
    return picked


def join(parts: Sequence[Records]) -> Records:
    """Put records one after the other; as rows of integers, for the same reason."""
    filled = [part for part in parts if len(part)]
    if len(filled) == 1:
        return filled[0]
    words = [np.empty((0, RECORD_BYTES // _WORD), np.int64), *map(_words, filled)]
    joined: Records = np.concatenate(words).reshape(-1).view(SLOT)
    return joined


def _words(records: Records) -> Ints:
    return np.ascontiguousarray(records).view(np.int64).reshape(-1, RECORD_BYTES // _WORD)


def split(records: Records) -> Fields:
    """Copy each field into an array of its own: block by block, which is kind to caches."""
    words = _words(records)
    turned = np.empty((words.shape[1], len(words)), np.int64)
    for first in range(0, len(words), _BLOCK):
        block = slice(first, first + _BLOCK)
        turned[:, block] = words[block].T
    return {name: _field(turned, name) for name in SLOT.names or ()}


def _field(turned: Ints, name: str) -> Array:
    assert SLOT.fields is not None
    dtype, offset, *_ = SLOT.fields[name]
    word, within = divmod(offset, _WORD)
    parts = _WORD // dtype.itemsize
    return np.ascontiguousarray(turned[word].view(dtype)[within // dtype.itemsize :: parts])


def ends_of(fields: Fields, types: Int8s) -> Ints:
    """Return when each event ends: `FOREVER` if it is open, at once if it is no span."""
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
    found = (estimated * _ESTIMATED).astype(np.int8)
    end = fields["end_ns"]
    found[spans & (end < 0)] = _EXCEPTION
    found[spans & (end == 0)] = _OPEN
    return found


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

    def words(column: Column) -> pa.Array[Any]:
        return _coded(column.codes.take(rows), column.words)

    def indexes(column: Ints) -> pa.Array[Any]:
        values = column.take(rows)
        return _unless(values.astype(np.int32), values == NO_INDEX)

    return {
        "name": words(meanings.name),
        "kind": words(meanings.kind),
        "op": words(meanings.op),
        "algorithm": words(meanings.algorithm),
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
    def of(cls, records: Records | None) -> OnDevice:
        """Read the records that are device times; those without a sense are passed over."""
        if records is None:
            none = np.empty(0, np.int64)
            return cls(False, none.astype(np.uint64), none, none, none.astype(np.uint16))
        length = records["end_ns"] - records["start_ns"]
        sound = (records["bytes"] >= 0) & (records["end_ns"] > 0) & (length >= 0)
        order = np.flatnonzero(sound)
        order = order[np.argsort(records["request"][order], kind="stable")]
        return cls(
            True,
            records["request"][order],
            records["bytes"][order],
            length[order],
            records["thread"][order],
        )

    def named_by(self, request: UInt64s) -> Flags:
        """Return which spans' requests name device times, also those never recorded."""
        return np.asarray((request >> _NUMBER_BITS == _DEVICE_MARK) & self.used)

    def columns(self, request: UInt64s) -> dict[str, pa.Array[Any]]:
        """Return the columns of the spans with these requests; null where a span has none."""
        if not len(self.names):
            return {}
        at = np.minimum(np.searchsorted(self.names, request), len(self.names) - 1)
        missing = (self.names[at] != request) | ~self.named_by(request)
        return {
            "device_start_ns": pa.array(self.begin[at], mask=missing),
            "device_duration_ns": pa.array(self.length[at], mask=missing),
            "stream": pa.array(self.stream[at], mask=missing),
        }


def depths(thread: Array, start: Ints, end: Ints) -> Ints:
    """Count, for each event, the earlier spans of its thread that end after it starts.

    Of two that start together the longer one counts as earlier, of equal ones the first given. What
    takes no time holds nothing. On a track of operations in flight this is how many overlap.
    """
    found = np.zeros(len(start), np.int64)
    for chosen in by_thread(thread, start, end):
        found[chosen] = _depths_of_thread(start[chosen], end[chosen])
    return found


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
    holds = end > start
    begun: Ints = np.cumsum(holds) - holds
    ended: Ints = np.searchsorted(np.sort(end[holds]), start, side="right")
    return begun - ended


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
        return self if chosen.all() else self.at(np.flatnonzero(chosen))

    def sorted(self) -> RecordChunk:
        """Put them in the order of their begin, as they mostly are."""
        start = np.ascontiguousarray(self.records["start_ns"])
        in_order = (start[1:] >= start[:-1]).all()
        return self if in_order else self.at(np.argsort(start, kind="stable"))

    def part(self, first: int, end: int | None) -> RecordChunk:
        """Return a slice."""
        part = slice(first, end)
        return RecordChunk(self.records[part], self.origin[part], self.depth[part])

    def at(self, where: Indices) -> RecordChunk:
        """Select by indexes."""
        return RecordChunk(pick(self.records, where), self.origin[where], self.depth[where])
