"""How the times of one clock become times of another: lines through points, corrections, and maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from typing import Final

    from tracelens.arrays import Floats, Ints


BLOCKS: Final = 64
MIN_FOR_SLOPE: Final = 16  # with fewer points a line follows the noise
PLAUSIBLE_DRIFT: Final = 1e-4  # no quartz drifts more than 100 ppm
MOST_DRIFT: Final = 10 * PLAUSIBLE_DRIFT  # what drifts more is no clock
_AT_ONCE: Final = 1 << 14  # times that are moved
FAR: Final = 1e16  # beyond any run, from its start, in nanoseconds


@dataclass(frozen=True, eq=False)
class ClockMap:
    """Common time = t - base + target - correction(t - base).

    Whole nanoseconds carry the large part, so that nothing is lost to rounding however far apart two
    clocks are; `correction` is null for the clock that is the common one.
    """

    base: int = 0
    target: int = 0
    correction: Correction | None = None
    uncertainty_ns: int = 0

    def apply(self, t: Ints) -> Ints:
        """Return common times, [any]."""
        if self.correction is None:
            return np.asarray(t - self.base + self.target)
        found = np.empty(t.shape, np.int64)
        rows = max(_AT_ONCE // max(t[:1].size, 1), 1)
        for first in range(0, len(t), rows):  # what is computed on the way stays in the cache
            since = t[first : first + rows] - self.base
            fine = self.correction.at(since.astype(np.float64))
            since += self.target
            since -= np.rint(fine, out=fine).astype(np.int64)
            found[first : first + rows] = since
        return found

    @property
    def row(self) -> dict[str, Any]:
        """Return what `apply` needs, in plain values."""
        fine = self.correction
        knots = [fine.knots_t.tolist(), fine.knots.tolist()] if fine else None
        return {"base": self.base, "target": self.target, "knots": knots}

    @classmethod
    def of(cls, row: dict[str, Any]) -> Self:
        """Make it from what `row` gave; how sure it was is not known any more."""
        knots = row["knots"]
        fine = Correction(np.array(knots[0]), np.array(knots[1])) if knots else None
        return cls(row["base"], row["target"], fine)

    def offset_at(self, t: Ints) -> Ints:
        """Return what this clock shows more than the common one, at its own times."""
        return np.asarray(t - self.apply(t))

    def drift_ppm(self, first: int, last: int) -> float:
        """Return how much faster this clock runs than the common one, jumps aside."""
        offsets = self.offset_at(np.array([first, max(last, first + 1)]))
        jumped = sum(height for _, height in self.correction.jumps) if self.correction else 0.0
        return float(offsets[1] - offsets[0] - jumped) / max(last - first, 1) * 1e6

    @property
    def jumps(self) -> tuple[int, ...]:
        """When this clock jumped, in common time."""
        found = self.correction.jumps if self.correction else ()
        return tuple(int(self.apply(np.array([round(at) + self.base]))[0]) for at, _ in found)


@dataclass(frozen=True, eq=False)
class Correction:
    """What to take off a clock at its times: a piecewise straight line through knots.

    Two knots a nanosecond apart are a jump. `sigma` is the uncertainty of the line, `spread` how far
    single exits scatter around it, `jumps` the times and heights of jumps.
    """

    knots_t: Floats
    knots: Floats
    sigma: float = 0.0
    spread: float = 0.0
    jumps: tuple[tuple[float, float], ...] = ()

    def at(self, t: Floats) -> Floats:
        """Return the correction at times of this clock."""
        return np.interp(t, self.knots_t, self.knots)


@dataclass(frozen=True)
class Line:
    """``intercept + slope * t``."""

    intercept: float = 0.0
    slope: float = 0.0

    def at(self, t: Floats) -> Floats:
        """Return the line's values."""
        return self.intercept + self.slope * t

    def corrected_by(self, more: Line) -> Line:
        """Return the line that takes off this one and then `more`."""
        return Line(
            self.intercept + more.intercept - more.slope * self.intercept,
            self.slope + more.slope - more.slope * self.slope,
        )


def theil_sen(x: Floats, y: Floats, at_least: int = MIN_FOR_SLOPE) -> Line:
    """Fit a line by the median of all slopes; too few points give a level one."""
    if len(x) < at_least:
        return Line(float(np.median(y)))
    i, j = np.triu_indices(len(x), 1)
    apart = x[j] > x[i]
    slope = float(np.median((y[j] - y[i])[apart] / (x[j] - x[i])[apart])) if apart.any() else 0.0
    return Line(float(np.median(y - slope * x)), slope)
