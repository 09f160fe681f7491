"""Documents of OTLP, NCCL Inspector and rocprofv3, and what TraceLens itself exports for viewers."""

from __future__ import annotations

import gzip
import json
import struct
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from support.hostile import protobuf
from support.hostile.formats import (
    EPOCH_NS,
    Input,
    as_json,
    by_rank,
    change_document,
    one_or_folder,
    save,
)
from support.hostile.run import Span, draw_run
from support.hostile.seeds import exported_files

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

_PACKINGS: Final = ("none", "none", "gzip", "zstd")


def _packed(content: bytes, packing: str) -> bytes:
    if packing == "gzip":
        return gzip.compress(content, 1)
    return pa.compress(content, "zstd", asbytes=True) if packing == "zstd" else content


def _attributes(words: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "key": key,
            "value": {"intValue": str(value)} if type(value) is int else {"stringValue": value},
        }
        for key, value in words.items()
    ]


def _otlp_document(rank: int, spans: list[Span], random: Random) -> dict[str, Any]:
    has_our_attributes = random.random() < 0.3
    resource: dict[str, Any] = random.choice(
        [{"nv.dl.rank": rank}, {"service.instance.id": f"a-rank{rank}"}, {"process.pid": rank}]
    )
    rows = []
    for number, span in enumerate(spans):
        attributes: dict[str, Any] = {"iteration": span.step} if span.kind == "step" else {}
        if has_our_attributes:
            attributes |= {"tracelens.kind": span.kind, "tracelens.step": span.step}
        if span.kind == "reduction":
            attributes |= {
                "tracelens.op": "allreduce",
                "tracelens.communicator": "w",
                "tracelens.seq": span.step,
            }
        rows.append(
            {
                "traceId": f"{rank:032x}",
                "spanId": f"{number:016x}",
                "parentSpanId": "",
                "name": f"megatron.{span.name}" if random.random() < 0.05 else span.name,
                "startTimeUnixNano": str(EPOCH_NS + span.start),
                "endTimeUnixNano": str(EPOCH_NS + span.end),
                "attributes": _attributes(attributes),
                "status": {"code": 2} if number == 3 else {},
                "events": [],
            }
        )
    scope = {"scope": {"name": "main"}, "spans": rows}
    resource_spans = {"resource": {"attributes": _attributes(resource)}, "scopeSpans": [scope]}
    return {"resourceSpans": [resource_spans]}


def _as_message(document: Any) -> dict[Any, Any]:
    """Return a JSON request as the fields of its protobuf twin, as far as it is one."""

    def members(value: Any, key: str) -> list[Any]:
        listed = value.get(key) if isinstance(value, dict) else None
        return (
            [entry for entry in listed if isinstance(entry, dict)]
            if isinstance(listed, list)
            else []
        )

    def attributes(value: Any) -> list[Any]:
        return [
            {1: entry.get("key"), 2: {1: next(iter(entry["value"].values()), "")}}
            for entry in members(value, "attributes")
            if isinstance(entry.get("value"), dict)
        ]

    def time(value: Any) -> Any:
        number = int(value) if isinstance(value, str) and value.isdecimal() else value
        is_time = isinstance(number, int) and 0 <= number < 2**64
        return (1, struct.pack("<Q", number)) if is_time else number

    def span(value: dict[str, Any]) -> dict[Any, Any]:
        return {
            1: bytes(16),
            2: str(value.get("spanId")).encode("utf-8", "replace")[-8:],
            5: value.get("name"),
            7: time(value.get("startTimeUnixNano")),
            8: time(value.get("endTimeUnixNano")),
            9: attributes(value),
        }

    return {
        1: [
            {
                1: {1: attributes(entry.get("resource"))},
                2: [
                    {2: [span(one) for one in members(scope, "spans")]}
                    for scope in members(entry, "scopeSpans")
                ],
            }
            for entry in members(document, "resourceSpans")
        ]
    }


def otlp(folder: Path, random: Random) -> Input:
    """Spans of OpenTelemetry: lines of JSON, or messages of JSON or protobuf with their lengths."""
    documents = {
        rank: _otlp_document(rank, spans, random)
        for rank, spans in by_rank(draw_run(random)).items()
    }
    form = random.choice(["lines", "lines", "message", "lengths", "lengths"])
    packing, is_json = random.choice(_PACKINGS), random.random() < 0.4

    def write(path: Path, document: Any) -> None:
        wrong = random.choice([0, 0, 0, 0.01])
        content = as_json(document) + b"\n"
        if form != "lines" and not is_json:
            content = protobuf.encode(_as_message(document), random, wrong)
        content = _packed(content, packing)
        if form == "lengths":
            content = len(content).to_bytes(4, "big") + content
        save(path, content, random)

    name = "spans{}.jsonl" if form == "lines" else "spans{}.otlp"
    return one_or_folder(folder, name, documents, random, write)


def nccl_inspector(folder: Path, random: Random) -> Input:
    """Logs of NCCL's Inspector: a call a line."""
    spans_of_rank = by_rank(draw_run(random))
    is_verbose = random.random() < 0.7
    documents = {}
    for rank, spans in spans_of_rank.items():
        records = []
        for number, span in enumerate(span for span in spans if span.kind == "reduction"):
            begin_us, end_us = span.start // 1000, span.end // 1000
            call: dict[str, Any] = {
                "coll": "AllReduce",
                "coll_algo": "RING",
                "coll_proto": "LL",
                "coll_sn": number,
                "coll_msg_size_bytes": 4096,
                "coll_exec_time_us": end_us - begin_us,
                "coll_timing_source": "kernel_gpu",
                "coll_algobw_gbs": 1.5,
                "coll_busbw_gbs": 2.5,
            }
            if is_verbose:
                kernel = {
                    "channel_id": 0,
                    "kernel_start_ts": begin_us,
                    "kernel_stop_ts": end_us,
                    "kernel_record_ts": end_us,
                }
                call["event_trace_ts"] = {
                    "coll_start_ts": begin_us,
                    "coll_stop_ts": end_us,
                    "kernel_events": [kernel],
                }
            records.append(
                {
                    "header": {
                        "id": "0x7f",
                        "rank": rank,
                        "n_ranks": len(spans_of_rank),
                        "nnodes": 1,
                    },
                    "metadata": {
                        "inspector_output_format_version": "v4.4",
                        "git_rev": "",
                        "rec_mechanism": "nccl_profiler_interface",
                        "dump_timestamp_us": end_us + 500,
                        "hostname": "node0",
                        "pid": 1000 + rank,
                    },
                    "coll_perf": call,
                }
            )
        documents[rank] = records

    def write(path: Path, document: Any) -> None:
        lines = document if isinstance(document, list) else [document]
        save(path, b"".join(as_json(line) + b"\n" for line in lines), random)

    return one_or_folder(folder, "node0-pid{}.log", documents, random, write)


def rocprof(folder: Path, random: Random) -> Input:
    """Documents of rocprofv3."""
    kinds = {
        "HIP_RUNTIME_API": ["hipLaunchKernel", "hipDeviceSynchronize"],
        "KERNEL_DISPATCH": ["COMPLETE"],
        "MARKER_CORE_API": ["roctxRangePushA"],
    }
    documents = {}
    for rank, spans in by_rank(draw_run(random)).items():
        records: dict[str, list[Any]] = {"kernel_dispatch": [], "hip_api": [], "marker_api": []}
        texts = []
        for number, span in enumerate(spans):
            base = {
                "size": 48,
                "operation": 0,
                "correlation_id": {"internal": number, "external": 0},
                "start_timestamp": span.start,
                "end_timestamp": span.end,
                "thread_id": 5,
            }
            records["marker_api"].append(base | {"kind": 2})
            texts.append(
                {"key": number, "value": f"step {span.step}" if span.kind == "step" else span.name}
            )
            if span.kind in {"reduction", "backprop"}:
                info = {
                    "agent_id": {"handle": 17},
                    "queue_id": {"handle": 1},
                    "kernel_id": 1 + (span.kind == "reduction"),
                }
                records["kernel_dispatch"].append(
                    base | {"kind": 1, "dispatch_info": info, "stream_id": {"handle": 0}}
                )
                records["hip_api"].append(base | {"kind": 0})
        documents[rank] = {
            "rocprofiler-sdk-tool": [
                {
                    "metadata": {"pid": 100 + rank, "node": {"hostname": "node0"}},
                    "strings": {
                        "buffer_records": [{"kind": k, "operations": o} for k, o in kinds.items()],
                        "marker_api": texts,
                    },
                    "kernel_symbols": [
                        {"kernel_id": 1, "formatted_kernel_name": "gemm"},
                        {
                            "kernel_id": 2,
                            "formatted_kernel_name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                        },
                    ],
                    "buffer_records": records,
                }
            ]
        }
    return one_or_folder(
        folder,
        "{}_results.json",
        documents,
        random,
        lambda path, document: save(path, as_json(document), random),
    )


def exported(folder: Path, random: Random) -> Input:
    """What `convert` wrote for viewers, changed in its structure or its bytes."""
    name, content = random.choice(exported_files())
    document = json.loads(content) if name.endswith("json") else content
    if not isinstance(document, bytes):
        content = as_json(change_document(document, random))
    path = folder / name
    save(path, content, random)
    return Input(path)
