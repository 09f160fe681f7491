"""What is taken off each clock, of exits whose truth is known, leaves the exits of the first clock."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from tracelens.align.clocks.exits import Lags, fit_exits, measure_scatter, shift_map
from tracelens.align.clocks.lines import BLOCK_COUNT
from tracelens.arrays import Floats
from tracelens.model.clock_map import ClockMap, Correction

NOISE = 1_000.0
CLOCKS = 4
SPACING = 1e7
AROUND = 5 * SPACING  # between two collectives it is unknown when a clock jumped


@dataclass(frozen=True)
class Truth:
    """What a clock shows more than the first at its times, and how far it may be missed."""

    ahead: Callable[[Floats], Floats]
    near: float = 1.25 * NOISE
    jumps: tuple[tuple[float, float], ...] = ()


JUMP_AT, HEIGHT = 2.5e9 + SPACING / 2, 300_000.0
TRUTHS = {
    "level": Truth(lambda t: np.full_like(t, 50_000.0)),
    "drifts": Truth(lambda t: 40e-6 * t - 7_000.0),
    "jumps": Truth(lambda t: np.where(t > JUMP_AT, HEIGHT, 0.0), jumps=((JUMP_AT, HEIGHT),)),
    "jumps back": Truth(lambda t: np.where(t > JUMP_AT, -HEIGHT, 0.0), jumps=((JUMP_AT, -HEIGHT),)),
    "wanders": Truth(lambda t: 60_000 * np.sin(t / 1e9), near=3 * NOISE),
    "jumps early": Truth(
        lambda t: np.where(t > 0.4e9, HEIGHT, 0.0), jumps=((0.4e9 + SPACING / 2, HEIGHT),)
    ),
}


def fit_simulated_exits(
    truth: Truth, count: int, loose: float = 0.0
) -> tuple[Floats, Floats, list[Correction]]:
    """Fit exits of four clocks, the third of which follows `truth`; a share `loose` leaves early."""
    draw = np.random.default_rng(count)
    t = np.arange(count, dtype=np.float64) * SPACING
    exits = np.asarray(t[:, None] + draw.normal(0, NOISE, (count, CLOCKS)), np.float64)
    is_loose = draw.random(count) < loose
    exits[is_loose] += draw.uniform(0, 5e6, (int(is_loose.sum()), CLOCKS))
    exits[:, 2] += truth.ahead(t)
    corrections = fit_exits(exits)
    assert corrections is not None
    return t, exits, corrections


@pytest.mark.parametrize("loose", [0.0, 0.2])
@pytest.mark.parametrize("count", [400, 1000])
@pytest.mark.parametrize("name", TRUTHS)
def test_corrections_are_the_truth(name: str, count: int, loose: float) -> None:
    """However many collectives there were, and though some let ranks leave early."""
    truth = TRUTHS[name]
    t, exits, corrections = fit_simulated_exits(truth, count, loose)
    ahead_ns = truth.ahead(t)
    distance_ns = np.abs(t[:, None] - [at_ns for at_ns, _ in truth.jumps or ((-1e12, 0.0),)]).min(
        axis=1
    )
    is_sure = distance_ns > AROUND
    error_ns = np.abs(corrections[2].evaluate_ns(t + ahead_ns) - ahead_ns)[is_sure]
    assert np.quantile(error_ns, 0.9) < truth.near
    for clock in (0, 1, 3):
        assert (
            np.quantile(np.abs(corrections[clock].evaluate_ns(exits[:, clock])), 0.9) < 1.25 * NOISE
        )
        assert corrections[clock].jump_times_and_heights_ns == ()
    assert not corrections[0].evaluate_ns(t).any()
    assert [height for _, height in corrections[2].jump_times_and_heights_ns] == pytest.approx(
        [height for _, height in truth.jumps], abs=2 * NOISE
    )
    for (at_ns, _), (true, height) in zip(
        corrections[2].jump_times_and_heights_ns, truth.jumps, strict=True
    ):
        assert min(true, true + height) - AROUND < at_ns < max(true, true + height) + AROUND


@pytest.mark.parametrize("count", [400, 1000])
@pytest.mark.parametrize("name", TRUTHS)
def test_scatter_and_uncertainty_of_a_fit_are_true(name: str, count: int) -> None:
    """Exits scatter by what was drawn; of a block's level less is unsure, the less the more it holds."""
    _, _, found = fit_simulated_exits(TRUTHS[name], count)
    for correction in found:
        assert 0.4 * NOISE < correction.scatter_ns < 2.5 * NOISE
        doubt = correction.scatter_ns / np.sqrt(count / min(64, count))
        assert doubt < correction.sigma_ns < 1.5 * doubt


def test_a_jump_within_a_block_of_collectives() -> None:
    """Its begin is found between two collectives, although the block's level averages over it.

    Of so many clocks one that jumps is no reason to leave a collective out.
    """
    per_block, clock_count = 10, 24
    index = np.arange(BLOCK_COUNT * per_block)
    t = index * SPACING
    jump_index = BLOCK_COUNT // 4 * per_block + per_block // 2  # in the middle of a block
    ahead_ns = np.where(index >= jump_index, HEIGHT, 0.0) + np.where(
        index >= 60 * per_block, 2_000.0, 0.0
    )
    exits = np.repeat(t[:, None], clock_count, axis=1)
    exits[:, 2] += ahead_ns
    corrections = fit_exits(exits)
    assert corrections is not None
    ((at_ns, height),) = corrections[2].jump_times_and_heights_ns
    assert exits[jump_index - 1, 2] < at_ns < exits[jump_index, 2]
    assert height == pytest.approx(HEIGHT, abs=2_000)
    assert np.abs(corrections[2].evaluate_ns(exits[:, 2]) - ahead_ns)[
        : 60 * per_block
    ] == pytest.approx(0.0, abs=100)


def test_a_drift_is_found_beside_a_jump_that_few_collectives_surround() -> None:
    """Most pairs of them lie on both sides of the jump, but neighbours do not."""
    t = np.arange(16) * SPACING
    ahead = 1e-5 * t + np.where(t > 7.5 * SPACING, 1e9, 0.0)
    found = fit_exits(np.stack([t, t, t + ahead, t], axis=1))
    assert found is not None
    at = found[2].evaluate_ns(np.array([0.0, SPACING]))
    assert at[1] - at[0] == pytest.approx(1e-5 * SPACING, rel=0.01)


def test_of_three_clocks_the_one_that_jumps_is_known() -> None:
    """Two that agree are right, the first one or not; of two, none is known to be."""
    t = np.arange(400) * SPACING
    jumping = t + np.where(t > JUMP_AT, HEIGHT, 0.0)
    for clocks, heights in (
        ([jumping, t, t], [[HEIGHT], [], []]),
        ([jumping, t], [[], [-HEIGHT]]),
    ):
        found = fit_exits(np.stack(clocks, axis=1))
        assert found is not None
        for correction, known in zip(found, heights, strict=True):
            assert [height for _, height in correction.jump_times_and_heights_ns] == pytest.approx(
                known, abs=10
            )


@pytest.mark.parametrize(("count", "enough"), [(1, False), (2, False), (3, True)])
def test_three_collectives_tie_clocks(count: int, *, enough: bool) -> None:
    exits = np.arange(count)[:, None] * SPACING + [0.0, 500.0, -300.0]
    found = fit_exits(exits)
    assert (found is not None) is enough
    for correction, ahead in zip(found or (), [0.0, 500.0, -300.0], strict=False):
        assert correction.evaluate_ns(exits[:, 0]) == pytest.approx(ahead)


def test_a_clock_that_runs_wild_is_no_clock() -> None:
    """What drifts by a thousandth and more is no drift; the other clocks are right all the same."""
    t, exits, found = fit_simulated_exits(Truth(lambda t: 1e-2 * t), 400)
    assert np.quantile(np.abs(found[1].evaluate_ns(exits[:, 1])), 0.9) < 1.25 * NOISE
    assert np.isfinite(found[2].evaluate_ns(t)).all()


def test_a_known_lag_widens_by_three_errors() -> None:
    """What is certain is stated with its doubt; an unknown one is nearly the worst."""
    lag = np.array([1_000.0, 1_050.0, 4_000.0, 11_000.0, np.nan])
    error = np.array([30.0, 40.0, 40.0, 40.0, np.nan])
    bounds_ns = Lags(lag, error).bound_errors()
    assert bounds_ns[:2].tolist() == [0.0, 0.0]  # no more apart than chance makes them
    assert bounds_ns[2:4] == pytest.approx([3_000 + 3 * 50, 10_000 + 3 * 50])
    assert 9_000 < bounds_ns[4] < 10_000


def test_a_sharper_measurement_shifts() -> None:
    """By its bias; of the clock that is the common one there is nothing to shift."""
    correction = Correction(np.array([0.0, 10.0]), np.array([5.0, 25.0]), scatter_ns=7.0)
    clock_map = ClockMap(3, 4, correction, uncertainty_ns=99)
    shifted = shift_map(clock_map, 100.0, 8.6)
    times = np.array([3, 8, 13])
    assert (clock_map.to_common_ns(times) - shifted.to_common_ns(times)).tolist() == [100, 100, 100]
    assert shifted.uncertainty_ns == 9
    assert measure_scatter(shifted) == 7.0
    common = ClockMap(3, 4)
    assert shift_map(common, 100.0, 8.6) == common
    assert measure_scatter(common) == 0.0
