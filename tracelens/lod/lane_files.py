"""Lanes as an Arrow file: a record batch for each block of items, written part by part.

A worker's pieces touch: where one ends, the next begins. So times are stored as lengths, as the gap
before each item, which is zero nearly everywhere, and as the times of each block's first item. Steps
are stored as differences, as neighbours mostly belong to one step. All that is exact.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tracelens.lod.block_columns import BLOCK, BlockColumn, map_array
from tracelens.lod.lanes import Lane, Lanes, add_words
from tracelens.memory import BoundedCache
from tracelens.model.columns import to_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from tracelens.arrays import Array, Ints

    OnProgress = Callable[[int, int], None]
    _Decode = Callable[[Sequence[Array], Ints, Ints], tuple[Array, ...]]

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
_TIMES: Final = ("length_low", "length_middle", "length_high", "gap", "code")  # columns
_LABELS: Final = ("step_change", "name")  # columns: few pictures need them
# items: as many of all open runs stay decoded, with 17 bytes for times and 8 for labels [policy]
_MAX_DECODED_ITEMS: Final = 6_500_000
DECODED: Final = BoundedCache(_MAX_DECODED_ITEMS)


class Items(NamedTuple):
    """Items of lanes, [item]; times in ns."""

    starts_ns: Array
    ends_ns: Array
    palette_codes: Array
    step_numbers: Array
    name_indices: Array


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
    """Write the items of all parts; return the first item of each lane, [lane + 1], and all names.

    Memory holds one part at a time, and less than a block of the parts before it. Files are called after
    `name`; `lane_count` is the total that `on_progress` gets.
    """
    word_offsets: dict[tuple[str, ...], int] = {}
    item_counts, first_times = [0], [np.zeros((2, 0), np.int64)]
    remainder = Items(*(np.zeros(0, dtype) for dtype in _DTYPES))  # less than a block
    with pa.ipc.new_file(str(folder / f"{name}.arrow"), SCHEMA, options=_WRITE_OPTIONS) as writer:
        for lanes in lane_parts:
            items = _append_items(remainder, lanes, add_words(word_offsets, lanes.item_names))
            full_count = len(items.starts_ns) // BLOCK * BLOCK
            first_times.append(
                _write_items(writer, Items(*(column[:full_count] for column in items)))
            )
            remainder = Items(*(column[full_count:] for column in items))
            item_counts += np.diff(lanes.item_offsets).tolist()
            if on_progress:
                on_progress(len(item_counts) - 1, lane_count)
        first_times.append(_write_items(writer, remainder))
    offsets = np.cumsum(item_counts)
    np.save(folder / f"{name}-offsets.npy", offsets)
    np.save(folder / f"{name}-marks.npy", np.concatenate(first_times, axis=1))
    return offsets, tuple(word for group in word_offsets for word in group)


def _append_items(items: Items, lanes: Lanes, word_offset: np.int32) -> Items:
    """Append the items of some lanes, whose words begin at `word_offset` of all words."""
    columns = (
        lanes.starts_ns,
        lanes.ends_ns,
        lanes.palette_codes,
        lanes.step_numbers,
        lanes.name_indices[:] + word_offset,
    )
    pairs = zip(items, columns, strict=True)
    return Items(*(np.concatenate([before, column[:]]) for before, column in pairs))


def _write_items(writer: pa.ipc.RecordBatchFileWriter, items: Items) -> Ints:
    """Write items from a block's begin on; return the times of each block's first item, [2, block]."""
    block_begins = slice(None, None, BLOCK)
    gaps_ns = np.diff(items.starts_ns, prepend=0)
    gaps_ns[1:] = items.starts_ns[1:] - items.ends_ns[:-1]
    gaps_ns[block_begins] = 0
    step_changes = np.diff(items.step_numbers, prepend=np.int32(0))
    step_changes[block_begins] = items.step_numbers[block_begins]
    lengths_ns = items.ends_ns - items.starts_ns
    columns = {
        "length_low": lengths_ns & 0xFFFF,
        "length_middle": lengths_ns >> 16 & 0xFF,
        "length_high": lengths_ns >> 24,
        "gap": gaps_ns,
        "code": items.palette_codes,
        "step_change": step_changes,
        "name": items.name_indices,
    }
    arrays = [pa.array(columns[field.name].astype(to_dtype(field.type))) for field in SCHEMA]
    writer.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA), max_chunksize=BLOCK)
    return np.stack([items.starts_ns[block_begins], items.ends_ns[block_begins]])


class _Blocks:
    """Some columns of an item file, decoded block by block.

    `decode` makes arrays of the stored columns of blocks, [item] of all blocks, by the blocks' numbers
    and lengths. Decoded blocks stay in a cache that all open runs share.
    """

    def __init__(self, file: Path, columns: tuple[str, ...], decode: _Decode) -> None:
        """Open the file; nothing is decoded yet."""
        fields = [SCHEMA.get_field_index(name) for name in columns]
        options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        self._reader = pa.ipc.open_file(pa.OSFile(str(file), "r"), options=options)
        self._cache_name = columns[0]  # stands for all that are decoded together
        self._decode = decode
        self._lock = Lock()
        self._key = object()

    def __len__(self) -> int:
        return self._reader.num_record_batches

    def read_column(self, index: int, blocks: Ints) -> list[Array]:
        """Return one decoded column, [item of the block], of each block with these numbers.

        `index` is the column's place in what `decode` returns.
        """
        numbers = blocks.tolist()
        decoded_blocks = {
            block: DECODED.get(self._cache_name, (self._key, block)) for block in numbers
        }
        missing = [block for block, columns in decoded_blocks.items() if columns is None]
        if missing:
            for block, columns in zip(missing, self._read(missing), strict=True):
                item_count = len(columns[0])
                DECODED.put(self._cache_name, (self._key, block), columns, item_count)
                decoded_blocks[block] = columns
        return [decoded_blocks[block][index] for block in numbers]

    def _read(self, blocks: list[int]) -> list[tuple[Array, ...]]:
        """Return the columns, [item of the block], of each block with these numbers, at least one."""
        with self._lock:
            batches = [self._reader.get_batch(block) for block in blocks]
        stored_columns = [column.to_numpy() for column in pa.Table.from_batches(batches).columns]
        counts = np.array([batch.num_rows for batch in batches])
        columns = self._decode(stored_columns, np.array(blocks), counts)
        for column in columns:
            column.flags.writeable = False
        bounds = np.cumsum([0, *counts]).tolist()
        return [tuple(column[begin:end] for column in columns) for begin, end in pairwise(bounds)]


def _decode_times(
    first_ends: Ints, stored: Sequence[Array], blocks: Ints, counts: Ints
) -> tuple[Array, ...]:
    """Return starts, ends, ns, and codes, [item] of some blocks.

    Args:
        first_ends: When the first item of each block of the file ends, ns.
        stored: The columns `_TIMES` of these blocks, [item].
        blocks: The blocks' numbers.
        counts: Their numbers of items.
    """
    low, middle, high, gaps_ns, codes = stored
    lengths_ns = high.astype(np.int64) << 24
    lengths_ns += middle.astype(np.int32) << 16
    lengths_ns += low
    ends_ns = np.cumsum(lengths_ns + gaps_ns)
    block_begins = np.cumsum(counts) - counts
    ends_ns += np.repeat(first_ends[blocks] - ends_ns[block_begins], counts)
    return ends_ns - lengths_ns, ends_ns, codes


def _decode_labels(stored: Sequence[Array], _blocks: Ints, counts: Ints) -> tuple[Array, ...]:
    """Return steps and names, [item] of some blocks; `stored` are their columns `_LABELS`."""
    step_changes, names = stored
    steps = np.cumsum(step_changes, dtype=np.int32)
    block_begins = np.cumsum(counts) - counts
    steps += np.repeat(step_changes[block_begins] - steps[block_begins], counts)
    return steps, names


def load_lanes(folder: Path, name: str, lanes: Sequence[Lane], words: Sequence[str]) -> Lanes:
    """Open what `save_lanes` wrote; nothing is decoded yet.

    Raises:
        OSError: a file is missing.
        ValueError: a file is cut short.
    """
    first_starts, first_ends = map_array(folder / f"{name}-marks.npy")
    offsets = map_array(folder / f"{name}-offsets.npy")
    file = folder / f"{name}.arrow"
    times = _Blocks(file, _TIMES, partial(_decode_times, first_ends))
    labels = _Blocks(file, _LABELS, _decode_labels)
    if len(times) != len(first_ends):
        raise ValueError(f"the items of '{name}' are not complete")

    def column(
        blocks: _Blocks, index: int, dtype: np.dtype[Any], first_values: Ints | None = None
    ) -> BlockColumn:
        """Return the column with number `index` of all items, as `blocks` decodes it."""
        return BlockColumn(
            int(offsets[-1]), dtype, partial(blocks.read_column, index), first_values
        )

    start_type, end_type, code_type, step_type, name_type = _DTYPES
    return Lanes(
        owners=tuple(lanes),
        item_offsets=offsets,
        starts_ns=column(times, index=0, dtype=start_type, first_values=first_starts),
        ends_ns=column(times, index=1, dtype=end_type, first_values=first_ends),
        palette_codes=column(times, index=2, dtype=code_type),
        step_numbers=column(labels, index=0, dtype=step_type),
        name_indices=column(labels, index=1, dtype=name_type),
        item_names=tuple(words),
    )
