"""How the times of one clock become times of the common clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

if TYPE_CHECKING:
    from tracelens.arrays import Floats, Ints

# times: intermediate arrays of so many stay in a processor's cache [policy]
_TIMES_AT_ONCE: Final = 1 << 14


@dataclass(frozen=True, eq=False)
class ClockMap:
    """Common time = t - base + target - correction(t - base), in nanoseconds.

    Whole nanoseconds carry the large part, so that rounding loses nothing however far apart two clocks
    are. `base_ns` is a time of this clock, `target_ns` one of the common clock. `correction` is None for
    the clock that is the common one.
    """

    base_ns: int = 0
    target_ns: int = 0
    correction: Correction | None = None
    uncertainty_ns: int = 0

    def to_common_ns(self, times_ns: Ints) -> Ints:
        """Return common times, in the shape of `times_ns`."""
        if self.correction is None:
            return np.asarray(times_ns - self.base_ns + self.target_ns)
        common_ns = np.empty(times_ns.shape, np.int64)
        row_count = max(_TIMES_AT_ONCE // max(times_ns[:1].size, 1), 1)
        for first_row in range(0, len(times_ns), row_count):
            chunk_ns = times_ns[first_row : first_row + row_count] - self.base_ns
            correction_ns = self.correction.evaluate_ns(chunk_ns.astype(np.float64))
            chunk_ns += self.target_ns
            chunk_ns -= np.rint(correction_ns, out=correction_ns).astype(np.int64)
            common_ns[first_row : first_row + row_count] = chunk_ns
        return common_ns

    @property
    def row(self) -> dict[str, Any]:
        """What `to_common_ns` needs, as plain values: two times, ns, and the knots of the correction."""
        knots = None
        if self.correction:
            times_ns, values_ns = self.correction.knot_times_ns, self.correction.knot_values_ns
            knots = [times_ns.tolist(), values_ns.tolist()]
        return {"base": self.base_ns, "target": self.target_ns, "knots": knots}

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Self:
        """Rebuild a map from its `row`, without its uncertainty."""
        knots = row["knots"]
        correction = (
            Correction(knot_times_ns=np.array(knots[0]), knot_values_ns=np.array(knots[1]))
            if knots
            else None
        )
        return cls(base_ns=row["base"], target_ns=row["target"], correction=correction)

    def measure_lead_ns(self, times_ns: Ints) -> Ints:
        """Return by how much this clock is ahead of the common one at its own times, ns."""
        return np.asarray(times_ns - self.to_common_ns(times_ns))

    def measure_drift_ppm(self, first_ns: int, last_ns: int) -> float:
        """Measure how much faster this clock runs than the common one between two of its own times.

        Jumps do not count.
        """
        offsets_ns = self.measure_lead_ns(np.array([first_ns, max(last_ns, first_ns + 1)]))
        jumps = self.correction.jump_times_and_heights_ns if self.correction else ()
        jumped_ns = sum(height_ns for _, height_ns in jumps)
        drifted_ns = float(offsets_ns[1] - offsets_ns[0] - jumped_ns)
        return drifted_ns / max(last_ns - first_ns, 1) * 1e6

    @property
    def jump_times_ns(self) -> tuple[int, ...]:
        """The common times at which this clock jumped, ns."""
        jumps = self.correction.jump_times_and_heights_ns if self.correction else ()
        return tuple(
            int(self.to_common_ns(np.array([round(time) + self.base_ns]))[0]) for time, _ in jumps
        )


@dataclass(frozen=True, eq=False)
class Correction:
    """By how much a clock is ahead at its own times, beyond a constant: a line through knots, ns.

    Two knots a nanosecond apart are a jump. `sigma_ns` is the uncertainty of the line, `scatter_ns` how
    far single exits are from it, and `jump_times_and_heights_ns` are pairs of time and height.
    """

    knot_times_ns: Floats
    knot_values_ns: Floats
    sigma_ns: float = 0.0
    scatter_ns: float = 0.0
    jump_times_and_heights_ns: tuple[tuple[float, float], ...] = ()

    def evaluate_ns(self, times_ns: Floats) -> Floats:
        """Return the correction at times of this clock."""
        return np.interp(times_ns, self.knot_times_ns, self.knot_values_ns)
