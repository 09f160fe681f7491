"""Columns of whole numbers in compressed blocks: a slice decodes only the blocks in which it lies.

A block holds `BLOCK` neighbouring numbers. Their bytes are ordered by significance, all lowest bytes
first, and those that are zero in all of them are left out (as Parquet's BYTE_STREAM_SPLIT does, of
https://parquet.apache.org/docs/file-format/data-pages/encodings); what is left is an LZ4 block. LZ4
rather than a codec that packs tighter, as a page decodes hundreds of blocks for one picture.

Decoded blocks are kept, those of all open columns together up to `MOST_KEPT` bytes.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Self, cast, overload
from weakref import finalize

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType
    from typing import Literal

    from tracelens.arrays import Array, Flags, Ints

    Decode = Callable[[Ints], list[Array]]

BLOCK: Final = 512
MOST_KEPT: Final = 96 << 20
_AT_ONCE: Final = 512  # blocks that are read, or written, together
_TABLE: Final = [("end", "<i8"), ("count", "<u2"), ("width", "u1")]
_NUMBER: Final = "number"
_CODEC: Final = pa.Codec("lz4_raw")
_PARSING: Final = Lock()


class Writer:
    """Writes a column: `FILE.blocks`, and its table, the ends of its blocks, as `FILE.npy`."""

    def __init__(self, folder: Path, name: str, dtype: np.dtype[Any]) -> None:
        self._table = folder / f"{name}.npy"
        self._file = (folder / f"{name}.blocks").open("wb")
        self._dtype = dtype.newbyteorder("<")
        self._rows: list[tuple[int, int, int]] = []
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: object, _trace: TracebackType | None
    ) -> None:
        self._file.close()
        if kind is None:
            self._save_table()

    def add(self, numbers: Array) -> None:
        """Write some numbers; all blocks but the last one of the column are to be full."""
        flat = np.ascontiguousarray(numbers, self._dtype).ravel()
        for begin in range(0, len(flat), _AT_ONCE * BLOCK):
            part = flat[begin : begin + _AT_ONCE * BLOCK]
            full = len(part) // BLOCK * BLOCK
            self._add_blocks(part[:full].reshape(-1, BLOCK))
            if full < len(part):
                self._add_blocks(part[full:][np.newaxis])

    def _save_table(self) -> None:
        """Write where blocks end, and, as a field without a size, what kind of numbers they hold."""
        table = np.zeros(len(self._rows), [*_TABLE, (_NUMBER, self._dtype.str, (0,))])
        for place, (name, _) in enumerate(_TABLE):
            table[name] = [row[place] for row in self._rows]
        np.save(self._table, table)

    def _add_blocks(self, blocks: Array) -> None:
        """Write some blocks of equal length, [block, number]."""
        count, size = blocks.shape[1], blocks.dtype.itemsize
        most = blocks.view(f"<u{size}").max(axis=1, initial=0).tolist()
        widths = [-(-number.bit_length() // 8) for number in most]
        widest = max(widths, default=0)
        split = blocks.view(np.uint8).reshape(-1, count, size)[:, :, :widest].transpose(0, 2, 1)
        by_byte = np.ascontiguousarray(split).reshape(len(blocks), widest * count)
        for numbers, width in zip(by_byte, widths, strict=True):
            if width:
                packed = _CODEC.compress(numbers[: width * count].data, asbytes=True)
                self._end += self._file.write(packed)
            self._rows.append((self._end, count, width))


def save(folder: Path, name: str, numbers: Array) -> None:
    """Write a column at once."""
    with Writer(folder, name, numbers.dtype) as writer:
        writer.add(numbers)


class Packed:
    """The blocks of a column on disk."""

    def __init__(self, folder: Path, name: str) -> None:
        """Open what a `Writer` wrote.

        Raises:
            OSError: it is not there.
            ValueError: it is not whole.
        """
        self._table = mapped(folder / f"{name}.npy")
        self._file = (folder / f"{name}.blocks").open("rb", buffering=0)
        finalize(self, self._file.close)
        self.dtype = self._table.dtype[_NUMBER].base
        self.count = BLOCK * max(len(self._table) - 1, 0)
        self.count += int(self._table["count"][-1]) if len(self._table) else 0
        size = int(self._table["end"][-1]) if len(self._table) else 0
        if os.fstat(self._file.fileno()).st_size != size:
            raise ValueError(f"the column '{name}' of an index is not whole")

    def is_zero(self, blocks: Ints) -> Flags:
        """Return of which blocks all numbers are zero, which is known without decoding them."""
        return np.asarray(self._table["width"][blocks] == 0)

    def decode(self, blocks: Ints) -> list[Array]:
        """Return the numbers of some blocks."""
        rows = zip(self.padded(blocks), self.counts(blocks), strict=True)
        return [row[:count].copy() for row, count in rows]

    def counts(self, blocks: Ints) -> list[int]:
        """Return how many numbers some blocks have."""
        found: list[int] = self._table["count"][blocks].tolist()
        return found

    def padded(self, blocks: Ints) -> Array:
        """Return the numbers of some blocks, [block, number]; zeros are beyond the last block's end.

        All at once, as numpy takes as long to be called as for the numbers of a block.
        """
        ends, counts, widths = (self._table[name][blocks] for name, _ in _TABLE)
        begins = np.where(blocks > 0, self._table["end"][blocks - 1], 0)
        split = np.zeros((len(blocks), BLOCK, self.dtype.itemsize), np.uint8)
        places = np.stack([begins, ends - begins, widths, counts], axis=1)
        for row, (begin, size, width, count) in enumerate(places.tolist()):
            if width:  # read: a mapped file would also bring in the neighbours of a block
                packed = os.pread(self._file.fileno(), size, begin)
                found = _CODEC.decompress(packed, width * count, asbytes=True)
                by_byte = np.frombuffer(found, np.uint8).reshape(width, count)
                split[row, :count, :width] = by_byte.T
        return np.asarray(split.view(self.dtype)[:, :, 0])


class Kept:
    """What was decoded last, up to so many bytes."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._size = 0
        self._found: OrderedDict[tuple[object, int], Array] = OrderedDict()
        self._lock = Lock()

    def of(self, decode: Decode) -> Decode:
        """Return what decodes blocks but those that are kept; its numbers are read-only."""
        column = object()

        def found(blocks: Ints) -> list[Array]:
            with self._lock:
                kept = self._kept(column, blocks.tolist())
            missing = [place for place, numbers in enumerate(kept) if numbers is None]
            made = [
                numbers
                for first in range(0, len(missing), _AT_ONCE)
                for numbers in decode(blocks[missing[first : first + _AT_ONCE]])
            ]
            for place, numbers in zip(missing, made, strict=True):
                numbers.flags.writeable = False
                kept[place] = numbers
            with self._lock:
                self._keep(column, blocks[missing].tolist(), made)
            return cast("list[Array]", kept)

        return found

    def _kept(self, column: object, blocks: list[int]) -> list[Array | None]:
        found = [self._found.get((column, block)) for block in blocks]
        for block, numbers in zip(blocks, found, strict=True):
            if numbers is not None:
                self._found.move_to_end((column, block))
        return found

    def _keep(self, column: object, blocks: list[int], made: list[Array]) -> None:
        for block, numbers in zip(blocks, made, strict=True):
            before = self._found.pop((column, block), None)
            self._size += numbers.nbytes - (0 if before is None else before.nbytes)
            self._found[column, block] = numbers
        while self._size > self._most:
            self._size -= self._found.popitem(last=False)[1].nbytes


KEPT: Final = Kept(MOST_KEPT)


@dataclass(frozen=True, eq=False)
class Blocks:
    """A column that is read like an array: by a number, a slice, or an array of numbers.

    `decode` returns the numbers of each of some blocks; `marks` are the first of each
    block, where a column is to be searched.
    """

    count: int
    dtype: np.dtype[Any]
    decode: Decode
    marks: Ints | None = None

    def __len__(self) -> int:
        return self.count

    @overload
    def __getitem__(self, wanted: int) -> Any: ...

    @overload
    def __getitem__(self, wanted: slice | Array) -> Array: ...

    def __getitem__(self, wanted: int | slice | Array) -> Any:
        if isinstance(wanted, slice):
            begin, end, stride = wanted.indices(self.count)
            numbers, moved = self.decoded(np.array([begin]), np.array([end]))
            return numbers[begin - moved[0] : max(begin, end) - moved[0] : stride]
        places = np.atleast_1d(wanted)
        numbers, moved = self.decoded(places, places + 1)
        found = np.asarray(numbers[places - moved])
        return found if isinstance(wanted, np.ndarray) else found[0]

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return np.array(self[:], dtype)

    def first_from(self, low: Ints, high: Ints, least: int) -> Ints:
        """Return, of ranges in which numbers ascend, the places of the first that are not below `least`.

        Marks narrow each range to a block; only these blocks are decoded.
        """
        assert self.marks is not None
        first, last = -(-low // BLOCK), -(-high // BLOCK)
        mark = first_from(self.marks, first, np.maximum(first, last), least)
        found = np.where(mark > first, (mark - 1) * BLOCK + 1, low)
        until = np.where(mark < last, mark * BLOCK, high)
        open_ = until > found
        if open_.any():
            begin, end = found[open_], until[open_]
            numbers, moved = self.decoded(begin, end)
            found[open_] = first_from(numbers, begin - moved, end - moved, least) + moved
        return found

    def decoded(self, begin: Ints, end: Ints) -> tuple[Array, Ints]:
        """Return the numbers of the blocks in which some ranges lie.

        And by how much the places of each range are further on in the column.
        """
        first = begin // BLOCK
        counts = np.where(end > begin, (end - 1) // BLOCK + 1 - first, 0)
        before = np.cumsum(counts) - counts
        blocks = np.unique(np.repeat(first - before, counts) + np.arange(counts.sum()))
        numbers = np.concatenate([np.zeros(0, self.dtype), *self.decode(blocks)])
        return numbers, BLOCK * (first - np.searchsorted(blocks, first))


def parts(column: Array | Blocks, begin: Ints, end: Ints) -> Array:
    """Return the numbers of some ranges of a column, one after the other."""
    if isinstance(column, Blocks):
        numbers, moved = column.decoded(begin, end)
        return parts(numbers, begin - moved, end - moved)
    ranges = zip(begin.tolist(), end.tolist(), strict=True)
    return np.concatenate([column[:0], *(column[low:high] for low, high in ranges)])


@dataclass(frozen=True, eq=False)
class Rows:
    """A column as rows of so many numbers each, [row, number]; read by slices of rows."""

    numbers: Blocks
    width: int

    def __len__(self) -> int:
        return len(self.numbers) // max(self.width, 1)

    def __getitem__(self, wanted: slice) -> Array:
        begin, end, stride = wanted.indices(len(self))
        end = max(begin, end)
        found = self.numbers[begin * self.width : end * self.width]
        return found.reshape(end - begin, self.width)[::stride]


def column(folder: Path, name: str) -> Blocks:
    """Open a column that a `Writer` wrote.

    Raises:
        OSError: it is not there.
        ValueError: it is not whole.
    """
    packed = Packed(folder, name)
    return Blocks(packed.count, packed.dtype, KEPT.of(packed.decode))


def first_from(numbers: Array, low: Ints, high: Ints, least: int) -> Ints:
    """Return, of ranges in which numbers ascend, the places of the first that are not below `least`."""
    low, high = low.copy(), high.copy()
    for _ in range(int((high - low).max(initial=0)).bit_length()):
        middle = (low + high) // 2
        open_ = low < high
        before = open_ & (numbers[np.minimum(middle, len(numbers) - 1)] < least)
        low = np.where(before, middle + 1, low)
        high = np.where(open_ & ~before, middle, high)
    return low


def mapped(file: Path) -> Array:
    """Map an array; as a plain one, which is quicker to slice."""
    return np.asarray(loaded(file, "r"))


def loaded(file: Path, mode: Literal["r"] | None = None) -> Array:
    """Read or map an array.

    Its header is a Python expression, and before 3.11.8 Python counts the depth of all threads' syntax
    trees together, so that one that parses beside another can fail (python/cpython#106905).
    """
    with _PARSING:
        array: Array = np.load(file, mmap_mode=mode, allow_pickle=False)
    return array
