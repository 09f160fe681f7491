"""What of a recording's side tables, files and links is believed: what cannot be so is refused."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from tracelens.errors import NotATrace
from tracelens.model.fmt import shown_name
from tracelens.schema.side import ClockReading, Communicator, Kept, Past, Process, Retention, Thread
from tracelens.schema.vocabulary import MOST_RANKS, ROLES

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.schema.side import SideTables

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
    "Thread.device": _SMALL,
}
_MAY_BE_NEGATIVE: Final = ("ClockReading.offset_ns", "ClockReading.wall_ns")
_MAX_TEXT: Final = 10_000
_ROWS: Final = (Process, Retention, Thread, Kept, Past, Communicator, ClockReading)
# Fields and the texts of their types, such as ``int | None`` or ``list[int]``, as the source has them.
_TYPES: Final[dict[type, tuple[tuple[str, str], ...]]] = {
    row: tuple((part.name, str(part.type)) for part in fields(row)) for row in _ROWS
}


def check_inside(path: Path, trace: Path) -> None:
    """Refuse a file or folder of a trace that is, or is reached through, a link to outside of it.

    Raises:
        NotATrace: it is one, or a link that leads nowhere.
    """
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise NotATrace("it is a link that leads nowhere") from error
    if not real.is_relative_to(trace.resolve()):
        raise NotATrace(
            f"it is a link out of the trace, to {shown_name(real)}: put the file itself there to have "
            "it read"
        )


def check_no_links(folder: Path) -> None:
    """Refuse a segments folder that is a link or holds one, as the recorder makes none.

    Raises:
        NotATrace: it does.
    """
    if folder.is_symlink():
        raise NotATrace("it is a link, expected a folder")
    for entry in folder.glob("*"):
        if entry.is_symlink():
            raise NotATrace(f"it holds a link, '{shown_name(entry.name)}', expected only files")


def check_side(side: SideTables) -> None:
    """Refuse side tables with values of other types, out of range, or absurdly long.

    Raises:
        NotATrace: naming the first such value.
    """
    rows: list[Process | Thread | Communicator | ClockReading | Retention | Kept | Past] = [
        side.process,
        side.retention,
        *side.threads,
        *side.kept,
        *side.past,
    ]
    for row in [*rows, *side.communicators, *side.clocks]:
        for name, kind in _TYPES[type(row)]:
            _check(f"{type(row).__name__}.{name}", getattr(row, name), kind)
    if side.process.role not in ROLES:
        raise _wrong("role", side.process.role)
    for sentence in side.notes:
        _check("notes", sentence, "<class 'str'>")
    for reason, count in [*side.dropped.items(), *side.thinned.items()]:
        _check(str(reason), count, "int")


def _check(name: str, value: Any, kind: str) -> None:
    """Check one value against the text of its type, such as ``int | None`` or ``list[int]``."""
    if value is None and "None" in kind:
        return
    if kind.startswith("dict"):
        good = isinstance(value, dict)
    elif kind.startswith("list"):
        good = isinstance(value, list) and _all_fit(name, value)
    elif "bool" in kind:
        good = isinstance(value, bool)
    elif "int" in kind:
        good = _fits(name, value)
    else:
        good = isinstance(value, str) and len(value) <= _MAX_TEXT and _is_whole(value)
    if not good:
        raise _wrong(name, value)


def _all_fit(name: str, values: list[Any]) -> bool:
    """Check a list, which may name thousands of ranks, by its extremes."""
    return {*map(type, values)} <= {int} and all(
        _fits(name, end) for end in (min(values, default=0), max(values, default=0))
    )


def _is_whole(text: str) -> bool:
    """Return whether a text can be encoded in UTF-8: JSON can spell lone surrogates, which cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _fits(name: str, value: Any) -> bool:
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    limit = _LIMITS.get(name, 2**63)
    return (-limit if name in _MAY_BE_NEGATIVE else 0) <= value < limit


def _wrong(name: str, value: Any) -> NotATrace:
    return NotATrace(f"its TraceLens metadata is damaged ({name} is {value!r:.100})")
