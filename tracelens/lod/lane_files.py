"""Lanes as an Arrow file: a record batch for each block of items, written part by part.

A worker's pieces touch: where one ends, the next begins. So times are stored as lengths, as the gap
before each item, which is zero nearly everywhere, and as the times of each block's first item. Steps
are stored as differences, as neighbours mostly belong to one step. All that is exact.
"""

from __future__ import annotations

from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tracelens.lod.block_columns import BLOCK, BlockColumn, map_array
from tracelens.lod.lanes import Lane, Lanes, base_of
from tracelens.memory import BoundedCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from tracelens.arrays import Array, Ints

    OnProgress = Callable[[int, int], None]

# A length is split by significance: its low bytes are noise, in which LZ4 finds nothing, and its
# high bytes are mostly zero.
SCHEMA: Final = pa.schema(
    {
        "length_low": pa.uint16(),  # ns: bits 0 to 15
        "length_middle": pa.uint8(),  # bits 16 to 23
        "length_high": pa.uint32(),  # bits 24 to 55: lengths are below two years
        "gap": pa.int64(),  # ns since the end of the item before; 0 for the first of a block
        "code": pa.uint8(),
        "step_change": pa.int32(),  # since the item before; the step itself for the first of a block
        "name": pa.int32(),
    }
)
_WRITE_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_READ_OPTIONS: Final = pa.ipc.IpcReadOptions(use_threads=False)
_BLOCKS: Final = "blocks"  # kind of result in the cache
_MAX_DECODED_ITEMS: Final = 4_000_000  # items: of all open runs, 25 bytes each in memory [policy]
DECODED: Final = BoundedCache(_MAX_DECODED_ITEMS)


class Items(NamedTuple):
    """Items of lanes, [item]; times in ns."""

    starts: Array
    ends: Array
    codes: Array
    steps: Array
    names: Array


_DTYPES: Final[tuple[np.dtype[Any], ...]] = tuple(
    map(np.dtype, ("int64", "int64", "uint8", "int32", "int32"))
)


def save_lanes(
    lane_parts: Iterable[Lanes],
    folder: Path,
    name: str,
    lane_count: int = 0,
    on_progress: OnProgress | None = None,
) -> tuple[Ints, tuple[str, ...]]:
    """Write the items of all parts; return the offsets of their lanes, and their words.

    Memory holds one part at a time, and less than a block of the parts before it.
    """
    word_offsets: dict[tuple[str, ...], int] = {}
    counts, marks = [0], [np.zeros((2, 0), np.int64)]
    remainder = Items(*(np.zeros(0, dtype) for dtype in _DTYPES))
    with pa.ipc.new_file(str(folder / f"{name}.arrow"), SCHEMA, options=_WRITE_OPTIONS) as writer:
        for lanes in lane_parts:
            items = _append(remainder, lanes, base_of(word_offsets, lanes.words))
            full_items = len(items.starts) // BLOCK * BLOCK
            marks.append(_write(writer, Items(*(column[:full_items] for column in items))))
            remainder = Items(*(column[full_items:] for column in items))
            counts += np.diff(lanes.offsets).tolist()
            if on_progress:
                on_progress(len(counts) - 1, lane_count)
        marks.append(_write(writer, remainder))
    offsets = np.cumsum(counts)
    np.save(folder / f"{name}-offsets.npy", offsets)
    np.save(folder / f"{name}-marks.npy", np.concatenate(marks, axis=1))
    return offsets, tuple(word for group in word_offsets for word in group)


def _append(items: Items, part: Lanes, base: np.int32) -> Items:
    columns = (part.starts, part.ends, part.codes, part.steps, part.names[:] + base)
    pairs = zip(items, columns, strict=True)
    return Items(*(np.concatenate([before, column[:]]) for before, column in pairs))


def _write(writer: pa.ipc.RecordBatchFileWriter, items: Items) -> Ints:
    """Write items from a block's begin on; return the times of each block's first item, [2, block]."""
    block_begins = slice(None, None, BLOCK)
    gaps = np.diff(items.starts, prepend=0)
    gaps[1:] = items.starts[1:] - items.ends[:-1]
    gaps[block_begins] = 0
    step_changes = np.diff(items.steps, prepend=np.int32(0))
    step_changes[block_begins] = items.steps[block_begins]
    lengths = items.ends - items.starts
    columns = {
        "length_low": lengths & 0xFFFF,
        "length_middle": lengths >> 16 & 0xFF,
        "length_high": lengths >> 24,
        "gap": gaps,
        "code": items.codes,
        "step_change": step_changes,
        "name": items.names,
    }
    arrays = [
        pa.array(columns[field.name].astype(field.type.to_pandas_dtype())) for field in SCHEMA
    ]
    writer.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA), max_chunksize=BLOCK)
    return np.stack([items.starts[block_begins], items.ends[block_begins]])


class _ItemFile:
    """The file of a run's items; decoded blocks stay in a cache that all open runs share."""

    def __init__(self, folder: Path, name: str) -> None:
        """Open the file; nothing is decoded yet.

        Raises:
            OSError: a file is missing.
            ValueError: a file is cut short.
        """
        self.marks = map_array(folder / f"{name}-marks.npy")
        source = pa.OSFile(str(folder / f"{name}.arrow"), "r")
        self._reader = pa.ipc.open_file(source, options=_READ_OPTIONS)
        self._lock = Lock()
        self._key = object()
        if self._reader.num_record_batches != self.marks.shape[1]:
            raise ValueError(f"the items of '{name}' are not complete")

    def column(self, count: int, field: str, first_values: Ints | None = None) -> BlockColumn:
        """Return one column of all `count` items."""
        index = Items._fields.index(field)

        def decode(blocks: Ints) -> list[Array]:
            return [items[index] for items in self._decode(blocks.tolist())]

        return BlockColumn(count, _DTYPES[index], decode, first_values)

    def _decode(self, blocks: list[int]) -> list[Items]:
        decoded = {block: DECODED.get(_BLOCKS, (self._key, block)) for block in blocks}
        missing = [block for block, items in decoded.items() if items is None]
        if missing:
            for block, items in zip(missing, self._read(missing), strict=True):
                DECODED.put(_BLOCKS, (self._key, block), items, len(items.starts))
                decoded[block] = items
        return [decoded[block] for block in blocks]

    def _read(self, blocks: list[int]) -> list[Items]:
        """Decode some blocks, at least one, all of them in one pass."""
        with self._lock:
            batches = [self._reader.get_batch(block) for block in blocks]
        counts = [batch.num_rows for batch in batches]
        bounds = np.cumsum([0, *counts])
        block_begins = bounds[:-1]
        columns_by_name: dict[str, Any] = {
            field.name: values.to_numpy()
            for field, values in zip(SCHEMA, pa.Table.from_batches(batches).columns, strict=True)
        }
        lengths = columns_by_name["length_high"].astype(np.int64) << 24
        lengths += columns_by_name["length_middle"].astype(np.int32) << 16
        lengths += columns_by_name["length_low"]
        ends = np.cumsum(lengths + columns_by_name["gap"])
        ends += np.repeat(self.marks[1, blocks] - ends[block_begins], counts)
        changes = columns_by_name["step_change"]
        steps = np.cumsum(changes, dtype=np.int32)
        steps += np.repeat(changes[block_begins] - steps[block_begins], counts)
        items = Items(ends - lengths, ends, columns_by_name["code"], steps, columns_by_name["name"])
        for values in items:
            values.flags.writeable = False
        ranges = pairwise(bounds.tolist())
        return [Items(*(values[begin:end] for values in items)) for begin, end in ranges]


def load_lanes(folder: Path, name: str, lanes: Sequence[Lane], words: Sequence[str]) -> Lanes:
    """Open what `save_lanes` wrote; nothing is decoded yet.

    Raises:
        OSError: a file is missing.
        ValueError: a file is cut short.
    """
    file = _ItemFile(folder, name)
    offsets = map_array(folder / f"{name}-offsets.npy")
    count = int(offsets[-1])
    return Lanes(
        lanes=tuple(lanes),
        offsets=offsets,
        starts=file.column(count, "starts", file.marks[0]),
        ends=file.column(count, "ends", file.marks[1]),
        codes=file.column(count, "codes"),
        steps=file.column(count, "steps"),
        names=file.column(count, "names"),
        words=tuple(words),
    )
