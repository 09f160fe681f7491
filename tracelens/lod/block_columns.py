"""Columns of an index that are read like arrays, and decode only the blocks in which a read lies."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Literal

    from tracelens.arrays import Array, Ints

BLOCK: Final = 1024  # items: decoded together; fewer take more room on disk, more take longer
_PARSING: Final = Lock()


@dataclass(frozen=True, eq=False)
class BlockColumn:
    """A column on disk, [item], in blocks of `BLOCK` items; the last block may be shorter.

    `decode_blocks` returns the values of each of some blocks, by block number. Columns that are searched
    have `first_values`, [block].
    """

    item_count: int
    dtype: np.dtype[Any]
    decode_blocks: Callable[[Ints], list[Array]]
    first_values: Ints | None = None

    def __len__(self) -> int:
        return self.item_count

    def __getitem__(self, key: int | slice | Array) -> Any:
        """Return one item, or those of a slice or of an array of indices."""
        if isinstance(key, slice):
            begin, end, stride = key.indices(self.item_count)
            values, (shift,) = self._decode_around(np.array([begin]), np.array([end]))
            return values[begin - shift : max(begin, end) - shift : stride]
        items = np.atleast_1d(key)
        values, shifts = self._decode_around(items, items + 1)
        selected = np.asarray(values[items - shifts])
        return selected if isinstance(key, np.ndarray) else selected[0]

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return np.array(self[:], dtype)

    def take_ranges(self, begins: Ints, ends: Ints) -> Array:
        """Return the values of items from `begins` to before `ends`, [range], one after the other."""
        values, shifts = self._decode_around(begins, ends)
        return take_ranges(values, begins - shifts, ends - shifts)

    def first_at_least(self, begins: Ints, ends: Ints, min_value: int) -> Ints:
        """Return each range's first item that is not below `min_value`, or its end, [range].

        Values ascend within a range, from item `begins` to before `ends`, [range]. `first_values` narrow
        each range to one block, and only these blocks are decoded.
        """
        assert self.first_values is not None
        first_blocks, end_blocks = -(-begins // BLOCK), -(-ends // BLOCK)
        # The first block of each range that begins at the value, or above it.
        mark_blocks = first_at_least(
            self.first_values, first_blocks, np.maximum(first_blocks, end_blocks), min_value
        )
        first_items = np.where(mark_blocks > first_blocks, (mark_blocks - 1) * BLOCK + 1, begins)
        search_ends = np.where(mark_blocks < end_blocks, mark_blocks * BLOCK, ends)
        is_open = search_ends > first_items
        if is_open.any():
            open_begins, open_ends = first_items[is_open], search_ends[is_open]
            values, shifts = self._decode_around(open_begins, open_ends)
            open_items = first_at_least(values, open_begins - shifts, open_ends - shifts, min_value)
            first_items[is_open] = open_items + shifts
        return first_items

    def _decode_around(self, begins: Ints, ends: Ints) -> tuple[Array, Ints]:
        """Return the values of all blocks in which ranges of items lie, and each range's shift, [range].

        A range that begins at item `begin` of the column begins at `begin - shift` of these values.
        """
        first_blocks = begins // BLOCK
        block_counts = np.where(ends > begins, (ends - 1) // BLOCK + 1 - first_blocks, 0)
        blocks_before = np.cumsum(block_counts) - block_counts
        blocks = np.unique(
            np.repeat(first_blocks - blocks_before, block_counts) + np.arange(block_counts.sum())
        )
        values = np.concatenate([np.zeros(0, self.dtype), *self.decode_blocks(blocks)])
        return values, BLOCK * (first_blocks - np.searchsorted(blocks, first_blocks))


def take_ranges(column: Array | BlockColumn, begins: Ints, ends: Ints) -> Array:
    """Return the values of a column from `begins` to before `ends`, [range], one after the other."""
    if isinstance(column, BlockColumn):
        return column.take_ranges(begins, ends)
    ranges = zip(begins.tolist(), ends.tolist(), strict=True)
    return np.concatenate([column[:0], *(column[begin:end] for begin, end in ranges)])


def first_at_least(column: Array | BlockColumn, begins: Ints, ends: Ints, min_value: int) -> Ints:
    """Return each range's first item that is not below `min_value`, or its end, [range].

    Values ascend within a range, from item `begins` to before `ends`, [range].
    """
    if isinstance(column, BlockColumn):
        return column.first_at_least(begins, ends, min_value)
    low, high = begins.copy(), ends.copy()
    for _ in range(int((high - low).max(initial=0)).bit_length()):
        middle = (low + high) // 2
        is_open = low < high
        is_below = is_open & (column[np.minimum(middle, len(column) - 1)] < min_value)
        low = np.where(is_below, middle + 1, low)
        high = np.where(is_open & ~is_below, middle, high)
    return low


def map_array(file: Path) -> Array:
    """Map an array file into memory, as a plain array, which is quicker to slice."""
    return np.asarray(load_array(file, "r"))


def load_array(file: Path, mode: Literal["r"] | None = None) -> Array:
    """Read an array file, or map it.

    Its header is a Python expression, and before 3.11.8 Python counts the depth of all threads' syntax
    trees together, so that two that parse concurrently can fail (python/cpython#106905).
    """
    with _PARSING:
        array: Array = np.load(file, mmap_mode=mode, allow_pickle=False)
    return array
