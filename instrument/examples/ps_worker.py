"""One worker of the parameter-server example: pull, forward, backprop, push."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from mlp import Batches, Perceptron, loss
from ps_messages import DONE, HEADER, PAYLOAD, PULL, PUSH, await_, header

import tracelens as tl
from tracelens.schema.record import request_id
from tracelens_instrument import recorder

if TYPE_CHECKING:
    from faults import Faults
    from mlp import Array

BATCH: Final = 64

DATA = tl.span("load batch", kind="data")
FORWARD = tl.span("forward", kind="forward")
BACKPROP = tl.span("backprop", kind="backprop")
WAIT = tl.span("wait for shards", kind="wait")


class Worker:
    """Trains on its own batches; the weights live on the shards, `parts` says where."""

    def __init__(
        self, comm: Any, rank: int, model: Perceptron, parts: list[int], planted: Faults
    ) -> None:
        self.comm = comm
        self.rank = rank
        self.model = model
        self.parts = parts
        self.planted = planted
        self._weights: Array = np.concatenate([weight.reshape(-1) for weight in model.weights])
        self._gradients = np.empty_like(self._weights)
        model.weights = self._views(self._weights)
        self._requests = count(1)
        shards = range(len(parts) - 1)
        self._tracks = [recorder.track(f"shard {shard}") for shard in shards]
        self._pull = [tl.span("pull", kind="ps", op="pull", shard=shard) for shard in shards]
        self._push = [tl.span("push", kind="ps", op="push", shard=shard) for shard in shards]

    def train(self, steps: int) -> list[float]:
        """Train and return the loss of each step."""
        batches = Batches(self.rank, BATCH)
        losses = []
        for step in range(steps):
            with tl.step(step, samples=BATCH):
                losses.append(self._step(step, batches))
        for shard in range(len(self._tracks)):
            self.comm.Send(header(DONE, steps, 0), shard, HEADER)
        return losses

    def _step(self, step: int, batches: Batches) -> float:
        with DATA:
            inputs, targets = batches.next()
            self.planted.slow_down(self.rank, "data", step)
        self._exchange(PULL, step)
        with FORWARD:
            activations = self.model.forward(inputs)
            self.planted.slow_down(self.rank, "forward", step)
        with BACKPROP:
            views = self._views(self._gradients)
            for layer, gradient in self.model.backprop(activations, targets):
                views[layer][:] = gradient
            self.planted.kill(self.rank, step)
            self.planted.slow_down(self.rank, "backprop", step)
        self._exchange(PUSH, step)
        return loss(activations[-1], targets)

    def _exchange(self, what: int, step: int) -> None:
        """Pull from or push to all shards at once, and await them all."""
        flying = []
        for shard in range(len(self._tracks)):
            part = slice(self.parts[shard], self.parts[shard + 1])
            request = request_id(self.rank, next(self._requests))
            values = (self._weights if what == PULL else self._gradients)[part]
            span = (self._pull if what == PULL else self._push)[shard]
            token = span.begin(
                self._tracks[shard], request=request, peer=shard, nbytes=values.nbytes
            )
            asked = self.comm.Isend(header(what, step, request), shard, HEADER)
            carry = self.comm.Irecv if what == PULL else self.comm.Isend
            flying.append((token, asked, carry(values, shard, PAYLOAD)))
        with WAIT:
            for token, asked, carried in flying:
                await_(asked)
                await_(carried)
                token.end()

    def _views(self, flat: Array) -> list[Array]:
        """See a flat vector as the model's matrices."""
        sizes = [weight.size for weight in self.model.weights]
        pieces = np.split(flat, np.cumsum(sizes)[:-1])
        shapes = [weight.shape for weight in self.model.weights]
        return [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]
