"""Aligns a clock by what processes read of it: ping-pong with another process, or the wall clock."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.transforms._clock_map import ClockMap, Times
from tracelens.transforms._clock_windows import Readings
from tracelens.transforms._fit import FAR, Correction, theil_sen

if TYPE_CHECKING:
    import numpy.typing as npt

WALL_UNCERTAINTY_NS: Final = 1_000_000  # what NTP keeps wall clocks to, when it works
PLAUSIBLE_PPM: Final = 100.0  # no quartz drifts more
_GOOD_WINDOW: Final = 1.5  # readings this much wider than the best are left out


def from_wall(clock: pl.DataFrame, reference: pl.DataFrame, common: ClockMap) -> ClockMap | None:
    """Tie a clock to a mapped one by both hosts' wall clocks; null where either was not read."""
    here, there = _local(clock), _local(reference)
    if here.is_empty() or there.is_empty():
        return None
    t = here["monotonic_ns"].to_numpy()
    their_t = there["monotonic_ns"].to_numpy()
    wall_minus_common = there["wall_ns"].to_numpy() - common.apply(their_t)
    middle = int(np.median(wall_minus_common))
    # The reference's wall clock at this clock's times, as an offset from its middle.
    level = theil_sen(
        (there["wall_ns"].to_numpy() - int(there["wall_ns"][0])).astype(float),
        (wall_minus_common - middle).astype(float),
    )
    since = (here["wall_ns"].to_numpy() - int(there["wall_ns"][0])).astype(float)
    offsets = t - here["wall_ns"].to_numpy() + middle + np.rint(level.at(since)).astype(np.int64)
    found = _through(t, offsets, 0.0)
    return replace(found, uncertainty_ns=WALL_UNCERTAINTY_NS + common.uncertainty_ns)


def wall_windows(clock: pl.DataFrame, found: ClockMap) -> Readings:
    """Return what wall clocks say as windows, each as wide as they are unsure."""
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
    return replace(_through(t, offsets, half), uncertainty_ns=round(half) + other.uncertainty_ns)


def bias(readings: pl.DataFrame, mapped: ClockMap, other: ClockMap) -> tuple[float, float] | None:
    """Return how far ping-pong says a mapped clock is off, and how sure it is; null without any."""
    sharp = readings.filter(_narrow())
    if sharp.is_empty():
        return None
    t = sharp["monotonic_ns"].to_numpy()
    measured = t - other.apply(t - sharp["offset_ns"].to_numpy())
    return float(np.mean(measured - mapped.offset_at(t))), _half(sharp["window_ns"])


def _half(windows: pl.Series) -> float:
    smallest = windows.min()
    return float(smallest) / 2 if isinstance(smallest, int) else 0.0


def _through(t: Times, offsets: Times, half_window: float) -> ClockMap:
    """Draw a line through offsets; a level one if they cannot tell a drift from their own error."""
    base, middle = int(t.min()), int(np.median(offsets))
    since: npt.NDArray[np.float64] = (t - base).astype(np.float64)
    telling = half_window / max(float(np.ptp(since)), 1.0) * 1e6 < PLAUSIBLE_PPM / 2
    line = theil_sen(since, (offsets - middle).astype(np.float64), 2 if telling else len(t) + 1)
    knots_t = np.array([-FAR, FAR])
    return ClockMap(base, base - middle, Correction(knots_t, line.at(knots_t)))
