"""Events of one process in a third of the memory, to be kept from one pass over a run to the next.

Reading a file takes longer than most questions about it. Begins are kept as differences, ends as
lengths, and all whole numbers in the smallest type that holds them. Columns that are equal in all
processes of a program, as most but times are, are kept once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from tracelens.model.columns import FOREVER, Columns, Words

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tracelens.arrays import Array, Floats
    from tracelens.memory import BoundedCache

__all__ = ["PackedColumns"]

_OPEN: Final = -1  # ns: the length of a span that was open at the end [definition]


@dataclass(frozen=True, eq=False)
class PackedColumns:
    """Some columns of one process's events.

    `names` are those that were read, also where no row has a value. Arrays are packed by kind: whole
    numbers less the least of them, which is in `packing_by_name` with the type that they had; indices of
    words, whose words are in `vocabulary_by_name`; rows with a fraction, with `fractions_by_name`.
    """

    names: frozenset[str]
    row_count: int
    first_ns: int
    array_by_name: Mapping[str, Array]
    packing_by_name: Mapping[str, tuple[int, np.dtype[np.generic]]]
    vocabulary_by_name: Mapping[str, tuple[str, ...]]
    fractions_by_name: Mapping[str, Floats]

    @classmethod
    def from_columns(cls, columns: Columns, names: Collection[str]) -> Self:
        """Pack some columns, times among them; ``communicator`` cannot be."""
        start_ns, end_ns = columns.number_column("start_ns"), columns.number_column("end_ns")
        gaps_ns = np.zeros_like(start_ns)
        np.subtract(start_ns[1:], start_ns[:-1], out=gaps_ns[1:])
        relative_times = {
            "start_ns": gaps_ns,
            "end_ns": np.where(end_ns == FOREVER, _OPEN, end_ns - start_ns),
        }
        numbers, arrays, values_by_name = {}, {}, {}
        # Without rows there may be no columns of times.
        values_to_pack = {**columns.number_columns, **relative_times}
        for name in values_to_pack.keys() & names:
            values = values_to_pack[name]
            lowest, arrays[name] = _shrink(values)
            numbers[name] = lowest, values.dtype
        for name in columns.value_columns.keys() & names:
            fractions = columns.value_columns[name]
            arrays[name], values_by_name[name] = _split_fractions(fractions)
        words_by_name = {
            name: columns.word_columns[name].vocabulary
            for name in columns.word_columns.keys() & names
        }
        arrays |= {name: columns.word_columns[name].codes for name in words_by_name}
        first_ns = int(start_ns[0]) if columns.row_count else 0
        return cls(
            names=frozenset(names),
            row_count=columns.row_count,
            first_ns=first_ns,
            array_by_name=arrays,
            packing_by_name=numbers,
            vocabulary_by_name=words_by_name,
            fractions_by_name=values_by_name,
        )

    def restore(self, cache: BoundedCache) -> Columns:
        """Return the columns as they were; arrays that processes share are restored once."""
        restore_once = partial(cache.get_or_make, "restored columns")
        numbers = {
            name: restore_once((shrunk,), partial(_widen, shrunk, lowest, dtype), lowest, dtype)
            for name, (lowest, dtype) in self.packing_by_name.items()
            for shrunk in [self.array_by_name[name]]
        }
        start_ns, lengths_ns = np.cumsum(numbers["start_ns"]) + self.first_ns, numbers["end_ns"]
        end_ns = np.where(lengths_ns == _OPEN, FOREVER, start_ns + lengths_ns)
        words_by_name = {
            name: Words(self.array_by_name[name], known)
            for name, known in self.vocabulary_by_name.items()
        }
        values_by_name = {
            name: restore_once(
                (rows, fractions),
                partial(_join_fractions, rows, fractions, self.row_count),
                self.row_count,
            )
            for name, fractions in self.fractions_by_name.items()
            for rows in [self.array_by_name[name]]
        }
        numbers |= {"start_ns": start_ns, "end_ns": end_ns}
        return Columns(
            self.row_count,
            number_columns=numbers,
            word_columns=words_by_name,
            value_columns=values_by_name,
        )

    def share_arrays_of(self, neighbour: PackedColumns | None) -> PackedColumns:
        """Return the columns with another process's arrays where they are equal, so that one is kept."""
        if neighbour is None:
            return self
        return replace(
            self,
            array_by_name=_share_equal(self.array_by_name, neighbour.array_by_name),
            fractions_by_name=_share_equal(self.fractions_by_name, neighbour.fractions_by_name),
        )

    def count_unshared_bytes(self, neighbour: PackedColumns | None) -> int:
        """Return the bytes of the arrays that it does not share with another."""
        shared = {id(array) for array in neighbour.all_arrays} if neighbour else set()
        return sum(array.nbytes for array in self.all_arrays if id(array) not in shared)

    @property
    def all_arrays(self) -> list[Array]:
        """Everything that takes memory."""
        return [*self.array_by_name.values(), *self.fractions_by_name.values()]


def _share_equal(
    array_by_name: Mapping[str, Array], kept_by_name: Mapping[str, Array]
) -> dict[str, Array]:
    """Return the arrays, each replaced by the kept one of its name where they are equal."""
    return {
        name: kept_by_name[name] if _are_equal(array, kept_by_name.get(name)) else array
        for name, array in array_by_name.items()
    }


def _are_equal(first: Array, second: Array | None) -> bool:
    if first is second:
        return True
    return second is not None and first.dtype == second.dtype and np.array_equal(first, second)


def _split_fractions(fractions: Floats) -> tuple[Array, Floats]:
    """Return the rows that have a fraction, and their fractions."""
    rows = np.flatnonzero(~np.isnan(fractions))
    return _share_writability(fractions, rows), _share_writability(fractions, fractions[rows])


def _join_fractions(rows: Array, fractions: Floats, height: int) -> Floats:
    """Undo `_split_fractions`."""
    values = np.full(height, np.nan)
    values[rows] = fractions
    return _share_writability(rows, values)


def _shrink(values: Array) -> tuple[int, Array]:
    """Return the lowest of whole numbers, and all less it, in the smallest type that holds them."""
    if not len(values):
        return 0, values
    lowest = int(values.min())
    small_type = np.min_scalar_type(int(values.max()) - lowest)
    if small_type.itemsize == 8:
        return 0, values
    return lowest, _share_writability(values, (values - lowest).astype(small_type))


def _widen(packed: Array, lowest: int, dtype: np.dtype[np.generic]) -> Array:
    """Undo `_shrink`."""
    return _share_writability(packed, packed.astype(dtype) + dtype.type(lowest))


def _share_writability(source: Array, derived: Array) -> Array:
    """Make a derived array read-only if its source is, so that processes share both."""
    derived.setflags(write=source.flags.writeable)
    return derived
