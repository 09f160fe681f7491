"""Aligns a clock by what was read of it: ping-pong, the wall clock, a device's anchors.

Each reading says that the offset lay in a window. Clocks keep their pace, so beside the straight
line through the sharpest readings an offset cannot have moved far since the last reading, nor until
the next: all windows together, each widened with the distance in time, leave an interval. Its
middle is the estimate, half its width the uncertainty, which holds as long as no clock wanders
faster than `WANDER`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.align.clocks.maps import (
    BLOCKS,
    FAR,
    MOST_DRIFT,
    PLAUSIBLE_DRIFT,
    ClockMap,
    Correction,
    Line,
    theil_sen,
)

if TYPE_CHECKING:
    from tracelens.arrays import Floats, Ints


WANDER: Final = 2e-6  # how much faster or slower a clock becomes as it warms up, at worst
_SHARP: Final = 3.0  # readings this much wider than the best do not draw the line
_ROUNDING_NS: Final = 2.0
WALL_UNCERTAINTY_NS: Final = 1_000_000  # what NTP keeps wall clocks to, when it works
PLAUSIBLE_PPM: Final = 100.0  # no quartz drifts more
_GOOD_WINDOW: Final = 1.5  # readings this much wider than the best are left out


@dataclass(frozen=True, eq=False)
class Readings:
    """Readings of a clock in order of time: the known one's times, windows, known minus read."""

    known: Ints
    window: Ints
    offset: Ints


def map_through(readings: Readings) -> ClockMap:
    """Map a clock to the known one; there is at least one reading."""
    return _Bounds.of(readings).clock_map()


def map_if_consistent(readings: Readings) -> ClockMap | None:
    """Map a clock to the known one; None where no clock can have been in all windows."""
    found = _Bounds.of(readings)
    return found.clock_map() if np.all(found.low <= found.high + _ROUNDING_NS) else None


@dataclass(frozen=True, eq=False)
class _Bounds:
    """Bounds of the offset from a line by all readings, at times of the read clock since `base`.

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
        """Interpolate between the middles, and extrapolate along the line."""
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
    blunt = 2 * max(float(half[best].max()), 0.0)  # below zero where readings contradict each other
    span = float(np.ptp(t[best]))
    shows_drift = span * PLAUSIBLE_DRIFT > blunt
    line = theil_sen(t[best], moved[best], 2 if shows_drift else len(best) + 1)
    if abs(line.slope) > MOST_DRIFT:  # these are no readings of a clock
        return Line(float(np.median(moved[best]))), PLAUSIBLE_DRIFT
    return line, WANDER + (blunt / span if shows_drift else PLAUSIBLE_DRIFT)


def _capped(most: Floats, t: Floats, pace: float) -> Floats:
    """Return what is at most `most`, and changes by no more than `pace` times the time between."""
    way = pace * (t - t[0])
    forward: Floats = np.minimum.accumulate(most - way) + way
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


def from_wall(clock: pl.DataFrame, reference: pl.DataFrame, common: ClockMap) -> ClockMap | None:
    """Tie a clock to a mapped one by both hosts' wall clocks; null where either was not read."""
    local, reference_rows = _local(clock), _local(reference)
    if local.is_empty() or reference_rows.is_empty():
        return None
    t = local["monotonic_ns"].to_numpy()
    their_t = reference_rows["monotonic_ns"].to_numpy()
    wall_minus_common = reference_rows["wall_ns"].to_numpy() - common.apply(their_t)
    middle = int(np.median(wall_minus_common))
    # The reference's wall clock at this clock's times, as an offset from its middle.
    level = theil_sen(
        (reference_rows["wall_ns"].to_numpy() - int(reference_rows["wall_ns"][0])).astype(float),
        (wall_minus_common - middle).astype(float),
    )
    since = (local["wall_ns"].to_numpy() - int(reference_rows["wall_ns"][0])).astype(float)
    offsets = t - local["wall_ns"].to_numpy() + middle + np.rint(level.at(since)).astype(np.int64)
    found = _line_map(t, offsets, 0.0)
    return replace(found, uncertainty_ns=WALL_UNCERTAINTY_NS + common.uncertainty_ns)


def wall_windows(clock: pl.DataFrame, found: ClockMap) -> Readings:
    """Return readings of wall clocks as windows, each as wide as their uncertainty."""
    t = _local(clock)["monotonic_ns"].to_numpy()
    known = found.apply(t)
    return Readings(known, np.full_like(t, 2 * found.uncertainty_ns), known - t)


def _local(readings: pl.DataFrame) -> pl.DataFrame:
    found = readings.filter((pl.col("method") == "local") & pl.col("wall_ns").is_not_null())
    return found.filter(_narrow()).sort("monotonic_ns")


def _narrow() -> pl.Expr:
    """Keep the readings that are about as sharp as the best."""
    return pl.col("window_ns") <= _GOOD_WINDOW * pl.col("window_ns").min()


def from_ping_pong(
    forward: pl.DataFrame, backward: pl.DataFrame, other: ClockMap
) -> ClockMap | None:
    """Tie a clock to a mapped one: `forward` was read by this clock, `backward` by the other."""
    forward, backward = forward.filter(_narrow()), backward.filter(_narrow())
    t = np.concatenate(
        [
            forward["monotonic_ns"].to_numpy(),
            (backward["monotonic_ns"] - backward["offset_ns"]).to_numpy(),
        ]
    )
    if not len(t):
        return None
    ahead = np.concatenate([forward["offset_ns"].to_numpy(), -backward["offset_ns"].to_numpy()])
    offsets = t - other.apply(t - ahead)
    windows = pl.concat([forward["window_ns"], backward["window_ns"]])
    half = _half(windows)
    return replace(_line_map(t, offsets, half), uncertainty_ns=round(half) + other.uncertainty_ns)


def bias(readings: pl.DataFrame, mapped: ClockMap, other: ClockMap) -> tuple[float, float] | None:
    """Return the bias of a mapped clock by ping-pong, and its uncertainty; null without any."""
    sharp = readings.filter(_narrow())
    if sharp.is_empty():
        return None
    t = sharp["monotonic_ns"].to_numpy()
    measured = t - other.apply(t - sharp["offset_ns"].to_numpy())
    return float(np.mean(measured - mapped.offset_at(t))), _half(sharp["window_ns"])


def _half(windows: pl.Series) -> float:
    smallest = windows.min()
    return float(smallest) / 2 if isinstance(smallest, int) else 0.0


def _line_map(t: Ints, offsets: Ints, half_window: float) -> ClockMap:
    """Draw a line through offsets; a level one if they cannot tell a drift from their own error."""
    base, middle = int(t.min()), int(np.median(offsets))
    since: Floats = (t - base).astype(np.float64)
    shows_drift = half_window / max(float(np.ptp(since)), 1.0) * 1e6 < PLAUSIBLE_PPM / 2
    line = theil_sen(since, (offsets - middle).astype(np.float64), 2 if shows_drift else len(t) + 1)
    knots_t = np.array([-FAR, FAR])
    return ClockMap(base, base - middle, Correction(knots_t, line.at(knots_t)))
