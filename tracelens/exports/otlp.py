"""OpenTelemetry's spans as OTLP/JSON lines, as its file exporter writes them and collectors read them.

A run becomes one trace. A process is a resource, a thread a scope. A span's parent is the span around
it on its thread; spans of a parameter server have the request that they serve. An open span ends with
the last event of its process. Instants are spans without length, and readings of counters events of the
span around or before them. Attributes that begin with `tracelens.` say the rest, by which
`tracelens.readers.otlp` reads the run back; stacks are left out.
Source: OTLP 1.x, "JSON Protobuf Encoding" (ids are hexadecimal, 64-bit numbers are texts) and
"OpenTelemetry Protocol File Exporter".
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.align.selection import find_begin
from tracelens.exports.output import open_new_file
from tracelens.schema.vocabulary import EXCHANGE_KINDS, FACTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tracelens.exports.content import Content, Saved
    from tracelens.model.trace import Trace

SUFFIX: Final = ".otlp.jsonl"
OPEN_WITH: Final = (
    "an OpenTelemetry collector (receiver otlpjsonfile), or Jaeger and Tempo behind it"
)
_MAX_SPANS_PER_LINE: Final = 1 << 10
_INTERNAL, _SERVER, _CLIENT = 1, 2, 3
_ERROR_STATUS: Final = 2
_REQUEST_BIT: Final = 1 << 63  # marks ids that requests have, which both sides know
_ARGUMENTS: Final = ("kind", "step", "micro_step", *FACTS, "device_duration_ns", "stream")
_SILENT: Final = {None, -1, "closed"}
_NO_DATE: Final = "When the run was recorded is not known: times are from 1970 on."
_LEFT_OUT: Final = (
    "Stacks, and counters before the first span, are left out: spans have no place for them."
)


def save(content: Content, target: Path) -> Saved:
    """Write the spans, instants and counters of main processes, process by process.

    Raises:
        InvalidArgument: there is something at `target`, it cannot be written, or nothing is chosen.
    """
    offset_ns = unix_offset_ns(content.trace)
    main_processes = content.processes.filter("main")
    event_count = left_out_count = 0
    is_first = True
    with open_new_file(target) as draft, draft.open("w", encoding="utf-8") as file:
        for owner in main_processes.iter_rows(named=True):
            events = content.read_events(owner["process"])
            run_attributes = _make_run_attributes(content, offset_ns or 0, is_first=is_first)
            writer = _ProcessWriter(content, owner, events, offset_ns or 0, run_attributes)
            is_first = False
            left_out_count += events.height + content.read_samples(owner["process"]).height
            for line, written_count in writer.iterate_lines():
                file.write(line + "\n")
                event_count += written_count
                left_out_count -= written_count
        if not event_count:
            raise content.make_empty_error()
    notes = (_NO_DATE,) * (offset_ns is None) + (_LEFT_OUT,) * bool(left_out_count)
    return content.describe_saved(event_count, target, notes)


def unix_offset_ns(trace: Trace) -> int | None:
    """Return Unix time minus common time, ns, by the median of readings; None without any."""
    readings = trace.clocks.drop_nulls("wall_ns").filter(pl.col("method") == "local")
    offsets_ns = []
    for process, monotonic_ns, wall_ns in readings.select(
        "process", "monotonic_ns", "wall_ns"
    ).rows():
        clock_map = trace.clock_maps.get(process)
        common_ns = (
            int(clock_map.to_common_ns(np.array([monotonic_ns]))[0]) if clock_map else monotonic_ns
        )
        offsets_ns.append(wall_ns - common_ns)
    return sorted(offsets_ns)[len(offsets_ns) // 2] if offsets_ns else None


class _ProcessWriter:
    """The events of one process, in order of begin, with numbers for their parents."""

    def __init__(
        self,
        content: Content,
        owner: Mapping[str, Any],
        events: pl.DataFrame,
        offset_to_unix_ns: int,
        run_attributes: Mapping[str, Any],
    ) -> None:
        """Prepare the events of a row of `Content.processes`; its resource has `run_attributes`, too."""
        self._events = events.sort("start_ns", pl.col("type") == "counter", "depth")
        self._process, self._is_server = owner["process"], owner["role"] == "ps"
        self._offset_to_unix_ns = offset_to_unix_ns
        self._trace_id = _make_trace_id(content, offset_to_unix_ns)
        ends_ns = (self._events["end_ns"].max(), self._events["start_ns"].max())
        self._last_ns = max((end for end in ends_ns if isinstance(end, int)), default=0)
        threads = content.trace.threads.filter(process=self._process).select("thread", "name")
        self._thread_names = {
            thread: content.redact(name or f"thread {thread}")
            for thread, name in threads.iter_rows()
        }
        attributes = {
            "service.name": content.name,
            "service.instance.id": f"{'ps' if self._is_server else 'rank'} {owner['rank']}",
            "host.name": owner["host"],
            "process.pid": owner["pid"],
            **{f"tracelens.{name}": owner[name] for name in ("rank", "role", "world", "shard")},
            "tracelens.clock": owner["clock_domain"],
            **run_attributes,
        }
        self._resource = {"attributes": _to_attributes(attributes)}

    def iterate_lines(self) -> Iterator[tuple[str, int]]:
        """Yield lines of up to `_MAX_SPANS_PER_LINE` spans of a thread, with the number of events."""
        used_requests: set[int] = set()
        numbered_events = self._events.with_row_index("row", offset=1)
        for (thread,), events in numbered_events.group_by("thread", maintain_order=True):
            number = int(thread)
            scope = {
                "name": self._thread_names.get(number, f"thread {number}"),
                "attributes": _to_attributes({"tracelens.thread": number}),
            }
            spans = [*self._make_spans(events, used_requests)]
            for first in range(0, len(spans), _MAX_SPANS_PER_LINE):
                line_spans = spans[first : first + _MAX_SPANS_PER_LINE]
                count = len(line_spans) + sum(len(span.get("events", ())) for span in line_spans)
                scope_spans = {"scope": scope, "spans": line_spans}
                resource_spans = {"resource": self._resource, "scopeSpans": [scope_spans]}
                yield json.dumps({"resourceSpans": [resource_spans]}, separators=(",", ":")), count

    def _make_spans(
        self, events: pl.DataFrame, used_requests: set[int]
    ) -> Iterator[dict[str, Any]]:
        """Yield the spans of one thread's events, which are sorted by begin.

        A counter joins the span around or before it; `used_requests` are those with a span.
        """
        open_spans: list[tuple[int, dict[str, Any]]] = []  # (end, span), ns, the outermost first
        span: dict[str, Any] = {}
        for row in events.iter_rows(named=True):
            start_ns = row["start_ns"]
            if row["type"] == "counter":
                while open_spans and open_spans[-1][0] < start_ns:
                    open_spans.pop()
                owner = open_spans[-1][1] if open_spans else span
                if owner and row["value"] is not None:
                    owner.setdefault("events", []).append(self._make_reading(row))
                continue
            end_ns = start_ns if row["type"] == "instant" else row["end_ns"]
            end_ns = max(self._last_ns if end_ns is None else end_ns, start_ns)
            while open_spans and (open_spans[-1][0] <= start_ns or open_spans[-1][0] < end_ns):
                open_spans.pop()
            request = row["request"] if row["kind"] in EXCHANGE_KINDS else None
            parent_id = open_spans[-1][1]["spanId"] if open_spans else self._request_id(request)
            span_id = self._span_id(row["row"], request, used_requests)
            span = self._make_span(row, end_ns, span_id, parent_id, request)
            yield span
            open_spans.append((end_ns, span))

    def _make_reading(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a counter's row as an event of a span."""
        attributes = {f"tracelens.{name}": row[name] for name in ("kind", "step", "value")}
        return {
            "timeUnixNano": str(row["start_ns"] + self._offset_to_unix_ns),
            "name": row["name"] or row["kind"],
            "attributes": _to_attributes(attributes),
        }

    def _request_id(self, request: int | None) -> str:
        """Return the id of the request that a server's span serves."""
        return (
            _hexadecimal(request | _REQUEST_BIT) if self._is_server and request is not None else ""
        )

    def _span_id(self, row: int, request: int | None, used_requests: set[int]) -> str:
        """Return a span's id; that of its request, which servers know, if it is the first of it."""
        if self._is_server or request is None or request in used_requests:
            return _hexadecimal((self._process + 1) << 40 | row)
        used_requests.add(request)
        return _hexadecimal(request | _REQUEST_BIT)

    def _make_span(
        self, row: Mapping[str, Any], end_ns: int, span_id: str, parent_id: str, request: int | None
    ) -> dict[str, Any]:
        """Return the span of an event's row that ends at `end_ns`; an empty id is no parent."""
        facts = {name: row[name] for name in _ARGUMENTS if row.get(name) not in _SILENT}
        if row["type"] == "instant":
            facts["type"] = row["type"]
        if row["device_start_ns"] is not None:
            facts["device_start_ns"] = row["device_start_ns"] + self._offset_to_unix_ns
        request_kind = _SERVER if self._is_server else _CLIENT
        span = {
            "traceId": self._trace_id,
            "spanId": span_id,
            "name": row["name"] or row["kind"],
            "kind": _INTERNAL if request is None else request_kind,
            "startTimeUnixNano": str(row["start_ns"] + self._offset_to_unix_ns),
            "endTimeUnixNano": str(end_ns + self._offset_to_unix_ns),
            "attributes": _to_attributes({f"tracelens.{name}": v for name, v in facts.items()}),
        }
        if parent_id:
            span["parentSpanId"] = parent_id
        if row["status"] == "exception":
            span["status"] = {"code": _ERROR_STATUS}
        return span


def _make_run_attributes(content: Content, offset_ns: int, *, is_first: bool) -> dict[str, Any]:
    """Return attributes of the run; only the first process (`is_first`) names communicators' ranks."""
    attributes: dict[str, Any] = {
        "tracelens.offset_ns": offset_ns,
        "tracelens.window_ns": 2 * content.trace.alignment.uncertainty_ns,
    }
    if not is_first:
        return attributes
    groups = content.trace.communicators.select(pl.col("communicator").cast(pl.String), "ranks")
    for name, ranks in groups.iter_rows():
        attributes[f"tracelens.communicator.{content.redact(name)}"] = ranks
    return attributes | ({"tracelens.notes": content.notes} if content.notes else {})


def _make_trace_id(content: Content, offset_ns: int) -> str:
    """Return the id of a run's trace, by its name and begin, so that all processes have one id."""
    begin = f"{content.name} {find_begin(content.trace) + offset_ns}"
    return sha256(begin.encode()).hexdigest()[:32]


def _hexadecimal(number: int) -> str:
    return f"{number & 0xFFFF_FFFF_FFFF_FFFF:016x}"


def _to_attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    present = ((name, value) for name, value in values.items() if value is not None)
    return [{"key": name, "value": _to_value(value)} for name, value in present]


def _to_value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, (list, tuple)):
        return {"arrayValue": {"values": [_to_value(one) for one in value]}}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": str(value)}
