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
from tracelens.readers.event_stream import read_decompressed
from tracelens.schema.gate import open_regular, refuse_beyond

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CHUNK_BYTES: Final = 1 << 20  # bytes that are read at a time [definition]
_BLANK: Final = b"\xef\xbb\xbf \r\n\t"
_OPENING: Final = (b"{", b"[")


@dataclass(eq=False)
class JsonLines:
    """The objects of one file."""

    path: Path
    lost_count: int = 0  # lines that hold no object
    is_cut: bool = False  # the file ends within an object
    damage_reason: str = ""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the objects; those of a list on one line come one by one."""
        lines = (line for line in self._lines() if line.strip(_BLANK))
        first_line, second_line = next(lines, b"").lstrip(_BLANK), next(lines, b"")
        is_json = first_line.startswith(_OPENING)
        if is_json and _parse_objects(first_line) is None and _parse_objects(second_line) is None:
            yield from self._read_document()
            return
        if first_line and not is_json:
            raise NotATrace("it does not begin with a JSON object")
        is_line_broken = False  # the line before; one that is last was cut off, others are lost
        for line in filter(None, chain((first_line, second_line), lines)):
            self.lost_count += is_line_broken
            objects = _parse_objects(line)
            is_line_broken = objects is None
            yield from objects or ()
        if is_line_broken:
            self._note_cut("the last line is no whole JSON object")

    def _read_document(self) -> list[dict[str, Any]]:
        """Parse a document over many lines, from its begin."""
        content = bytearray()
        for chunk in self._chunks():
            refuse_beyond("document", len(content) + len(chunk))
            content += chunk
        objects = _parse_objects(content.lstrip(_BLANK))
        if objects is None:
            raise NotATrace("it is no whole JSON document, nor one object on each line")
        return objects

    def _lines(self) -> Iterator[bytes]:
        """Yield the lines of the file, without their ends."""
        line_parts: list[bytes] = []  # of a line that has not ended
        line_bytes = 0  # of these parts
        for chunk in self._chunks():
            *lines, line_begin = chunk.split(b"\n")
            for line in lines:
                refuse_beyond("document", line_bytes + len(line))
                yield b"".join((*line_parts, line))
                line_parts, line_bytes = [], 0
            line_parts.append(line_begin)
            line_bytes += len(line_begin)
            refuse_beyond("document", line_bytes)
        yield b"".join(line_parts)

    def _chunks(self) -> Iterator[bytes]:
        """Yield decompressed chunks of the file; note where it was cut off."""
        decompressed_bytes = 0
        with open_regular(self.path) as file:
            try:
                for chunk in read_decompressed(file, _CHUNK_BYTES):
                    decompressed_bytes += len(chunk)
                    refuse_beyond("decompressed", decompressed_bytes)
                    yield chunk
            except (zlib.error, EOFError) as error:
                self._note_cut(f"it cannot be decompressed to its end ({error})")

    def _note_cut(self, reason: str) -> None:
        self.is_cut, self.damage_reason = True, self.damage_reason or reason


def _parse_objects(text: bytes | bytearray) -> list[dict[str, Any]] | None:
    """Return the object, or the objects of the list, that a text holds; None if it holds neither."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    objects = value if isinstance(value, list) else [value]
    return objects if all(isinstance(entry, dict) for entry in objects) else None
