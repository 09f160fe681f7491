"""Whether a series grows: its slope, with an interval that neighbours do not make too narrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from scipy.special import stdtrit

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["WARM_UP", "Trend", "trend"]

WARM_UP: Final = 0.25  # of the time: caches fill, and what is imported later is imported
_BLOCKS: Final = 12
_LEAST_BLOCKS: Final = 2  # no more of them tell no slope
_FLAT: Final = 0.05  # of what is there, in an hour
_HOUR_S: Final = 3600.0


class Trend(NamedTuple):
    """A series after the warm-up: its median, and what it grows in an hour (95 % interval)."""

    median: float
    slope: float
    low: float
    high: float

    @property
    def flat(self) -> bool:
        """Whether no growth is seen, or one of less than 5 % in an hour."""
        return self.low <= max(0.0, _FLAT * self.median)


def trend(seconds: Sequence[float], values: Sequence[float]) -> Trend:
    """Return how a series goes on after the warm-up.

    Neighbours are alike, so a line is fitted to means of blocks, which hardly depend on each other.
    """
    seconds_array, value = np.asarray(seconds, float), np.asarray(values, float)
    is_warm = seconds_array >= seconds_array[0] + WARM_UP * (seconds_array[-1] - seconds_array[0])
    blocks = min(_BLOCKS, int(is_warm.sum()))
    x = np.array([part.mean() for part in np.array_split(seconds_array[is_warm] / _HOUR_S, blocks)])
    y = np.array([part.mean() for part in np.array_split(value[is_warm], blocks)])
    if blocks <= _LEAST_BLOCKS:
        return Trend(float(np.median(value[is_warm])), 0.0, -np.inf, np.inf)
    slope, begin = np.polyfit(x, y, 1)
    squares = ((y - begin - slope * x) ** 2).sum() / ((x - x.mean()) ** 2).sum()
    half = stdtrit(blocks - 2, 0.975) * np.sqrt(squares / (blocks - 2))
    return Trend(float(np.median(value[is_warm])), slope, slope - half, slope + half)
