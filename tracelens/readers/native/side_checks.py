"""Refuses side tables of a recording with values that cannot be."""

from __future__ import annotations

import re
from functools import lru_cache
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, Union, get_args, get_type_hints

import msgspec

from tracelens.errors import NotATrace
from tracelens.schema.endings import Ending
from tracelens.schema.rules import LATEST_NS
from tracelens.schema.side import (
    ClockReading,
    Communicator,
    DetailChange,
    Kept,
    Past,
    Process,
    Retention,
    Thread,
)
from tracelens.schema.vocabulary import MOST_RANKS, ROLES

if TYPE_CHECKING:
    from tracelens.schema.side import SideRow, SideTables

MAX_CHARACTERS_OF_TEXT: Final = 10_000  # characters: a longer text is no name or sentence [policy]
MAX_TABLES_CACHED: Final = 32  # tables of communicators that were found sound [policy]
_LIMIT_64: Final = 2**63  # of 64 bits
_LIMIT_32: Final = 2**31  # of the trace's columns; all else has 64 bits
_LIMITS: Final[dict[str, int]] = {  # exclusive
    "Process.rank": MOST_RANKS,
    "Process.world": MOST_RANKS + 1,
    "Process.local_rank": MOST_RANKS,
    "Process.shard": MOST_RANKS,
    "Thread.index": 2**16,
    "Thread.device": _LIMIT_32,
    "Communicator.index": _LIMIT_32,
    "Communicator.ranks": MOST_RANKS,
    "Retention.last": _LIMIT_32,
    "ClockReading.peer": _LIMIT_32,
    "ClockReading.device": _LIMIT_32,
    "Ending.at_ns": LATEST_NS,
    "DetailChange.at_ns": LATEST_NS,
    "Process.started_ns": LATEST_NS,
    **{f"ClockReading.{name}_ns": LATEST_NS for name in ("monotonic", "offset", "wall", "window")},
}
_MAY_BE_NEGATIVE: Final = ("ClockReading.offset_ns", "ClockReading.wall_ns")
_FIELD: Final = re.compile(r"\$\.(\w+)")  # in the path of an error of msgspec


def check_side(side: SideTables) -> None:
    """Refuse side tables with values of other types, out of range, or absurdly long.

    Raises:
        NotATrace: naming the first such value.
    """
    rows: list[SideRow] = [side.process, side.retention, *side.threads, *side.kept, *side.past]
    for row in [*rows, *side.clocks, *side.endings, *side.details]:
        _check_row(row)
    _check_communicators(_Identity(side.communicators))
    if side.process.role not in ROLES:
        raise _damaged("role", side.process.role)
    for sentence in side.notes:
        if not isinstance(sentence, str) or not _can_be_encoded(sentence):
            raise _damaged("notes", sentence)
    for reason, count in [*side.dropped.items(), *side.thinned.items()]:
        if not 0 <= count < _LIMIT_64:
            raise _damaged(str(reason), count)


class _Identity:
    """A table that is equal to itself alone; files with the same text of a table share it."""

    def __init__(self, rows: tuple[Communicator, ...]) -> None:
        self.rows = rows

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.rows is self.rows

    def __hash__(self) -> int:
        return id(self.rows)


@lru_cache(MAX_TABLES_CACHED)
def _check_communicators(table: _Identity) -> None:
    for row in table.rows:
        _check_row(row)


def _check_row(row: SideRow) -> None:
    """Refuse a row with a value out of range, or with a text that cannot be written."""
    try:
        msgspec.convert(row, _BOUNDED[type(row)], from_attributes=True)
    except msgspec.ValidationError as error:
        field = _FIELD.search(str(error))
        name = field[1] if field else ""
        raise _damaged(f"{type(row).__name__}.{name}", getattr(row, name, None)) from error
    for name in _TEXT_FIELDS[type(row)]:
        value = getattr(row, name)
        texts = value if isinstance(value, list) else [value]
        if not all(_can_be_encoded(text) for text in texts if isinstance(text, str)):
            raise _damaged(f"{type(row).__name__}.{name}", value)


def _can_be_encoded(text: str) -> bool:
    """Return True unless a text has lone surrogates, which JSON can spell, or is too long."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return len(text) <= MAX_CHARACTERS_OF_TEXT


def _bounded(field: str, hint: Any) -> Any:
    """Return the type `hint` of a field ("Class.name") with the bounds of its values, for msgspec."""
    if isinstance(hint, UnionType):
        return Union[tuple(_bounded(field, kind) for kind in get_args(hint))]  # noqa: UP007
    if hint == list[int]:
        return list[_bounded(field, int)]  # type: ignore[misc]
    if hint == dict[str, str]:
        return dict
    limit = _LIMITS.get(field, _LIMIT_64)  # exclusive
    bounds: dict[Any, Any] = {
        int: msgspec.Meta(ge=-limit if field in _MAY_BE_NEGATIVE else 0, le=limit - 1),
        float: msgspec.Meta(ge=0, lt=float(_LIMIT_64)),
        str: msgspec.Meta(max_length=MAX_CHARACTERS_OF_TEXT),
    }
    return Annotated[hint, bounds[hint]] if hint in bounds else hint


def _damaged(name: str, value: Any) -> NotATrace:
    return NotATrace(f"its TraceLens metadata is damaged ({name} is {value!r:.100})")


_ROW_TYPES: Final = (
    *(Process, Retention, Thread, Kept, Past),
    *(Communicator, ClockReading, Ending, DetailChange),
)
_HINTS: Final[dict[type, dict[str, Any]]] = {row: get_type_hints(row) for row in _ROW_TYPES}
_BOUNDED: Final[dict[type, type]] = {
    row: msgspec.defstruct(
        row.__name__, [(n, _bounded(f"{row.__name__}.{n}", hint)) for n, hint in hints.items()]
    )
    for row, hints in _HINTS.items()
}
_TEXT_FIELDS: Final[dict[type, list[str]]] = {
    row: [name for name, hint in hints.items() if str in {hint, *get_args(hint)}]
    for row, hints in _HINTS.items()
}
