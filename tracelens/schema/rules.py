"""What each column of events may hold, for every format: may it be null, which values are in range.

Files, segments, growing files and tables are held to the same rules where they are read
(`tracelens.readers.rules` for frames, `tracelens.readers.native.checks` for arrays). A value that
breaks a rule that `drops_row` costs its row, which is counted by the reason; one that breaks another
rule costs its cell, which is null then, or the least value where there is no null. A null where there
must be none costs the row.
"""

from __future__ import annotations

from typing import NamedTuple

from tracelens.schema.vocabulary import EVENT_TYPES, STATUSES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final

LATEST_NS: Final = (
    4_102_444_800_000_000_000  # ns, the year 2100: sums of two times fit into 64 bits
)
LONGEST_NS: Final = 366 * 86_400 * 1_000_000_000  # nothing lasts a year from a run's median
LARGEST_CALL: Final = 1 << 48  # bytes, 256 TiB: no call moves more; sums of 32,767 fit into 64 bits
NEGATIVE: Final = "negative duration"


class Rule(NamedTuple):
    """What a column may hold: numbers within bounds, or some words; without both, what its type holds.

    `drops_row`: what breaks it costs the row. A fraction that `must_be_finite` is so, or null.
    """

    is_nullable: bool = True
    minimum: int | None = None
    maximum: int | None = None
    allowed_words: tuple[str, ...] = ()
    drops_row: bool = False
    must_be_finite: bool = False


_COUNT: Final = Rule(minimum=0)
RULES: Final[dict[str, Rule]] = {
    "start_ns": Rule(is_nullable=False, minimum=0, maximum=LATEST_NS, drops_row=True),
    "duration_ns": Rule(minimum=0, maximum=LONGEST_NS, drops_row=True),  # null = still open
    "type": Rule(is_nullable=False, allowed_words=EVENT_TYPES, drops_row=True),
    "kind": Rule(is_nullable=False),
    "op": Rule(),
    "name": Rule(is_nullable=False),
    "status": Rule(is_nullable=False, allowed_words=STATUSES, drops_row=True),
    "thread": Rule(is_nullable=False, minimum=0),
    "depth": Rule(is_nullable=False, minimum=0),
    "step": Rule(is_nullable=False, minimum=-1),  # -1 = outside
    "micro_step": _COUNT,
    "communicator": _COUNT,  # and one that the side tables describe
    "seq": _COUNT,
    "bytes": Rule(minimum=0, maximum=LARGEST_CALL),
    "algorithm": Rule(),
    "bucket": _COUNT,
    "peer": _COUNT,
    "shard": _COUNT,
    "key": _COUNT,
    "queue_depth": _COUNT,
    "request": _COUNT,
    # Both are null where one breaks its rule: half of a time is none.
    "device_start_ns": Rule(minimum=0, maximum=LATEST_NS),
    "device_duration_ns": Rule(minimum=0, maximum=LONGEST_NS),
    "stream": _COUNT,
    "value": Rule(must_be_finite=True),
}


def missing_reason(column: str) -> str:
    """Return the reason of rows with a null where there must be none."""
    return f"no {column}"


def out_of_range_reason(column: str) -> str:
    """Return the reason of rows with a value that cannot be."""
    return f"{column} out of range"


def unknown_word_reason(column: str) -> str:
    """Return the reason of rows with a word that the column does not allow."""
    return f"unknown {column}"


def unreadable_reason(column: str) -> str:
    """Return the reason of rows of a table with a cell of another type."""
    return f"{column} unreadable"


def far_reason(column: str) -> str:
    """Return the reason of rows a year or more from the median of their process."""
    return f"{column} a year from the others"


def add_counts(counts: Mapping[str, int], other_counts: Mapping[str, int]) -> dict[str, int]:
    """Return counts by reason with others added to them."""
    return {**counts, **{why: counts.get(why, 0) + count for why, count in other_counts.items()}}
