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

TYPES: Final = (*EVENT_TYPES, DEVICE_TIMES)
UNKNOWN: Final = 0  # the row of what no definition explains
_MAX_INDEX: Final = np.iinfo(np.int32).max
_MAX_ID: Final = 1 << 22  # as many handles as no program makes; the table of them takes 16 MiB
_MAX_WORDS: Final = 127
NO_INDEX: Final = np.iinfo(np.int64).min
_OTHER: Final = "other"


@dataclass(frozen=True, eq=False)
class Column:
    """Words of the definitions: a code for each row, negative without a word."""

    codes: Array
    words: pa.Array[Any]


@dataclass(frozen=True, eq=False)
class DefinitionTable:
    """Sound definitions by row, in the order in which they were made; row 0 means no definition.

    Words keep their codes when definitions are added, so that what was written with fewer of them
    stays true. `row_by_id` gives the row of each definition number.
    """

    row_by_id: Int32s
    type_codes: Int8s
    name: Column
    kind: Column
    op: Column
    algorithm: Column
    communicator_indices: Ints
    shard_numbers: Ints

    def find_rows(self, ids: UInt32s) -> Int32s:
        """Return the row of each definition number."""
        beyond = len(self.row_by_id) - 1  # stands for all that are too large
        return self.row_by_id.take(np.minimum(ids, beyond))

    @property
    def has_device_times(self) -> bool:
        """Whether some records are device times."""
        return bool((self.type_codes == TYPES.index(DEVICE_TIMES)).any())


def tabulate_definitions(definitions: Iterable[Definition]) -> DefinitionTable:
    """Make the table of all sound definitions; of two with the same number the first counts."""
    definition_by_id: dict[int, Definition] = {}
    for definition in filter(_is_sound, definitions):
        definition_by_id.setdefault(definition.id, definition)
    row_by_id = np.zeros(max(definition_by_id, default=0) + 2, np.int32)  # the last: of larger ids
    row_by_id[list(definition_by_id)] = np.arange(1, len(definition_by_id) + 1)

    def values(field: str) -> list[Any]:
        return [getattr(definition, field) for definition in definition_by_id.values()]

    return DefinitionTable(
        row_by_id=row_by_id,
        type_codes=np.array([0, *map(TYPES.index, values("type"))], np.int8),
        name=_make_column(values("name"), np.int32),
        kind=_make_column(_limit_words(values("kind"))),
        op=_make_column(_limit_words(values("op"))),
        algorithm=_make_column(_limit_words(values("algorithm"))),
        communicator_indices=_make_numbers(values("communicator")),
        shard_numbers=_make_numbers(values("shard")),
    )


def _is_sound(definition: Definition) -> bool:
    """Return True if a definition is usable; the side file is read, but not trusted."""
    optional_words = (definition.op, definition.algorithm)
    numbers = [
        number for number in (definition.communicator, definition.shard) if number is not None
    ]
    return (
        definition.type in TYPES
        and isinstance(definition.name, str)
        and isinstance(definition.kind, str)
        and all(word is None or isinstance(word, str) for word in optional_words)
        and all(isinstance(number, int) and abs(number) <= _MAX_INDEX for number in numbers)
        and isinstance(definition.id, int)
        and 0 < definition.id <= _MAX_ID
    )


def _make_column(words: Sequence[str | None], dtype: Any = np.int8) -> Column:
    """Number words in the order of first occurrence; row 0, no definition, and None have code -1."""
    code_by_word: dict[str, int] = {}
    codes = [
        -1 if word is None else code_by_word.setdefault(_to_printable(word), len(code_by_word))
        for word in words
    ]
    return Column(np.array([-1, *codes], dtype), pa.array([*code_by_word], pa.string()))


def _make_numbers(values: Sequence[int | None]) -> Ints:
    return np.array([NO_INDEX, *(NO_INDEX if v is None else v for v in values)], np.int64)


def _to_printable(word: str) -> str:
    """Replace what is no text, such as half a character of a file name."""
    return word.encode(errors="replace").decode()


def _limit_words(words: Sequence[str | None]) -> Sequence[str | None]:
    """Keep as many different words as a small dictionary holds; the rest becomes one."""
    distinct_words = [word for word in dict.fromkeys(words) if word is not None]
    kept_words = set(distinct_words[: _MAX_WORDS - 1])
    return [word if word is None or word in kept_words else _OTHER for word in words]
