"""What workers and shards of the gRPC parameter server say to each other, and how.

Weights and gradients are streams of raw float32 messages. What a call is about stands in its metadata:
worker, step, request id, and the version of the weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import grpc
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from mlp import Array

SERVICE: Final = "tracelens.examples.ParameterServer"
PUSH, PULL, TOKEN, APPLIED, EXCHANGE = (
    f"/{SERVICE}/{name}" for name in ("Push", "Pull", "Token", "Applied", "Exchange")
)
MESSAGE_BYTES: Final = 256 * 1024

Headers = dict[str, int]


def headers(**values: int) -> tuple[tuple[str, str], ...]:
    """Build a call's metadata."""
    return tuple((name, str(value)) for name, value in values.items())


def read_headers(context: Any) -> Headers:
    """Read a call's metadata, on the shard."""
    sent: Mapping[str, str] = dict(context.invocation_metadata())
    return {name: int(text) for name, text in sent.items() if name in _OURS}


_OURS: Final = ("worker", "step", "request", "version", "shard")


def messages(values: Array) -> Iterator[bytes]:
    """Cut a vector into messages."""
    content = memoryview(values).cast("B")
    for start in range(0, len(content), MESSAGE_BYTES):
        yield bytes(content[start : start + MESSAGE_BYTES])


def gather(stream: Iterable[bytes], into: Array) -> None:
    """Put a stream of messages together."""
    content = memoryview(into).cast("B")
    start = 0
    for message in stream:
        content[start : start + len(message)] = message
        start += len(message)
    if start != len(content):
        raise ValueError(f"a vector of {len(content)} bytes came as {start} bytes")


def channel(address: str) -> grpc.Channel:
    """Connect, and wait until the shard serves."""
    made = grpc.insecure_channel(address)
    grpc.channel_ready_future(made).result(timeout=60)
    return made


def pack_chunk(head: Iterable[int], values: Array) -> bytes:
    """Put a chunk's six numbers (worker, step, request, variable, offset, version) before it."""
    return np.array([*head], np.int64).tobytes() + values.tobytes()


def unpack_chunk(message: bytes) -> tuple[list[int], Array]:
    """Take them apart again."""
    head = np.frombuffer(message, np.int64, 6).tolist()
    return head, np.frombuffer(message, np.float32, offset=6 * 8)
