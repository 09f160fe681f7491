"""Reads trace events in JSON as a stream: an object with `traceEvents`, a list, or one event a line.

All plain and gzip. A file is taken in pieces of 64 KiB, each cut after the last whole event,
and each piece is parsed by orjson. What orjson refuses is parsed event by event: damage costs the
event that it is in, which is counted. A file that was cut off yields every event that is whole.

The format: "Trace Event Format" (Google, 2016); what Kineto writes around it: `libkineto`,
output_json.cpp.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa

from tracelens.conversion.layout import GrowthLimit
from tracelens.errors import NotATrace
from tracelens.schema.gate import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import BytesIO, FileIO
    from pathlib import Path

__all__ = [
    "Event",
    "EventStream",
    "is_compressed",
    "looks_like_events",
    "read_decompressed",
    "read_first_bytes",
]

Event = dict[str, Any]
PIECE_BYTES: Final = 1 << 16
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_KEY: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_BOUNDARY: Final = re.compile(rb"\}\s*,?\s*(?=\{)")
_MOST_HEAD: Final = 64 << 20  # before the first event; deviceProperties and metadata of large jobs
_LONGEST_KEY: Final = 64  # bytes of the key of the list, with blanks
_LONGEST_EVENT: Final = 16 << 20
_NEAR_END: Final = 1 << 15
_TRIED: Final = 4  # boundaries, from the last: within a string or a nested list there may be some
_TRIED_ENDS: Final = 64  # of lists, in the last event and behind it
_JOINED: Final = 8  # pieces of one event that has objects in it
_PHASE: Final = b'"ph"'
_LINE_ENDS: Final = re.compile(
    rb"\}[ \t\r]*\n(?=\s*\{)"
)  # in no string: JSON has no line ends there
_BEHIND: Final = "unexpected content after document"
_BEGIN_BYTES: Final = 1 << 16
_NO_NUMBER: Final = re.compile(rb"(?<=[:\s,\[])[-+]?(?:nan|inf|infinity)\b", re.IGNORECASE)
_ESCAPE: Final = re.compile(rb'\\(?!["\\/bfnrtu])')
# A text, which stays, or a comma with nothing behind it.
_STRAY_COMMA: Final = re.compile(rb'("(?:[^"\\]|\\.)*")|,(?=\s*[\]},])', re.DOTALL)
_BEFORE: Final = b"\xef\xbb\xbf \r\n\t"  # the first character: a byte order mark, space
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_LONG: Final = re.compile(rb'"ts"\s*:\s*-?\d{13}')
_EXACT: Final = re.compile(rb'("ts"\s*:\s*-?\d{14,})\.(\d{3})(?=\s*[,}])')


def read_first_bytes(path: Path) -> bytes:
    """Return the first bytes of a file, decompressed, from its first character on; none on failure."""
    try:
        with open_regular(path) as file:
            first_bytes = b"".join(_take_bytes(read_decompressed(file, _BEGIN_BYTES), _BEGIN_BYTES))
    except (OSError, EOFError, NotATrace, zlib.error):
        return b""
    return first_bytes.lstrip(_BEFORE)


def looks_like_events(path: Path) -> bool:
    """Return True if a file begins as trace events in JSON do."""
    first_bytes = read_first_bytes(path)
    if first_bytes.startswith(b"{"):
        return b'"traceEvents"' in first_bytes or b'"schemaVersion"' in first_bytes
    return first_bytes.startswith(b"[") and b'"ph"' in first_bytes


@dataclass
class EventStream:
    """The events of one file; its other members are complete when all events have been read.

    `facts` are the other members of the object. `lost` counts events that could not be parsed, `cut`
    says that the file ends before its list does, `damage` is the first reason for either. With `lines`
    each event is on a line of its own, without commas, in a list that need not be opened or closed.
    `decode` may be quicker with a list of events than orjson is, and give them another type; it returns
    null for what it does not understand.
    """

    path: Path
    lines: bool = False
    decode: Callable[[bytes], list[Any] | None] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    lost: int = 0
    cut: bool = False
    damage: str = ""
    read_bytes: int = 0
    lost_facts: bool = False  # what stands beside the events is there, and no JSON
    _ended: bool = False
    _is_list: bool = False
    _short: bool | None = None  # times have few digits; null = not known yet
    exact: bool = False  # times are whole nanoseconds, where doubles could not hold them

    def pieces(self) -> Iterator[list[Any]]:
        """Yield the events of the file, a list for each piece of it.

        Raises:
            NotATrace: there is no list of events, it is no regular file, or too large.
        """
        with open_regular(self.path) as file:
            growth = GrowthLimit(os.fstat(file.fileno()).st_size)
            chunks = read_decompressed(file, PIECE_BYTES)
            yield from self._parse_all(self._count_bytes(chunks, growth))

    def _count_bytes(self, chunks: Iterator[bytes], growth: GrowthLimit) -> Iterator[bytes]:
        """Yield the chunks and count their bytes; compressed data that breaks off means a cut file."""
        try:
            for chunk in chunks:
                self.read_bytes += len(chunk)
                growth.count_bytes(len(chunk))
                yield chunk
        except (zlib.error, EOFError, OSError) as error:
            self._note_damage(f"it cannot be decompressed to its end ({error})")
            self.cut = True

    def _note_damage(self, reason: str) -> None:
        self.damage = self.damage or reason

    def _parse_all(self, chunks: Iterator[bytes]) -> Iterator[list[Any]]:
        """Yield lists of events from the chunks of the file; `unread` are bytes not parsed yet."""
        unread = self._skip_head(chunks)
        behind: list[bytes] = []  # chunks behind the list of events
        for chunk in chunks:
            if self._ended:
                behind.append(chunk)
                continue
            unread += chunk
            if len(unread) >= PIECE_BYTES:
                events, unread = self._parse_piece(self._prepare(unread))
                yield events
            if len(unread) > _LONGEST_EVENT:
                self._count_lost(f"no event ends in {len(unread) >> 20} MiB of it", unread)
                unread = b""
        if not self._ended:
            events, unread = self._parse_end(self._prepare(unread))
            yield events
        if self._ended and not self._is_list:
            text = b"".join([unread, *behind])
            self._take_facts(b"{" + text.strip().removeprefix(b","))

    def _skip_head(self, chunks: Iterator[bytes]) -> bytes:
        """Read up to the first event, take the facts before it, and return the bytes read beyond."""
        head = bytearray()
        for chunk in chunks:
            search_start = max(0, len(head) - _LONGEST_KEY)
            head += chunk if head else chunk.lstrip(_BEFORE)
            if head[:1] == b"[":
                self._is_list = True
                return bytes(head[1:])
            if head and self.lines:
                self._is_list = True
                return bytes(head)
            if head and head[:1] != b"{":
                break
            match = _KEY.search(head, search_start)
            if match:
                self._take_facts(bytes(head[: match.start()].rstrip().rstrip(b",") + b"}"))
                return bytes(head[match.end() :])
            if len(head) > _MOST_HEAD:
                break
        raise NotATrace(
            f"'{self.path}' holds no trace events: expected a JSON object with \"traceEvents\", or a "
            "list of events, such as torch.profiler's export_chrome_trace writes."
        )

    def _take_facts(self, text: bytes) -> None:
        """Take the members of an object other than its events."""
        try:
            members = orjson.loads(text)
        except orjson.JSONDecodeError:
            members = _parse_leniently(text)
        if isinstance(members, dict):
            self.facts |= members
        else:
            self.lost_facts = True
            self.lost += text.count(_PHASE)
            self._note_damage("what stands beside its events is not JSON")

    def _parse_piece(self, text: bytes) -> tuple[list[Any], bytes]:
        """Return the events of a text up to its last boundary, and the text behind it.

        If the list of events ends before: the events up to there, and the text behind the list.
        """
        search_start = max(0, len(text) - _NEAR_END)
        boundaries = [match.end() for match in _BOUNDARY.finditer(text, search_start)]
        for end in boundaries[: -_TRIED - 1 : -1]:
            decoded = self.decode(_as_list(text[:end])) if self.decode else None
            if decoded is not None:
                return decoded, text[end:]
            events, list_end = _parse_list(text[:end])
            if list_end is not None:
                self._ended = True
                return events or [], text[list_end:]
            if events is not None:
                return events, text[end:]
        if not boundaries:
            return [], text
        return self._parse_one_by_one(text[: boundaries[-1]]), text[boundaries[-1] :]

    def _parse_end(self, text: bytes) -> tuple[list[Event], bytes]:
        """Return the events up to the end of the list, and what stands behind it."""
        events, list_end = _parse_list(text, closed=True)
        if list_end is not None:
            self._ended = True
            return events or [], text[list_end:]
        boundaries = [match.end() for match in _BOUNDARY.finditer(text)]
        last_event_start = boundaries[-1] if boundaries else 0
        whole_events = self._parse_one_by_one(text[:last_event_start]) if last_event_start else []
        events, behind = self._parse_last_event(text[last_event_start:])
        return whole_events + events, behind

    def _parse_last_event(self, text: bytes) -> tuple[list[Event], bytes]:
        """Return the last event, and the text after the end of the list, if any."""
        events, list_end = _parse_list(text) if text.strip() else ([], None)
        if events is None:
            events, list_end = _repair_last_event(text)
        if list_end is not None:
            self._ended = True
            return events or [], text[list_end:]
        if not self._is_list or events is None:
            self.cut = True
            self._note_damage("it ends within its list of events")
        return events or [], b""

    def _prepare(self, text: bytes) -> bytes:
        """Turn microseconds that doubles cannot hold to the nanosecond into whole nanoseconds.

        In a file of lines, put commas between events instead. Returns the text to parse.
        """
        if self.lines:
            return _LINE_ENDS.sub(b"},\n", text)
        if not self.read_bytes or "baseTimeNanoseconds" in self.facts:
            return text
        if self._short is None:
            self._short = not _LONG.search(text)
        if self._short:
            return text
        exact_text, replaced_count = _EXACT.subn(rb"\1\2", text)
        self.exact = self.exact or bool(replaced_count)
        return exact_text

    def _parse_one_by_one(self, text: bytes) -> list[Event]:
        """Return the events of a text that orjson refuses as a whole; count those beyond repair.

        An event may hold objects, so up to `_JOINED` pieces are tried as one event.
        """
        edges = [0, *(match.end() for match in _BOUNDARY.finditer(text)), len(text)]
        pieces = [text[begin:end] for begin, end in pairwise(edges)]
        parsed_events: list[Event] = []
        index = 0
        while index < len(pieces):
            for piece_count in range(1, min(_JOINED, len(pieces) - index) + 1):
                event_text = b"".join(pieces[index : index + piece_count])
                events = _parse_list(event_text)[0] or _repair(event_text)
                if events is not None:
                    parsed_events += events
                    index += piece_count
                    break
            else:
                self._count_lost("some of it is not JSON", pieces[index])
                index += 1
        return parsed_events

    def _count_lost(self, reason: str, text: bytes) -> None:
        """Count the events in a text that cannot be parsed; each has a phase."""
        self.lost += max(1, text.count(_PHASE))
        self._note_damage(reason)


def _take_bytes(chunks: Iterator[bytes], size: int) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk[:size]
        size -= len(chunk)
        if size <= 0:
            return


def is_compressed(content: bytes) -> bool:
    """Return True if bytes begin as gzip or zstd do."""
    return content.startswith((_GZIP, _ZSTD))


def read_decompressed(file: FileIO | BytesIO, chunk_bytes: int) -> Iterator[bytes]:
    """Yield the content of a file, decompressed if it is gzip (of several members, too) or zstd.

    Raises:
        EOFError, zlib.error: the compressed stream breaks off.
    """
    first_bytes = file.read(len(_ZSTD))
    file.seek(0)
    if first_bytes == _ZSTD:
        yield from _decompress_zstd(file, chunk_bytes)
    elif first_bytes.startswith(_GZIP):
        yield from _decompress_gzip(file, chunk_bytes)
    else:
        while chunk := file.read(chunk_bytes):
            yield chunk


def _decompress_zstd(file: FileIO | BytesIO, chunk_bytes: int) -> Iterator[bytes]:
    stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")
    try:
        while chunk := stream.read(chunk_bytes):
            yield chunk
    except (OSError, pa.ArrowException) as error:
        raise EOFError(str(error)) from error


def _decompress_gzip(file: FileIO | BytesIO, chunk_bytes: int) -> Iterator[bytes]:
    """Yield up to `chunk_bytes` at a time; the file may have several members, padded with zeros."""
    decompressor = zlib.decompressobj(wbits=31)
    while packed := file.read(chunk_bytes // 8):
        while packed:
            yield from filter(None, [decompressor.decompress(packed, chunk_bytes)])
            packed = decompressor.unconsumed_tail
            if decompressor.eof:
                packed = decompressor.unused_data.lstrip(b"\0")
                if packed:
                    decompressor = zlib.decompressobj(wbits=31)
    if not decompressor.eof:
        raise EOFError("it ends within the compressed stream")


def _as_list(text: bytes) -> bytes:
    """Return events with commas between, and maybe behind, as a list."""
    return b"[%b]" % text.rstrip().removesuffix(b",")


def _parse_list(text: bytes, *, closed: bool = False) -> tuple[list[Event] | None, int | None]:
    """Parse events with commas between; None if they are not JSON.

    Also returns the index behind the bracket that closes the list, None if the text has none;
    `closed`: it must have one.
    """
    list_text = _as_list(text)
    unclosed_text = list_text[:-1]
    try:
        events = orjson.loads(unclosed_text if closed else list_text)
    except orjson.JSONDecodeError as error:
        if not error.msg.startswith(_BEHIND):
            return None, None
        list_end = len(error.doc[: error.pos].encode())
        return orjson.loads(unclosed_text[:list_end]), list_end - 1
    return events, len(text) if closed else None


def _repair(text: bytes) -> list[Event] | None:
    """Parse events with numbers, escapes and characters that JSON has not; None if that fails."""
    events = _parse_leniently(b"[%b]" % text.strip().removesuffix(b","))
    return events if isinstance(events, list) else None


def _repair_last_event(text: bytes) -> tuple[list[Event] | None, int | None]:
    """Parse the last event leniently, and find the end of its list.

    Returns the events, or None if that fails, and the index behind the list, None without an end.
    """
    position = text.find(b"]")
    for _ in range(_TRIED_ENDS):
        if position < 0:
            break
        events = _repair(text[:position])
        if events is not None:
            return events, position + 1
        position = text.find(b"]", position + 1)
    return _repair(text), None


def _parse_leniently(text: bytes) -> Any:
    """Return the value of almost-JSON (NaN, bad escapes, stray commas); None if it is not even that."""
    repaired = _ESCAPE.sub(rb"\\\\", _NO_NUMBER.sub(b"null", text))
    repaired = _STRAY_COMMA.sub(rb"\1", _SURROGATE.sub(rb"\\ufffd", repaired))
    try:
        return json.loads(repaired.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return None
