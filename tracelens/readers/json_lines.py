"""Reads files of JSON objects: one on each line, or one document over many lines, plain or gzip.

A line that is no object costs that line, which is counted. A file that was cut off yields every line
that is whole. A document over many lines is parsed as a whole, up to the limit `document`.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import orjson

from tracelens.errors import NotATrace
from tracelens.readers.event_stream import plain
from tracelens.schema.gate import opened, refuse_beyond

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["JsonLines"]

_PIECE_BYTES: Final = 1 << 20  # bytes that are read at once [definition]
_BLANK: Final = b"\xef\xbb\xbf \r\n\t"
_OPENING: Final = (b"{", b"[")


@dataclass(eq=False)
class JsonLines:
    """The objects of one file; `lost` lines hold none, `cut`: the file ends within one, for a reason."""

    path: Path
    lost: int = 0
    cut: bool = False
    damage: str = ""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the objects; those of a list on one line come one by one.

        Raises:
            NotATrace: the file is no regular file, larger than it may be, or holds no JSON.
        """
        lines = (line for line in self._lines() if line.strip(_BLANK))
        first, second = next(lines, b"").lstrip(_BLANK), next(lines, b"")
        if first.startswith(_OPENING) and _parsed(first) is None and _parsed(second) is None:
            yield from self._whole()
            return
        if first and not first.startswith(_OPENING):
            raise NotATrace("it does not begin with a JSON object")
        broken = False
        for line in filter(None, chain((first, second), lines)):
            self.lost += broken
            document = _parsed(line)
            broken = document is None
            yield from document or ()
        if broken:
            self._end("the last line is no whole JSON object")

    def _whole(self) -> list[dict[str, Any]]:
        """Parse a document over many lines, from its begin."""
        content = bytearray()
        for part in self._pieces():
            refuse_beyond("document", len(content) + len(part))
            content += part
        document = _parsed(content.lstrip(_BLANK))
        if document is None:
            raise NotATrace("it is no whole JSON document, nor one object on each line")
        return document

    def _lines(self) -> Iterator[bytes]:
        parts: list[bytes] = []  # of a line that has not ended
        size = 0
        for part in self._pieces():
            *lines, rest = part.split(b"\n")
            for line in lines:
                refuse_beyond("document", size + len(line))
                yield b"".join((*parts, line))
                parts, size = [], 0
            parts.append(rest)
            size += len(rest)
            refuse_beyond("document", size)
        yield b"".join(parts)

    def _pieces(self) -> Iterator[bytes]:
        read = 0
        with opened(self.path) as file:
            try:
                for part in plain(file, _PIECE_BYTES):
                    read += len(part)
                    refuse_beyond("decompressed", read)
                    yield part
            except (zlib.error, EOFError) as error:
                self._end(f"it cannot be decompressed to its end ({error})")

    def _end(self, reason: str) -> None:
        self.cut, self.damage = True, self.damage or reason


def _parsed(text: bytes | bytearray) -> list[dict[str, Any]] | None:
    """Return the object, or the objects of the list, that a text holds; None if it holds neither."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if isinstance(found, dict):
        return [found]
    if isinstance(found, list) and all(isinstance(entry, dict) for entry in found):
        return found
    return None
