"""Where the time went adds up: useful work and every cause make exactly ranks x job time."""

import pytest
from hypothesis import strategies as st
from support.tiers import check_examples, few_or_many

from tracelens.load import prepare
from tracelens.simulator.synthetic import Fault, Scenario, generate, random_clocks
from tracelens.verdicts.report import analyze

PHASES = ("data", "forward", "backprop", "update", "checkpoint", "gc")


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Runs of all shapes: overlapped or not, with servers or not, slow here or there."""
    ranks = draw(st.integers(1, 5))
    slow = Fault(
        draw(st.sampled_from(PHASES)),
        ranks=(draw(st.integers(0, ranks - 1)),),
        extra_ms=draw(st.floats(0, 30)),
    )
    return Scenario(
        ranks=ranks,
        ranks_per_host=2,
        steps=draw(st.integers(1, 12)),
        seed=draw(st.integers(0, 1000)),
        overlap=draw(st.booleans()),
        shards=draw(st.integers(0, 2)),
        update_gap_ms=draw(st.floats(0, 5)),
        faults=(slow,),
    )


@pytest.mark.parametrize("runs", few_or_many(6, 20))
def test_shares_of_the_waterfall_sum_to_one(runs: int) -> None:
    """No share is negative, and nothing is counted twice or forgotten."""

    def check(scenario: Scenario) -> None:
        efficiency = analyze(prepare(generate(scenario))).efficiency
        assert efficiency is not None
        shares = [bar.share for bar in efficiency.waterfall]
        assert min(shares) >= 0
        assert efficiency.achieved + sum(shares) == pytest.approx(1, abs=1e-12)

    check_examples(check, runs, scenarios())


def test_shares_of_the_waterfall_sum_to_one_on_aligned_clocks() -> None:
    """The same where hosts have clocks of their own."""
    scenario = Scenario(ranks=8, ranks_per_host=2, steps=40, clocks=random_clocks(4))
    efficiency = analyze(prepare(generate(scenario))).efficiency
    assert efficiency is not None
    total = efficiency.achieved + sum(bar.share for bar in efficiency.waterfall)
    assert total == pytest.approx(1, abs=1e-12)
