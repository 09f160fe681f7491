"""How one clock becomes another, known one: through windows within which both were read.

Each reading says that the offset lay in a window. Clocks keep their pace, so beside the straight line
through the sharpest readings an offset cannot have moved far since the last reading, nor until the
next: all windows together, each widened with the distance in time, leave an interval. Its middle is the
estimate, half its width the uncertainty, which holds as long as no clock wanders faster than `WANDER`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.transforms._clock_map import ClockMap, Times
from tracelens.transforms._fit import (
    BLOCKS,
    FAR,
    PLAUSIBLE_DRIFT,
    Correction,
    Floats,
    Line,
    theil_sen,
)

if TYPE_CHECKING:
    import numpy.typing as npt

WANDER: Final = 2e-6  # how much faster or slower a clock becomes as it warms up, at worst
_SHARP: Final = 3.0  # readings this much wider than the best do not draw the line
_ROUNDING_NS: Final = 2.0


@dataclass(frozen=True)
class Readings:
    """Readings of a clock in order of time: the known one's times, windows, known minus read."""

    known: Times
    window: Times
    offset: Times


def through(readings: Readings) -> ClockMap:
    """Map a clock to the known one; there is at least one reading."""
    return _Bounds.of(readings).clock_map()


def if_they_agree(readings: Readings) -> ClockMap | None:
    """Map a clock to the known one; None where no clock can have been in all windows."""
    found = _Bounds.of(readings)
    return found.clock_map() if np.all(found.low <= found.high + _ROUNDING_NS) else None


@dataclass(frozen=True)
class _Bounds:
    """What all readings leave of the offset beside a line, at times of the read clock since `base`.

    `pace` is how fast the offset can leave the line.
    """

    base: int
    target: int
    t: Floats
    low: Floats
    high: Floats
    line: Line
    pace: float

    @classmethod
    def of(cls, readings: Readings) -> _Bounds:
        known, offset = readings.known, readings.offset
        read = known - offset
        since = (read - read[0]).astype(np.float64)
        order = np.argsort(since, kind="stable")
        t, half = since[order], readings.window[order] / 2.0
        moved = (offset - offset[0]).astype(np.float64)[order]
        line, pace = _trend(t, moved, half)
        rest = moved - line.at(t)
        low, high = -_capped(half - rest, t, pace), _capped(half + rest, t, pace)
        return cls(int(read[0]), int(known[0]), t, low, high, line, pace)

    def clock_map(self) -> ClockMap:
        """Go through the middles, and on along the line."""
        t, slope = self.t, self.line.slope
        middle = (self.low + self.high) / 2 + self.line.at(t)
        first, last = middle[0] - slope * (FAR + t[0]), middle[-1] + slope * (FAR - t[-1])
        return ClockMap(
            base=self.base,
            target=self.target,
            correction=Correction(
                np.concatenate([[-FAR], t, [FAR]]), -np.concatenate([[first], middle, [last]])
            ),
            uncertainty_ns=round(_worst(t, self.low, self.high, self.pace)),
        )


def _trend(t: Floats, moved: Floats, half: Floats) -> tuple[Line, float]:
    """Draw a line through the sharpest reading of each block, level where they are too close.

    Also return how much faster than the line a clock may run: its wander, and the line's own error.
    """
    sharp = np.flatnonzero(half <= _SHARP * max(float(half.min()), 1.0))
    blocks = [part for part in np.array_split(sharp, min(BLOCKS, len(sharp))) if len(part)]
    best = np.array([part[np.argmin(half[part])] for part in blocks])
    blunt = 2 * float(half[best].max())
    span = float(np.ptp(t[best]))
    telling = span * PLAUSIBLE_DRIFT > blunt
    line = theil_sen(t[best], moved[best], 2 if telling else len(best) + 1)
    if abs(line.slope) > 10 * PLAUSIBLE_DRIFT:  # these are no readings of a clock
        return Line(float(np.median(moved[best]))), PLAUSIBLE_DRIFT
    return line, WANDER + (blunt / span if telling else PLAUSIBLE_DRIFT)


def _capped(most: Floats, t: Floats, pace: float) -> Floats:
    """Return what is at most `most`, and changes by no more than `pace` times the time between."""
    way = pace * (t - t[0])
    forward: npt.NDArray[np.float64] = np.minimum.accumulate(most - way) + way
    backward = np.minimum.accumulate((most + way)[::-1])[::-1] - way
    return np.asarray(np.minimum(forward, backward))


def _worst(t: Floats, low: Floats, high: Floats, pace: float) -> float:
    """Return how far the truth can be from the line between the middles, at worst.

    Between two readings, `reach` apart at the fastest pace, a bound that differs by u x reach between
    them bulges by at most reach (1 - u^2) / 2 beyond its own straight line.
    """
    half = np.abs(high - low) / 2
    reach = np.maximum(pace * np.diff(t), 1e-9)
    u = np.minimum(np.abs(np.diff(low)), np.abs(np.diff(high))) / reach
    bulge = reach * (1 - np.minimum(u, 1.0) ** 2) / 2
    between = np.maximum(half[:-1], half[1:]) + bulge
    return float(max(half.max(), between.max(initial=0.0)))
