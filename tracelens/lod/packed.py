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
from typing import TYPE_CHECKING, Any, Final, Self, overload
from weakref import finalize

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType
    from typing import Literal

    from tracelens.arrays import Array, Ints

BLOCK: Final = 2048
MOST_KEPT: Final = 96 << 20
_AT_ONCE: Final = 64 * BLOCK  # numbers that are written together
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
        for begin in range(0, len(flat), _AT_ONCE):
            part = flat[begin : begin + _AT_ONCE]
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
        self._lock = Lock()
        finalize(self, self._file.close)
        self.dtype = self._table.dtype[_NUMBER].base
        self.count = BLOCK * max(len(self._table) - 1, 0)
        self.count += int(self._table["count"][-1]) if len(self._table) else 0
        size = int(self._table["end"][-1]) if len(self._table) else 0
        if os.fstat(self._file.fileno()).st_size != size:
            raise ValueError(f"the column '{name}' of an index is not whole")

    def is_zero(self, block: int) -> bool:
        """Whether all numbers of a block are zero, which is known without decoding it."""
        return not self._table["width"][block]

    def decode(self, block: int) -> Array:
        """Return the numbers of a block."""
        end, count, width = self._table[block].item()[: len(_TABLE)]
        begin = int(self._table["end"][block - 1]) if block else 0
        split = np.zeros((count, self.dtype.itemsize), np.uint8)
        if width:
            found = _CODEC.decompress(self._read(begin, end), width * count, asbytes=True)
            split[:, :width] = np.frombuffer(found, np.uint8).reshape(width, count).T
        return split.view(self.dtype)[:, 0]

    def _read(self, begin: int, end: int) -> bytes:
        """Read some bytes; mapping the file would also bring in their neighbours."""
        with self._lock:
            self._file.seek(begin)
            return self._file.read(end - begin)


class Kept:
    """What was decoded last, up to so many bytes."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._size = 0
        self._found: OrderedDict[tuple[object, int], Array] = OrderedDict()
        self._lock = Lock()

    def of(self, decode: Callable[[int], Array]) -> Callable[[int], Array]:
        """Return what decodes a block, unless it is kept; its numbers are read-only."""
        column = object()

        def found(block: int) -> Array:
            return self._get((column, block), decode)

        return found

    def _get(self, key: tuple[object, int], decode: Callable[[int], Array]) -> Array:
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
                return self._found[key]
        made = decode(key[1])
        made.flags.writeable = False
        with self._lock:
            self._size += 0 if key in self._found else made.nbytes
            self._found[key] = made
            while self._size > self._most:
                self._size -= self._found.popitem(last=False)[1].nbytes
        return made


KEPT: Final = Kept(MOST_KEPT)


@dataclass(frozen=True, eq=False)
class Blocks:
    """A column that is read like an array: by a number, a slice, or an array of numbers.

    `block` returns the numbers of a block; `marks` are the first of each block, where a column is to be
    searched.
    """

    count: int
    dtype: np.dtype[Any]
    block: Callable[[int], Array]
    marks: Ints | None = None

    def __len__(self) -> int:
        return self.count

    @overload
    def __getitem__(self, wanted: int) -> Any: ...

    @overload
    def __getitem__(self, wanted: slice | Array) -> Array: ...

    def __getitem__(self, wanted: int | slice | Array) -> Any:
        if isinstance(wanted, slice):
            return self._between(*wanted.indices(self.count))
        if isinstance(wanted, np.ndarray):
            return self._at(wanted)
        return self.block(wanted // BLOCK)[wanted % BLOCK]

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
            numbers, moved = self._decoded(found[open_])
            within = first_from(numbers, found[open_] - moved, until[open_] - moved, least)
            found[open_] = within + moved
        return found

    def _between(self, begin: int, end: int, stride: int) -> Array:
        if begin >= end:
            return np.zeros(0, self.dtype)
        first = begin // BLOCK
        parts = [self.block(number) for number in range(first, (end - 1) // BLOCK + 1)]
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return whole[begin - first * BLOCK : end - first * BLOCK : stride]

    def _at(self, places: Array) -> Array:
        if not len(places):
            return np.zeros(0, self.dtype)
        numbers, moved = self._decoded(places)
        return np.asarray(numbers[places - moved])

    def _decoded(self, places: Array) -> tuple[Array, Ints]:
        """Decode the blocks of some places; return by how much these are further on in the column."""
        blocks, row = np.unique(places // BLOCK, return_inverse=True)
        numbers = np.concatenate([self.block(number) for number in blocks.tolist()])
        return numbers, (BLOCK * (blocks - np.arange(len(blocks))))[row]


@dataclass(frozen=True, eq=False)
class Rows:
    """A column as rows of so many numbers each, [row, number]; read by slices of rows."""

    numbers: Blocks
    width: int

    def __len__(self) -> int:
        return len(self.numbers) // max(self.width, 1)

    def __getitem__(self, wanted: slice) -> Array:
        begin, end, stride = wanted.indices(len(self))
        found = self.numbers[begin * self.width : max(begin, end) * self.width]
        return found.reshape(-1, self.width)[::stride]


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
