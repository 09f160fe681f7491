"""The setting of a run, and the noise of its work in one of four families."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable

Grid: TypeAlias = NDArray[np.float64]  # ranks x steps

FAMILIES: Final = ("gaussian", "lognormal", "heavy_tailed", "autocorrelated")
SPREAD: Final = 0.02  # standard deviation of a phase's work around its mean
LEAST_FACTOR: Final = 0.5  # no work takes less than this share of its mean
AUTOCORRELATION: Final = 0.9  # of a step's work with that of the step before


@dataclass(frozen=True)
class Setting:
    """What a run is drawn from. Equal settings give equal random numbers."""

    ranks: int
    steps: int
    family: str
    seed: int

    def random(self, purpose: str) -> np.random.Generator:
        """Return the random numbers of one purpose; other purposes do not change them."""
        return np.random.default_rng([self.seed, zlib.crc32(purpose.encode())])

    def draw_work(self, purpose: str, mean_ns: float) -> Grid:
        """Draw the work of each rank and step around a mean."""
        factors = DRAWS[self.family](self.random(purpose), (self.ranks, self.steps))
        return mean_ns * np.maximum(factors, LEAST_FACTOR)


def draw_gaussian(random: np.random.Generator, shape: tuple[int, int]) -> Grid:
    return 1 + SPREAD * random.standard_normal(shape)


def draw_lognormal(random: np.random.Generator, shape: tuple[int, int]) -> Grid:
    return np.exp(SPREAD * random.standard_normal(shape))


def draw_heavy_tailed(random: np.random.Generator, shape: tuple[int, int]) -> Grid:
    """Draw Student's t with 3 degrees of freedom, whose variance is 3."""
    series: Grid = random.standard_t(3, shape)
    return 1 + SPREAD / float(np.sqrt(3)) * series


def draw_autocorrelated(random: np.random.Generator, shape: tuple[int, int]) -> Grid:
    """Draw an autoregressive series of order one for each rank."""
    series = random.standard_normal(shape)
    for step in range(1, shape[1]):
        fresh = np.sqrt(1 - AUTOCORRELATION**2) * series[:, step]
        series[:, step] = AUTOCORRELATION * series[:, step - 1] + fresh
    return 1 + SPREAD * series


DRAWS: Final[dict[str, Callable[[np.random.Generator, tuple[int, int]], Grid]]] = {
    "gaussian": draw_gaussian,
    "lognormal": draw_lognormal,
    "heavy_tailed": draw_heavy_tailed,
    "autocorrelated": draw_autocorrelated,
}
