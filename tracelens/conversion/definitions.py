"""The definitions of a process, as columns that records look up by number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from tracelens.schema.vocabulary import DEVICE_TIMES, EVENT_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracelens.arrays import Array, Int8s, Int32s, Ints, UInt32s
    from tracelens.schema.side import Definition

__all__ = ["NO_INDEX", "TYPES", "UNKNOWN", "Column", "Meanings", "meanings_of"]

TYPES: Final = (*EVENT_TYPES, DEVICE_TIMES)
UNKNOWN: Final = 0  # the row of what no definition explains
_MAX_INDEX: Final = np.iinfo(np.int32).max
_MAX_ID: Final = 1 << 22  # as many handles as no program makes; the table of them takes 16 MiB
_MOST_WORDS: Final = 127
NO_INDEX: Final = np.iinfo(np.int64).min
_OTHER: Final = "other"


@dataclass(frozen=True, eq=False)
class Column:
    """Words of the definitions: a code for each row, negative without a word."""

    codes: Array
    words: pa.Array[Any]


@dataclass(frozen=True, eq=False)
class Meanings:
    """Sound definitions by row, in the order in which they were made; row 0 means no definition.

    Words keep their codes when definitions are added, so that what was written with fewer of them
    stays true.
    """

    row_of: Int32s
    type: Int8s
    name: Column
    kind: Column
    op: Column
    algorithm: Column
    communicator: Ints
    shard: Ints

    def rows(self, ids: UInt32s) -> Int32s:
        """Return the row of each definition number."""
        beyond = len(self.row_of) - 1  # stands for all that are too large
        return self.row_of.take(np.minimum(ids, beyond))

    @property
    def times_devices(self) -> bool:
        """Whether some records are device times."""
        return bool((self.type == TYPES.index(DEVICE_TIMES)).any())


def meanings_of(definitions: Iterable[Definition]) -> Meanings:
    """Check each definition once; of two with the same number the first counts."""
    definition_by_id: dict[int, Definition] = {}
    for definition in filter(_is_sound, definitions):
        definition_by_id.setdefault(definition.id, definition)
    row_of = np.zeros(max(definition_by_id, default=0) + 2, np.int32)
    row_of[list(definition_by_id)] = np.arange(1, len(definition_by_id) + 1)

    def values(field: str) -> list[Any]:
        return [getattr(definition, field) for definition in definition_by_id.values()]

    return Meanings(
        row_of=row_of,
        type=np.array([0, *map(TYPES.index, values("type"))], np.int8),
        name=_column(values("name"), np.int32),
        kind=_column(_limit_words(values("kind"))),
        op=_column(_limit_words(values("op"))),
        algorithm=_column(_limit_words(values("algorithm"))),
        communicator=_indexes(values("communicator")),
        shard=_indexes(values("shard")),
    )


def _is_sound(row: Definition) -> bool:
    """Return True if a definition is usable; the side file is read, but not trusted."""
    optional = (row.op, row.algorithm)
    indexes = [index for index in (row.communicator, row.shard) if index is not None]
    return (
        row.type in TYPES
        and isinstance(row.name, str)
        and isinstance(row.kind, str)
        and all(word is None or isinstance(word, str) for word in optional)
        and all(isinstance(index, int) and abs(index) <= _MAX_INDEX for index in indexes)
        and isinstance(row.id, int)
        and 0 < row.id <= _MAX_ID
    )


def _column(words: Sequence[str | None], dtype: Any = np.int8) -> Column:
    """Number words in the order of first occurrence."""
    numbers: dict[str, int] = {}
    codes = [
        -1 if word is None else numbers.setdefault(_printable(word), len(numbers)) for word in words
    ]
    return Column(np.array([-1, *codes], dtype), pa.array([*numbers], pa.string()))


def _indexes(values: Sequence[int | None]) -> Ints:
    return np.array([NO_INDEX, *(NO_INDEX if v is None else v for v in values)], np.int64)


def _printable(word: str) -> str:
    """Replace what is no text, such as half a character of a file name."""
    return word.encode(errors="replace").decode()


def _limit_words(words: Sequence[str | None]) -> Sequence[str | None]:
    """Keep as many different words as a small dictionary holds; the rest becomes one."""
    distinct_words = [word for word in dict.fromkeys(words) if word is not None]
    kept_words = set(distinct_words[: _MOST_WORDS - 1])
    return [word if word is None or word in kept_words else _OTHER for word in words]
