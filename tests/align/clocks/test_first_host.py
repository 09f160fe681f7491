"""The first host's clock is the common one also if it jumps or wanders itself."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from tracelens.align.clocks import common
from tracelens.align.clocks.exits import fit_exits
from tracelens.simulator.synthetic import Clock, Scenario, generate, random_clocks

RUN = Scenario(ranks=16, ranks_per_host=4, steps=400, buckets=4, clocks=random_clocks(4, seed=3))


def test_others_follow_a_jump_of_the_first_clock() -> None:
    """The jump is reported."""
    jumping = Clock(jump_ns=500_000, jump_after_ms=3_000.0)
    clocks = (jumping, *RUN.clocks[1:])
    aligned = common.align(generate(replace(RUN, clocks=clocks)))
    true = generate(replace(RUN, clocks=(jumping,) * 4)).events.collect()["end_ns"].to_numpy()
    found = aligned.events.collect()["end_ns"].to_numpy()
    assert np.quantile(np.abs(found - true), 0.99) <= 2_000
    assert [len(host.jumps) for host in aligned.alignment.hosts] == [1, 0, 0, 0]


def test_others_follow_a_varying_rate_of_the_first_clock() -> None:
    """When only the first clock's rate swings, each other clock's correction swings against it."""
    t: npt.NDArray[np.float64] = np.linspace(0.0, 6.4e10, 6400)
    swing: npt.NDArray[np.float64] = 50_000 * np.sin(t / 1e10)
    draw = np.random.default_rng(0)
    exits = t[:, None] + draw.normal(0, 2_000, (6400, 5))
    exits[:, 0] += swing
    corrections = fit_exits(exits)
    assert corrections is not None
    for correction in corrections[1:]:
        apart = correction.evaluate_ns(t) + swing
        assert np.median(np.abs(apart)) < 1_000
        assert np.quantile(np.abs(apart), 0.99) < 3_000
    assert corrections[0].evaluate_ns(t) == pytest.approx(0.0, abs=1e-9)
