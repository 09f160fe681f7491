"""Reads trace events in JSON as a stream: an object with `traceEvents`, a list, or one event a line.

A file is taken in pieces of 64 KiB, each cut after the last whole event and parsed by orjson. What that
refuses is parsed event by event: damage costs the event that it is in, which is counted.

The format: "Trace Event Format" (Google, 2016); `libkineto`, output_json.cpp.
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

Event = dict[str, Any]
PIECE_BYTES: Final = 1 << 16
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_START_OF_EVENTS: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_BOUNDARY: Final = re.compile(rb"\}\s*,?\s*(?=\{)")
# before the first event; deviceProperties and metadata of large jobs
_MAX_HEAD_BYTES: Final = 64 << 20
_MAX_KEY_BYTES: Final = 64  # bytes of the key of the list, with blanks
_MAX_EVENT_BYTES: Final = 16 << 20
_BYTES_NEAR_END: Final = 1 << 15
# boundaries, from the last: within a string or a nested list there may be some
_MAX_BOUNDARIES_TRIED: Final = 4
_MAX_ENDS_TRIED: Final = 64  # of lists, in the last event and behind it
_MAX_PIECES_JOINED: Final = 8  # pieces of one event that has objects in it
_PHASE_KEY: Final = b'"ph"'
# In no string: JSON has no line ends there.
_LINE_ENDS: Final = re.compile(rb"\}[ \t\r]*\n(?=\s*\{)")
_CONTENT_AFTER_LIST: Final = "unexpected content after document"  # the error of orjson
_BEGIN_BYTES: Final = 1 << 16
_NO_NUMBER: Final = re.compile(rb"(?<=[:\s,\[])[-+]?(?:nan|inf|infinity)\b", re.IGNORECASE)
_ESCAPE: Final = re.compile(rb'\\(?!["\\/bfnrtu])')
# A text, which stays, or a comma with nothing behind it. Retries in a long text would take gigabytes.
_STRAY_COMMA: Final = re.compile(rb'("(?:[^"\\]++|\\.)*+")|,(?=\s*[\]},])', re.DOTALL)
# May stand before the first character: byte order mark, space.
_BLANK: Final = b"\xef\xbb\xbf \r\n\t"
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_LONG_TIME: Final = re.compile(rb'"ts"\s*:\s*-?\d{13}')
_TIME_WITH_DECIMALS: Final = re.compile(rb'("ts"\s*:\s*-?\d{14,})\.(\d{3})(?=\s*[,}])')


def read_first_bytes(path: Path) -> bytes:
    """Return the first bytes of a file, decompressed, from its first character on; none on failure."""
    try:
        with open_regular(path) as file:
            first_bytes = b"".join(_take_bytes(read_decompressed(file, _BEGIN_BYTES), _BEGIN_BYTES))
    except (OSError, EOFError, NotATrace, zlib.error):
        return b""
    return first_bytes.lstrip(_BLANK)


def looks_like_events(path: Path) -> bool:
    """Return True if a file begins as trace events in JSON do."""
    first_bytes = read_first_bytes(path)
    if first_bytes.startswith(b"{"):
        return b'"traceEvents"' in first_bytes or b'"schemaVersion"' in first_bytes
    return first_bytes.startswith(b"[") and b'"ph"' in first_bytes


@dataclass
class EventStream:
    """The events of one file; its other members are complete when all events have been read.

    With `has_event_per_line` there are no commas between events, and the list need not be opened or
    closed. `decode_list` may be quicker with a list of events than orjson is, and give them another
    type; it returns None for what it does not understand.
    """

    path: Path
    has_event_per_line: bool = False
    decode_list: Callable[[bytes], list[Any] | None] | None = None
    # Members of the object beside its events.
    metadata: dict[str, Any] = field(default_factory=dict)
    lost_count: int = 0  # events that cannot be parsed
    is_cut: bool = False  # the file ends before its list of events does
    damage_reason: str = ""  # the first for lost events, or for a cut
    has_lost_metadata: bool = False  # what stands beside the events is there, and no JSON
    _has_list_ended: bool = False
    _is_bare_list: bool = False  # no object is around the list
    _has_short_times: bool | None = None  # times have few digits; null = not known yet
    has_ns_times: bool = False  # huge whole times are ns, as a double cannot hold them in us

    def read_pieces(self) -> Iterator[list[Any]]:
        """Yield the events of the file, a list for each piece; NotATrace is raised if it has no list."""
        with open_regular(self.path) as file:
            growth = GrowthLimit(os.fstat(file.fileno()).st_size)
            chunks = read_decompressed(file, PIECE_BYTES)
            yield from self._parse_all(self._limit_growth(chunks, growth))

    def _limit_growth(self, chunks: Iterator[bytes], growth: GrowthLimit) -> Iterator[bytes]:
        """Yield chunks while `growth` allows it; compressed data that breaks off means a cut file."""
        try:
            for chunk in chunks:
                growth.count_bytes(len(chunk))
                yield chunk
        except (zlib.error, EOFError, OSError) as error:
            self._note_damage(f"it cannot be decompressed to its end ({error})")
            self.is_cut = True

    def _note_damage(self, reason: str) -> None:
        self.damage_reason = self.damage_reason or reason

    def _parse_all(self, chunks: Iterator[bytes]) -> Iterator[list[Any]]:
        """Yield lists of events from the chunks of the file, and add what stands around the list."""
        unparsed_text = self._skip_head(chunks)
        chunks_after_list: list[bytes] = []
        for chunk in chunks:
            if self._has_list_ended:
                chunks_after_list.append(chunk)
                continue
            unparsed_text += chunk
            if len(unparsed_text) >= PIECE_BYTES:
                events, unparsed_text = self._parse_piece(self._make_parsable(unparsed_text))
                yield events
            if len(unparsed_text) > _MAX_EVENT_BYTES:
                reason = f"no event ends in {len(unparsed_text) >> 20} MiB of it"
                self._count_lost_events(reason, unparsed_text)
                unparsed_text = b""
        if not self._has_list_ended:
            events, unparsed_text = self._parse_end(self._make_parsable(unparsed_text))
            yield events
        if self._has_list_ended and not self._is_bare_list:  # further members of the object
            members = b"".join([unparsed_text, *chunks_after_list])
            self._add_metadata(b"{" + members.strip().removeprefix(b","))

    def _skip_head(self, chunks: Iterator[bytes]) -> bytes:
        """Read up to the first event, take the members before it, and return the bytes read beyond."""
        head = bytearray()
        for chunk in chunks:
            search_start = max(0, len(head) - _MAX_KEY_BYTES)  # the key may lie across two chunks
            head += chunk if head else chunk.lstrip(_BLANK)
            if head[:1] == b"[":
                self._is_bare_list = True
                return bytes(head[1:])
            if head and self.has_event_per_line:
                self._is_bare_list = True
                return bytes(head)
            if head and head[:1] != b"{":
                break
            list_start = _START_OF_EVENTS.search(head, search_start)
            if list_start:
                self._add_metadata(bytes(head[: list_start.start()].rstrip().rstrip(b",") + b"}"))
                return bytes(head[list_start.end() :])
            if len(head) > _MAX_HEAD_BYTES:
                break
        raise NotATrace(
            f"'{self.path}' holds no trace events: expected a JSON object with \"traceEvents\", or a "
            "list of events, such as torch.profiler's export_chrome_trace writes."
        )

    def _add_metadata(self, text: bytes) -> None:
        """Parse an object, the members of a file other than its events, and keep them."""
        try:
            members = orjson.loads(text)
        except orjson.JSONDecodeError:
            members = _parse_leniently(text)
        if isinstance(members, dict):
            self.metadata |= members
        else:
            self.has_lost_metadata = True
            self.lost_count += text.count(_PHASE_KEY)  # events may be in what is no JSON
            self._note_damage("what stands beside its events is not JSON")

    def _parse_piece(self, text: bytes) -> tuple[list[Any], bytes]:
        """Return the events of a text up to its last boundary between two, and the text behind it.

        If the list of events ends before: the events up to there, and the text behind the list.
        """
        search_start = max(0, len(text) - _BYTES_NEAR_END)
        boundaries = [match.end() for match in _BOUNDARY.finditer(text, search_start)]
        for boundary in boundaries[: -_MAX_BOUNDARIES_TRIED - 1 : -1]:
            events = self.decode_list(_close_list(text[:boundary])) if self.decode_list else None
            if events is not None:
                return events, text[boundary:]
            events, list_end = _parse_list(text[:boundary])
            if list_end is not None:
                self._has_list_ended = True
                return events or [], text[list_end:]
            if events is not None:
                return events, text[boundary:]
        if not boundaries:
            return [], text
        return self._parse_one_by_one(text[: boundaries[-1]]), text[boundaries[-1] :]

    def _parse_end(self, text: bytes) -> tuple[list[Event], bytes]:
        """Return the events in the last text of a file, and the text after the end of their list."""
        events, list_end = _parse_list(text, must_be_closed=True)
        if list_end is not None:
            self._has_list_ended = True
            return events or [], text[list_end:]
        boundaries = [match.end() for match in _BOUNDARY.finditer(text)]
        last_event_start = boundaries[-1] if boundaries else 0
        whole_events = self._parse_one_by_one(text[:last_event_start]) if last_event_start else []
        last_events, text_after_list = self._parse_last_event(text[last_event_start:])
        return whole_events + last_events, text_after_list

    def _parse_last_event(self, text: bytes) -> tuple[list[Event], bytes]:
        """Return the last event of a file as a list, and the text after the end of its list, if any."""
        events, list_end = _parse_list(text) if text.strip() else ([], None)
        if events is None:
            events, list_end = _repair_last_event(text)
        if list_end is not None:
            self._has_list_ended = True
            return events or [], text[list_end:]
        if not self._is_bare_list or events is None:
            self.is_cut = True
            self._note_damage("it ends within its list of events")
        return events or [], b""

    def _make_parsable(self, text: bytes) -> bytes:
        """Return a text of events as it can be parsed without loss.

        Microseconds since 1970 with three decimals are beyond the digits of a double: without their
        point they are whole nanoseconds. A file that says its `baseTimeNanoseconds` counts from there,
        so its times are short. Where each event has a line, commas are put between them instead.
        """
        if self.has_event_per_line:
            return _LINE_ENDS.sub(b"},\n", text)
        if "baseTimeNanoseconds" in self.metadata:
            return text
        if self._has_short_times is None:  # the first piece of a file tells it for all
            self._has_short_times = not _LONG_TIME.search(text)
        if self._has_short_times:
            return text
        text_with_ns, replaced_count = _TIME_WITH_DECIMALS.subn(rb"\1\2", text)
        self.has_ns_times = self.has_ns_times or bool(replaced_count)
        return text_with_ns

    def _parse_one_by_one(self, text: bytes) -> list[Event]:
        """Return the events of a text that orjson refuses as a whole; count those beyond repair.

        An event may hold objects, so up to `_MAX_PIECES_JOINED` pieces are tried as one event.
        """
        edges = [0, *(match.end() for match in _BOUNDARY.finditer(text)), len(text)]
        pieces = [text[begin:end] for begin, end in pairwise(edges)]
        parsed_events: list[Event] = []
        piece_index = 0
        while piece_index < len(pieces):
            for piece_count in range(1, min(_MAX_PIECES_JOINED, len(pieces) - piece_index) + 1):
                event_text = b"".join(pieces[piece_index : piece_index + piece_count])
                events = _parse_list(event_text)[0] or _repair(event_text)
                if events is not None:
                    parsed_events += events
                    piece_index += piece_count
                    break
            else:  # no event begins with this piece
                self._count_lost_events("some of it is not JSON", pieces[piece_index])
                piece_index += 1
        return parsed_events

    def _count_lost_events(self, reason: str, text: bytes) -> None:
        """Count the events in a text that cannot be parsed; each has a phase."""
        self.lost_count += max(1, text.count(_PHASE_KEY))
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
    while compressed := file.read(chunk_bytes // 8):
        while compressed:
            yield from filter(None, [decompressor.decompress(compressed, chunk_bytes)])
            compressed = decompressor.unconsumed_tail
            if decompressor.eof:  # of this member: another one may follow
                compressed = decompressor.unused_data.lstrip(b"\0")
                if compressed:
                    decompressor = zlib.decompressobj(wbits=31)
    if not decompressor.eof:
        raise EOFError("it ends within the compressed stream")


def _close_list(text: bytes) -> bytes:
    """Return events with commas between, and maybe behind, as a list."""
    return b"[%b]" % text.rstrip().removesuffix(b",")


def _parse_list(
    text: bytes, *, must_be_closed: bool = False
) -> tuple[list[Event] | None, int | None]:
    """Parse events with commas between, without the bracket that opens their list.

    Returns the events, None if they are not JSON; and the index in `text` behind the closing bracket,
    None for an open list. `must_be_closed`: an open list is not JSON.
    """
    list_text = _close_list(text)
    unclosed_list = list_text[:-1]
    try:
        events = orjson.loads(unclosed_list if must_be_closed else list_text)
    except orjson.JSONDecodeError as error:
        if not error.msg.startswith(_CONTENT_AFTER_LIST):
            return None, None
        list_end = len(error.doc[: error.pos].encode())  # in `list_text`, which has a bracket more
        return orjson.loads(unclosed_list[:list_end]), list_end - 1
    return events, len(text) if must_be_closed else None


def _repair(text: bytes) -> list[Event] | None:
    """Parse events with numbers, escapes and characters that JSON has not; None if that fails."""
    events = _parse_leniently(_close_list(text.lstrip()))
    return events if isinstance(events, list) else None


def _repair_last_event(text: bytes) -> tuple[list[Event] | None, int | None]:
    """Parse the last event leniently, and find the bracket that ends its list.

    Returns the events, or None if that fails, and the index behind the list, None without an end.
    """
    bracket_index = text.find(b"]")
    for _ in range(_MAX_ENDS_TRIED):  # the event may hold brackets, too
        if bracket_index < 0:
            break
        events = _repair(text[:bracket_index])
        if events is not None:
            return events, bracket_index + 1
        bracket_index = text.find(b"]", bracket_index + 1)
    return _repair(text), None


def _parse_leniently(text: bytes) -> Any:
    """Return the value of almost-JSON (NaN, bad escapes, stray commas); None if it is not even that."""
    repaired = _ESCAPE.sub(rb"\\\\", _NO_NUMBER.sub(b"null", text))
    repaired = _STRAY_COMMA.sub(rb"\1", _SURROGATE.sub(rb"\\ufffd", repaired))
    try:
        return json.loads(repaired.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return None
