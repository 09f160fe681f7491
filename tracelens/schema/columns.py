"""Records become columns: vectorised, without a Python loop over events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from tracelens.schema.arrow import EVENT_SCHEMA
from tracelens.schema.meanings import NO_INDEX
from tracelens.schema.record import ESTIMATED, NO_REQUEST, NO_SEQ, NO_SHORT, RECORD_BYTES
from tracelens.schema.vocabulary import EVENT_TYPES, STATUSES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tracelens.schema.device import OnDevice
    from tracelens.schema.meanings import Column, Meanings

__all__ = ["FOREVER", "SLOT", "Fields", "Records", "ends_of", "join", "pick", "split", "to_batch"]

Records = np.ndarray[Any, np.dtype[np.void]]
Fields = dict[str, np.ndarray[Any, np.dtype[Any]]]  # of records, each one after the other

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


def pick(records: Records, where: NDArray[np.intp]) -> Records:
    """Take records; as rows of integers, because numpy copies structures field by field."""
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


def _words(records: Records) -> NDArray[np.int64]:
    return np.ascontiguousarray(records).view(np.int64).reshape(-1, RECORD_BYTES // _WORD)


def split(records: Records) -> Fields:
    """Lay each field out by itself: block by block, or each would be a walk over all the memory."""
    words = _words(records)
    turned = np.empty((words.shape[1], len(words)), np.int64)
    for first in range(0, len(words), _BLOCK):
        block = slice(first, first + _BLOCK)
        turned[:, block] = words[block].T
    return {name: _field(turned, name) for name in SLOT.names or ()}


def _field(turned: NDArray[np.int64], name: str) -> NDArray[Any]:
    assert SLOT.fields is not None
    dtype, offset, *_ = SLOT.fields[name]
    word, within = divmod(offset, _WORD)
    parts = _WORD // dtype.itemsize
    return np.ascontiguousarray(turned[word].view(dtype)[within // dtype.itemsize :: parts])


def ends_of(fields: Fields, types: NDArray[np.int8]) -> NDArray[np.int64]:
    """Return when each event ends: `FOREVER` if it is open, at once if it is no span."""
    end: NDArray[np.int64] = np.abs(fields["end_ns"])
    end[end == 0] = FOREVER
    momentary = types != _SPAN
    end[momentary] = fields["start_ns"][momentary]
    return end


def to_batch(
    fields: Fields,
    rows: NDArray[np.int32],
    depth: NDArray[np.int64],
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
    arrays = [columns.get(field.name) or _absent(len(start), field.type) for field in EVENT_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)


def _statuses(fields: Fields, spans: NDArray[np.bool_]) -> NDArray[np.int8]:
    estimated = fields["flags"] & ESTIMATED
    found = (estimated * _ESTIMATED).astype(np.int8)
    end = fields["end_ns"]
    found[spans & (end < 0)] = _EXCEPTION
    found[spans & (end == 0)] = _OPEN
    return found


def _unless_is(values: NDArray[Any], absent: int) -> pa.Array[Any]:
    return _unless(values, values == absent)


def _unless_negative(values: NDArray[Any]) -> pa.Array[Any]:
    return _unless(values, values < 0)


def _unless(values: NDArray[Any], absent: NDArray[np.bool_]) -> pa.Array[Any]:
    """Take values, null where they are absent; most columns are all there or not at all."""
    nulls = int(np.count_nonzero(absent))
    if nulls == len(values):
        return _absent(nulls, pa.from_numpy_dtype(values.dtype))
    validity = _buffer(np.packbits(~absent, bitorder="little")) if nulls else None
    return _array(values, validity, nulls)


def _array(
    values: NDArray[Any], validity: pa.Buffer | None = None, nulls: int = 0
) -> pa.Array[Any]:
    """Wrap values that lie one after the other; `pa.array` would load numpy.ma, which takes long."""
    buffers = [validity, _buffer(values)]
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), buffers, null_count=nulls)


def _buffer(values: NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(values.data)


def _absent(count: int, kind: pa.DataType) -> pa.Array[Any]:
    """Return a column without values, which all share the same memory."""
    if isinstance(kind, pa.DictionaryType):
        none = _absent(count, kind.index_type)
        return pa.DictionaryArray.from_arrays(none, pa.array([], kind.value_type), safe=False)
    nothing = _NOTHING if count << 3 <= _MOST_BYTES else pa.py_buffer(bytes(count << 3))
    return pa.Array.from_buffers(kind, count, [nothing, nothing], null_count=count)


def _coded(codes: NDArray[Any], words: pa.Array[Any]) -> pa.Array[Any]:
    absent = codes < 0
    indexes = _unless(np.maximum(codes, 0), absent)  # some readers look at what is null, too
    return pa.DictionaryArray.from_arrays(indexes, words, safe=False)


def _of_definitions(rows: NDArray[np.int32], meanings: Meanings) -> dict[str, pa.Array[Any]]:
    """Columns that are constant for a definition."""

    def words(column: Column) -> pa.Array[Any]:
        return _coded(column.codes.take(rows), column.words)

    def indexes(column: NDArray[np.int64]) -> pa.Array[Any]:
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
