"""A device's clock is mapped to its host's, and the stated uncertainty covers the error."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tracelens.align.clocks.readings import WANDER, Readings, map_if_consistent, map_through
from tracelens.model.clock_map import ClockMap

SECOND = 10**9
START = 10**12


@dataclass(frozen=True)
class Truth:
    """A device's clock: in true time, the host's, it drifts and wanders."""

    drift_ppm: float
    wander_ppm: float
    period_s: float
    ahead_ns: int

    def show_time(self, host: np.ndarray) -> np.ndarray:
        elapsed_ns = (host - START).astype(float)
        period = self.period_s * SECOND
        wave = np.sin(2 * np.pi * elapsed_ns / period) * period / (2 * np.pi)
        drift_ns = elapsed_ns * self.drift_ppm * 1e-6 + wave * self.wander_ppm * 1e-6
        return host + self.ahead_ns + np.rint(drift_ns).astype(np.int64)


def read_clock(
    truth: Truth, moments: list[float], windows: list[int], shares: list[float]
) -> Readings:
    """Read the clock at moments (seconds); an event lies anywhere in its window."""
    host_ns = START + np.rint(np.cumsum(moments) * SECOND).astype(np.int64)
    window = np.array(windows)
    begin_ns = host_ns - np.rint(window * np.array(shares)).astype(np.int64)
    middle = begin_ns + window // 2
    return Readings(middle, window, middle - round_as_float32(truth.show_time(host_ns)))


def round_as_float32(shown: np.ndarray) -> np.ndarray:
    """Round times as a profiler stores them: each step since the last one is a 32-bit float of ms."""
    rounded_ns = [int(shown[0])]
    for one, two in pairwise(shown.tolist()):
        rounded_ns.append(rounded_ns[-1] + round(float(np.float32((two - one) / 1e6)) * 1e6))
    return np.array(rounded_ns)


def error(truth: Truth, found: ClockMap, first: int, last: int) -> int:
    """How wrong the map is at worst between two moments of the host."""
    host = np.linspace(first, last, 200).astype(np.int64)
    return int(np.abs(found.to_common_ns(truth.show_time(host)) - host).max())


@example(29.0, 0.0, 60.0, 0, [(1.0, 196461, 1.0), (1.5, 38448276, 0.0)])
@given(
    drift=st.floats(-100, 100),
    wander=st.floats(0, 1e6 * WANDER * 0.9),
    period=st.floats(60, 3600),
    ahead=st.integers(-(10**17), 10**17),
    readings=st.lists(
        st.tuples(
            st.floats(0.5, 8.0),
            st.one_of(st.integers(2_000, 30_000), st.integers(2_000, 50_000_000)),
            st.floats(0, 1),
        ),
        min_size=2,
        max_size=60,
    ),
)
def test_uncertainty_covers_the_error(
    drift: float,
    wander: float,
    period: float,
    ahead: int,
    readings: list[tuple[float, int, float]],
) -> None:
    """Whatever the clocks do within the stated bound, and however wide some windows are."""
    truth = Truth(drift, wander, period, ahead)
    moments, windows, shares = (list(part) for part in zip(*readings, strict=True))
    found_in = read_clock(truth, moments, windows, shares)
    mapped = map_through(found_in)
    rounding = 300 * len(readings)
    # The last moment is the middle of a window, up to half of which the clock went on by itself.
    beyond = abs(drift) * 1e-6 * max(windows) / 2
    worst_ns = error(truth, mapped, int(found_in.common_ns[0]), int(found_in.common_ns[-1]))
    assert worst_ns <= mapped.uncertainty_ns + rounding + beyond


def test_sharp_windows_make_a_sharp_map() -> None:
    """Readings every five seconds, ten microseconds wide, with one spoilt: a few microseconds."""
    truth = Truth(drift_ppm=17.0, wander_ppm=0.2, period_s=600, ahead_ns=-(10**15))
    draw = np.random.default_rng(3)
    windows = draw.integers(8_000, 12_000, 200)
    windows[50] = 40_000_000
    found_in = read_clock(truth, [5.0] * 200, windows.tolist(), draw.uniform(0, 1, 200).tolist())
    found = map_through(found_in)
    assert found.uncertainty_ns < 20_000
    assert error(truth, found, int(found_in.common_ns[0]), int(found_in.common_ns[-1])) < 10_000


def test_all_windows_together_are_sharper_than_each() -> None:
    """Many wide windows together bound the clock tightly, since it keeps its pace."""
    truth = Truth(drift_ppm=-8.0, wander_ppm=0.0, period_s=600, ahead_ns=0)
    draw = np.random.default_rng(5)
    shares = draw.uniform(0, 1, 300)
    found_in = read_clock(truth, [1.0] * 300, [200_000] * 300, shares.tolist())
    assert error(truth, map_through(found_in), START, START + 300 * SECOND) < 40_000


@pytest.mark.parametrize("shares", [[0.0], [1.0], [0.3]])
def test_a_single_reading_gives_an_offset(shares: list[float]) -> None:
    """One reading is an offset; the device's time is right to half of the window there."""
    truth = Truth(drift_ppm=0.0, wander_ppm=0.0, period_s=60, ahead_ns=123_456_789)
    found_in = read_clock(truth, [0.0], [10_000], shares)
    found = map_through(found_in)
    assert found.uncertainty_ns == 5_000
    assert error(truth, found, START, START + SECOND) <= 5_000


BIG = st.sampled_from([0, 1, 10**6, 10**12, 2**58, 2**60])


@given(st.lists(st.tuples(BIG, BIG, BIG, st.sampled_from([-1, 1])), min_size=1, max_size=6))
def test_senseless_readings_do_not_overflow(rows: list[tuple[int, int, int, int]]) -> None:
    """What was read from a damaged file is mapped somewhere, without an error."""
    host, window, offset, sign = (np.array(part) for part in zip(*sorted(rows), strict=True))
    mapped = map_through(Readings(4 * host, window, offset * sign))
    moved = mapped.to_common_ns(np.array([0, 10**12, 2**60]))
    assert len(moved) == 3
    assert mapped.uncertainty_ns >= 0


def test_windows_below_zero_at_one_moment_are_of_no_clock() -> None:
    """As calls without length give whose ranks contradict each other."""
    same = np.full(3, 459_712)
    assert map_if_consistent(Readings(same, np.full(3, -4), np.zeros(3, np.int64))) is None
