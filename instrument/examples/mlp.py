"""A small multilayer perceptron in NumPy, with backprop layer by layer, for the MPI examples."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Array = npt.NDArray[np.float32]

INPUTS: Final = 64
OUTPUTS: Final = 10


@dataclass
class Perceptron:
    """Weights, one matrix a layer, equal on all ranks at the start; squared error."""

    weights: list[Array]

    @classmethod
    def with_hidden(cls, hidden: int, layers: int = 3) -> Perceptron:
        """Draw the same weights on every rank."""
        draw = np.random.default_rng(0)
        sizes = [INPUTS, *[hidden] * layers, OUTPUTS]
        pairs = pairwise(sizes)
        return cls([draw.normal(0, 1 / np.sqrt(a), (a, b)).astype("f4") for a, b in pairs])

    def forward(
        self, inputs: Array, before: Callable[[int], object] = lambda _: None
    ) -> list[Array]:
        """Return the inputs and every layer's activations; `before` is called with each layer first."""
        activations = [inputs]
        last = len(self.weights) - 1
        for layer, weight in enumerate(self.weights):
            before(layer)
            output = activations[-1] @ weight
            activations.append(output if layer == last else np.maximum(output, 0))
        return activations

    def backprop(self, activations: list[Array], targets: Array) -> Iterator[tuple[int, Array]]:
        """Yield (layer, gradient) from the last layer to the first, each as soon as it is ready."""
        delta = (activations[-1] - targets) / len(targets)
        for layer in reversed(range(len(self.weights))):
            yield layer, np.ascontiguousarray(activations[layer].T @ delta)
            if layer:
                delta = (delta @ self.weights[layer].T) * (activations[layer] > 0)

    def update(self, gradients: list[Array], rate: float) -> None:
        """Take a step of gradient descent."""
        for weight, gradient in zip(self.weights, gradients, strict=True):
            np.subtract(weight, rate * gradient, out=weight)


class Batches:
    """Endless batches of a learnable task; every rank draws its own."""

    def __init__(self, rank: int, size: int) -> None:
        self._draw = np.random.default_rng(100 + rank)
        self._teacher = np.random.default_rng(1).normal(size=(INPUTS, OUTPUTS)).astype("f4")
        self.size = size

    def next(self) -> tuple[Array, Array]:
        """Return inputs and targets."""
        inputs = self._draw.normal(size=(self.size, INPUTS)).astype("f4")
        return inputs, np.tanh(inputs @ self._teacher)


def loss(prediction: Array, targets: Array) -> float:
    """Mean squared error of a batch."""
    return float(((prediction - targets) ** 2).mean())
