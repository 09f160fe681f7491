"""No report has a negative duration, and losses add up: of samples, simulated runs and any others."""

from dataclasses import replace
from typing import Final

import pytest
from hypothesis import strategies as st
from support.runs.analysed import RUNS, report
from support.runs.sound import check_durations, check_ledger, negative
from support.samples import manifest, sample_report
from support.tiers import check_examples, few_or_many

from tracelens.load import prepare
from tracelens.simulator.synthetic import Fault, Scenario, generate, random_clocks
from tracelens.verdicts.report import analyze

WITH_SERVERS: Final = {
    "shared links": Scenario(ranks=8, steps=40, shards=3, shared_links=True, noise=0.2),
    "incast": Scenario(ranks=8, steps=40, shards=3, shared_links=True, noise=0.2, incast=0.5),
    "variables": Scenario(ranks=4, steps=40, shards=2, variables=(1 << 20, 1 << 16, 1 << 18)),
}
PHASES: Final = st.sampled_from(["data", "forward", "backprop", "checkpoint", "gc", "aggregate"])
SCENARIOS: Final = st.builds(
    Scenario,
    ranks=st.integers(1, 9),
    steps=st.integers(2, 70),
    noise=st.sampled_from([0.0, 0.02, 0.4]),
    shards=st.integers(0, 2),
    shared_links=st.booleans(),
    overlap=st.booleans(),
    layers=st.integers(1, 3),
    faults=st.builds(lambda phase: (Fault(phase, (0,), extra_ms=9),), PHASES),
    seed=st.integers(0, 9),
)


def test_negative_durations_would_be_found() -> None:
    """In tables and sentences, and not where a sign has a meaning."""
    sentences = ["until use \N{MINUS SIGN}22.9 ms", "steps 3-4 s of it", "-5 % of it"]
    rows = {
        "clock": [{"offset_ns": -5}],
        "tables": {"chains": [{"until_use_ns": -1}]},
        "said": sentences,
    }
    assert list(negative(rows)) == [
        "report.tables.chains[0].until_use_ns: -1",
        f"report.said[0]: {sentences[0]}",
    ]


@pytest.mark.parametrize("name", [sample.name for sample in manifest()])
def test_reports_of_samples_are_sound(name: str) -> None:
    check_durations(sample_report(name))
    check_ledger(sample_report(name))


@pytest.mark.parametrize("name", [*RUNS, *WITH_SERVERS])
def test_reports_of_simulated_runs_are_sound(name: str) -> None:
    """Of every sort, with parameter servers of several sorts."""
    found = report(RUNS[name][0] if name in RUNS else WITH_SERVERS[name])
    check_durations(found)
    check_ledger(found)


@pytest.mark.parametrize("runs", few_or_many(4, 25))
def test_reports_of_random_runs_are_sound(runs: int) -> None:
    def check(scenario: Scenario, skewed: bool) -> None:  # noqa: FBT001 - drawn
        clocks = random_clocks(scenario.host_count) if skewed else ()
        found = analyze(prepare(generate(replace(scenario, clocks=clocks))))
        check_durations(found)
        check_ledger(found)

    check_examples(check, runs, SCENARIOS, st.booleans())
