"""A map moves times exactly, and says by how much clocks differ, drift and jump."""

import numpy as np
import pytest

from tracelens.align.clocks.lines import Line, fit_theil_sen
from tracelens.model.clock_map import ClockMap, Correction

FAR_AHEAD = 2**61  # where a float is only right to 256 ns
# Right at its base, 100 ns ahead 1 us later, 1 us more at once there, and level afterwards.
JUMPING = Correction(
    np.array([0.0, 1000.0, 1001.0, 5000.0]),
    np.array([0.0, 100.0, 1100.0, 1100.0]),
    jump_times_and_heights_ns=((1000.0, 1000.0),),
)


def test_without_a_correction_only_the_offset_is_moved() -> None:
    clock_map = ClockMap(base_ns=FAR_AHEAD + 7, target_ns=1000)
    assert clock_map.to_common_ns(np.array([FAR_AHEAD + 7, FAR_AHEAD + 8, FAR_AHEAD])).tolist() == [
        1000,
        1001,
        993,
    ]
    assert clock_map.measure_lead_ns(np.array([FAR_AHEAD + 7])).tolist() == [FAR_AHEAD + 7 - 1000]
    assert clock_map.jump_times_ns == ()
    assert clock_map.measure_drift_ppm(0, 10**9) == 0.0


def test_the_correction_is_taken_off_since_the_base() -> None:
    """To the nanosecond, however large the times themselves are; a half is rounded to even."""
    clock_map = ClockMap(FAR_AHEAD, 10**6, JUMPING)
    since_base_ns = np.array([0, 500, 505, 515, 1000, 1001, 3000, 9000])
    expected = [0, 450, 455, 463, 900, -99, 1900, 7900]
    assert clock_map.to_common_ns(FAR_AHEAD + since_base_ns).tolist() == [
        10**6 + expected_ns for expected_ns in expected
    ]
    assert clock_map.measure_lead_ns(np.array([FAR_AHEAD + 500])).tolist() == [
        FAR_AHEAD - 10**6 + 50
    ]


@pytest.mark.parametrize("count", [1, (1 << 14) - 1, 1 << 14, (1 << 14) + 1, 3 << 14])
def test_many_times_are_moved_as_one_by_one(count: int) -> None:
    """They are moved in parts; rows of several times too."""
    clock_map = ClockMap(100, 50, Correction(np.array([0.0, 1e6]), np.array([0.0, 1e5])))
    times = np.arange(count) * 10 + 100
    assert clock_map.to_common_ns(times).tolist() == (times - 50 - np.arange(count)).tolist()
    pairs = np.stack([times, times], axis=1)
    assert (clock_map.to_common_ns(pairs) == clock_map.to_common_ns(times)[:, None]).all()


def test_a_kept_map_moves_as_before() -> None:
    for original in (ClockMap(3, 5, JUMPING, uncertainty_ns=9), ClockMap(3, 5)):
        restored = ClockMap.from_row(original.row)
        times = np.arange(0, 6000, 7)
        assert restored.to_common_ns(times).tolist() == original.to_common_ns(times).tolist()
        assert restored.uncertainty_ns == 0


def test_drift_is_what_remains_without_jumps() -> None:
    """100 ns in the first microsecond, nothing later, a jump of 1 us: 100 ns in 5 us."""
    found = ClockMap(0, 0, JUMPING)
    assert found.measure_drift_ppm(0, 5000) == pytest.approx(20_000)
    level = ClockMap(0, 0, Correction(np.array([0.0, 1e9]), np.array([0.0, 5e4])))
    assert level.measure_drift_ppm(0, 10**9) == pytest.approx(50)
    assert level.measure_drift_ppm(10**8, 6 * 10**8) == pytest.approx(50)


def test_drift_of_no_time_is_finite() -> None:
    assert ClockMap(0, 0, JUMPING).measure_drift_ppm(2000, 2000) == pytest.approx(-1000 * 1e6)


def test_jumps_are_told_in_common_time() -> None:
    """The moment just before, as others saw it."""
    assert ClockMap(10**15, 70, JUMPING).jump_times_ns == (70 + 900,)


def test_a_line_taken_off_twice() -> None:
    """What remains after both lines is what remains after the line that joins them."""
    line, further_line = Line(30.0, 0.25), Line(-7.0, 0.5)
    t = np.array([0.0, 8.0, 1000.0])
    after = t - line.evaluate_ns(t)
    assert t - line.then_corrected_by(further_line).evaluate_ns(t) == pytest.approx(
        after - further_line.evaluate_ns(after)
    )


def test_theil_sen_ignores_outliers() -> None:
    x = np.arange(20.0)
    y = 3.0 + 2.0 * x
    y[[4, 11]] = 1e6
    found = fit_theil_sen(x, y)
    assert (found.intercept_ns, found.slope) == pytest.approx((3.0, 2.0))


def test_few_points_are_level() -> None:
    """15 points give a constant, since a slope would be noise; 16 points give a slope."""
    x = np.arange(16.0)
    assert fit_theil_sen(x[:15], 2 * x[:15]) == Line(14.0, 0.0)
    assert fit_theil_sen(x, 2 * x).slope == pytest.approx(2.0)
    assert fit_theil_sen(x[:3], 2 * x[:3], min_points=3).slope == pytest.approx(2.0)


def test_points_at_one_moment_are_level() -> None:
    assert fit_theil_sen(np.full(20, 5.0), np.arange(20.0)) == Line(9.5, 0.0)
