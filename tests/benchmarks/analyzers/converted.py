"""Kineto traces as our recorder would have written the same run: one event for each complete one.

A launch and the kernel that it launched are one event with the times of both, as the format has them;
so the rows are fewer, not what they say. Work on a device is backprop where autograd's thread launched
it, `update` inside an optimizer's annotation, a reduction if NCCL did it, and forward otherwise. What
Kineto says beside (operators, other calls of the runtime) becomes spans of the kind `user`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from benchmarks.analyzers.kineto import Event, load

from tracelens.conversion.arrow_file import write_events
from tracelens.schema.arrow import EVENT_SCHEMA
from tracelens.schema.side import Communicator, Process, SideTables, Thread
from tracelens.schema.vocabulary import TRACE_SUFFIX, make_stem

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["convert"]

HOST: Final = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "python_function")
DEVICE: Final = ("kernel", "gpu_memcpy", "gpu_memset")
_STEP: Final = "ProfilerStep#"
_OPTIMIZER: Final = "Optimizer.step#"
_FIRST_PID: Final = 1000
_NS: Final = 1000  # in a microsecond
_WORLD: Final = 0


@dataclass(frozen=True)
class _Span:
    """A span of a thread of the host, nanoseconds; what it launched, if it did."""

    begin: int
    end: int
    name: str
    category: str
    thread: int
    kernel: Event | None
    kind: str = "user"
    depth: int = 0
    step: int = -1


def convert(source: Path, target: Path) -> int:
    """Write a folder of Kineto files as a trace; return how many complete events they hold."""
    target.mkdir(parents=True)
    files = sorted(source.glob("*.json.gz"))
    return sum(_convert(load(path), len(files), target) for path in files)


def _convert(trace: dict[str, Any], world: int, target: Path) -> int:
    """Write a rank."""
    complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    kernels = {e["args"]["correlation"]: e for e in complete if e.get("cat") in DEVICE}
    hosted = [event for event in complete if event.get("cat") in HOST]
    training = next(event["tid"] for event in hosted if event["name"].startswith(_STEP))
    others = sorted({event["tid"] for event in hosted} - {training}, key=str)
    threads = {tid: number for number, tid in enumerate([training, *others])}
    streams = sorted({kernel["args"]["stream"] for kernel in kernels.values()})
    rows = {stream: len(threads) + number for number, stream in enumerate(streams)}
    spans = _place_spans(_spans(hosted, threads, kernels))
    rank = int(trace["distributedInfo"]["rank"])
    process = Process(
        rank=rank, world=world, host="host", clock_domain="host", pid=_FIRST_PID + rank
    )
    threads_named = [Thread(number, f"thread {tid}") for tid, number in threads.items()]
    threads_named += [
        Thread(number, f"cuda:0 stream {stream}", in_flight=True, device=0)
        for stream, number in rows.items()
    ]
    side = SideTables(
        process=process,
        threads=tuple(threads_named),
        communicators=(Communicator(_WORLD, "world", "world", list(range(world))),),
        complete=True,
    )
    name = make_stem("worker", rank, process.pid) + TRACE_SUFFIX
    write_events(target / name, _table(spans, rows), side)
    return sum(event.get("cat") in (*HOST, *DEVICE) for event in complete)


def _spans(
    events: Iterable[Event], threads: dict[Any, int], kernels: dict[int, Event]
) -> list[_Span]:
    """Return the host's spans, each thread's outer ones before its inner ones."""
    spans = [
        _Span(
            begin=round(event["ts"] * _NS),
            end=round(event["ts"] * _NS) + round(event["dur"] * _NS),
            name=event["name"],
            category=event["cat"],
            thread=threads[event["tid"]],
            kernel=kernels.get(event.get("args", {}).get("correlation")),
        )
        for event in events
    ]
    return sorted(spans, key=lambda span: (span.begin, -span.end))


def _place_spans(spans: list[_Span]) -> list[_Span]:
    """Give each span its kind, its depth among those of its thread, and its step."""
    opened: dict[int, list[_Span]] = {}
    step, step_end, placed = -1, 0, []
    for span in spans:
        around = opened.setdefault(span.thread, [])
        while around and around[-1].end <= span.begin:
            around.pop()
        if span.name.startswith(_STEP):
            step, step_end = int(span.name.removeprefix(_STEP)), span.end
        now = step if span.begin < step_end else -1
        placed.append(replace(span, kind=_kind(span, around), depth=len(around), step=now))
        around.append(span)
    return placed


def _kind(span: _Span, around: list[_Span]) -> str:
    if span.name.startswith(_STEP):
        return "step"
    if span.kernel is None:
        return "update" if span.name.startswith(_OPTIMIZER) else "user"
    if "nccl" in span.kernel["name"]:
        return "reduction"
    if any(outer.name.startswith(_OPTIMIZER) for outer in around):
        return "update"
    return "forward" if span.thread == 0 else "backprop"


def _table(spans: list[_Span], streams: dict[int, int]) -> pa.Table:
    """Return the columns of the format."""
    of_kernel = [span.kernel for span in spans]
    reduced = [span.kind == "reduction" for span in spans]
    calls = iter(range(len(spans)))
    columns: dict[str, list[Any]] = {
        "start_ns": [span.begin for span in spans],
        "duration_ns": [span.end - span.begin for span in spans],
        "type": ["span"] * len(spans),
        "kind": [span.kind for span in spans],
        "op": ["allreduce" if is_reduction else None for is_reduction in reduced],
        "name": [span.kernel["name"] if span.kernel else span.name for span in spans],
        "status": ["closed"] * len(spans),
        "thread": [span.thread for span in spans],
        "depth": [span.depth for span in spans],
        "step": [span.step for span in spans],
        "communicator": [_WORLD if is_reduction else None for is_reduction in reduced],
        "seq": [next(calls) if is_reduction else None for is_reduction in reduced],
        "device_start_ns": [k and round(k["ts"] * _NS) for k in of_kernel],
        "device_duration_ns": [k and round(k["dur"] * _NS) for k in of_kernel],
        "stream": [k and streams[k["args"]["stream"]] for k in of_kernel],
    }
    arrays = [
        _array(columns[field.name], field.type)
        if field.name in columns
        else pa.nulls(len(spans), field.type)
        for field in EVENT_SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=EVENT_SCHEMA)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array[Any]:
    if pa.types.is_dictionary(kind):
        return pa.array(values, pa.string()).dictionary_encode().cast(kind)
    return pa.array(values, kind)
