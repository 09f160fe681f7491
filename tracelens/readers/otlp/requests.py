"""Requests of spans in a file, in JSON or protobuf, taken apart into spans.

The collector's file exporter writes one request a line in JSON, or messages of protobuf or JSON, each
with its length in front (four bytes, the highest first), compressed or not. Single documents and
messages, and messages whose length is a varint, are read, too.

Sources: opentelemetry-proto 1.x; the file exporter's README (opentelemetry-collector-contrib).
"""

from __future__ import annotations

import re
import zlib
from io import BytesIO
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from tracelens.conversion.layout import GrowthLimit
from tracelens.errors import MissingExtra, NotATrace
from tracelens.readers.event_stream import is_compressed, read_decompressed, read_first_bytes
from tracelens.readers.json_lines import JsonLines
from tracelens.readers.json_values import as_count, as_object, as_objects, as_text, unquote_number
from tracelens.readers.protobuf import LENGTH, read_varint, split_fields
from tracelens.schema.gate import open_regular, refuse_beyond

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tracelens.readers.files import ReadFile

_RESOURCE_KEYS: Final = ("resourceSpans", "resource_spans", "batches")
_SCOPE_KEYS: Final = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans")
_JSON: Final = re.compile(rb'^\[?\s*\{\s*"(resource_?[sS]pans|batches)"\s*:\s*\[')
_BEGIN_BYTES: Final = 1 << 16
_ERROR: Final = 2  # STATUS_CODE_ERROR
_BYTES_OF_IDS: Final = [(1, LENGTH, 16), (2, LENGTH, 8)]  # number, wire type, bytes: trace and span


class SpanEvent(NamedTuple):
    """Something that happened within a span."""

    name: str
    time_ns: int | None
    attributes: Mapping[str, Any]


class Span(NamedTuple):
    """A span as a request has it; ids of any type, which are equal for equal spans."""

    name: str
    start_ns: int | None
    end_ns: int | None
    attributes: Mapping[str, Any]
    span_id: Any
    parent_id: Any  # of the span around it; None without
    is_error: bool
    events: Sequence[SpanEvent]
    link_count: int


class ScopeSpans(NamedTuple):
    """The spans of one scope, with the attributes of their resource and their scope."""

    resource_attributes: Mapping[str, Any]
    scope_name: str
    scope_attributes: Mapping[str, Any]
    spans: Iterator[Span]


def is_otlp(path: Path) -> bool:
    """Return True if a file begins with a request of spans, in JSON or in protobuf."""
    first_bytes = read_first_bytes(path)
    if _JSON.match(first_bytes):
        names = (*_RESOURCE_KEYS[:2], *_SCOPE_KEYS)
        return any(f'"{name}"'.encode() in first_bytes for name in names)
    try:
        with open_regular(path) as file:
            return _find_framing(next(read_decompressed(file, _BEGIN_BYTES), b"")) is not None
    except (OSError, EOFError, NotATrace, zlib.error):
        return False


def read_requests(path: Path, span_file: ReadFile) -> Iterator[ScopeSpans]:
    """Yield the spans of a file, scope by scope; note in `span_file` what of it cannot be read.

    Raises:
        NotATrace: it holds no request of spans, is no regular file, or larger than it may be.
        MissingExtra: it is protobuf, and the library for it is not installed.
        OSError: it cannot be read.
    """
    is_json = _JSON.match(read_first_bytes(path)) is not None
    return _read_json(path, span_file) if is_json else _read_messages(path, span_file)


def _read_json(path: Path, span_file: ReadFile) -> Iterator[ScopeSpans]:
    lines = JsonLines(path)
    for document in lines:
        yield from _json_scopes(document, span_file)
    span_file.copy_damage(lines)


def _json_scopes(document: dict[str, Any], span_file: ReadFile) -> Iterator[ScopeSpans]:
    """Yield the scopes of a request in JSON."""
    key = next((key for key in _RESOURCE_KEYS if isinstance(document.get(key), list)), None)
    if key is None:
        span_file.left_out_counts["lines without spans"] += 1
        return
    for resource_spans in as_objects(document[key]):
        resource_attributes = _json_attributes(as_object(resource_spans.get("resource")))
        scope_lists = (as_objects(resource_spans.get(scope_key)) for scope_key in _SCOPE_KEYS)
        for scope_spans in chain.from_iterable(scope_lists):
            scope = as_object(scope_spans.get("scope") or scope_spans.get("instrumentationLibrary"))
            spans = map(_json_span, as_objects(scope_spans.get("spans")))
            scope_name = as_text(scope.get("name"))
            yield ScopeSpans(resource_attributes, scope_name, _json_attributes(scope), spans)


def _json_span(span: dict[str, Any]) -> Span:
    """Return a span of a request in JSON; keys are spelled in either of two ways."""
    trace_id = as_text(span.get("traceId") or span.get("trace_id"))
    parent_id = as_text(span.get("parentSpanId") or span.get("parent_span_id"))
    status_code = str(as_object(span.get("status")).get("code"))
    events = as_objects(span.get("events"))
    return Span(
        name=as_text(span.get("name")),
        start_ns=as_whole(span.get("startTimeUnixNano") or span.get("start_time_unix_nano")),
        end_ns=as_whole(span.get("endTimeUnixNano") or span.get("end_time_unix_nano")),
        attributes=_json_attributes(span),
        span_id=(trace_id, as_text(span.get("spanId") or span.get("span_id"))),
        parent_id=(trace_id, parent_id) if parent_id else None,
        is_error=status_code in {str(_ERROR), "STATUS_CODE_ERROR"},
        events=[*map(_json_event, events)],
        link_count=sum(1 for _ in as_objects(span.get("links"))),
    )


def _json_event(event: dict[str, Any]) -> SpanEvent:
    time_ns = as_whole(event.get("timeUnixNano"))
    return SpanEvent(as_text(event.get("name")), time_ns, _json_attributes(event))


def as_whole(value: object) -> int | None:
    """Return a whole number from 0 on, of 63 bits, also of a text; None for anything else."""
    return as_count(unquote_number(value))


def _json_attributes(owner: dict[str, Any]) -> dict[str, Any]:
    return {
        entry["key"]: _json_value(entry["value"])
        for entry in as_objects(owner.get("attributes"))
        if isinstance(entry.get("key"), str) and isinstance(entry.get("value"), dict)
    }


def _json_value(value: dict[str, Any]) -> Any:
    if "intValue" in value:
        return as_whole(value["intValue"])
    if "arrayValue" in value:
        return [*map(_json_value, as_objects(as_object(value["arrayValue"]).get("values")))]
    keys = ("stringValue", "boolValue", "doubleValue")
    return next((value[key] for key in keys if key in value), None)


def _read_messages(path: Path, span_file: ReadFile) -> Iterator[ScopeSpans]:
    """Yield the scopes of messages; those that cannot be decoded are counted."""
    for message in _split_messages(path, span_file):
        if not message.startswith(b"{"):
            yield from _proto_scopes(message, span_file)
            continue
        try:
            document = orjson.loads(message)
        except orjson.JSONDecodeError:
            _count_lost_message(span_file, "some of it is not JSON")
            continue
        yield from _json_scopes(document, span_file)


def _count_lost_message(span_file: ReadFile, reason: str) -> None:
    span_file.lost_count += 1
    span_file.damage_reason = span_file.damage_reason or reason


def _import_decoder() -> tuple[Any, type[Exception]]:
    """Return the class of a resource's spans, and the error of a message that is damaged."""
    try:
        from google.protobuf.message import DecodeError  # noqa: PLC0415 - an extra
        from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtra.from_extra(
            "Reading spans of OpenTelemetry in protobuf", "otlp"
        ) from error
    return ResourceSpans, DecodeError


def _proto_scopes(message: bytes, span_file: ReadFile) -> Iterator[ScopeSpans]:
    """Yield the scopes of a request in protobuf."""
    resource_spans_class, decode_error = _import_decoder()
    for field_number, wire_type, content in split_fields(message):
        if (field_number, wire_type) != (1, LENGTH):
            continue
        try:
            resource_spans = resource_spans_class.FromString(content)
        except decode_error:
            _count_lost_message(span_file, "it is no whole message of spans")
            continue
        resource_attributes = _proto_attributes(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            scope_name = as_text(scope_spans.scope.name)
            scope_attributes = _proto_attributes(scope_spans.scope.attributes)
            spans = map(_proto_span, scope_spans.spans)
            yield ScopeSpans(resource_attributes, scope_name, scope_attributes, spans)


def _proto_span(span: Any) -> Span:
    return Span(
        name=as_text(span.name),
        start_ns=span.start_time_unix_nano or None,
        end_ns=span.end_time_unix_nano or None,
        attributes=_proto_attributes(span.attributes),
        span_id=(span.trace_id, span.span_id),
        parent_id=(span.trace_id, span.parent_span_id) if span.parent_span_id else None,
        is_error=span.status.code == _ERROR,
        events=[
            SpanEvent(event.name, event.time_unix_nano, _proto_attributes(event.attributes))
            for event in span.events
        ],
        link_count=len(span.links),
    )


def _proto_attributes(entries: Any) -> dict[str, Any]:
    return {entry.key: _proto_value(entry.value) for entry in entries}


def _proto_value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [*map(_proto_value, value.array_value.values)]
    return getattr(value, kind) if kind and kind != "kvlist_value" else None


def _split_messages(path: Path, span_file: ReadFile) -> Iterator[bytes]:
    """Yield the messages of a file, decompressed, as `_find_framing` says that they are delimited."""
    growth = GrowthLimit(path.stat().st_size)
    with open_regular(path) as file:
        content = _join_chunks(read_decompressed(file, _BEGIN_BYTES), growth, span_file)
    framing = _find_framing(content[:_BEGIN_BYTES])
    if framing is None:
        raise NotATrace("it does not begin with spans of OpenTelemetry")
    position = 0
    while position < len(content):
        message_bytes: int | None = len(content)  # None: its length is cut off
        if framing == "lengths":
            message_bytes = int.from_bytes(content[position : position + 4], "big")
            position += 4
        elif framing == "varints":
            message_bytes, position = read_varint(content, position)
        message = content[position : position + (message_bytes or 0)]
        position += message_bytes or 1  # forward in any case
        if is_compressed(message):
            chunks = read_decompressed(BytesIO(message), _BEGIN_BYTES)
            message = _join_chunks(chunks, growth, span_file)
        yield message
        if framing != "message" and (message_bytes is None or position > len(content)):
            span_file.is_cut = True
            span_file.damage_reason = span_file.damage_reason or "it ends within a message"


def _join_chunks(chunks: Iterator[bytes], growth: GrowthLimit, span_file: ReadFile) -> bytes:
    """Join decompressed bytes; the compressed stream may break off.

    Raises:
        NotATrace: the file becomes larger than it may.
    """
    content = bytearray()
    try:
        for chunk in chunks:
            content += chunk
            growth.count_bytes(len(chunk))
            refuse_beyond("document", len(content))
    except (EOFError, zlib.error) as error:
        span_file.is_cut = True
        span_file.damage_reason = f"it cannot be decompressed to its end ({error})"
    return bytes(content)


def _find_framing(content: bytes) -> str | None:
    """Return the framing of messages; None if a file's first bytes hold no spans.

    "lengths": four bytes precede each message. "varints": a varint precedes it. "message": the whole
    file is a single message.
    """
    if _begins_with_spans(content):
        return "message"
    if _begins_request(content[4 : 4 + int.from_bytes(content[:4], "big")]):
        return "lengths"
    message_bytes, message_begin = read_varint(content, position=0)
    message = content[message_begin : message_begin + (message_bytes or 0)]
    return "varints" if message and _begins_with_spans(message) else None


def _begins_request(message: bytes) -> bool:
    """Return True if a message, compressed or not, begins with spans in protobuf or JSON."""
    if is_compressed(message):
        try:
            message = next(read_decompressed(BytesIO(message), _BEGIN_BYTES), b"")
        except (EOFError, zlib.error):
            return False
    return _JSON.match(message) is not None or _begins_with_spans(message)


def _begins_with_spans(content: bytes) -> bool:
    """Return True if fields of a request lead to a span with its two ids, unlike metrics and logs."""
    for field_number, wire_type, resource_spans in split_fields(content):
        if (field_number, wire_type) != (1, LENGTH):
            return False
        has_span = _has_span(resource_spans)
        if has_span is not None:
            return has_span
    return False


def _has_span(resource_spans: bytes) -> bool | None:
    """Return True if the first entry of a resource is a span; None if it has no entry.

    The spans of a scope are field 2 of a resource, and a span is field 2 of these; the other fields of
    both are attributes and the like. A span begins with its two ids.
    """
    for field_number, wire_type, scope_spans in split_fields(resource_spans):
        if wire_type != LENGTH or field_number not in {1, 2, 3, 1000}:
            return False
        fields = split_fields(scope_spans) if field_number == 2 else ()
        for scope_field, scope_type, entry in fields:
            if scope_type != LENGTH or scope_field not in {1, 2, 3}:
                return False
            if scope_field == 2:
                first_fields = [(f, kind, len(value)) for f, kind, value in split_fields(entry)][:2]
                return first_fields == _BYTES_OF_IDS
    return None
