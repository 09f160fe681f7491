"""The ranks' time is divided without a rest."""

from dataclasses import replace
from math import prod

import pytest
from hypothesis import strategies as st
from support.runs.analysed import RUNS, report
from support.tiers import check_examples, few_or_many

from tracelens.load import prepare
from tracelens.simulator.synthetic import Fault, Scenario, generate, random_clocks
from tracelens.verdicts.report import analyze

PHASES = ("data", "forward", "backprop", "update", "checkpoint", "gc")
scenarios = st.builds(
    Scenario,
    ranks=st.integers(1, 6),
    ranks_per_host=st.sampled_from([2, 8]),
    steps=st.integers(1, 12),
    seed=st.integers(0, 10**6),
    noise=st.floats(0, 0.5),
    buckets=st.integers(1, 3),
    transfer_ms=st.floats(0.01, 20),
    update_gap_ms=st.floats(0, 5),
    overlap=st.booleans(),
    shards=st.sampled_from([0, 0, 1, 3]),
    faults=st.lists(
        st.builds(Fault, st.sampled_from(PHASES), st.just((0,)), extra_ms=st.floats(0, 30))
        | st.just(Fault("data", (), factor=9)),
        max_size=1,
    ).map(tuple),
)


@pytest.mark.parametrize("runs", few_or_many(8, 40))
def test_waterfall_adds_up_to_one(runs: int) -> None:
    """Useful work and all causes sum to the whole, none below nothing, on any run and clocks."""

    def check(scenario: Scenario, skewed: bool) -> None:  # noqa: FBT001 - drawn
        clocks = random_clocks(scenario.host_count, scenario.seed) if skewed else ()
        measured = analyze(prepare(generate(replace(scenario, clocks=clocks)))).efficiency
        assert measured is not None
        shares = [measured.achieved, *(bar.share for bar in measured.waterfall)]
        assert sum(shares) == pytest.approx(1, abs=1e-12)
        assert min(shares) >= 0

    check_examples(check, runs, scenarios, st.booleans())


@pytest.mark.parametrize("run", RUNS)
def test_factors_multiply_to_parallel_efficiency(run: str) -> None:
    """POP: load balance x communication, communication = serialisation x transfer; all within one."""
    measured = report(RUNS[run][0]).efficiency
    assert measured is not None
    pop = measured.pop
    balance, communication = pop["load_balance"], pop["communication_efficiency"]
    assert balance * communication == pytest.approx(measured.achieved)
    parts = (pop["serialisation_efficiency"], pop["transfer_efficiency"])
    assert prod(parts) == pytest.approx(communication)
    assert all(0 < factor <= 1 for factor in pop.values())


def test_a_quiet_run_is_known_exactly() -> None:
    """Without noise: 1 ms of data and 1 ms of exposed transfer in a step of 18 ms."""
    scenario = Scenario(ranks=4, steps=10, noise=0, spread=0, exit_skew_us=0)
    measured = report(scenario).efficiency
    assert measured is not None
    assert measured.job_ns == 180_000_000
    assert measured.achieved == pytest.approx(16 / 18)
    shares = {bar.cause: bar.share for bar in measured.waterfall if bar.share}
    assert shares == pytest.approx({"data": 1 / 18, "exposed_transfer": 1 / 18})
    assert measured.pop["transfer_efficiency"] == pytest.approx(17 / 18)
    assert measured.pop["serialisation_efficiency"] == pytest.approx(16 / 17)


def test_a_late_rank_shows_as_waiting() -> None:
    """A slow rank's cost stands where the others wait, and in the load balance."""
    measured = report(RUNS["slow rank"][0]).efficiency
    healthy = report(RUNS["healthy"][0]).efficiency
    assert measured is not None
    assert healthy is not None
    late = {bar.cause: bar.share for bar in measured.waterfall}["late_ranks"]
    assert late > 0.04
    assert measured.pop["load_balance"] < healthy.pop["load_balance"] - 0.03


def test_waiting_for_a_slow_host_has_a_bar_of_its_own() -> None:
    """What its finding costs is no more waiting for single late ranks, and all still sums to one."""
    slow_host_report = report(RUNS["slow host"][0])
    measured = slow_host_report.efficiency
    assert measured is not None
    (finding,) = (
        candidate for candidate in slow_host_report.findings if candidate.kind == "slow_host"
    )
    shares = {bar.cause: bar.share for bar in measured.waterfall}
    assert shares["slow_host"] == finding.cost
    assert 0 < shares["late_ranks"] < shares["slow_host"]
    assert measured.achieved + sum(shares.values()) == pytest.approx(1, abs=1e-12)
    alone = report(RUNS["slow rank"][0]).efficiency
    assert alone is not None
    assert {bar.cause: bar.share for bar in alone.waterfall}["slow_host"] == 0
