"""Even work: what ranks' steps would take if work were spread evenly, while noise stays."""

from dataclasses import replace

import numpy as np
import pytest
from support.runs.matrices import STEP_NS, own_time

from tracelens.accounting.compute_time import WARM_UP
from tracelens.analyses.imbalance import balance_work

STEPS, RANKS = 400, 8


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.1])
def test_what_disturbs_the_whole_step_stays(noise: float) -> None:
    """The slowest rank of a step with even work is as slow as noise of whole steps makes it."""
    draw = np.random.default_rng(5)
    disturbed = np.exp(noise * draw.standard_normal((STEPS, RANKS)))
    work = np.exp(0.25 * draw.standard_normal((STEPS, RANKS)))
    shares = {"forward": 0.3, "backprop": 0.55, "update": 0.15}
    varying = [
        share * disturbed * (1 if name == "update" else work) for name, share in shares.items()
    ]
    run = replace(own_time(varying), phase_names=tuple(shares))
    found = balance_work(run, run.is_comparable_row).max(axis=1).mean() / STEP_NS
    middle = 0.85 * work.mean() + 0.15
    assert found == pytest.approx((middle * disturbed).max(axis=1).mean(), rel=0.02)


def test_steps_without_a_phase_are_evened_like_others() -> None:
    """Nobody works forward in a step, or hardly any rank: the rest of it is evened out."""
    draw = np.random.default_rng(5)
    work = np.exp(0.25 * draw.standard_normal((STEPS, RANKS)))
    forward, backprop = 0.4 * work, 0.6 * work
    forward[7], forward[8, 1:] = 0.0, 0.0
    run = replace(own_time([forward, backprop]), phase_names=("forward", "backprop"))
    found = balance_work(run, run.is_comparable_row)
    assert np.isfinite(found).all()
    assert found[7 - WARM_UP].max() < backprop[7].max() * STEP_NS
