"""How the times of one clock become times of the common one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tracelens.transforms._fit import Correction

Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ClockMap:
    """Common time = t - base + target - correction(t - base).

    Whole nanoseconds carry the large part, so that nothing is lost to rounding however far apart two
    clocks are; `correction` is null for the clock that is the common one.
    """

    base: int = 0
    target: int = 0
    correction: Correction | None = None
    uncertainty_ns: int = 0

    def apply(self, t: Times) -> Times:
        """Return common times."""
        moved = t - self.base + self.target
        if self.correction is None:
            return np.asarray(moved)
        fine = self.correction.at((t - self.base).astype(np.float64))
        return np.asarray(moved - np.rint(fine).astype(np.int64))

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

    def offset_at(self, t: Times) -> Times:
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
