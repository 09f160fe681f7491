"""A clock is tied to another by what was read of both: to what was read, and as surely as that."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.align.clocks.lines import PLAUSIBLE_DRIFT
from tracelens.align.clocks.readings import (
    WALL_UNCERTAINTY_NS,
    WANDER,
    Readings,
    map_by_ping_pong,
    map_by_wall,
    map_if_consistent,
    measure_bias,
    wall_windows,
)
from tracelens.model.clock_map import ClockMap

SECOND = 10**9
LEAD, OTHER_LEAD, WALL = 7 * SECOND + 13, -3 * SECOND, 10**18
OTHER = ClockMap(target_ns=-OTHER_LEAD, uncertainty_ns=40)  # common time is true time
SCHEMA = dict.fromkeys(("monotonic_ns", "window_ns", "wall_ns", "offset_ns"), pl.Int64()) | {
    "method": pl.String()
}
TRUE = [n * SECOND for n in range(1, 21)]


def table(rows: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SCHEMA)


def our_clock_ns(true: int, drift_ppm: int = 0) -> int:
    return true + LEAD + true * drift_ppm // 10**6


def forward(true: int, window: int = 1000, drift_ppm: int = 0, off: int = 0) -> dict[str, Any]:
    """One of our readings of the other clock."""
    shown = our_clock_ns(true, drift_ppm)
    offset = shown - (true + OTHER_LEAD) + off
    return {"monotonic_ns": shown, "offset_ns": offset, "window_ns": window}


def backward(true: int, window: int = 1000, drift_ppm: int = 0) -> dict[str, Any]:
    """A reading by the other clock of ours."""
    shown = true + OTHER_LEAD
    offset = shown - our_clock_ns(true, drift_ppm)
    return {"monotonic_ns": shown, "offset_ns": offset, "window_ns": window}


def wrong_by(found: ClockMap | None, drift_ppm: int = 0, times: list[int] = TRUE) -> int:
    assert found is not None
    shown = np.array([our_clock_ns(true, drift_ppm) for true in times])
    return int(np.abs(found.to_common_ns(shown) - np.array(times)).max())


@pytest.mark.parametrize("drift_ppm", [0, 30, -30])
@pytest.mark.parametrize("ways", ["there", "back", "both"])
def test_ping_pong_readings_of_either_side_tie_a_clock(ways: str, drift_ppm: int) -> None:
    """Whoever read it; with its drift, also beyond the readings."""
    our_readings = [forward(true, drift_ppm=drift_ppm) for true in TRUE[:9] if ways != "back"]
    other_readings = [backward(true, drift_ppm=drift_ppm) for true in TRUE[4:] if ways != "there"]
    mapped = map_by_ping_pong(table(our_readings), table(other_readings), OTHER)
    assert wrong_by(mapped, drift_ppm) <= 2
    assert mapped is not None
    assert mapped.uncertainty_ns == 500 + 40


def test_the_sharpest_ping_pongs_count() -> None:
    """Up to half as wide again as the best."""
    sharp = [forward(TRUE[0], 1000), forward(TRUE[1], 1500)]
    found = map_by_ping_pong(table([*sharp, forward(TRUE[2], 1501, off=9000)]), table([]), OTHER)
    assert wrong_by(found) <= 1
    used = map_by_ping_pong(table([sharp[0], forward(TRUE[1], 1500, off=900)]), table([]), OTHER)
    assert wrong_by(used, times=TRUE[:1]) <= 1
    assert wrong_by(used, times=TRUE[1:2]) == 900


def test_readings_that_cannot_show_a_drift() -> None:
    """They are too close for how wide they are: then all times are moved alike."""
    close = [forward(SECOND + n * 1000, 10_000, off=n * 100) for n in range(5)]
    found = map_by_ping_pong(table(close), table([]), OTHER)
    assert found is not None
    moved = found.to_common_ns(np.array([our_clock_ns(true) for true in TRUE])) - np.array(TRUE)
    assert len({*moved.tolist()}) == 1
    assert abs(moved[0]) <= 500


def test_without_ping_pong_there_is_no_tie() -> None:
    assert map_by_ping_pong(table([]), table([]), OTHER) is None
    assert measure_bias(table([]), OTHER, OTHER) is None


@pytest.mark.parametrize("bias_ns", [0, 70, -70])
def test_bias_of_a_map_is_measured_by_ping_pong(bias_ns: int) -> None:
    """By how much a map shows later times than ping-pong, and how sure that is."""
    mapped = ClockMap(target_ns=bias_ns - LEAD)
    rows = [forward(true, window) for true, window in zip(TRUE, range(800, 1600, 40), strict=True)]
    measured = measure_bias(table([*rows, forward(TRUE[3], 1201, off=9000)]), mapped, OTHER)
    assert measured == (bias_ns, 400.0)


def wall(shown: int, true: int, window: int = 200, off: int = 0) -> dict[str, Any]:
    return {
        "method": "local",
        "monotonic_ns": shown,
        "wall_ns": true + WALL + off,
        "window_ns": window,
    }


@pytest.mark.parametrize("drift_ppm", [0, 30, -30])
def test_wall_clock_readings_tie_a_clock_to_a_millisecond(drift_ppm: int) -> None:
    """To a millisecond, as they are set; blunt readings and those without a wall clock do not count."""
    our_readings = [wall(our_clock_ns(true, drift_ppm), true) for true in TRUE]
    our_readings += [wall(our_clock_ns(TRUE[5], drift_ppm), TRUE[5], window=301, off=SECOND)]
    our_readings += [wall(1, 1) | {"wall_ns": None}, wall(1, 1) | {"method": "device"}]
    other_readings = [wall(true + OTHER_LEAD, true) for true in TRUE]
    mapped = map_by_wall(table(our_readings), table(other_readings), OTHER)
    assert wrong_by(mapped, drift_ppm) <= 1000
    assert mapped is not None
    assert mapped.uncertainty_ns == WALL_UNCERTAINTY_NS + 40
    assert map_by_wall(table(our_readings), table([]), OTHER) is None
    assert map_by_wall(table(our_readings[-2:]), table(other_readings), OTHER) is None


def test_a_wall_clock_that_is_slewed() -> None:
    """The other host's wall clock may run faster than its time; ours is as fast, and it is known."""
    slew = [true * 20 // 10**6 for true in TRUE]
    mine = [wall(our_clock_ns(true), true, off=off) for true, off in zip(TRUE, slew, strict=True)]
    theirs = [wall(true + OTHER_LEAD, true, off=off) for true, off in zip(TRUE, slew, strict=True)]
    assert wrong_by(map_by_wall(table(mine), table(theirs), OTHER)) <= 1000


def test_wall_clocks_as_windows() -> None:
    """As wide as they are unsure, on both sides."""
    our_readings = [wall(our_clock_ns(true), true) for true in TRUE]
    windows = wall_windows(table(our_readings), ClockMap(target_ns=-LEAD, uncertainty_ns=250))
    assert windows.common_ns.tolist() == TRUE
    assert windows.window_ns.tolist() == [500] * len(TRUE)
    assert windows.lead_ns.tolist() == [-LEAD] * len(TRUE)


@given(st.integers(-(10**6), 10**6), st.integers(2, 10**4), st.integers(2, 10**4))
def test_windows_that_contradict_each_other(
    apart_ns: int, width_ns: int, other_width_ns: int
) -> None:
    """At the same moment they must meet, but for rounding."""
    mapped = map_if_consistent(
        Readings(
            np.array([0, apart_ns]), np.array([width_ns, other_width_ns]), np.array([0, apart_ns])
        )
    )
    gap_ns = abs(apart_ns) - (width_ns + other_width_ns) / 2
    if gap_ns > 3:
        assert mapped is None
    elif gap_ns < 1:
        assert mapped is not None
        (lead,) = mapped.measure_lead_ns(np.array([0])).tolist()
        assert min(0, -apart_ns) - 1 <= lead <= max(0, -apart_ns) + 1


def test_a_wide_window_beside_a_sharp_one() -> None:
    """It is as unsure as a clock may have become since the sharp one, and no more."""
    mapped = map_if_consistent(
        Readings(np.array([0, SECOND]), np.array([2, SECOND]), np.zeros(2, int))
    )
    assert mapped is not None
    most_ns = (WANDER + PLAUSIBLE_DRIFT) * SECOND
    assert most_ns - 1 <= mapped.uncertainty_ns <= most_ns + 3
