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

    `common_ns` are times of the known clock, `lead_ns` by how much it is ahead of the clock that was
    read, and `window_ns` how far apart the bounds of that are.
    """

    common_ns: Ints
    window_ns: Ints
    lead_ns: Ints


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
        """Fit a line to how far a clock is behind the common one, and narrow the windows of readings.

        No window stays wider than the pace of the clock allows from one reading to the next. All arrays
        are [reading], by time.
        """
        common_ns, lead_ns = readings.common_ns, readings.lead_ns
        read_ns = common_ns - lead_ns
        since_first_ns = (read_ns - read_ns[0]).astype(np.float64)
        order = np.argsort(since_first_ns, kind="stable")
        times_ns, half_windows_ns = since_first_ns[order], readings.window_ns[order] / 2.0
        offsets_ns = (lead_ns - lead_ns[0]).astype(np.float64)[order]
        line, pace = _fit_trend(times_ns, offsets_ns, half_windows_ns)
        beside_line_ns = offsets_ns - line.evaluate_ns(times_ns)
        low_ns = -_limit_pace(half_windows_ns - beside_line_ns, times_ns, pace)
        high_ns = _limit_pace(half_windows_ns + beside_line_ns, times_ns, pace)
        return cls(
            base_ns=int(read_ns[0]),
            target_ns=int(common_ns[0]),
            times_ns=times_ns,
            low_ns=low_ns,
            high_ns=high_ns,
            line=line,
            pace=pace,
        )

    def to_map(self) -> ClockMap:
        """Interpolate between the middles, and extrapolate along the line."""
        times_ns, slope = self.times_ns, self.line.slope
        middle_ns = (self.low_ns + self.high_ns) / 2 + self.line.evaluate_ns(times_ns)
        far_before_ns = middle_ns[0] - slope * (FAR_NS + times_ns[0])
        far_after_ns = middle_ns[-1] + slope * (FAR_NS - times_ns[-1])
        correction = Correction(
            knot_times_ns=np.concatenate([[-FAR_NS], times_ns, [FAR_NS]]),
            knot_values_ns=-np.concatenate([[far_before_ns], middle_ns, [far_after_ns]]),
        )
        return ClockMap(
            self.base_ns,
            self.target_ns,
            correction,
            uncertainty_ns=round(self._find_worst_error_ns()),
        )

    def _find_worst_error_ns(self) -> float:
        """Measure how far the truth can be from the line between the middles, at worst.

        Between two readings, `reach` apart at the fastest pace, a bound that differs by u x reach
        between them bulges by at most reach (1 - u^2) / 2 beyond its own straight line.
        """
        half_window_ns = np.abs(self.high_ns - self.low_ns) / 2
        reach_ns = np.maximum(self.pace * np.diff(self.times_ns), 1e-9)
        change_ns = np.minimum(np.abs(np.diff(self.low_ns)), np.abs(np.diff(self.high_ns)))
        bulge_ns = reach_ns * (1 - np.minimum(change_ns / reach_ns, 1.0) ** 2) / 2
        between_readings_ns = np.maximum(half_window_ns[:-1], half_window_ns[1:]) + bulge_ns
        return float(max(half_window_ns.max(), between_readings_ns.max(initial=0.0)))


def _fit_trend(times_ns: Floats, offsets_ns: Floats, half_windows_ns: Floats) -> tuple[Line, float]:
    """Draw a line through the sharpest reading of each block, level where they are too close.

    Offsets and half windows are [reading]. Also return how much faster than the line a clock may run,
    ns / ns: its wander, and the line's own error.
    """
    widest_ns = MAX_RATIO_OF_SHARP_WINDOW * max(float(half_windows_ns.min()), 1.0)
    sharp_readings = np.flatnonzero(half_windows_ns <= widest_ns)
    blocks = np.array_split(sharp_readings, max(min(BLOCK_COUNT, len(sharp_readings)), 1))
    sharpest_of_blocks = np.array([block[np.argmin(half_windows_ns[block])] for block in blocks])
    # Windows are below zero where readings contradict each other.
    error_ns = 2 * max(float(half_windows_ns[sharpest_of_blocks].max()), 0.0)
    span_ns = float(np.ptp(times_ns[sharpest_of_blocks]))
    shows_drift = span_ns * PLAUSIBLE_DRIFT > error_ns
    min_points = 2 if shows_drift else len(sharpest_of_blocks) + 1
    line = fit_theil_sen(times_ns[sharpest_of_blocks], offsets_ns[sharpest_of_blocks], min_points)
    if abs(line.slope) > MAX_DRIFT:  # these are no readings of a clock
        return Line(float(np.median(offsets_ns[sharpest_of_blocks]))), PLAUSIBLE_DRIFT
    return line, WANDER + (error_ns / span_ns if shows_drift else PLAUSIBLE_DRIFT)


def _limit_pace(max_ns: Floats, times_ns: Floats, pace: float) -> Floats:
    """Return the largest values up to `max_ns`, [time], that change no faster than `pace` (ns / ns)."""
    reach_ns = pace * (times_ns - times_ns[0])
    forward_ns: Floats = np.minimum.accumulate(max_ns - reach_ns) + reach_ns
    backward_ns = np.minimum.accumulate((max_ns + reach_ns)[::-1])[::-1] - reach_ns
    return np.asarray(np.minimum(forward_ns, backward_ns))


def map_by_wall(clock: pl.DataFrame, reference: pl.DataFrame, common: ClockMap) -> ClockMap | None:
    """Map a clock by its host's wall clock and that of a mapped one; None where either was not read.

    `clock` and `reference`, the mapped one, have a row per reading: a monotonic time, and the wall time
    at the same moment on the same host. `common` maps the reference to common time.
    """
    local_rows, reference_rows = _select_local(clock), _select_local(reference)
    if local_rows.is_empty() or reference_rows.is_empty():
        return None
    local_ns, local_wall_ns = (local_rows[name].to_numpy() for name in ("monotonic_ns", "wall_ns"))
    wall_ns = reference_rows["wall_ns"].to_numpy()
    reference_lead_ns = wall_ns - common.to_common_ns(reference_rows["monotonic_ns"].to_numpy())
    middle_ns = int(np.median(reference_lead_ns))
    # By how much the reference's wall clock is ahead of the common one, beyond the median.
    line = fit_theil_sen(
        (wall_ns - wall_ns[0]).astype(float), (reference_lead_ns - middle_ns).astype(float)
    )
    fitted_ns = line.evaluate_ns((local_wall_ns - wall_ns[0]).astype(float))
    wall_lead_ns = np.rint(fitted_ns).astype(np.int64)
    lead_ns = local_ns - local_wall_ns + middle_ns + wall_lead_ns
    clock_map = _map_by_line(local_ns, lead_ns, half_window_ns=0.0)
    return replace(clock_map, uncertainty_ns=WALL_UNCERTAINTY_NS + common.uncertainty_ns)


def wall_windows(clock_readings: pl.DataFrame, wall_map: ClockMap) -> Readings:
    """Return readings of wall clocks as windows, each as wide as their uncertainty."""
    local_ns = _select_local(clock_readings)["monotonic_ns"].to_numpy()
    common_ns = wall_map.to_common_ns(local_ns)
    windows_ns = np.full_like(local_ns, 2 * wall_map.uncertainty_ns)
    return Readings(common_ns, window_ns=windows_ns, lead_ns=common_ns - local_ns)


def _select_local(readings: pl.DataFrame) -> pl.DataFrame:
    """Select the readings of a clock beside its host's wall clock, by time."""
    is_local = (pl.col("method") == "local") & pl.col("wall_ns").is_not_null()
    return _select_narrow(readings.filter(is_local)).sort("monotonic_ns")


def _select_narrow(readings: pl.DataFrame) -> pl.DataFrame:
    """Keep the readings that are about as sharp as the best."""
    narrowest_ns = pl.col("window_ns").min()
    return readings.filter(pl.col("window_ns") <= MAX_RATIO_OF_NARROW_WINDOW * narrowest_ns)


def map_by_ping_pong(
    forward: pl.DataFrame, backward: pl.DataFrame, other: ClockMap
) -> ClockMap | None:
    """Map a clock by ping-pong with a mapped one; None without readings.

    Tables have one row per reading: `forward` those of this clock, `backward` those of the other.
    """
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
    half_window_ns = _find_half_window_ns(pings)
    times_ns = pings["monotonic_ns"].to_numpy()
    clock_map = _map_by_line(times_ns, _measure_leads_ns(pings, other), half_window_ns)
    return replace(clock_map, uncertainty_ns=round(half_window_ns) + other.uncertainty_ns)


def measure_bias(
    readings: pl.DataFrame, clock_map: ClockMap, other: ClockMap
) -> tuple[float, float] | None:
    """Return the bias of a mapped clock by ping-pong with another one, and its uncertainty, ns.

    None without readings (one row each) of the clock.
    """
    pings = _select_narrow(readings)
    if pings.is_empty():
        return None
    expected_ns = clock_map.measure_lead_ns(pings["monotonic_ns"].to_numpy())
    bias_ns = float(np.mean(_measure_leads_ns(pings, other) - expected_ns))
    return bias_ns, _find_half_window_ns(pings)


def _measure_leads_ns(pings: pl.DataFrame, other_map: ClockMap) -> Ints:
    """Return by how much the reading clock is ahead of the common one, [ping], by the other's map."""
    times_ns = pings["monotonic_ns"].to_numpy()
    return times_ns - other_map.to_common_ns(times_ns - pings["offset_ns"].to_numpy())


def _find_half_window_ns(readings: pl.DataFrame) -> float:
    smallest_ns = readings["window_ns"].min()
    return float(smallest_ns) / 2 if isinstance(smallest_ns, int) else 0.0


def _map_by_line(times_ns: Ints, leads_ns: Ints, half_window_ns: float) -> ClockMap:
    """Map a clock by a line through its leads; a level one if these cannot tell a drift from error.

    `times_ns` are times of this clock, [reading]; `leads_ns` by how much it is ahead then of the common
    one, each known to +- `half_window_ns`.
    """
    base_ns, middle_ns = int(times_ns.min()), int(np.median(leads_ns))
    since_ns: Floats = (times_ns - base_ns).astype(np.float64)
    error_ppm = half_window_ns / max(float(np.ptp(since_ns)), 1.0) * 1e6
    min_points = 2 if error_ppm < PLAUSIBLE_PPM / 2 else len(times_ns) + 1
    line = fit_theil_sen(since_ns, (leads_ns - middle_ns).astype(np.float64), min_points)
    knots_ns = np.array([-FAR_NS, FAR_NS])
    return ClockMap(
        base_ns,
        target_ns=base_ns - middle_ns,
        correction=Correction(knot_times_ns=knots_ns, knot_values_ns=line.evaluate_ns(knots_ns)),
    )
