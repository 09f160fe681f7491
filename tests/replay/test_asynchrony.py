"""What `async=on` saves is what the same simulated run comes to without a barrier, or is not stated."""

from __future__ import annotations

import pytest
from support.runs.analysed import trace as run
from support.runs.server_scenarios import draw_scenario
from support.runs.without_barrier import measure_duration_ns
from support.tiers import mark_slow

from tracelens.simulator.synthetic import duration_ns
from tracelens.verdicts.whatif import whatif

CLOSE, NOISE = 0.101, 0.004  # of the saving; of the run
QUICK = (2, 9, 12, 25)


@pytest.mark.parametrize("seed", mark_slow(range(100, 160), quick=[100 + seed for seed in QUICK]))
def test_savings_are_the_true_ones_or_marked(seed: int) -> None:
    """A saving is within 10 % of the true one; where that cannot be known, its interval holds it."""
    scenario = draw_scenario(seed)
    before_ns = duration_ns(scenario)
    truth = 1 - measure_duration_ns(scenario) / before_ns
    (answer,) = whatif(run(scenario), "async=on").answers
    if answer.doubt is None:
        assert answer.saving == pytest.approx(truth, rel=CLOSE, abs=NOISE)
    else:
        assert answer.interval[0] - NOISE <= truth <= answer.interval[1] + NOISE
