"""What every worker of the EASGD examples does by itself: load a batch, forward, backprop, update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from easgd_rules import LocalWeights
from mlp import INPUTS, OUTPUTS, Batches, Perceptron, loss

import tracelens as tl

if TYPE_CHECKING:
    from collections.abc import Callable

    from easgd_rules import Rates
    from faults import Faults
    from mlp import Array

BATCH: Final = 64
BATCH_BYTES: Final = BATCH * (INPUTS + OUTPUTS) * 4

DATA = tl.span("load batch", kind="data")
FORWARD = tl.span("forward", kind="forward")
BACKPROP = tl.span("backprop", kind="backprop")
WAIT = tl.span("wait for the master", kind="wait")
TURN = tl.span("wait for the turn", kind="elastic", op="turn_wait")
DOWN = tl.span("weights down", kind="elastic", op="weights_down")
UP = tl.span("weights up", kind="elastic", op="weights_up")
UPDATE = tl.span("update own weights", kind="elastic", op="worker_update")


class Worker:
    """A model with its own weights, trained on its own batches and pulled towards the centre."""

    def __init__(self, rank: int, hidden: int, rates: Rates, planted: Faults) -> None:
        self.rank = rank
        self.planted = planted
        self.losses: list[float] = []
        self._model = Perceptron.with_hidden(hidden)
        self._batches = Batches(rank, BATCH)
        flat = np.concatenate([weight.reshape(-1) for weight in self._model.weights])
        self.weights = LocalWeights(flat, rates)
        self._gradient = np.empty_like(flat)
        self._parts = self._views(self._gradient)
        self._model.weights = self._views(flat)

    def load(self, step: int) -> tuple[Array, Array]:
        """Take the next batch."""
        with DATA(nbytes=BATCH_BYTES):
            batch = self._batches.next()
            self.planted.slow_down(self.rank, "data", step)
        return batch

    def compute(
        self, step: int, batch: tuple[Array, Array], between: Callable[[], object] = lambda: None
    ) -> Array:
        """Compute the gradient; `between` is called after each layer, to let messages go on."""
        inputs, targets = batch
        with FORWARD:
            activations = self._model.forward(inputs)
            self.planted.slow_down(self.rank, "forward", step)
        between()
        with BACKPROP:
            for layer, gradient in self._model.backprop(activations, targets):
                self._parts[layer][:] = gradient
                between()
            self.planted.kill(self.rank, step)
            self.planted.slow_down(self.rank, "backprop", step)
        self.losses.append(loss(activations[-1], targets))
        return self._gradient

    def update(self, step: int, gradient: Array, centre: Array, version: int) -> None:
        """Update the own weights with this version of the centre."""
        with UPDATE(seq=version):
            self.weights.update(gradient, centre)
            self.planted.slow_down(self.rank, "update", step)

    def _views(self, flat: Array) -> list[Array]:
        shapes = [weight.shape for weight in self._model.weights]
        ends = np.cumsum([weight.size for weight in self._model.weights])[:-1]
        pieces: list[Any] = np.split(flat, ends)
        return [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]
