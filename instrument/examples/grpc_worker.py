"""A worker of the gRPC parameter server: pull, forward, backprop, push, and wait for the token."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import grpc_messages as wire
import numpy as np
from grpc_state import flat_variables, view_piece
from mlp import Batches, loss

import tracelens as tl
from tracelens.schema.record import request_id
from tracelens_instrument import recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import grpc
    from faults import Faults
    from mlp import Array, Perceptron

    from tracelens.placement import Piece

BATCH: Final = 64

DATA = tl.span("load batch", kind="data")
FORWARD = tl.span("forward", kind="forward")
BACKPROP = tl.span("backprop", kind="backprop")
WAIT = tl.span("wait for shards", kind="wait")
BARRIER = tl.span("wait for the token", kind="wait")


class Worker:
    """Trains on its own batches; the weights live on the shards."""

    def __init__(
        self,
        rank: int,
        model: Perceptron,
        pieces: Sequence[Piece],
        servers: Sequence[grpc.Channel],
        planted: Faults,
    ) -> None:
        self.rank = rank
        self.model = model
        self.planted = planted
        self.servers = servers
        self._pieces_by_shard = [
            [piece for piece in pieces if piece.shard_index == shard]
            for shard in range(len(servers))
        ]
        self._requests = count(1)
        self._versions = [0] * len(servers)
        self._threads = ThreadPoolExecutor(len(servers), "exchange")
        self._tracks = [recorder.track(f"shard {shard}") for shard in range(len(servers))]
        self._pull, self._push = (
            [tl.span(op, kind="ps", op=op, shard=shard) for shard in range(len(servers))]
            for op in ("pull", "push")
        )

    def train(self, steps: int, *, asynchronous: bool) -> list[float]:
        """Train and return the loss of each step."""
        batches, losses = Batches(self.rank, BATCH), []
        token = self.servers[0].unary_unary(wire.TOKEN)
        for step in range(steps):
            with tl.step(step, samples=BATCH):
                self._exchange(step, self._pull_from)
                losses.append(self._compute(step, batches))
                self._exchange(step, self._push_to)
                if not asynchronous:
                    with BARRIER:
                        token(b"", metadata=wire.headers(step=step))
        self._threads.shutdown()
        return losses

    def _compute(self, step: int, batches: Batches) -> float:
        with DATA:
            inputs, targets = batches.next()
            self.planted.slow_down(self.rank, "data", step)
        with FORWARD:
            activations = self.model.forward(inputs)
            self.planted.slow_down(self.rank, "forward", step)
        with BACKPROP:
            self._gradients = [np.empty(0, "f4")] * len(self.model.weights)
            for layer, gradient in self.model.backprop(activations, targets):
                self._gradients[layer] = gradient.reshape(-1)
            self.planted.kill(self.rank, step)
            self.planted.slow_down(self.rank, "backprop", step)
        return loss(activations[-1], targets)

    def _exchange(self, step: int, call: Callable[[int, int], None]) -> None:
        """Talk to all shards at once, and await them all."""
        with WAIT:
            list(self._threads.map(call, range(len(self.servers)), [step] * len(self.servers)))

    def _pull_from(self, shard: int, step: int) -> None:
        weights = self._vector(shard)
        with self._request(self._pull, shard, step, weights.nbytes) as request:
            pull = self.servers[shard].unary_stream(wire.PULL)
            stream: Any = pull(b"", metadata=self._headers(shard, step, request))
            wire.gather(stream, weights)
            self._versions[shard] = int(dict(stream.initial_metadata())["version"])
        variables = flat_variables(self.model)
        for piece, values in self._split_by_piece(shard, weights):
            view_piece(variables, piece)[:] = values

    def _push_to(self, shard: int, step: int) -> None:
        gradients = self._vector(shard)
        for piece, values in self._split_by_piece(shard, gradients):
            values[:] = view_piece(self._gradients, piece)
        with self._request(self._push, shard, step, gradients.nbytes) as request:
            push = self.servers[shard].stream_unary(wire.PUSH)
            push(wire.messages(gradients), metadata=self._headers(shard, step, request))

    @contextmanager
    def _request(self, spans: list[Any], shard: int, step: int, nbytes: int) -> Iterator[int]:
        number = request_id(self.rank, next(self._requests))
        token = spans[shard].begin(
            self._tracks[shard],
            request=number,
            peer=shard,
            nbytes=nbytes,
            step=step,
            seq=self._versions[shard],
        )
        yield number
        token.end()

    def _headers(self, shard: int, step: int, request: int) -> tuple[tuple[str, str], ...]:
        version = self._versions[shard]
        return wire.headers(worker=self.rank, step=step, request=request, version=version)

    def _vector(self, shard: int) -> Array:
        return np.empty(sum(piece.nbytes for piece in self._pieces_by_shard[shard]) // 4, "f4")

    def _split_by_piece(self, shard: int, vector: Array) -> Iterator[tuple[Piece, Array]]:
        """Yield each piece of a shard, and its part of a vector that holds them one after the other."""
        start = 0
        for piece in self._pieces_by_shard[shard]:
            end = start + piece.nbytes // 4
            yield piece, vector[start:end]
            start = end
