"""Whether all rows of a recording are usable, judged by a few extremes: as a rule they are.

Without a frame, so that whoever only counts rows needs no library for frames.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import pyarrow as pa

from tracelens.schema.arrow import EVENT_SCHEMA
from tracelens.schema.rules import LATEST_NS, LONGEST_NS, RULES

if TYPE_CHECKING:
    from typing import Any

    from tracelens.arrays import Ints

__all__ = ["ALWAYS_READ", "ALWAYS_SET", "KNOWN_WORDS", "are_sane", "is_sound"]

KNOWN_WORDS: Final = {name: rule.words for name, rule in RULES.items() if rule.words}
ALWAYS_SET: Final = tuple(name for name, rule in RULES.items() if not rule.nullable)
ALWAYS_READ: Final = ("duration_ns", *ALWAYS_SET)
_WORDS: Final = tuple(f.name for f in EVENT_SCHEMA if isinstance(f.type, pa.DictionaryType))


def is_sound(table: pa.Table) -> bool:
    """Return whether all rows are usable, judged by the extremes."""
    if not table.num_rows:
        return True
    if any(table[name].null_count for name in ALWAYS_SET):
        return False
    start, duration = table["start_ns"].to_numpy(), table["duration_ns"]
    lengths = (duration.drop_null() if duration.null_count else duration).to_numpy()
    return (
        are_sane(start, lengths)
        and all(_words(table[name]) <= {*known} for name, known in KNOWN_WORDS.items())
        and not any(_has_hollow_word(table[name]) for name in _WORDS if name in table.column_names)
    )


def are_sane(start: Ints, lengths: Ints) -> bool:
    """Return whether all times are such as can be."""
    first, last = int(start.min()), int(start.max())
    return bool(
        first >= 0
        and last <= LATEST_NS
        and last - first < LONGEST_NS
        and lengths.min(initial=0) >= 0
        and lengths.max(initial=0) <= LONGEST_NS
    )


def _has_hollow_word(column: pa.ChunkedArray[Any]) -> bool:
    """Return whether a dictionary holds nothing as a word, which Arrow allows."""
    chunks = (cast("pa.DictionaryArray[Any, Any]", chunk) for chunk in column.chunks)
    return any(chunk.dictionary.null_count for chunk in chunks)


def _words(column: pa.ChunkedArray[Any]) -> set[str | None]:
    """Return the dictionary of a column, used or not."""
    chunks = (cast("pa.DictionaryArray[Any, Any]", chunk) for chunk in column.chunks)
    return {word for chunk in chunks for word in chunk.dictionary.to_pylist()}
