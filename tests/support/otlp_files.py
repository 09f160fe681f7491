"""Writes OpenTelemetry's spans of a training with Megatron-LM, as the collector's file exporter does."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import json_format
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["BEGIN_NS", "as_json", "as_lines", "framed", "megatron", "training_with_named_calls"]

BEGIN_NS: Final = 1_795_000_000_000_000_000
STEP_MS: Final = 40
_MS: Final = 1_000_000
_IDS: Final = ("traceId", "spanId", "parentSpanId")


def _attributes(known: Mapping[str, Any]) -> Iterator[KeyValue]:
    for key, value in known.items():
        kind = {bool: "bool_value", int: "int_value", float: "double_value"}.get(type(value))
        yield KeyValue(key=key, value=AnyValue(**{kind or "string_value": value}))


class _Resource:
    """The spans of one process."""

    def __init__(self, data: TracesData, number: int, known: Mapping[str, Any]) -> None:
        resource = data.resource_spans.add()
        resource.resource.attributes.extend(_attributes(known))
        self.scope = resource.scope_spans.add()
        self.scope.scope.name = "nemo.lens"
        self.number = number

    def span(
        self, name: str, begin_ms: float, end_ms: float, parent: bytes = b"", **attributes: Any
    ) -> bytes:
        """Add a span; return its id."""
        span = self.scope.spans.add(name=name, parent_span_id=parent)
        span.trace_id = (self.number + 1).to_bytes(16, "big")
        span.span_id = (self.number << 32 | len(self.scope.spans)).to_bytes(8, "big")
        span.start_time_unix_nano = BEGIN_NS + round(begin_ms * _MS)
        span.end_time_unix_nano = BEGIN_NS + round(end_ms * _MS)
        known = {name.replace("__", "."): value for name, value in attributes.items()}
        span.attributes.extend(_attributes(known))
        return span.span_id


def megatron(ranks: int = 2, steps: int = 6, **resource: Any) -> TracesData:
    """Return what Megatron-LM exports with all groups of spans: names, attributes and nesting."""
    data = TracesData()
    for rank in range(ranks):
        attributes = {
            "service.name": "megatron-lm",
            "service.instance.id": f"run7-rank{rank}",
            "nv.dl.world_size": ranks,
            "host.name": f"node{rank // 2}",
            "process.pid": 1000 + rank,
        }
        process = _Resource(data, rank, attributes | resource)
        train = process.span("megatron.train", 0, steps * STEP_MS + 9)
        for number in range(steps):
            ms = number * STEP_MS
            step = process.span(
                "megatron.train.iteration", ms, ms + 39, train, megatron__iteration=number + 1
            )
            passes = process.span("megatron.train.iteration.forward_backward", ms, ms + 30, step)
            process.span("megatron.p2p.recv_forward", ms + 0.1, ms + 1, passes)
            micro = process.span(
                "megatron.microbatch.forward", ms + 1, ms + 10, passes, megatron__microbatch_id=0
            )
            process.span("megatron.layer.forward", ms + 2, ms + 9, micro, megatron__layer_number=1)
            process.span("megatron.microbatch.backward", ms + 10, ms + 25, passes)
            process.span("megatron.p2p.send_backward", ms + 25, ms + 26, passes)
            process.span("megatron.grad_sync.finish", ms + 26, ms + 30, passes)
            process.span("megatron.train.iteration.optimizer", ms + 30, ms + 38, step)
        process.span("megatron.checkpoint.save", steps * STEP_MS, steps * STEP_MS + 8, train)
    return data


def training_with_named_calls(
    ranks: int = 4, steps: int = 60, *, late: int | None = None
) -> TracesData:
    """Return a training whose spans say by attributes which call of a collective they are."""
    data = TracesData()
    for rank in range(ranks):
        process = _Resource(data, rank, {"nv.dl.rank": rank, "host.name": "node0"})
        slow = 9 * (rank == late)
        for number in range(steps):
            ms = number * STEP_MS
            step = process.span(f"step {number}", ms, ms + 39)
            process.span("forward", ms, ms + 8, step)
            process.span("model.backward", ms + 8, ms + 18 + slow, step)
            call: dict[str, Any] = {"tracelens__kind": "reduction", "tracelens__op": "allreduce"}
            call |= {"tracelens__communicator": "dp", "tracelens__seq": number}
            process.span("grads", ms + 18.1 + slow, ms + 34, step, **call)
            process.span("optimizer", ms + 34, ms + 38, step)
    return data


def _hexadecimal(value: Any) -> Any:
    if isinstance(value, list):
        return [_hexadecimal(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    return {
        name: base64.b64decode(part).hex() if name in _IDS else _hexadecimal(part)
        for name, part in value.items()
    }


def as_json(data: TracesData) -> dict[str, Any]:
    """Return the document that OTLP asks for: ids are hexadecimal, not base 64."""
    found: dict[str, Any] = _hexadecimal(json_format.MessageToDict(data))
    return found


def as_lines(data: TracesData) -> bytes:
    """Return a line for each process, as an exporter sends one request at a time."""
    requests = [{"resourceSpans": [entry]} for entry in as_json(data)["resourceSpans"]]
    return b"".join(json.dumps(request).encode() + b"\n" for request in requests)


def framed(
    data: TracesData, framing: str, compress: Callable[[bytes], bytes] = lambda content: content
) -> bytes:
    """Return messages of protobuf, one a process: with the given lengths in front, or with none."""
    messages = [
        compress(TracesData(resource_spans=[r]).SerializeToString()) for r in data.resource_spans
    ]
    if framing == "lengths":
        return b"".join(len(m).to_bytes(4, "big") + m for m in messages)
    if framing == "varints":
        return b"".join(_varint(len(m)) + m for m in messages)
    return b"".join(messages)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])
