"""Notes that a user puts at times of the timeline, as addresses hold them: ``note=5-9:text;12:text``.

Times are in ns since the run's start; ``;`` and ``%`` of a text are written as in addresses. What stands
in an address may come from anyone: a text is printable characters, and only ever shown as text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_plus, unquote

from tracelens_dashboard.figures.timeline.frame import Note

if TYPE_CHECKING:
    from collections.abc import Iterable

BETWEEN: Final = ";"
MOST_NOTES: Final = 12
LONGEST_TEXT: Final = 60
LONGEST_VALUE: Final = 1500
LONGEST_IN_LINK: Final = 2400  # as an address holds them: servers take 4,096 characters of all

_NOTE: Final = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?(?::(.*))?", re.DOTALL)


def read(value: object) -> tuple[tuple[Note, ...], int]:
    """Return the notes of an address's value, and the number of unreadable or too many ones."""
    if not isinstance(value, str) or not value:
        return (), 0
    note_texts = value.split(BETWEEN)
    if len(value) > LONGEST_VALUE:
        return (), len(note_texts)
    notes = tuple(filter(None, map(_read_note, note_texts)))[:MOST_NOTES]
    return notes, len(note_texts) - len(notes)


def from_browser(value: object) -> tuple[Note, ...]:
    """Read what `for_browser` returned and a browser sends, which may be anything."""
    items = value if isinstance(value, list) else []
    return read(BETWEEN.join(item for item in items if isinstance(item, str)))[0]


def for_browser(notes: Iterable[Note]) -> list[str]:
    """Return the text of each note in an address; assets/clientside.js joins them."""
    return list(map(_write_note, notes))


def write(notes: Iterable[Note]) -> str:
    """Return the value that `read` reads; empty without notes."""
    return BETWEEN.join(for_browser(notes))


def fits(notes: Iterable[Note]) -> bool:
    """Return True if an address has room for these notes."""
    note_texts = for_browser(notes)
    value = BETWEEN.join(note_texts)
    is_short = len(value) <= LONGEST_VALUE and len(quote_plus(value)) <= LONGEST_IN_LINK
    return is_short and len(note_texts) <= MOST_NOTES


def clean_text(text: Any) -> str:
    """Clean the text typed for a note: printable, and no longer than one may be."""
    letters = text if isinstance(text, str) else ""
    return "".join(filter(str.isprintable, letters)).strip()[:LONGEST_TEXT].strip()


def _read_note(note_text: str) -> Note | None:
    """Read a note, ``start-end:text`` (ns since the run's start); None where it makes no sense."""
    match = _NOTE.fullmatch(note_text)
    if match is None:
        return None
    start_ns, end_ns = int(match[1]), int(match[2]) if match[2] else None
    text = unquote(match[3] or "")  # what is no UTF-8 becomes a sign for it
    if text != clean_text(text) or (end_ns is not None and end_ns <= start_ns):
        return None
    return Note(start_ns, end_ns, text)


def _write_note(note: Note) -> str:
    extent = f"{note.start_ns}" if note.end_ns is None else f"{note.start_ns}-{note.end_ns}"
    text = note.text.replace("%", "%25").replace(BETWEEN, "%3B")
    return f"{extent}:{text}" if text else extent
