"""A shard of the gRPC parameter server that takes a worker's whole gradient at once.

Handlers run on gRPC's threads: they receive, and stand in line. One thread, the server's core,
aggregates and applies, one request at a time. Synchronous: gradients of all workers make one update,
after which shard 0, told by all shards, hands out a token to every worker. Asynchronous: each gradient
makes one.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import grpc_messages as wire
import numpy as np
from grpc_state import Parameter

import tracelens as tl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faults import Faults
    from mlp import Array

LOOK_UP_S = 0.5  # how often a waiting call looks whether its worker is still there


@dataclass
class Push:
    """A gradient that has arrived, and the event that says when it has been dealt with."""

    gradient: Array
    about: wire.Headers
    dealt_with: threading.Event


class Shard:
    """Serves one vector of weights."""

    def __init__(
        self, number: int, weights: Array, workers: int, *, asynchronous: bool, planted: Faults
    ) -> None:
        self._number = number
        self._parameter = Parameter(weights)
        self._enough = 1 if asynchronous else workers
        self._asynchronous = asynchronous
        self._planted = planted
        self._line: queue.Queue[Push | None] = queue.Queue()
        self._version = 0
        self._lock = threading.Lock()  # of the weights: a pull must not see half an update
        self.applied: list[Any] = []  # called with the step after each update
        self._receive, self._aggregate, self._apply, self._reply = (
            tl.span(op, kind="ps", op=op, shard=number)
            for op in ("receive", "aggregate", "apply", "reply")
        )

    def methods(self) -> dict[str, grpc.RpcMethodHandler]:
        """What can be called."""
        return {
            wire.PUSH: grpc.stream_unary_rpc_method_handler(self._push),
            wire.PULL: grpc.unary_stream_rpc_method_handler(self._pull),
        }

    def run(self) -> None:
        """Be the server's core until `stop`."""
        while (push := self._line.get()) is not None:
            self._serve(push)
            push.dealt_with.set()

    def stop(self) -> None:
        """Let `run` end."""
        self._line.put(None)

    def _push(self, stream: Iterator[bytes], context: Any) -> bytes:
        about = wire.read_headers(context)
        gradient = np.empty_like(self._parameter.weights)
        waiting = self._line.qsize()
        with self._receive(queue_depth=waiting, nbytes=gradient.nbytes, **_values(about)):
            wire.gather(stream, gradient)
        push = Push(gradient, about, threading.Event())
        self._line.put(push)
        while self._asynchronous and not push.dealt_with.wait(LOOK_UP_S):
            if not context.is_active():
                break  # the worker is gone, or the server's core was before this came into line
        return b""

    def _serve(self, push: Push) -> None:
        values = _values(push.about) | {"nbytes": push.gradient.nbytes}
        with self._aggregate(**values):
            arrived = self._parameter.aggregate(push.gradient)
        if arrived < self._enough:
            return
        with self._apply(seq=self._version + 1, **values), self._lock:
            self._parameter.apply()
            self._version += 1
            self._planted.slow_down(self._number, "update", push.about["step"])
        for callback in self.applied:
            callback(push.about["step"])

    def _pull(self, _request: bytes, context: Any) -> Iterator[bytes]:
        about = wire.read_headers(context)
        with self._lock:
            weights, version = self._parameter.weights.copy(), self._version
        context.send_initial_metadata(wire.headers(version=version))
        reply = self._reply.begin(seq=version, nbytes=weights.nbytes, **_values(about))
        yield from wire.messages(weights)
        reply.end()


class Tokens:
    """The barrier of synchronous training, on shard 0: tokens once all shards have applied a step."""

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._applied: dict[int, int] = {}
        self._changed = threading.Condition()

    def methods(self) -> dict[str, grpc.RpcMethodHandler]:
        """What can be called."""
        return {
            wire.TOKEN: grpc.unary_unary_rpc_method_handler(self._token),
            wire.APPLIED: grpc.unary_unary_rpc_method_handler(self._told),
        }

    def applied(self, step: int) -> None:
        """Take note that one more shard has applied this step."""
        with self._changed:
            self._applied[step] = self._applied.get(step, 0) + 1
            self._changed.notify_all()

    def _told(self, _request: bytes, context: Any) -> bytes:
        self.applied(wire.read_headers(context)["step"])
        return b""

    def _token(self, _request: bytes, context: Any) -> bytes:
        step = wire.read_headers(context)["step"]
        with self._changed:
            while self._applied.get(step, 0) < self._shards and context.is_active():
                self._changed.wait(LOOK_UP_S)
        return b""


def _values(about: wire.Headers) -> dict[str, int]:
    return {"request": about["request"], "peer": about["worker"], "step": about["step"]}
