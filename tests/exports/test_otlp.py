"""OpenTelemetry's own messages parse what is written, and every span is in it, in its place."""

import base64
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from google.protobuf import json_format
from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData
from support.samples import manifest, sample_trace
from support.tiers import mark_slow_in_turn

import tracelens
from tracelens.exports import otlp
from tracelens.exports.content import select_content
from tracelens.model.trace import Trace

IDS = ("traceId", "spanId", "parentSpanId")


def parse_spans(trace: Trace, file: Path) -> list[tuple[int, Span]]:
    """Return the spans, each with the rank of its resource; unknown fields are errors."""
    otlp.save(select_content(trace), file)
    spans = []
    for line in file.read_text().splitlines():
        message = json_format.Parse(json.dumps(_ids_to_base64(json.loads(line))), TracesData())
        for resource in message.resource_spans:
            known = {entry.key: entry.value for entry in resource.resource.attributes}
            rank = known["tracelens.rank"].int_value
            spans += [(rank, s) for scope in resource.scope_spans for s in scope.spans]
    return spans


def _ids_to_base64(value: Any) -> Any:
    """Turn hexadecimal ids, which OTLP asks for, into the base 64 that Protobuf's JSON has."""
    if isinstance(value, list):
        return [_ids_to_base64(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    return {
        name: base64.b64encode(bytes.fromhex(part)).decode()
        if name in IDS
        else _ids_to_base64(part)
        for name, part in value.items()
    }


@pytest.mark.parametrize(
    "name",
    mark_slow_in_turn([sample.name for sample in manifest()], ("ddp-healthy", "easgd-async")),
)
def test_every_sample_is_parsed_whole(name: str, tmp_path: Path) -> None:
    """One span for each span and instant, with unique ids, and parents that contain their children."""
    trace = sample_trace(name)
    spans = [span for _, span in parse_spans(trace, tmp_path / "run.jsonl")]
    main = trace.processes.filter("main")["process"].to_list()
    events = trace.events.collect().filter(
        pl.col("process").is_in(main), pl.col("type") != "counter"
    )
    assert len(spans) == events.height
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    assert len({span.trace_id for span in spans}) == 1
    assert all(len(span.span_id) == 8 and len(span.trace_id) == 16 for span in spans)
    for span in spans:
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        if span.kind == Span.SPAN_KIND_INTERNAL and span.parent_span_id:
            parent = by_id[span.parent_span_id]
            assert parent.start_time_unix_nano <= span.start_time_unix_nano
            assert span.end_time_unix_nano <= parent.end_time_unix_nano


def test_times_are_those_of_the_day(tmp_path: Path) -> None:
    trace = sample_trace("ddp-healthy")
    spans = [span for _, span in parse_spans(trace, tmp_path / "run.jsonl")]
    first = min(span.start_time_unix_nano for span in spans)
    assert 1_767_222_000_000_000_000 < first < 1_830_000_000_000_000_000
    lasted = max(span.end_time_unix_nano for span in spans) - first
    events = trace.events.collect()
    assert lasted == events["end_ns"].max() - events["start_ns"].min()  # type: ignore[operator]  # numbers


def test_a_server_s_span_has_the_request_as_its_parent(tmp_path: Path) -> None:
    spans = parse_spans(sample_trace("grpc-round-robin"), tmp_path / "run.jsonl")
    asked = {span.span_id: span for _, span in spans if span.kind == Span.SPAN_KIND_CLIENT}
    served = [span for _, span in spans if span.kind == Span.SPAN_KIND_SERVER]
    known = [span for span in served if span.parent_span_id in asked]
    assert served
    assert len(known) >= 0.9 * len(served)


def test_a_run_without_dates_says_so(tmp_path: Path) -> None:
    table = pl.DataFrame(
        {
            "rank": [0, 0, 1, 1],
            "start_ns": [0, 10, 0, 10],
            "end_ns": [5, 15, 5, 15],
            "kind": "forward",
        }
    )
    saved = otlp.save(select_content(tracelens.Trace.from_table(table)), tmp_path / "run.jsonl")
    assert any("from 1970" in note for note in saved.notes)
