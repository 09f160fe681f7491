"""Records become columns: vectorised, without a Python loop over events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from tracelens.schema.arrow import EVENT_SCHEMA
from tracelens.schema.depth import depths
from tracelens.schema.device import OnDevice, are_device_times
from tracelens.schema.record import ESTIMATED, NO_REQUEST, NO_SEQ, NO_SHORT, RECORD_BYTES
from tracelens.schema.vocabulary import EVENT_TYPES, STATUSES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tracelens.schema.side import Definition

__all__ = ["SLOT", "Records", "pick", "to_table"]

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

_SPAN, _INSTANT, _COUNTER = (EVENT_TYPES.index(word) for word in ("span", "instant", "counter"))
_CLOSED, _OPEN, _EXCEPTION, _ESTIMATED = range(len(STATUSES))
_FOREVER: Final = np.iinfo(np.int64).max
_MAX_INDEX: Final = np.iinfo(np.int32).max
_MAX_ID: Final = np.iinfo(np.uint32).max
_MOST_WORDS: Final = 127
_OTHER: Final = "other"


def to_table(
    records: Records, definitions: Sequence[Definition]
) -> tuple[pa.Table, dict[str, int]]:
    """Join records with what they stand for; also count what had to be left out, by reason."""
    records, on_device = _apart(records, definitions)
    ordered = sorted(filter(_is_sound, definitions), key=lambda row: row.id)
    rows, known = _join(records, ordered)
    types = np.array([EVENT_TYPES.index(row.type) for row in ordered] or [0], np.int8)
    types = types[np.where(known, rows, 0)]
    end = records["end_ns"]
    forward = (types != _SPAN) | (end == 0) | (np.abs(end) >= records["start_ns"])
    kept = np.flatnonzero(known & forward)
    kept = kept[np.argsort(records["start_ns"][kept], kind="stable")]
    table = _build(pick(records, kept), types[kept], rows[kept], ordered, on_device)
    lost = {
        "unknown definition": int((~known).sum()),
        "negative duration": int((known & ~forward).sum()),
    }
    return table, {reason: count for reason, count in lost.items() if count}


def _apart(records: Records, definitions: Sequence[Definition]) -> tuple[Records, OnDevice]:
    """Separate the events from the device times."""
    apart = are_device_times(records, definitions)
    if apart is None:
        return records, OnDevice.of(None)
    times = pick(records, np.flatnonzero(apart))
    return pick(records, np.flatnonzero(~apart)), OnDevice.of(times)


def pick(records: Records, where: NDArray[np.intp]) -> Records:
    """Take records; as rows of integers, because numpy copies structures field by field."""
    if len(where) == len(records) and bool((np.diff(where) == 1).all()):
        return records
    words = np.ascontiguousarray(records).view(np.int64).reshape(-1, RECORD_BYTES // 8)
    picked: Records = words[where].reshape(-1).view(SLOT)
    return picked


def _is_sound(row: Definition) -> bool:
    """Whether a definition is usable; the side file is read, but not trusted."""
    optional = (row.op, row.algorithm)
    indexes = [index for index in (row.communicator, row.shard) if index is not None]
    return (
        row.type in EVENT_TYPES
        and isinstance(row.name, str)
        and isinstance(row.kind, str)
        and all(word is None or isinstance(word, str) for word in optional)
        and all(isinstance(index, int) and abs(index) <= _MAX_INDEX for index in indexes)
        and isinstance(row.id, int)
        and 0 < row.id <= _MAX_ID
    )


def _join(records: Records, ordered: Sequence[Definition]) -> tuple[NDArray[np.intp], Any]:
    """Find each record's definition: its row, and whether there is one."""
    ids = np.array([row.id for row in ordered], np.uint32)
    rows = np.searchsorted(ids, records["definition"])
    known = rows < len(ids)
    known[known] = ids[rows[known]] == records["definition"][known]
    return rows, known


def _build(
    records: Records,
    types: NDArray[np.int8],
    rows: NDArray[np.intp],
    ordered: Sequence[Definition],
    on_device: OnDevice,
) -> pa.Table:
    start, end = records["start_ns"], np.abs(records["end_ns"])
    spans = types == _SPAN
    still_open = spans & (records["end_ns"] == 0)
    ends = np.where(still_open, _FOREVER, np.where(spans, end, start))
    deep = depths(records["thread"].astype(np.int64), start, ends)
    counters = types == _COUNTER
    request = np.ascontiguousarray(records["request"])
    no_request = counters | (request == NO_REQUEST) | on_device.named_by(request)
    columns: dict[str, pa.Array[Any]] = {
        "start_ns": pa.array(start),
        "duration_ns": pa.array(ends - start, mask=still_open),
        "type": _coded(types, EVENT_TYPES),
        "status": _coded(_statuses(records, spans), STATUSES),
        "thread": pa.array(records["thread"]),
        "depth": pa.array(np.minimum(deep, NO_SHORT).astype(np.uint16)),
        "step": pa.array(records["step"]),
        "micro_step": _unless(records["micro_step"], NO_SHORT),
        "seq": _unless(records["seq"], NO_SEQ),
        "queue_depth": _unless(records["queue_depth"], NO_SHORT),
        "request": pa.array(request, mask=no_request),
        "value": pa.array(request.view(np.float64), mask=~counters),
        **{name: _unless_negative(records[name]) for name in ("bytes", "bucket", "peer", "key")},
        **_of_definitions(rows, ordered),
        **on_device.columns(np.where(spans, request, NO_REQUEST)),
    }
    arrays = [
        columns[field.name].cast(field.type)
        if field.name in columns
        else pa.nulls(len(records), field.type)
        for field in EVENT_SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=EVENT_SCHEMA)


def _statuses(records: Records, spans: NDArray[np.bool_]) -> NDArray[np.int8]:
    estimated = (records["flags"] & ESTIMATED) != 0
    found = np.where(estimated, _ESTIMATED, _CLOSED)
    found = np.where(spans & (records["end_ns"] < 0), _EXCEPTION, found)
    return np.where(spans & (records["end_ns"] == 0), _OPEN, found).astype(np.int8)


def _unless(values: NDArray[Any], absent: int) -> pa.Array[Any]:
    column: pa.Array[Any] = pa.array(values, mask=values == absent)
    return column


def _unless_negative(values: NDArray[Any]) -> pa.Array[Any]:
    column: pa.Array[Any] = pa.array(values, mask=values < 0)
    return column


def _coded(codes: NDArray[np.int8], words: Sequence[str]) -> pa.Array[Any]:
    return pa.DictionaryArray.from_arrays(codes, list(words))


def _of_definitions(
    rows: NDArray[np.intp], ordered: Sequence[Definition]
) -> dict[str, pa.Array[Any]]:
    """Columns that are constant for a definition."""
    takes = pa.array(rows, pa.int64())
    words = {
        "name": _encode([row.name for row in ordered]),
        "kind": _encode(_few([row.kind for row in ordered])),
        "op": _encode(_few([row.op for row in ordered])),
        "algorithm": _encode(_few([row.algorithm for row in ordered])),
        "communicator": pa.array([row.communicator for row in ordered], pa.int32()),
        "shard": pa.array([row.shard for row in ordered], pa.int32()),
    }
    return {name: column.take(takes) for name, column in words.items()}


def _encode(words: Sequence[str | None]) -> pa.Array[Any]:
    return pa.array(map(_printable, words), pa.string()).dictionary_encode()


def _printable(word: str | None) -> str | None:
    """Replace what is no text, such as half a character of a file name."""
    return None if word is None else word.encode(errors="replace").decode()


def _few(words: Sequence[str | None]) -> Sequence[str | None]:
    """Keep as many different words as a small dictionary holds; the rest becomes one."""
    kept = set(list(dict.fromkeys(words))[: _MOST_WORDS - 1])
    return [word if word in kept else _OTHER for word in words]
