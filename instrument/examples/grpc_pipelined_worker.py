"""A worker of the pipelined parameter server: no barrier, a layer waits for nothing but its own weights.

Chunks of a layer's gradient leave as soon as backprop has made it, and come back as weights; the next
step's forward waits before each layer for that layer's chunks.
"""

from __future__ import annotations

import queue
import threading
from itertools import count
from typing import TYPE_CHECKING, Any

import grpc_messages as wire
from grpc_state import flat_variables, view_piece
from grpc_worker import BACKPROP, BATCH, DATA, FORWARD
from mlp import Batches, loss

import tracelens as tl
from tracelens.schema.record import request_id
from tracelens_instrument import recorder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import grpc
    from faults import Faults
    from mlp import Array, Perceptron

    from tracelens.placement import Piece

WAIT = tl.span("wait for a layer's chunks", kind="wait")


class PipelinedWorker:
    """Trains on its own batches; chunks of the weights live on the shards."""

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
        self._variables = flat_variables(model)
        self._chunks: list[list[Piece]] = [[] for _ in self._variables]
        for piece in pieces:
            self._chunks[piece.variable_index].append(piece)
        self._piece = {(piece.variable_index, piece.offset_bytes): piece for piece in pieces}
        self._requests = count(1)
        self._tracks = [recorder.track(f"shard {shard}") for shard in range(len(servers))]
        self._spans = [
            tl.span("push and pull", kind="ps", op="push", shard=shard)
            for shard in range(len(servers))
        ]
        self._flying: dict[tuple[int, int], Any] = {}
        self._missing = [0] * len(self._variables)  # chunks of each layer that are under way
        self._returned = threading.Condition()
        self._out: list[queue.Queue[bytes | None]] = [queue.Queue() for _ in servers]
        self._threads = [
            threading.Thread(target=self._take, args=(server, shard), name=f"from shard {shard}")
            for shard, server in enumerate(servers)
        ]

    def train(self, steps: int) -> list[float]:
        """Train and return the loss of each step."""
        for thread in self._threads:
            thread.start()
        batches = Batches(self.rank, BATCH)
        losses = []
        for step in range(steps):
            with tl.step(step, samples=BATCH):
                losses.append(self._step(step, batches))
        for line in self._out:
            line.put(None)
        for thread in self._threads:
            thread.join()
        return losses

    def _step(self, step: int, batches: Batches) -> float:
        with DATA:
            inputs, targets = batches.next()
            self.planted.slow_down(self.rank, "data", step)
        with FORWARD:
            activations = self.model.forward(inputs, before=self._await)
            self.planted.slow_down(self.rank, "forward", step)
        with BACKPROP:
            for layer, gradient in self.model.backprop(activations, targets):
                self._send(step, layer, gradient.reshape(-1))
            self.planted.kill(self.rank, step)
            self.planted.slow_down(self.rank, "backprop", step)
        return loss(activations[-1], targets)

    def _await(self, layer: int) -> None:
        if self._missing[layer]:
            with WAIT(bucket=layer), self._returned:
                self._returned.wait_for(lambda: not self._missing[layer])

    def _send(self, step: int, layer: int, gradient: Array) -> None:
        with self._returned:
            self._missing[layer] = len(self._chunks[layer])
        for piece in self._chunks[layer]:
            number = request_id(self.rank, next(self._requests))
            self._flying[layer, piece.offset_bytes] = self._spans[piece.shard_index].begin(
                self._tracks[piece.shard_index],
                request=number,
                peer=piece.shard_index,
                nbytes=2 * piece.nbytes,
                key=layer,
            )
            head = self.rank, step, number, layer, piece.offset_bytes, 0
            first = piece.offset_bytes // 4
            values = gradient[first : first + piece.nbytes // 4]
            self._out[piece.shard_index].put(wire.pack_chunk(head, values))

    def _take(self, server: grpc.Channel, shard: int) -> None:
        """Exchange with one shard: send what is in its line, and take in the weights it sends."""
        exchange = server.stream_stream(wire.EXCHANGE)
        metadata = wire.headers(worker=self.rank)
        for message in exchange(_until_none(self._out[shard]), metadata=metadata):
            head, weights = wire.unpack_chunk(message)
            layer, offset = head[3], head[4]
            view_piece(self._variables, self._piece[layer, offset])[:] = weights
            self._flying.pop((layer, offset)).end()
            with self._returned:
                self._missing[layer] -= 1
                self._returned.notify_all()


def _until_none(line: queue.Queue[bytes | None]) -> Iterator[bytes]:
    while (message := line.get()) is not None:
        yield message
