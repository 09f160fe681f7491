"""Straight lines that follow a clock, robustly fitted, and the bounds that any clock keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from tracelens.arrays import Floats

BLOCK_COUNT: Final = 64  # of collectives, readings or requests: each block has one point of a line
MIN_POINTS_FOR_SLOPE: Final = 16  # with fewer points a line follows the noise
PLAUSIBLE_DRIFT: Final = 1e-4  # no quartz drifts more than 100 ppm
MAX_DRIFT: Final = 10 * PLAUSIBLE_DRIFT  # what drifts more is no clock
FAR_NS: Final = 1e16  # beyond any run, from its start


@dataclass(frozen=True)
class Line:
    """``intercept + slope * t``: nanoseconds over times in nanoseconds."""

    intercept_ns: float = 0.0
    slope: float = 0.0

    def evaluate_ns(self, times_ns: Floats) -> Floats:
        """Return the line's values at some times."""
        return self.intercept_ns + self.slope * times_ns

    def then_corrected_by(self, second: Line) -> Line:
        """Return the line whose correction equals that of this one followed by that of `second`."""
        return Line(
            self.intercept_ns + second.intercept_ns - second.slope * self.intercept_ns,
            self.slope + second.slope - second.slope * self.slope,
        )


def fit_theil_sen(x: Floats, y: Floats, min_points: int = MIN_POINTS_FOR_SLOPE) -> Line:
    """Fit a line to `y` over `x`, [point], by the median slope of all pairs; a level one to few points.

    SciPy's `theilslopes` does so, too; importing it takes longer than explaining a small run.
    """
    if len(x) < min_points:
        return Line(float(np.median(y)))
    i, j = np.triu_indices(len(x), 1)
    differs = x[j] > x[i]
    slopes = (y[j] - y[i])[differs] / (x[j] - x[i])[differs]
    slope = float(np.median(slopes)) if len(slopes) else 0.0
    return Line(float(np.median(y - slope * x)), slope)
