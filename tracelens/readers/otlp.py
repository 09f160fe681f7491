"""Reads spans of OpenTelemetry from files: OTLP in JSON or protobuf (docs/formats.md).

The collector's file exporter writes one request a line in JSON, or messages of protobuf, each with its
length in front (four bytes, the highest first). Single documents and messages, and messages whose
length is a varint, are read, too. A resource says whose spans are in it; a span says what it is by its
name and its attributes. Attributes that begin with `tracelens.` are those of `tracelens.exports.otlp`,
and are believed of any program.

Sources: opentelemetry-proto 1.x; the file exporter's README (opentelemetry-collector-contrib);
`docs/user-guide/observability` of Megatron-LM and `docs/user-guide/resources.mdx` of NeMo Lens.
"""

from __future__ import annotations

import re
import zlib
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from tracelens.errors import MissingExtra, NotATrace
from tracelens.model.recognition import Gap
from tracelens.model.trace import EVENT_COLUMNS
from tracelens.readers import files
from tracelens.readers.base import SIMPLY, Reading
from tracelens.readers.event_stream import begin_of_events, plain
from tracelens.readers.exported import ExportedFile, as_recorded, ranks_in
from tracelens.readers.gathered import MOST_NS
from tracelens.readers.json_lines import JsonLines
from tracelens.readers.protobuf import LENGTH, fields, varint
from tracelens.readers.words import meaning, step_number
from tracelens.schema.gate import opened, refuse_beyond
from tracelens.schema.vocabulary import COLLECTIVES, EVENT_TYPES, KINDS, MOST_RANKS, OPS, ROLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tracelens.model.trace import Trace

__all__ = ["SUFFIXES", "OtlpReader", "is_otlp"]

SUFFIXES: Final = tuple(
    f"{suffix}{packed}"
    for suffix in (".jsonl", ".json", ".otlp", ".pb", ".binpb")
    for packed in ("", ".gz")
)
_FORMAT: Final = "trace of OpenTelemetry"
_WHY: Final = "Resources do not say ranks ('nv.dl.rank' or 'tracelens.rank'), and there are several"
_KEYS: Final = ("resourceSpans", "resource_spans", "batches")
_SCOPES: Final = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans")
_JSON: Final = re.compile(rb'^\[?\s*\{\s*"(resource_?[sS]pans|batches)"\s*:\s*\[')
_OURS: Final = "tracelens."
_MEMBERS: Final = "tracelens.communicator."
_RANK_KEYS: Final = ("tracelens.rank", "nv.dl.rank", "dl.rank", "megatron.rank", "rank")
_WORLD_KEYS: Final = (
    *("tracelens.world", "nv.dl.world_size", "dl.world_size", "megatron.world_size", "world_size"),
)
_HOST_KEYS: Final = ("host.name", "k8s.node.name", "host.id")
_THREAD_KEYS: Final = ("thread.name", "thread.id")
_STEP_KEYS: Final = ("tracelens.step", "megatron.iteration", "dl.iteration", "iteration", "step")
_MICRO_STEP_KEYS: Final = ("tracelens.micro_step", "megatron.microbatch_id", "dl.microbatch_id")
_INSTANCE: Final = re.compile(r"(?i)(?:^|[ ._-])(?:rank|worker)[ #:._-]*(\d{1,7})$")
_LONGEST_WORD: Final = 256  # characters of a name
_BEGIN_BYTES: Final = 1 << 16
_LONGEST_PARENTS: Final = 64  # spans around a step
_ERROR: Final = 2  # STATUS_CODE_ERROR
_NOT_OF_NAMES: Final = frozenset({"ps", "elastic", "device"})
_FACTS: Final = ("communicator", "algorithm")
_NUMBERS: Final = (
    *("seq", "bytes", "bucket", "peer", "shard", "key", "queue_depth", "request"),
    *("device_start_ns", "device_duration_ns", "stream"),
)
_WORDS: Final = ("kind", "op", "name", "thread", "type", "status")
# What Megatron-LM calls its spans, without `megatron.` in front: kind and operation.
_MEGATRON: Final[dict[str, tuple[str, str | None]]] = {
    **dict.fromkeys(("train_step", "train.iteration"), ("step", None)),
    **dict.fromkeys(("optimizer_step", "train.iteration.optimizer"), ("update", None)),
    **dict.fromkeys(("microbatch.forward", "layer.forward"), ("forward", None)),
    "microbatch.backward": ("backprop", None),
    **dict.fromkeys(("p2p.send_forward", "p2p.send_backward"), ("reduction", "send")),
    **dict.fromkeys(("p2p.recv_forward", "p2p.recv_backward"), ("reduction", "recv")),
    **dict.fromkeys(("grad_sync.start", "grad_sync.finish"), ("reduction", None)),
    **dict.fromkeys(("train.gc_collect", "checkpoint.gc_collect"), ("gc", None)),
    "startup.dataloader": ("data", None),
}
_MEGATRON_NAME: Final = "megatron."
_CHECKPOINT: Final = re.compile(r"^megatron\.(?:(?:save_|load_)?checkpoint)\b")


class _Span(NamedTuple):
    """A span as a request has it; ids of any type that tells them apart."""

    name: str
    start_ns: int | None
    end_ns: int | None
    attributes: Mapping[str, Any]
    number: Any
    parent: Any
    is_error: bool
    events: Sequence[_Event]
    links: int


class _Event(NamedTuple):
    """Something that happened within a span."""

    name: str
    at_ns: int | None
    attributes: Mapping[str, Any]


class _Part(NamedTuple):
    """The spans of one scope, with the attributes of their resource and their scope."""

    resource: Mapping[str, Any]
    scope: str
    of_scope: Mapping[str, Any]
    spans: Iterator[_Span]


@dataclass(frozen=True)
class _Process:
    """What a resource says of the process that recorded its spans."""

    rank: int | None
    role: str
    host: str | None
    clock: str | None
    world: int | None
    pid: int | None
    shard: int | None
    ours: bool


@dataclass(eq=False)
class SpanFile(ExportedFile):
    """What one file holds: `pids` are the processes, by host and number, `foreign` rows are not ours."""

    pids: set[tuple[str | None, int | None]] = field(default_factory=set)
    foreign: int = 0


def is_otlp(path: Path) -> bool:
    """Return whether a file begins with a request of spans, in JSON or in protobuf."""
    begin = begin_of_events(path)
    if _JSON.match(begin):
        return any(f'"{name}"'.encode() in begin for name in (*_KEYS[:2], *_SCOPES))
    return _framing(_first_bytes(path)) is not None


def _first_bytes(path: Path) -> bytes:
    """Return the first bytes of a file, decompressed; none where that fails."""
    try:
        with opened(path) as file:
            return next(plain(file, _BEGIN_BYTES), b"")
    except (OSError, EOFError, NotATrace, zlib.error):
        return b""


def _framing(content: bytes) -> str | None:
    """Return how the lengths of messages are written, None if there are no spans."""
    if _begins_with_spans(content):
        return "message"
    if _begins_with_spans(content[4 : 4 + int.from_bytes(content[:4], "big")]):
        return "lengths"
    length, begin = varint(content, 0)
    return "varints" if length and _begins_with_spans(content[begin : begin + length]) else None


def _begins_with_spans(content: bytes) -> bool:
    """Return whether fields of a request lead to a span with its two ids; metrics and logs have none."""
    for number, kind, resource in fields(content):
        if (number, kind) != (1, LENGTH):
            return False
        found = _has_span(resource)
        if found is not None:
            return found
    return False


def _has_span(resource: bytes) -> bool | None:
    """Return whether the first entry of a resource is a span; None if it has no entry."""
    for number, kind, scope in fields(resource):
        if kind != LENGTH or number not in {1, 2, 3, 1000}:
            return False
        for inner, inner_kind, entry in fields(scope) if number == 2 else ():
            if inner_kind != LENGTH or inner not in {1, 2, 3}:
                return False
            if inner == 2:
                ids = [(n, k, len(value)) for n, k, value in fields(entry)][:2]
                return ids == [(1, LENGTH, 16), (2, LENGTH, 8)]
    return None


def spans_of(path: Path) -> SpanFile:
    """Read one file.

    Raises:
        NotATrace: it holds no request of spans, is no regular file, or larger than it may be.
        MissingExtra: it is protobuf, and the library for it is not installed.
        OSError: it cannot be read.
    """
    span_file, rows = SpanFile(), _Rows()
    is_json = _JSON.match(begin_of_events(path)) is not None
    for part in _of_json(path, span_file) if is_json else _of_protobuf(path, span_file):
        rows.add(part, span_file)
        refuse_beyond("rows", len(rows.start_ns))
    span_file.rows = rows.frame(span_file)
    return span_file


def _of_json(path: Path, span_file: SpanFile) -> Iterator[_Part]:
    lines = JsonLines(path)
    for document in lines:
        known_keys = [key for key in _KEYS if isinstance(document.get(key), list)]
        if not known_keys:
            span_file.left_out["lines without spans"] += 1
            continue
        for entry in _objects(document[known_keys[0]]):
            resource = entry.get("resource")
            attributes = _attributes(resource) if isinstance(resource, dict) else {}
            for key in _SCOPES:
                for scoped in _objects(entry.get(key)):
                    scope = scoped.get("scope") or scoped.get("instrumentationLibrary")
                    scope = scope if isinstance(scope, dict) else {}
                    spans = (_json_span(span) for span in _objects(scoped.get("spans")))
                    yield _Part(attributes, _word(scope.get("name")), _attributes(scope), spans)
    span_file.lost, span_file.cut, span_file.damage = lines.lost, lines.cut, lines.damage


def _objects(value: object) -> Iterator[dict[str, Any]]:
    return (
        (entry for entry in value if isinstance(entry, dict))
        if isinstance(value, list)
        else iter(())
    )


def _json_span(span: dict[str, Any]) -> _Span:
    status = span.get("status")
    code = status.get("code") if isinstance(status, dict) else None
    trace = _word(span.get("traceId") or span.get("trace_id"))
    parent = _word(span.get("parentSpanId") or span.get("parent_span_id"))
    return _Span(
        _word(span.get("name")),
        _whole(span.get("startTimeUnixNano") or span.get("start_time_unix_nano")),
        _whole(span.get("endTimeUnixNano") or span.get("end_time_unix_nano")),
        _attributes(span),
        (trace, _word(span.get("spanId") or span.get("span_id"))),
        (trace, parent) if parent else None,
        str(code) in {str(_ERROR), "STATUS_CODE_ERROR"},
        [
            _Event(_word(event.get("name")), _whole(event.get("timeUnixNano")), _attributes(event))
            for event in _objects(span.get("events"))
        ],
        sum(1 for _ in _objects(span.get("links"))),
    )


def _attributes(owner: dict[str, Any]) -> dict[str, Any]:
    attributes = {}
    for entry in _objects(owner.get("attributes")):
        key, value = entry.get("key"), entry.get("value")
        if isinstance(key, str) and isinstance(value, dict):
            attributes[key] = _json_value(value)
    return attributes


def _json_value(value: dict[str, Any]) -> Any:
    if "intValue" in value:
        return _whole(value["intValue"])
    if "arrayValue" in value:
        listed = value["arrayValue"]
        return (
            [_json_value(one) for one in _objects(listed.get("values"))]
            if isinstance(listed, dict)
            else []
        )
    return next(
        (value[key] for key in ("stringValue", "boolValue", "doubleValue") if key in value), None
    )


def _of_protobuf(path: Path, span_file: SpanFile) -> Iterator[_Part]:
    try:
        from google.protobuf.message import DecodeError  # noqa: PLC0415 - an extra
        from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtra.naming("Reading spans of OpenTelemetry in protobuf", "otlp") from error
    for content in _messages(path, span_file):
        try:
            resource = ResourceSpans.FromString(content)
        except DecodeError:
            span_file.lost += 1
            span_file.damage = span_file.damage or "it is no whole message of spans"
            continue
        attributes = _proto_attributes(resource.resource.attributes)
        for scoped in resource.scope_spans:
            of_scope = _proto_attributes(scoped.scope.attributes)
            yield _Part(
                attributes, _word(scoped.scope.name), of_scope, map(_proto_span, scoped.spans)
            )


def _messages(path: Path, span_file: SpanFile) -> Iterator[bytes]:
    """Yield the resources of all messages in a file.

    Raises:
        NotATrace: there is none.
    """
    content = _content(path, span_file)
    framing = _framing(content[:_BEGIN_BYTES])
    if framing is None:
        raise NotATrace("it does not begin with spans of OpenTelemetry")
    position = 0
    while position < len(content):
        length: int | None = len(content)
        if framing == "lengths":
            length, position = int.from_bytes(content[position : position + 4], "big"), position + 4
        elif framing == "varints":
            length, position = varint(content, position)
        message = content[position : position + (length or 0)]
        position += length or 1
        for number, kind, resource in fields(message):
            if (number, kind) == (1, LENGTH):
                yield resource
        if framing != "message" and (length is None or position > len(content)):
            span_file.cut, span_file.damage = True, span_file.damage or "it ends within a message"


def _content(path: Path, span_file: SpanFile) -> bytes:
    pieces, size = [], 0
    with opened(path) as file:
        try:
            for piece in plain(file, _BEGIN_BYTES):
                size += len(piece)
                refuse_beyond("document", size)
                pieces.append(piece)
        except (EOFError, zlib.error) as error:
            span_file.cut, span_file.damage = (
                True,
                f"it cannot be decompressed to its end ({error})",
            )
    return b"".join(pieces)


def _proto_span(span: Any) -> _Span:
    return _Span(
        span.name[:_LONGEST_WORD],
        span.start_time_unix_nano or None,
        span.end_time_unix_nano or None,
        _proto_attributes(span.attributes),
        (span.trace_id, span.span_id),
        (span.trace_id, span.parent_span_id) if span.parent_span_id else None,
        span.status.code == _ERROR,
        [
            _Event(event.name, event.time_unix_nano, _proto_attributes(event.attributes))
            for event in span.events
        ],
        len(span.links),
    )


def _proto_attributes(entries: Any) -> dict[str, Any]:
    return {entry.key: _proto_value(entry.value) for entry in entries}


def _proto_value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_proto_value(one) for one in value.array_value.values]
    return getattr(value, kind) if kind and kind != "kvlist_value" else None


class _Rows:
    """Columns of spans, and the processes that they are of."""

    def __init__(self) -> None:
        self.start_ns: array[int] = array("q")
        self.end_ns: array[int] = array("q")  # -1 = still open
        self.process: array[int] = array("L")
        self.processes: dict[_Process, int] = {}
        self.words: dict[str, list[str | None]] = {name: [] for name in (*_WORDS, *_FACTS)}
        self.values: list[float | None] = []
        self.numbers: dict[str, list[int | None]] = {
            name: [] for name in ("step", "micro_step", *_NUMBERS)
        }
        self.known: dict[str, str] = {}
        self.row_of: dict[Any, int] = {}  # by number of the span
        self.parents: dict[int, Any] = {}  # of rows that are not ours

    def add(self, scope_spans: _Part, span_file: SpanFile) -> None:
        """Add the spans of a scope."""
        process = _process_of(scope_spans.resource)
        number = self.processes.setdefault(process, len(self.processes))
        span_file.pids.add((process.host, process.pid))
        if process.ours:
            _note_ours(scope_spans, process, span_file)
        for span in scope_spans.spans:
            self._add(span, number, process, scope_spans, span_file)

    def _add(
        self, span: _Span, number: int, process: _Process, scope_spans: _Part, span_file: SpanFile
    ) -> None:
        start, end, attributes = span.start_ns, span.end_ns, span.attributes
        if not span.name or start is None or end is None or not 0 <= start <= end < 2 * MOST_NS:
            span_file.unusable += 1
            return
        kind, op = _meaning(span.name, attributes)
        status = _word(attributes.get("tracelens.status")) or ("exception" if span.is_error else "")
        is_open = status == "open" or attributes.get("nemo.span.truncated") is True
        span_file.sorts[kind] += 1
        if span.links:
            span_file.left_out["links between spans"] += span.links
        thread = scope_spans.of_scope.get("tracelens.thread")
        thread = _text(thread if process.ours else _first(attributes, _THREAD_KEYS))
        kind_of_event = _one_of(attributes.get("tracelens.type"), EVENT_TYPES) or "span"
        self._row(number, start, -1 if is_open else end, attributes)
        self._add_words(
            kind, op, span.name, thread, kind_of_event, "open" if is_open else status or None
        )
        self._step(kind, span.name, attributes)
        for event in span.events:
            self._event(event, number, process, thread, span_file)
        if not process.ours:
            span_file.foreign += 1
            self.row_of[span.number] = len(self.start_ns) - 1
            self.parents[len(self.start_ns) - 1] = span.parent

    def _event(
        self, event: _Event, number: int, process: _Process, thread: str | None, span_file: SpanFile
    ) -> None:
        """Add the reading of a counter of ours; other events are counted."""
        kind, value = (
            event.attributes.get("tracelens.kind"),
            event.attributes.get("tracelens.value"),
        )
        if not process.ours or event.at_ns is None or not isinstance(value, int | float):
            span_file.left_out["events of spans"] += 1
            return
        self._row(number, event.at_ns, event.at_ns, event.attributes, float(value))
        self._add_words(_one_of(kind, KINDS) or "user", None, event.name, thread, "counter", None)
        self._step("", event.name, event.attributes)

    def _row(
        self,
        number: int,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, Any],
        value: float | None = None,
    ) -> None:
        self.start_ns.append(start_ns)
        self.end_ns.append(end_ns)
        self.process.append(number)
        self.values.append(value)
        for name in _NUMBERS:
            self.numbers[name].append(_number(attributes, (_OURS + name,)))
        for name in _FACTS:
            self.words[name].append(self._known(_text(attributes.get(_OURS + name))))

    def _add_words(self, *words: str | None) -> None:
        """Add the words that every row has, in the order of `_WORDS`."""
        for name, word in zip(_WORDS, words, strict=True):
            self.words[name].append(self._known(word))

    def _known(self, word: str | None) -> str | None:
        return word if word is None else self.known.setdefault(word, word)

    def _step(self, kind: str, name: str, attributes: Mapping[str, Any]) -> None:
        step = _number(attributes, _STEP_KEYS if kind == "step" else _STEP_KEYS[:1])
        named = step_number(name) if kind == "step" else None
        self.numbers["step"].append(named if step is None else step)
        self.numbers["micro_step"].append(_number(attributes, _MICRO_STEP_KEYS))

    def frame(self, span_file: SpanFile) -> pl.DataFrame:
        """Return rows in words of `spans.build`, without columns that are empty."""
        rank_of = [process.rank for process in self.processes]
        process_of_row = pl.Series(self.process, dtype=pl.UInt32)
        kinds: dict[str, pl.DataType] = {"rank": pl.Int32(), "world": pl.Int32(), "pid": pl.Int64()}
        columns = {
            name: pl.Series([getattr(p, name) for p in self.processes], dtype=kind).gather(
                process_of_row
            )
            for name, kind in kinds.items()
        }
        for name in ("role", "host", "clock"):
            texts = [getattr(process, name) for process in self.processes]
            columns[name] = (
                pl.Series(texts, dtype=pl.String).cast(pl.Categorical()).gather(process_of_row)
            )
        process_labels = [self._place(process) for process in self.processes]
        own_shard = pl.Series([p.shard for p in self.processes], dtype=pl.Int32).gather(
            process_of_row
        )
        end = pl.Series(self.end_ns, dtype=pl.Int64)
        columns["start_ns"] = pl.Series(self.start_ns, dtype=pl.Int64)
        columns["end_ns"] = end.replace(-1, None)
        columns["value"] = pl.Series(self.values, dtype=pl.Float64)
        for name, words in self.words.items():
            columns[name] = pl.Series(words, dtype=pl.String).cast(pl.Categorical())
        for name, numbers in self.numbers.items():
            cells = pl.Series(numbers, dtype=pl.Int64, strict=False)
            columns[name] = cells.cast(EVENT_COLUMNS[name], strict=False)
        label_of_row = pl.Series(process_labels, dtype=pl.String).gather(process_of_row)
        rows = pl.DataFrame(columns).with_columns(
            shard=pl.coalesce("shard", own_shard),
            thread=pl.when(label_of_row.is_null())
            .then("thread")
            .otherwise(
                pl.format(
                    "{} of {}",
                    pl.coalesce(pl.col("thread").cast(pl.String), pl.lit("main")),
                    label_of_row,
                )
            )
            .cast(pl.Categorical()),
        )
        rows = self._without_outer(rows, span_file)
        if (
            not span_file.foreign
        ):  # as they were before the export: a date has no more digits to spare
            times = ("start_ns", "end_ns", "device_start_ns")
            rows = rows.with_columns(pl.col(times) - span_file.offset_ns)
        if any(rank is not None for rank in rank_of):
            span_file.says_ranks = True
            silent = rows["rank"].null_count()
            if silent:
                span_file.left_out["spans of processes without a rank"] += silent
                rows = rows.drop_nulls("rank")
        else:
            rows = rows.drop("rank")
        return rows.select(c for c in rows.columns if rows[c].null_count() < max(1, rows.height))

    def _place(self, process: _Process) -> str | None:
        """Return what tells the processes of one rank apart, None where there is only one."""
        beside = {p.pid for p in self.processes if (p.role, p.rank) == (process.role, process.rank)}
        return str(process.pid) if len(beside) > 1 else None

    def _without_outer(self, rows: pl.DataFrame, span_file: SpanFile) -> pl.DataFrame:
        """Leave out spans of a program that has steps inside of them: they are no work of their own."""
        outer: set[int] = set()
        kinds = self.words["kind"]
        for row in self.parents:
            above = self.parents[row] if kinds[row] == "step" else None
            for _ in range(_LONGEST_PARENTS):
                around = self.row_of.get(above)
                if around is None or around in outer:
                    break
                if kinds[around] == "user":
                    outer.add(around)
                above = self.parents[around]
        if not outer:
            return rows
        span_file.left_out["spans around steps"] += len(outer)
        return rows.with_row_index("row").filter(~pl.col("row").is_in(list(outer))).drop("row")


def _note_ours(scope_spans: _Part, process: _Process, span_file: SpanFile) -> None:
    """Take from a resource and a scope what our export says in them."""
    number = scope_spans.of_scope.get("tracelens.thread")
    if isinstance(number, int) and process.rank is not None:
        span_file.threads[process.role, process.rank, number] = scope_spans.scope
    window = _number(scope_spans.resource, ("tracelens.window_ns",))
    span_file.window_ns = max(span_file.window_ns, window or 0)
    span_file.offset_ns = _number(scope_spans.resource, ("tracelens.offset_ns",)) or 0
    for key, listed in scope_spans.resource.items():
        if key.startswith(_MEMBERS):
            span_file.members[key.removeprefix(_MEMBERS)] = ranks_in(listed)
    sentences = scope_spans.resource.get("tracelens.notes")
    if isinstance(sentences, list) and not span_file.sentences:
        span_file.sentences = [_word(sentence) for sentence in sentences if _word(sentence)]


def _process_of(resource: Mapping[str, Any]) -> _Process:
    rank = _number(resource, _RANK_KEYS)
    if rank is None:
        named = _INSTANCE.search(_word(resource.get("service.instance.id")))
        rank = int(named[1]) if named else None
    world = _number(resource, _WORLD_KEYS)
    return _Process(
        rank=rank if rank is not None and rank < MOST_RANKS else None,
        role=_one_of(resource.get("tracelens.role"), ROLES) or "worker",
        host=_text(_first(resource, _HOST_KEYS)),
        clock=_text(resource.get("tracelens.clock")),
        world=world if world is not None and world <= MOST_RANKS else None,
        pid=_number(resource, ("process.pid",)),
        shard=_number(resource, ("tracelens.shard",)),
        ours=_number(resource, ("tracelens.rank",)) is not None,
    )


def _meaning(name: str, attributes: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return kind and operation of a span: as its attributes say, else as its name does."""
    kind = _one_of(attributes.get("tracelens.kind"), KINDS)
    op = _text(attributes.get("tracelens.op"))
    if kind is not None:
        return kind, op if op in OPS.get(kind, ()) else None
    if step_number(name) is not None:
        return "step", None
    if _CHECKPOINT.match(name) and not name.endswith("gc_collect"):
        return "checkpoint", None
    if name.startswith(_MEGATRON_NAME):
        return _MEGATRON.get(name.removeprefix(_MEGATRON_NAME), ("user", None))
    known = meaning(name) or meaning(re.split(r"[./:\s]", name)[-1])
    return known if known and known[0] not in _NOT_OF_NAMES else ("user", None)


def _first(attributes: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((attributes[key] for key in keys if attributes.get(key) is not None), None)


def _number(attributes: Mapping[str, Any], keys: Sequence[str]) -> int | None:
    return _whole(_first(attributes, keys))


def _whole(value: object) -> int | None:
    """Return a number of 63 bits that may be written as text; None if it is none."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < 1 << 63 else None


def _one_of(value: object, known: Sequence[str]) -> str | None:
    return value if isinstance(value, str) and value in known else None


def _word(value: object) -> str:
    return value[:_LONGEST_WORD] if isinstance(value, str) else ""


def _text(value: object) -> str | None:
    return str(value)[:_LONGEST_WORD] if isinstance(value, str | int) and value != "" else None


@dataclass(frozen=True)
class OtlpReader:
    """Reads a file or a folder of OpenTelemetry's spans."""

    name: str = _FORMAT

    def sniff(self, path: Path) -> bool:
        """Return whether a file, or one of the first of a folder, begins with a request of spans."""
        return files.sniffed(path, SUFFIXES, is_otlp)

    def read(self, path: Path, how: Reading = SIMPLY) -> Trace:
        """Read all files; one that cannot be read is noted, where there are others.

        Raises:
            MissingExtra: a file is protobuf, and the library for it is not installed.
            NotATrace: no file can be read.
            EmptyTrace: there is no span in them.
            UnusableInput: it is not known of which rank a file is.
        """
        span_files, notes = files.each_read(path, files.called(path, SUFFIXES), spans_of, how)
        alone = all(len(file.pids) <= 1 for file in span_files.values())
        ranks = files.ranks_given(span_files, how.rank_of, _WHY, alone=alone)
        foreign = any(file.foreign for file in span_files.values())
        gaps = _gaps(span_files, how.rank_of) if foreign else iter(())
        recognition = files.recognized(_FORMAT, span_files, gaps)
        members = {
            name: ranks for file in span_files.values() for name, ranks in file.members.items()
        }
        trace = files.joined(path, span_files, ranks, notes, recognition, members=members)
        return trace if foreign else as_recorded(trace, span_files.values())


def _gaps(span_files: Mapping[str, SpanFile], given_ranks: Mapping[str, int]) -> Iterator[Gap]:
    sorts = Counter[str]()
    for file in span_files.values():
        sorts += file.sorts
    yield from files.cut_off(span_files, "Shut the exporter down before the program ends.")
    yield from files.ranks_unknown(span_files, given_ranks)
    numbered = any(_numbers_calls(file.rows) for file in span_files.values())
    if not numbered:
        missing = "spans of communication do not say which call they are"
        yield Gap(
            missing if sorts["reduction"] else "no span is called as communication is",
            "which rank others wait for",
            "Set tracelens.op, tracelens.communicator and tracelens.seq on spans of collectives, or "
            "record the run with 'tracelens record'.",
            hides_waits=not sorts["reduction"],
        )
    yield Gap(
        "it is not recorded whether the program sampled its spans, or which of its ranks export any",
        "what happened where no span was exported",
        "Export all ranks and all spans (Megatron-LM: MEGATRON_OTEL_RANK_STRATEGY=all_ranks).",
    )
    if not sorts["step"]:
        yield Gap(
            "no span is called as a step is",
            "where steps begin, but by the updates or collectives that come back",
            "Put each step into a span called 'step N' (Megatron-LM: MEGATRON_OTEL_SPAN_GROUPS=all).",
        )
    if not sorts["forward"] + sorts["backprop"] + sorts["update"]:
        yield Gap(
            "no span is called as a phase of training is",
            "which phase ranks compute in",
            "Call spans forward, backward and optimizer (Megatron-LM: MEGATRON_OTEL_SPAN_GROUPS=all).",
            decisive=False,
        )


def _numbers_calls(rows: pl.DataFrame) -> bool:
    """Return whether a span says which operation it is, by which ranks can be matched."""
    if "op" not in rows.columns:
        return False
    return bool(rows["op"].cast(pl.String).is_in(COLLECTIVES).any())
