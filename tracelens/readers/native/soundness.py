"""Tells by a few extremes that all rows of a recording are usable, as they mostly are.

Without a frame, so that no library for frames is imported where rows are only counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import pyarrow as pa

from tracelens.schema.arrow import EVENT_SCHEMA
from tracelens.schema.rules import LATEST_NS, LONGEST_NS, RULES

if TYPE_CHECKING:
    from typing import Any

    from tracelens.arrays import Ints

KNOWN_WORDS: Final = {
    name: rule.allowed_words for name, rule in RULES.items() if rule.allowed_words
}
ALWAYS_SET: Final = tuple(name for name, rule in RULES.items() if not rule.is_nullable)
ALWAYS_READ: Final = ("duration_ns", *ALWAYS_SET)
_WORD_COLUMNS: Final = tuple(f.name for f in EVENT_SCHEMA if isinstance(f.type, pa.DictionaryType))


def is_sound(table: pa.Table) -> bool:
    """Return True if all rows are usable; `table` has at least the columns `ALWAYS_READ`."""
    if not table.num_rows:
        return True
    if any(table[name].null_count for name in ALWAYS_SET):
        return False
    words_of_column = {
        name: _dictionary_words(table[name]) for name in _WORD_COLUMNS if name in table.column_names
    }
    return (
        are_sane(table["start_ns"].to_numpy(), table["duration_ns"].drop_null().to_numpy())
        and all(words_of_column[name] <= {*known} for name, known in KNOWN_WORDS.items())
        and not any(None in words for words in words_of_column.values())  # Arrow allows nulls
    )


def are_sane(start_ns: Ints, duration_ns: Ints) -> bool:
    """Return True if all begins, [event], and durations, [span], are in range."""
    first_ns, last_ns = int(start_ns.min()), int(start_ns.max())
    return bool(
        first_ns >= 0
        and last_ns <= LATEST_NS
        and last_ns - first_ns < LONGEST_NS
        and duration_ns.min(initial=0) >= 0
        and duration_ns.max(initial=0) <= LONGEST_NS
    )


def _dictionary_words(column: pa.ChunkedArray[Any]) -> set[str | None]:
    """Return the words of a column's dictionaries, used or not."""
    chunks = (cast("pa.DictionaryArray[Any, Any]", chunk) for chunk in column.chunks)
    return {word for chunk in chunks for word in chunk.dictionary.to_pylist()}
