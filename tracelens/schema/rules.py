"""What each column of events may hold, for every format: may it be null, which values are in range.

Files, segments, growing files and tables are held to the same rules where they are read
(`tracelens.readers.rules` for frames, `tracelens.readers.native.checks` for arrays). A value that
breaks a rule that `drops` costs its row, which is counted by the reason; one that breaks another rule
costs its cell, which is null then, or the least value where there is no null. A null where there must be
none costs the row.
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
    """What a column may hold: `least` to `most`, or one of some `words`; without, what its type does.

    `drops`: what breaks it costs the row. Fractions are `finite`, or null.
    """

    nullable: bool = True
    least: int | None = None
    most: int | None = None
    words: tuple[str, ...] = ()
    drops: bool = False
    finite: bool = False


_COUNT: Final = Rule(least=0)
RULES: Final[dict[str, Rule]] = {
    "start_ns": Rule(nullable=False, least=0, most=LATEST_NS, drops=True),
    "duration_ns": Rule(least=0, most=LONGEST_NS, drops=True),  # null = still open
    "type": Rule(nullable=False, words=EVENT_TYPES, drops=True),
    "kind": Rule(nullable=False),
    "op": Rule(),
    "name": Rule(nullable=False),
    "status": Rule(nullable=False, words=STATUSES, drops=True),
    "thread": Rule(nullable=False, least=0),
    "depth": Rule(nullable=False, least=0),
    "step": Rule(nullable=False, least=-1),  # -1 = outside
    "micro_step": _COUNT,
    "communicator": _COUNT,  # and one that the side tables describe
    "seq": _COUNT,
    "bytes": Rule(least=0, most=LARGEST_CALL),
    "algorithm": Rule(),
    "bucket": _COUNT,
    "peer": _COUNT,
    "shard": _COUNT,
    "key": _COUNT,
    "queue_depth": _COUNT,
    "request": _COUNT,
    # Both are null where one breaks its rule: half of a time is none.
    "device_start_ns": Rule(least=0, most=LATEST_NS),
    "device_duration_ns": Rule(least=0, most=LONGEST_NS),
    "stream": _COUNT,
    "value": Rule(finite=True),
}


def missing_reason(column: str) -> str:
    """Return the reason of rows with a null where there must be none."""
    return f"no {column}"


def out_of_range(column: str) -> str:
    """Return the reason of rows with a value that cannot be."""
    return f"{column} out of range"


def unknown_word_reason(column: str) -> str:
    """Return the reason of rows with a word that the column does not allow."""
    return f"unknown {column}"


def unreadable(column: str) -> str:
    """Return the reason of rows of a table with a cell of another type."""
    return f"{column} unreadable"


def far(column: str) -> str:
    """Return the reason of rows a year or more from the median of their process."""
    return f"{column} a year from the others"


def add_counts(counts: Mapping[str, int], other_counts: Mapping[str, int]) -> dict[str, int]:
    """Return counts by reason with others added to them."""
    return {**counts, **{why: counts.get(why, 0) + count for why, count in other_counts.items()}}
