"""A stall lies six deviations above the usual step, not four."""

import numpy as np
import pytest

from tracelens.accounting.compute_time import WARM_UP, ComputeTime
from tracelens.analyses.stalls import findings as stalls
from tracelens.analyses.stragglers.evidence import find_stalls

STEPS, RANKS = 105, 4
RATE = 0.0002
STEP_NS = 40e6
STALLED = np.arange(14, STEPS, 10)  # ten of a hundred steps after the warm-up
NOISE = np.resize([-0.10, -0.07, -0.03, 0.0, 0.03, 0.07, 0.10], STEPS)  # of a step


def load_data_noisily(deviations: float) -> ComputeTime:
    """Let all ranks load data in half of a step; some steps stand out by these deviations."""
    data = (0.5 + NOISE) * STEP_NS
    data[STALLED] = np.inf
    judged = data[WARM_UP:]
    usual = np.median(judged)
    data[STALLED] = usual + deviations * 1.4826 * np.median(np.abs(judged - usual))
    data_ns = np.repeat(data[:, None], RANKS, axis=1)[None]
    rest_ns = np.full((1, STEPS, RANKS), 0.5 * STEP_NS)
    return ComputeTime(
        ranks=tuple(range(RANKS)),
        host_of_column=("here",) * RANKS,
        step_numbers=np.arange(STEPS),
        phase_names=("data", "forward"),
        compute_ns=np.concatenate([data_ns, rest_ns]),
        step_length_ns=np.full((STEPS, RANKS), STEP_NS),
        wait_ns=np.zeros((STEPS, RANKS)),
        is_comparable_row=np.arange(STEPS) >= WARM_UP,
    )


@pytest.mark.parametrize(("deviations", "found"), [(5.9, False), (6.1, True)])
def test_steps_slow_on_all_ranks(deviations: float, found: bool) -> None:  # noqa: FBT001
    """Where loading varies a lot, that is far more than a fifth of a step, and noise all the same."""
    own = load_data_noisily(deviations)
    job = int(STEPS * STEP_NS)
    said = stalls.find_slow_steps(own, 0, np.zeros(STEPS, np.bool_), job, None)
    assert bool(said) == found
    assert all(one.finding.evidence["steps_slow"] == len(STALLED) for one in said)


@pytest.mark.parametrize(("deviations", "found"), [(5.0, []), (7.0, [2])])
def test_steps_slow_on_one_rank(deviations: float, found: list[int]) -> None:
    """A deviation here is what five sixths of all steps stay below."""
    above = 0.05
    excess = np.random.default_rng(7).normal(0.0, above, (STEPS, RANKS)).clip(-2 * above, 2 * above)
    excess[STALLED, 2] = deviations * above
    assert [one.rank_column for one in find_stalls(excess, np.arange(len(excess)), RATE)] == found
