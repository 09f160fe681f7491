"""Events of one process in a third of the memory, to be kept from one pass over a run to the next.

Reading a file takes longer than most of what is asked of it. Begins are kept as differences, ends as
lengths, and all whole numbers in the smallest type that holds them. Columns that are equal in all
processes of a program, as most but times are, are kept once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from tracelens.model.columns import FOREVER, Columns, Words
from tracelens.recent import Recent

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tracelens.arrays import Array, Floats

__all__ = ["PackedColumns"]

_SMALL: Final = tuple((kind, int(np.iinfo(kind).max)) for kind in (np.uint8, np.uint16, np.uint32))
_FEW_ROWS: Final = 1 << 13  # of an array that may be shared
_FEW: Final = 128  # of these
_OPEN: Final = -1  # the length of a span that was open when the recording ended


@dataclass(frozen=True)
class PackedColumns:
    """Some columns of one process's events.

    `names` are those that were read, also where no row has a value. Of the `arrays`, those in `numbers`
    hold whole numbers less the least of them, which stands there with the type that they had; those in
    `words` hold places of words. Of `values` only the rows that have one are kept.
    """

    names: frozenset[str]
    height: int
    first_ns: int
    arrays: Mapping[str, Array]
    numbers: Mapping[str, tuple[int, np.dtype[np.generic]]]
    words: Mapping[str, tuple[str, ...]]
    values: Mapping[str, Floats]

    @classmethod
    def of(cls, columns: Columns, names: Collection[str]) -> Self:
        """Pack some columns, times among them; ``communicator`` cannot be."""
        start, end = columns.number("start_ns"), columns.number("end_ns")
        later = np.diff(start, prepend=start[:1])
        found = columns.replaced(
            start_ns=later, end_ns=np.where(end == FOREVER, _OPEN, end - start)
        )
        values = {name: v[rows] for name, v, rows in _fractions(columns) if name in names}
        numbers, arrays = {}, {name: rows for name, _, rows in _fractions(columns) if name in names}
        for name in found.numbers.keys() & names:
            least, arrays[name] = _known_small(found.numbers[name])
            numbers[name] = least, found.numbers[name].dtype
        words = {name: found.words[name].known for name in found.words.keys() & names}
        arrays |= {name: found.words[name].codes for name in words}
        first_ns = int(start[0]) if columns.height else 0
        return cls(frozenset(names), columns.height, first_ns, arrays, numbers, words, values)

    def restored(self) -> Columns:
        """Return the columns as they were."""
        numbers = {
            name: self.arrays[name].astype(kind) + kind.type(least)
            for name, (least, kind) in self.numbers.items()
        }
        start, lengths = np.cumsum(numbers["start_ns"]) + self.first_ns, numbers["end_ns"]
        end = np.where(lengths == _OPEN, FOREVER, start + lengths)
        words = {name: Words(self.arrays[name], known) for name, known in self.words.items()}
        values = {name: np.full(self.height, np.nan) for name in self.values}
        for name, given in self.values.items():
            values[name][self.arrays[name]] = given
        return Columns(self.height, numbers | {"start_ns": start, "end_ns": end}, words, values)

    def sharing(self, like: PackedColumns | None) -> PackedColumns:
        """Return it with the arrays of another process's where they are equal, so that one is kept."""
        if like is None:
            return self
        shared = {
            name: like.arrays[name]
            for name, own in self.arrays.items()
            if name in like.arrays and own.dtype == like.arrays[name].dtype
            if own is like.arrays[name] or np.array_equal(own, like.arrays[name])
        }
        return replace(self, arrays={**self.arrays, **shared})

    def bytes_beside(self, like: PackedColumns | None) -> int:
        """Return how much memory it takes beside another that it shares arrays with."""
        shared = {id(array) for array in like.arrays.values()} if like else set()
        return sum(array.nbytes for array in self.arrays.values() if id(array) not in shared)


def _fractions(columns: Columns) -> list[tuple[str, Floats, Array]]:
    """Return the columns of fractions, and which rows have one."""
    return [(n, values, np.flatnonzero(~np.isnan(values))) for n, values in columns.values.items()]


def _known_small(values: Array) -> tuple[int, Array]:
    """Return the same as `_small`, once for an array that several processes share, which is fixed."""
    if values.flags.writeable or len(values) > _FEW_ROWS:
        return _small(values)
    return _KNOWN.get(id(values)) or _KNOWN.add(id(values), _small(values), of=values)


_KNOWN: Final[Recent[tuple[int, Array]]] = Recent(_FEW)


def _small(values: Array) -> tuple[int, Array]:
    """Return whole numbers less the least of them, in the smallest type that holds them."""
    if not len(values):
        return 0, values
    least, most = int(values.min()), int(values.max())
    for small, limit in _SMALL:
        if most - least <= limit:
            return least, (values - least).astype(small)
    return 0, values
