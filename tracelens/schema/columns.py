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

__all__ = ["FOREVER", "SLOT", "Records", "ends_of", "join", "pick", "to_batch"]

Records = np.ndarray[Any, np.dtype[np.void]]

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

FOREVER: Final = np.iinfo(np.int64).max
_SPAN, _INSTANT, _COUNTER = (EVENT_TYPES.index(word) for word in ("span", "instant", "counter"))
_CLOSED, _OPEN, _EXCEPTION, _ESTIMATED = range(len(STATUSES))
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
    words = [np.empty((0, RECORD_BYTES // 8), np.int64), *map(_words, filled)]
    joined: Records = np.concatenate(words).reshape(-1).view(SLOT)
    return joined


def _words(records: Records) -> NDArray[np.int64]:
    return np.ascontiguousarray(records).view(np.int64).reshape(-1, RECORD_BYTES // 8)


def ends_of(records: Records, types: NDArray[np.int8]) -> NDArray[np.int64]:
    """Return when each event ends: `FOREVER` if it is open, at once if it is no span."""
    end = np.abs(records["end_ns"])
    end[end == 0] = FOREVER
    return np.where(types == _SPAN, end, records["start_ns"])


def to_batch(
    records: Records,
    rows: NDArray[np.int32],
    depth: NDArray[np.int64],
    meanings: Meanings,
    on_device: OnDevice,
) -> pa.RecordBatch:
    """Build the columns of records whose definitions are the `rows` of `meanings`, at least one."""
    types = meanings.type[rows]
    spans, counters = types == _SPAN, types == _COUNTER
    start = np.ascontiguousarray(records["start_ns"])
    ends = ends_of(records, types)
    request = np.ascontiguousarray(records["request"])
    no_request = counters | (request == NO_REQUEST) | on_device.named_by(request)
    columns: dict[str, pa.Array[Any]] = {
        "start_ns": pa.array(start),
        "duration_ns": _unless(ends - start, ends == FOREVER),
        "type": _coded(types, _TYPE_WORDS),
        "status": _coded(_statuses(records, spans), _STATUS_WORDS),
        "thread": pa.array(np.ascontiguousarray(records["thread"])),
        "depth": pa.array(np.minimum(depth, NO_SHORT).astype(np.uint16)),
        "step": pa.array(np.ascontiguousarray(records["step"])),
        "request": _unless(request, no_request),
        "value": _unless(request.view(np.float64), ~counters),
        **{name: _unless_is(records[name], NO_SHORT) for name in ("micro_step", "queue_depth")},
        "seq": _unless_is(records["seq"], NO_SEQ),
        **{name: _unless_negative(records[name]) for name in ("bytes", "bucket", "peer", "key")},
        **_of_definitions(rows, meanings),
        **on_device.columns(np.where(spans, request, NO_REQUEST)),
    }
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(len(records), field.type)
        for field in EVENT_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)


def _statuses(records: Records, spans: NDArray[np.bool_]) -> NDArray[np.int8]:
    estimated = records["flags"] & ESTIMATED
    found = (estimated * _ESTIMATED).astype(np.int8)
    end = records["end_ns"]
    found[spans & (end < 0)] = _EXCEPTION
    found[spans & (end == 0)] = _OPEN
    return found


def _unless_is(values: NDArray[Any], absent: int) -> pa.Array[Any]:
    values = np.ascontiguousarray(values)
    return _unless(values, values == absent)


def _unless_negative(values: NDArray[Any]) -> pa.Array[Any]:
    values = np.ascontiguousarray(values)
    return _unless(values, values < 0)


def _unless(values: NDArray[Any], absent: NDArray[np.bool_]) -> pa.Array[Any]:
    """Take values, null where they are absent; most columns are all there or not at all."""
    column: pa.Array[Any]
    if not absent.any():
        column = pa.array(values)
    elif absent.all():
        column = pa.array(np.zeros_like(values), mask=absent)
    else:
        column = pa.array(values, mask=absent)
    return column


def _coded(codes: NDArray[Any], words: pa.Array[Any]) -> pa.Array[Any]:
    absent = codes < 0
    indexes = _unless(np.maximum(codes, 0), absent)  # some readers look at what is null, too
    return pa.DictionaryArray.from_arrays(indexes, words, safe=False)


def _of_definitions(rows: NDArray[np.int32], meanings: Meanings) -> dict[str, pa.Array[Any]]:
    """Columns that are constant for a definition."""

    def words(column: Column) -> pa.Array[Any]:
        return _coded(column.codes[rows], column.words)

    def indexes(column: NDArray[np.int64]) -> pa.Array[Any]:
        values = column[rows]
        return _unless(values.astype(np.int32), values == NO_INDEX)

    return {
        "name": words(meanings.name),
        "kind": words(meanings.kind),
        "op": words(meanings.op),
        "algorithm": words(meanings.algorithm),
        "communicator": indexes(meanings.communicator),
        "shard": indexes(meanings.shard),
    }
