"""Spans of OpenTelemetry: names and attributes of Megatron-LM, and of programs that name their calls."""

from __future__ import annotations

import gzip
import json
import sys
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pytest
from opentelemetry.proto.logs.v1.logs_pb2 import LogsData
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from support import otlp_files, perfetto_files

import tracelens as tl
from tracelens.cli import main
from tracelens.errors import EmptyTrace, MissingExtra, NotATrace, UnusableInput
from tracelens.readers import READERS
from tracelens.readers.base import Reading
from tracelens.readers.otlp import OtlpReader, is_otlp
from tracelens.schema import gate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FORMAT = "trace of OpenTelemetry"


def write_bytes(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def zstd(content: bytes) -> bytes:
    packed: bytes = pa.compress(content, "zstd", asbytes=True)
    return packed


def rows_of(trace: tl.Trace, **which: object) -> pl.DataFrame:
    words = pl.col("kind", "op", "name").cast(pl.String)
    return trace.events.with_columns(words).filter(**which).collect()


def reader_of(path: Path) -> str | None:
    return next((reader.name for reader in READERS if reader.sniff(path)), None)


@pytest.mark.parametrize(
    "form",
    [
        *("document", "gzip", "zstd", "message", "lengths", "varints"),
        *("gzip messages", "zstd messages", "zstd lines"),
    ],
)
def test_every_way_to_write_them_is_read_alike(form: str, tmp_path: Path) -> None:
    data = otlp_files.megatron()
    lines = write_bytes(tmp_path / "a.jsonl", otlp_files.as_lines(data))
    match form:
        case "document":
            content = json.dumps(otlp_files.as_json(data), indent=2).encode()
        case "gzip":
            content = gzip.compress(otlp_files.as_lines(data))
        case "zstd":
            content = zstd(otlp_files.framed(data, "lengths"))
        case "gzip messages":
            content = otlp_files.framed(data, "lengths", gzip.compress)
        case "zstd messages":  # as the collector's file exporter with `compression: zstd`
            content = otlp_files.framed(data, "lengths", zstd)
        case "zstd lines":
            content = b"".join(
                len(packed).to_bytes(4, "big") + packed
                for packed in map(zstd, otlp_files.as_lines(data).splitlines())
            )
        case _:
            content = otlp_files.framed(data, form)
    other = write_bytes(tmp_path / f"b.{'json' if form == 'document' else 'pb'}", content)
    assert reader_of(lines) == reader_of(other) == FORMAT
    wanted, found = (OtlpReader().read(path) for path in (lines, other))
    assert rows_of(found).equals(rows_of(wanted))
    assert found.processes.drop("file").equals(wanted.processes.drop("file"))


@pytest.mark.parametrize("compress", [zstd, gzip.compress])
def test_a_message_that_becomes_too_large_is_refused(
    compress: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    """Before it is taken apart: 64 MiB of blanks are some kilobytes when they are compressed."""
    packed = compress(b'{"resourceSpans":[' + b" " * (64 << 20))
    file = write_bytes(tmp_path / "a.otlp", len(packed).to_bytes(4, "big") + packed)
    assert reader_of(file) == FORMAT
    with pytest.raises(NotATrace, match="decompressed"):
        OtlpReader().read(file)


def test_a_message_that_breaks_off_costs_what_is_behind_it(tmp_path: Path) -> None:
    whole = otlp_files.framed(otlp_files.training_with_named_calls(3, 8), "lengths", zstd)
    trace = OtlpReader().read(write_bytes(tmp_path / "a.pb", whole[:-40]))
    assert [note.kind for note in trace.notes if note.kind == "truncated"]
    assert trace.workers["rank"].to_list()[:2] == [0, 1]


def test_spans_of_megatron_are_recognised(tmp_path: Path) -> None:
    """Ranks are of the instance's id; spans around steps are no work; the verdict is open."""
    file = write_bytes(tmp_path / "a.jsonl", otlp_files.as_lines(otlp_files.megatron(2, 6)))
    trace = tl.open(file)
    assert trace.workers.select("rank", "world", "host", "pid").rows() == [
        (0, 2, "node0", 1000),
        (1, 2, "node0", 1001),
    ]
    assert trace.steps["step"].unique().sort().to_list() == [1, 2, 3, 4, 5, 6]
    kinds = dict(rows_of(trace, rank=0).group_by("kind").len().iter_rows())
    assert kinds == {
        "step": 6, "user": 6, "forward": 12, "backprop": 6, "reduction": 18, "update": 6,
        "checkpoint": 1,
    }  # fmt: skip
    assert rows_of(trace, kind="reduction", rank=0)[
        "op"
    ].drop_nulls().unique().sort().to_list() == [
        "recv",
        "send",
    ]
    assert rows_of(trace, name="megatron.microbatch.forward")["micro_step"].unique().to_list() == [
        0
    ]
    assert trace.recognition
    assert dict(trace.recognition.left_out) == {"spans around steps": 2}
    assert any("do not say which call" in gap.missing for gap in trace.recognition.gaps)
    assert tl.analyze(trace).verdict.state == "inconclusive"


def test_who_is_late_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where spans say which call they are, by attributes that any program may set."""
    content = otlp_files.framed(otlp_files.training_with_named_calls(4, 60, late=2), "lengths")
    file = write_bytes(tmp_path / "a.pb", content)
    assert main(["analyze", "--no-keep", str(file)]) in {0, 1}
    assert "STRAGGLER rank 2, backprop" in capsys.readouterr().out


def test_a_healthy_run_is_not_called_so(tmp_path: Path) -> None:
    """Spans may have been sampled, or left out by ranks."""
    file = write_bytes(
        tmp_path / "a.pb", otlp_files.framed(otlp_files.training_with_named_calls(), "message")
    )
    report = tl.analyze(tl.open(file))
    assert report.verdict.state == "inconclusive"
    assert not [finding for finding in report.findings if finding.category == "fault"]


def test_processes_without_ranks(tmp_path: Path) -> None:
    """One alone is rank 0 with an open verdict; of several the user says the file's."""
    for count, name in ((1, "one"), (2, "two")):
        data = otlp_files.megatron(count)
        for resource in data.resource_spans:
            kept = [a for a in resource.resource.attributes if a.key != "service.instance.id"]
            del resource.resource.attributes[:]
            resource.resource.attributes.extend(kept)
        write_bytes(tmp_path / f"{name}.jsonl", otlp_files.as_lines(data))
    trace = OtlpReader().read(tmp_path / "one.jsonl")
    assert trace.recognition
    assert any("does not say of which rank" in gap.missing for gap in trace.recognition.gaps)
    with pytest.raises(UnusableInput, match=r"--rank-of two\.jsonl=RANK"):
        OtlpReader().read(tmp_path / "two.jsonl")
    trace = OtlpReader().read(tmp_path / "two.jsonl", Reading(rank_of={"two.jsonl": 3}))
    assert trace.processes["rank"].to_list() == [3]
    assert sorted(trace.threads["name"])[:2] == ["main of 1000", "main of 1001"]


def test_a_span_that_was_cut_off_is_open(tmp_path: Path) -> None:
    data = otlp_files.megatron(1)
    last = data.resource_spans[0].scope_spans[0].spans[-1]
    last.attributes.add(key="nemo.span.truncated").value.bool_value = True
    trace = OtlpReader().read(write_bytes(tmp_path / "a.jsonl", otlp_files.as_lines(data)))
    assert rows_of(trace, kind="checkpoint")["end_ns"].to_list() == [None]


def test_files_of_others_are_left_to_them(tmp_path: Path) -> None:
    """Metrics and logs have the same outer messages; Perfetto's packets begin with the same byte."""
    metrics, logs = MetricsData(), LogsData()
    metric = (
        metrics.resource_metrics.add().scope_metrics.add().metrics.add(name="a metric of steps")
    )
    metric.gauge.data_points.add(as_double=1.0)
    logs.resource_logs.add().scope_logs.add().log_records.add(
        time_unix_nano=5, severity_text="INFO"
    )
    for name, content in {
        "metrics.pb": metrics.SerializeToString(),
        "logs.pb": logs.SerializeToString(),
        "trace.pftrace": perfetto_files.training(2, 3).written(),
        "metrics.jsonl": b'{"resourceMetrics":[{"scopeMetrics":[]}]}\n',
        "events.json": b'{"traceEvents":[{"ph":"X","name":"resourceSpans","ts":1,"dur":1}]}',
        "batches.json": b'{"batches":[1,2,3]}',
        "empty": b"",
        "zeros.pb": bytes(4096),
        "text.json": b"\n\n\n",
    }.items():
        assert not is_otlp(write_bytes(tmp_path / name, content)), name
    assert reader_of(tmp_path / "trace.pftrace") == "trace of Perfetto"


@pytest.mark.parametrize("framing", ["lengths", "varints"])
def test_a_message_that_was_cut_off(framing: str, tmp_path: Path) -> None:
    whole = otlp_files.framed(otlp_files.megatron(2), framing)
    trace = OtlpReader().read(write_bytes(tmp_path / "a.pb", whole[:-9]))
    assert [note.kind for note in trace.notes if note.kind in {"truncated", "dropped"}]
    assert trace.processes["rank"].to_list() == [0]


def test_a_line_that_was_cut_off_or_damaged(tmp_path: Path) -> None:
    lines = otlp_files.as_lines(otlp_files.megatron(4)).splitlines(keepends=True)
    damaged = [lines[0], b'{"resourceSpans": [nothing\n', b'{"resourceLogs": []}\n', *lines[1:3]]
    trace = OtlpReader().read(write_bytes(tmp_path / "a.jsonl", b"".join(damaged) + lines[3][:-40]))
    assert trace.processes["rank"].to_list() == [0, 1, 2]
    assert {note.kind for note in trace.notes} >= {"truncated", "dropped"}
    assert trace.recognition
    assert dict(trace.recognition.left_out)["lines without spans"] == 1


def test_bad_input_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begun = b'{"resourceSpans":[{"scopeSpans":[{"spans":[\n{"name":'
    with pytest.raises(NotATrace, match="no whole JSON document"):
        OtlpReader().read(write_bytes(tmp_path / "a.json", begun))
    with pytest.raises(EmptyTrace):
        OtlpReader().read(write_bytes(tmp_path / "b.json", b'{"resourceSpans":[]}'))
    assert main(["analyze", "--no-keep", str(tmp_path / "a.json")]) == 3
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "change",
    [
        {"startTimeUnixNano": "-5"},
        {"endTimeUnixNano": "1"},
        {"startTimeUnixNano": "9" * 400},
        {"name": ""},
        {"name": 7},
        {"startTimeUnixNano": {"a": 1}},
        {"name": ["a"], "status": {"code": [2]}, "spanId": [], "events": 7, "attributes": {}},
    ],
)
def test_spans_that_cannot_be_are_counted(change: dict[str, object], tmp_path: Path) -> None:
    document = otlp_files.as_json(otlp_files.megatron(1))
    document["resourceSpans"][0]["scopeSpans"][0]["spans"][5] |= change
    trace = tl.open(write_bytes(tmp_path / "a.json", json.dumps(document).encode()))
    assert sum(trace.dropped.values()) == 1


def test_attributes_that_cannot_be_cost_themselves(tmp_path: Path) -> None:
    data = otlp_files.training_with_named_calls(2, 4)
    for span in data.resource_spans[0].scope_spans[0].spans:
        for key in ("tracelens.kind", "tracelens.op", "tracelens.seq", "tracelens.stream"):
            span.attributes.add(key=key).value.string_value = "9" * 30
        span.attributes.add(key="tracelens.micro_step").value.int_value = -(2**62)
    trace = tl.open(write_bytes(tmp_path / "a.pb", otlp_files.framed(data, "message")))
    assert trace.workers["rank"].to_list() == [0, 1]


def test_a_document_beyond_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_bytes(tmp_path / "a.jsonl", otlp_files.as_lines(otlp_files.megatron(1)))
    packed = write_bytes(tmp_path / "a.pb", otlp_files.framed(otlp_files.megatron(1), "lengths"))
    monkeypatch.setenv("TRACELENS_LIMITS", "")
    gate.raise_limit("document", 500)
    for path in (file, packed):
        with pytest.raises(NotATrace, match="--limit document="):
            OtlpReader().read(path)


def test_without_protobuf_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON needs no library."""
    data = otlp_files.megatron(1)
    packed = write_bytes(tmp_path / "a.pb", otlp_files.framed(data, "message"))
    lines = write_bytes(tmp_path / "a.jsonl", otlp_files.as_lines(data))
    monkeypatch.setitem(sys.modules, "opentelemetry.proto.trace.v1.trace_pb2", None)
    with pytest.raises(MissingExtra, match="otlp"):
        tl.open(packed)
    assert tl.open(lines).workers.height == 1


def test_a_folder_of_a_file_a_rank(tmp_path: Path) -> None:
    for rank, resource in enumerate(otlp_files.training_with_named_calls(3, 5).resource_spans):
        data = type(otlp_files.training_with_named_calls(1, 1))(resource_spans=[resource])
        write_bytes(tmp_path / f"rank{rank}.jsonl", otlp_files.as_lines(data))
    (tmp_path / "notes.json").write_text("{}")
    trace = tl.open(tmp_path)
    assert trace.workers["rank"].to_list() == [0, 1, 2]
    assert trace.arrivals["arrived"].unique().to_list() == [3]


def test_spans_of_opentelemetrys_sdk_are_read(tmp_path: Path) -> None:
    """What a program records with OpenTelemetry's own library, and its exporter sends."""
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    encoder = pytest.importorskip("opentelemetry.exporter.otlp.proto.common.trace_encoder")
    resources = pytest.importorskip("opentelemetry.sdk.resources")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    in_memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    memory = in_memory.InMemorySpanExporter()
    provider = sdk.TracerProvider(resource=resources.Resource.create({"nv.dl.rank": 5}))
    provider.add_span_processor(export.SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("train")
    for number in range(3):
        with tracer.start_as_current_span("train_step", attributes={"dl.iteration": number}):
            with tracer.start_as_current_span("forward") as span:
                span.add_event("loss", {"value": 0.5})
            with tracer.start_as_current_span("optimizer.step"):
                pass
    content = encoder.encode_spans(memory.get_finished_spans()).SerializeToString()
    trace = tl.open(write_bytes(tmp_path / "a.pb", content))
    assert trace.workers["rank"].to_list() == [5]
    assert trace.steps["step"].to_list() == [0, 1, 2]
    assert rows_of(trace, kind="forward").height == 3
    assert trace.recognition
    assert dict(trace.recognition.left_out) == {"events of spans": 3}
