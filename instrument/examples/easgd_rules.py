"""The update rules of elastic averaging SGD, on flat weight vectors.

Source: You, Buluc, Demmel, "Scaling Deep Learning on GPU and Knights Landing clusters", SC 2017
(arXiv 1708.02983), equations 1 to 6; Zhang, Choromanska, LeCun, NIPS 2015. Both sides use the values
from before the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mlp import Array


@dataclass(frozen=True)
class Rates:
    """Learning rate eta, momentum mu, and the elastic pull eta * rho.

    The pull is stable below ``2 / (workers + 1)``.
    """

    eta: float
    pull: float
    momentum: float

    @classmethod
    def for_workers(cls, workers: int, eta: float, momentum: float) -> Rates:
        """Pull as hard as is safe; with momentum, learn slower by as much as it makes faster."""
        return cls(eta * (1 - momentum), 0.9 / workers, momentum)


class LocalWeights:
    """A worker's own weights W_i, with their velocity."""

    def __init__(self, weights: Array, rates: Rates) -> None:
        self.values = weights
        self._velocity = np.zeros_like(weights)
        self._rates = rates

    def update(self, gradient: Array, centre: Array) -> None:
        """Step along the gradient and towards the centre: (5) and (6); without momentum that is (1)."""
        self._velocity *= self._rates.momentum
        self._velocity -= self._rates.eta * gradient
        self.values += self._velocity - self._rates.pull * (self.values - centre)


def update_centre(centre: Array, total: Array, workers: int, rates: Rates) -> None:
    """Pull the centre towards the sum of so many workers' weights, in place: (2)."""
    centre += rates.pull * (total - workers * centre)
