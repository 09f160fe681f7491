"""What one shard of the gRPC parameter server holds: pieces of variables, and how they are optimised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlp import Array, Perceptron

    from tracelens.placement import Piece

RATE: Final = 0.02


class Parameter:
    """One piece: its weights, and the sum of the gradients that have come for it."""

    def __init__(self, weights: Array) -> None:
        self.weights = weights.copy()
        self._sum = np.zeros_like(weights)
        self._arrived = 0

    def aggregate(self, gradient: Array) -> int:
        """Add a worker's gradient; return how many have come since the last update."""
        self._sum += gradient
        self._arrived += 1
        return self._arrived

    def apply(self) -> None:
        """Take a step of gradient descent along the mean of what has come."""
        self.weights -= RATE / self._arrived * self._sum
        self._sum[:] = 0
        self._arrived = 0


def flat_variables(model: Perceptron) -> list[Array]:
    """Return the model's variables as vectors, in order of creation."""
    return [weight.reshape(-1) for weight in model.weights]


def view_piece(variables: Sequence[Array], piece: Piece) -> Array:
    """Return a view of the part of the variables that a piece is."""
    first = piece.offset_bytes // 4
    return variables[piece.variable_index][first : first + piece.nbytes // 4]
