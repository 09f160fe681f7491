"""What of a recording's side tables is believed: what cannot be so is refused."""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, get_type_hints

from tracelens.errors import NotATrace
from tracelens.schema.rules import LATEST_NS
from tracelens.schema.side import ClockReading, Communicator, Kept, Past, Process, Retention, Thread
from tracelens.schema.vocabulary import MOST_RANKS, ROLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.schema.side import SideTables

_BEYOND: Final = 2**63  # of 64 bits
_SMALL: Final = 2**31  # what the trace's columns hold; all else has 64 bits
_LIMITS: Final[dict[str, int]] = {  # exclusive
    "Process.rank": MOST_RANKS,
    "Process.world": MOST_RANKS + 1,
    "Process.local_rank": MOST_RANKS,
    "Process.shard": MOST_RANKS,
    "Thread.index": 2**16,
    "Communicator.index": _SMALL,
    "Communicator.ranks": MOST_RANKS,
    "ClockReading.peer": _SMALL,
    "ClockReading.device": _SMALL,
    "ClockReading.monotonic_ns": LATEST_NS,
    "ClockReading.offset_ns": LATEST_NS,
    "ClockReading.wall_ns": LATEST_NS,
    "ClockReading.window_ns": LATEST_NS,
    "Thread.device": _SMALL,
}
_MAY_BE_NEGATIVE: Final = ("ClockReading.offset_ns", "ClockReading.wall_ns")
_MAX_TEXT: Final = 10_000
_FEW: Final = 32  # tables of communicators that are known to be sound
_Row: TypeAlias = "Process | Thread | Communicator | ClockReading | Retention | Kept | Past"
_ROWS: Final = (Process, Retention, Thread, Kept, Past, Communicator, ClockReading)


def check_side(side: SideTables) -> None:
    """Refuse side tables with values of other types, out of range, or absurdly long.

    Raises:
        NotATrace: naming the first such value.
    """
    rows: list[_Row] = [
        side.process,
        side.retention,
        *side.threads,
        *side.kept,
        *side.past,
    ]
    for row in [*rows, *side.clocks]:
        _check_row(row)
    _check_communicators(_Identity(side.communicators))
    if side.process.role not in ROLES:
        raise _wrong("role", side.process.role)
    for sentence in side.notes:
        if not _is_text(sentence):
            raise _wrong("notes", sentence)
    for reason, count in [*side.dropped.items(), *side.thinned.items()]:
        if not _fits(0, _BEYOND, count):
            raise _wrong(str(reason), count)


class _Identity:
    """A table that is equal to itself alone; files with the same text of a table share it."""

    def __init__(self, rows: tuple[Communicator, ...]) -> None:
        self.rows = rows

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.rows is self.rows

    def __hash__(self) -> int:
        return id(self.rows)


@lru_cache(_FEW)
def _check_communicators(table: _Identity) -> None:
    for row in table.rows:
        _check_row(row)


def _check_row(row: _Row) -> None:
    for name, may_lack, is_good in _CHECKS[type(row)]:
        value = getattr(row, name)
        if not (value is None and may_lack) and not is_good(value):
            raise _wrong(f"{type(row).__name__}.{name}", value)


def _check_of(name: str, kind: str) -> Callable[[Any], bool]:
    """Return what tells good values, by the text of their type: ``int | None``, ``list[int]``."""
    if kind.startswith("dict"):
        return _is_dict
    if kind.startswith("list"):
        return partial(_all_fit, *_range_of(name))
    if "bool" in kind:
        return _is_bool
    if "float" in kind:
        return _is_amount
    if "int" in kind:
        return partial(_fits, *_range_of(name))
    return _is_text


def _range_of(name: str) -> tuple[int, int]:
    limit = _LIMITS.get(name, _BEYOND)
    return (-limit if name in _MAY_BE_NEGATIVE else 0), limit


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_amount(value: Any) -> bool:
    return type(value) in {int, float} and 0 <= value < _BEYOND


def _is_text(value: Any) -> bool:
    """Return whether it is a text that can be encoded: JSON can spell lone surrogates, which cannot."""
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _all_fit(least: int, limit: int, values: Any) -> bool:
    """Check a list, which may name thousands of ranks, by its extremes."""
    return (
        isinstance(values, list)
        and {*map(type, values)} <= {int}
        and least <= min(values, default=least)
        and max(values, default=least) < limit
    )


def _fits(least: int, limit: int, value: Any) -> bool:
    return type(value) is int and least <= value < limit


def _wrong(name: str, value: Any) -> NotATrace:
    return NotATrace(f"its TraceLens metadata is damaged ({name} is {value!r:.100})")


# For each field of a row of side tables: whether it may be missing, and what checks its values.
_CHECKS: Final[dict[type, tuple[tuple[str, bool, Callable[[Any], bool]], ...]]] = {
    row: tuple(
        (part.name, "None" in kind, _check_of(f"{row.__name__}.{part.name}", kind))
        for part in fields(row)
        for kind in [str(get_type_hints(row)[part.name])]
    )
    for row in _ROWS
}
