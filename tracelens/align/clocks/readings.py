"""Aligns a clock by what was read of it: ping-pong, the wall clock, a device's anchors.

Each reading says that the offset lay in a window. Clocks keep their pace, so in addition to the straight
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

from tracelens.align.clocks.lines import (
    BLOCK_COUNT,
    FAR_NS,
    MAX_DRIFT,
    PLAUSIBLE_DRIFT,
    Line,
    fit_theil_sen,
)
from tracelens.model.clock_map import ClockMap, Correction

if TYPE_CHECKING:
    from tracelens.arrays import Floats, Ints


WANDER: Final = 2e-6  # how much faster or slower a clock becomes as it warms up, at worst
MAX_RATIO_OF_SHARP_WINDOW: Final = 3.0  # wider readings than so many of the best draw no line
ROUNDING_NS: Final = 2.0
WALL_UNCERTAINTY_NS: Final = 1_000_000  # what NTP keeps wall clocks to, when it works
PLAUSIBLE_PPM: Final = 100.0  # no quartz drifts more
MAX_RATIO_OF_NARROW_WINDOW: Final = 1.5  # wider readings than so many of the best are left out


@dataclass(frozen=True, eq=False)
class Readings:
    """Readings of a clock in order of time, all [reading], ns.

    `common` are the times of the clock that is known, `offset` what it showed more than the clock that
    was read, and `window` how far apart the bounds of that are.
    """

    common: Ints
    window: Ints
    offset: Ints


def map_through(readings: Readings) -> ClockMap:
    """Map a clock to the known one; there is at least one reading."""
    return _Bounds.from_readings(readings).to_map()


def map_if_consistent(readings: Readings) -> ClockMap | None:
    """Map a clock to the known one; None where no clock can have been in all windows."""
    bounds = _Bounds.from_readings(readings)
    return bounds.to_map() if np.all(bounds.low_ns <= bounds.high_ns + ROUNDING_NS) else None


@dataclass(frozen=True, eq=False)
class _Bounds:
    """Bounds of the offset relative to a line, [reading], at times of the read clock since `base_ns`.

    `pace` is how fast the offset can leave the line.
    """

    base_ns: int
    target_ns: int
    times_ns: Floats
    low_ns: Floats
    high_ns: Floats
    line: Line
    pace: float

    @classmethod
    def from_readings(cls, readings: Readings) -> _Bounds:
        common, offset = readings.common, readings.offset
        read = common - offset
        since = (read - read[0]).astype(np.float64)
        order = np.argsort(since, kind="stable")
        times, half_windows = since[order], readings.window[order] / 2.0
        offsets = (offset - offset[0]).astype(np.float64)[order]
        line, pace = _fit_trend(times, offsets, half_windows)
        beside = offsets - line.evaluate(times)
        low = -_limit_pace(half_windows - beside, times, pace)
        high = _limit_pace(half_windows + beside, times, pace)
        return cls(int(read[0]), int(common[0]), times, low, high, line, pace)

    def to_map(self) -> ClockMap:
        """Interpolate between the middles, and extrapolate along the line."""
        times, slope = self.times_ns, self.line.slope
        middle = (self.low_ns + self.high_ns) / 2 + self.line.evaluate(times)
        first_ns, last_ns = (
            middle[0] - slope * (FAR_NS + times[0]),
            middle[-1] + slope * (FAR_NS - times[-1]),
        )
        correction = Correction(
            np.concatenate([[-FAR_NS], times, [FAR_NS]]),
            -np.concatenate([[first_ns], middle, [last_ns]]),
        )
        return ClockMap(self.base_ns, self.target_ns, correction, round(self._worst_error_ns()))

    def _worst_error_ns(self) -> float:
        """Measure how far the truth can be from the line between the middles, at worst.

        Between two readings, `reach` apart at the fastest pace, a bound that differs by u x reach
        between them bulges by at most reach (1 - u^2) / 2 beyond its own straight line.
        """
        half = np.abs(self.high_ns - self.low_ns) / 2
        reach = np.maximum(self.pace * np.diff(self.times_ns), 1e-9)
        change = np.minimum(np.abs(np.diff(self.low_ns)), np.abs(np.diff(self.high_ns)))
        bulge = reach * (1 - np.minimum(change / reach, 1.0) ** 2) / 2
        between = np.maximum(half[:-1], half[1:]) + bulge
        return float(max(half.max(), between.max(initial=0.0)))


def _fit_trend(times_ns: Floats, offsets_ns: Floats, half_windows_ns: Floats) -> tuple[Line, float]:
    """Draw a line through the sharpest reading of each block, level where they are too close.

    Also return how much faster than the line a clock may run: its wander, and the line's own error.
    """
    widest_ns = MAX_RATIO_OF_SHARP_WINDOW * max(float(half_windows_ns.min()), 1.0)
    sharp = np.flatnonzero(half_windows_ns <= widest_ns)
    blocks = np.array_split(sharp, max(min(BLOCK_COUNT, len(sharp)), 1))
    rows = np.array([block[np.argmin(half_windows_ns[block])] for block in blocks])
    # Windows are below zero where readings contradict each other.
    error_ns = 2 * max(float(half_windows_ns[rows].max()), 0.0)
    span_ns = float(np.ptp(times_ns[rows]))
    shows_drift = span_ns * PLAUSIBLE_DRIFT > error_ns
    line = fit_theil_sen(times_ns[rows], offsets_ns[rows], 2 if shows_drift else len(rows) + 1)
    if abs(line.slope) > MAX_DRIFT:  # these are no readings of a clock
        return Line(float(np.median(offsets_ns[rows]))), PLAUSIBLE_DRIFT
    return line, WANDER + (error_ns / span_ns if shows_drift else PLAUSIBLE_DRIFT)


def _limit_pace(most_ns: Floats, times_ns: Floats, pace: float) -> Floats:
    """Return the largest values up to `most_ns` that change no faster than `pace`."""
    reach_ns = pace * (times_ns - times_ns[0])
    forward: Floats = np.minimum.accumulate(most_ns - reach_ns) + reach_ns
    backward = np.minimum.accumulate((most_ns + reach_ns)[::-1])[::-1] - reach_ns
    return np.asarray(np.minimum(forward, backward))


def map_by_wall(clock: pl.DataFrame, reference: pl.DataFrame, common: ClockMap) -> ClockMap | None:
    """Tie a clock to a mapped one by both hosts' wall clocks; None where either was not read."""
    local, reference_rows = _select_local(clock), _select_local(reference)
    if local.is_empty() or reference_rows.is_empty():
        return None
    local_ns, local_wall_ns = (local[name].to_numpy() for name in ("monotonic_ns", "wall_ns"))
    wall_ns = reference_rows["wall_ns"].to_numpy()
    wall_minus_common = wall_ns - common.apply(reference_rows["monotonic_ns"].to_numpy())
    middle = int(np.median(wall_minus_common))
    # The reference's wall clock at this clock's times, as an offset from its middle.
    line = fit_theil_sen(
        (wall_ns - wall_ns[0]).astype(float), (wall_minus_common - middle).astype(float)
    )
    lead_ns = np.rint(line.evaluate((local_wall_ns - wall_ns[0]).astype(float))).astype(np.int64)
    by_line = _map_by_line(local_ns, local_ns - local_wall_ns + middle + lead_ns, 0.0)
    return replace(by_line, uncertainty_ns=WALL_UNCERTAINTY_NS + common.uncertainty_ns)


def wall_windows(clock: pl.DataFrame, by_wall: ClockMap) -> Readings:
    """Return readings of wall clocks as windows, each as wide as their uncertainty."""
    local_ns = _select_local(clock)["monotonic_ns"].to_numpy()
    common_ns = by_wall.apply(local_ns)
    windows_ns = np.full_like(local_ns, 2 * by_wall.uncertainty_ns)
    return Readings(common_ns, windows_ns, common_ns - local_ns)


def _select_local(readings: pl.DataFrame) -> pl.DataFrame:
    is_local = (pl.col("method") == "local") & pl.col("wall_ns").is_not_null()
    return _select_narrow(readings.filter(is_local)).sort("monotonic_ns")


def _select_narrow(readings: pl.DataFrame) -> pl.DataFrame:
    """Keep the readings that are about as sharp as the best."""
    narrowest_ns = pl.col("window_ns").min()
    return readings.filter(pl.col("window_ns") <= MAX_RATIO_OF_NARROW_WINDOW * narrowest_ns)


def map_by_ping_pong(
    forward: pl.DataFrame, backward: pl.DataFrame, other: ClockMap
) -> ClockMap | None:
    """Tie a clock to a mapped one: `forward` was read by this clock, `backward` by the other."""
    forward, backward = _select_narrow(forward), _select_narrow(backward)
    pings = pl.concat(
        [
            forward.select("monotonic_ns", "offset_ns", "window_ns"),
            backward.select(
                pl.col("monotonic_ns") - pl.col("offset_ns"), -pl.col("offset_ns"), "window_ns"
            ),
        ]
    )
    if pings.is_empty():
        return None
    half_ns = _half_window_ns(pings)
    by_line = _map_by_line(pings["monotonic_ns"].to_numpy(), _offsets_ns(pings, other), half_ns)
    return replace(by_line, uncertainty_ns=round(half_ns) + other.uncertainty_ns)


def measure_bias(
    readings: pl.DataFrame, mapped: ClockMap, other: ClockMap
) -> tuple[float, float] | None:
    """Return the bias of a mapped clock by ping-pong, and its uncertainty, ns; None without any."""
    pings = _select_narrow(readings)
    if pings.is_empty():
        return None
    expected_ns = mapped.offset_at(pings["monotonic_ns"].to_numpy())
    return float(np.mean(_offsets_ns(pings, other) - expected_ns)), _half_window_ns(pings)


def _offsets_ns(pings: pl.DataFrame, other: ClockMap) -> Ints:
    """Return by how much the reading clock is ahead of the common one, by the map of the other."""
    times_ns = pings["monotonic_ns"].to_numpy()
    return times_ns - other.apply(times_ns - pings["offset_ns"].to_numpy())


def _half_window_ns(readings: pl.DataFrame) -> float:
    smallest_ns = readings["window_ns"].min()
    return float(smallest_ns) / 2 if isinstance(smallest_ns, int) else 0.0


def _map_by_line(times_ns: Ints, offsets_ns: Ints, half_window_ns: float) -> ClockMap:
    """Draw a line through offsets; a level one if they cannot tell a drift from their own error."""
    base_ns, middle_ns = int(times_ns.min()), int(np.median(offsets_ns))
    since_ns: Floats = (times_ns - base_ns).astype(np.float64)
    error_ppm = half_window_ns / max(float(np.ptp(since_ns)), 1.0) * 1e6
    min_points = 2 if error_ppm < PLAUSIBLE_PPM / 2 else len(times_ns) + 1
    line = fit_theil_sen(since_ns, (offsets_ns - middle_ns).astype(np.float64), min_points)
    knots_ns = np.array([-FAR_NS, FAR_NS])
    return ClockMap(base_ns, base_ns - middle_ns, Correction(knots_ns, line.evaluate(knots_ns)))
