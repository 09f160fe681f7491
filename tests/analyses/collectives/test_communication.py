"""Bandwidths and the cost of a message are measured; too small ones are told, and what joining saves."""

from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from support.runs.analysed import faults, report
from support.tiers import few_or_many

from tracelens.accounting.communication.transfers import bus_factor
from tracelens.analyses.communication import Communication
from tracelens.model.findings import Finding
from tracelens.simulator.synthetic import Fault, Scenario, duration_ns, random_clocks
from tracelens.stats import cost_line

MIB = 1 << 20
SIZES = tuple(MIB * (1 + bucket) // 4 for bucket in range(16))
# A message costs 1 ms, and a bucket of mean size 0.2 ms more.
SMALL = Scenario(ranks=4, steps=60, buckets=16, bucket_sizes=SIZES, message_ms=1.0, transfer_ms=0.2)


def measure(scenario: Scenario) -> Communication:
    """Analyze the collectives of a simulated run."""
    return cast("Communication", report(scenario).results["communication"])


def small(scenario: Scenario) -> list[Finding]:
    """Return the findings on small messages."""
    return [found for found in report(scenario).findings if found.kind == "small_messages"]


@pytest.mark.parametrize(
    "scenario",
    [
        SMALL,
        replace(SMALL, overlap=False),
        replace(SMALL, ranks=8, clocks=random_clocks(2)),
        replace(SMALL, faults=(Fault("backprop", (2,), factor=1.5),)),
        replace(SMALL, noise=0.1),
    ],
    ids=["overlapped", "blocking", "skewed clocks", "a late rank", "noisy"],
)
def test_the_line_is_the_planted_one(scenario: Scenario) -> None:
    """Latency and bandwidth are recovered under noise, and their intervals hold the truth."""
    (line,) = measure(scenario).lines.to_dicts()
    per_byte = 0.2e6 / (sum(SIZES) / 16)
    factor = bus_factor("allreduce", scenario.ranks)
    assert line["latency_ns"] == pytest.approx(1e6, rel=0.03)
    assert line["bus_bandwidth"] == pytest.approx(factor / per_byte, rel=0.1)
    assert line["latency_low_ns"] - 1e4 <= 1e6 <= line["latency_high_ns"] + 1e4
    assert line["half_bandwidth_bytes"] == pytest.approx(1e6 / per_byte, rel=0.1)


def test_bandwidths_by_size() -> None:
    """Larger messages come closer to the best; a link carries twice the payload, less a rank's part."""
    table = measure(SMALL).bandwidths
    assert table["from_bytes"].to_list() == [MIB // 4, MIB, 4 * MIB]
    assert table["calls"].to_list() == [60 * 3, 60 * 12, 60]
    assert table["of_best"].is_sorted()
    ratio = table["bus_bandwidth"] / table["algorithm_bandwidth"]
    assert ratio.to_list() == pytest.approx([1.5] * 3)


def test_small_messages_are_told() -> None:
    """With what a message costs, and as how many they should go."""
    (finding,) = small(SMALL)
    assert finding.category == "opportunity"
    assert finding.sentence.startswith(
        "A step sends 16 allreduces of 2.1 MiB on average, latency-bound: "
    )
    assert finding.evidence["latency_share"] == pytest.approx(1.0 / 1.2, rel=0.05)
    assert finding.evidence["messages_per_step"] < 16
    assert faults(report(SMALL)) == []


@pytest.mark.parametrize("overlap", [True, False])
def test_the_saving_is_that_of_the_joined_run(overlap: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """The same gradients in fewer messages make the run shorter by what was said."""
    scenario = replace(SMALL, overlap=overlap)
    (finding,) = small(scenario)
    messages = finding.evidence["messages_per_step"]
    middle = (np.cumsum(SIZES) - np.array(SIZES) / 2) / sum(SIZES)
    split_bytes = (middle * messages).astype(int)
    joined = replace(
        scenario,
        buckets=messages,
        bucket_sizes=tuple(
            int(np.array(SIZES)[split_bytes == one].sum()) for one in range(messages)
        ),
        transfer_ms=0.2 * 16 / messages,
    )
    truth = 1 - duration_ns(joined) / duration_ns(scenario)
    assert finding.saving == pytest.approx(truth, rel=0.1, abs=0.005)


@pytest.mark.parametrize(
    "scenario",
    [
        replace(SMALL, message_ms=0.02),
        replace(SMALL, message_ms=0.3),
        replace(SMALL, bucket_sizes=()),
        Scenario(ranks=4, steps=60),
        Scenario(ranks=4, steps=60, shards=2),
        Scenario(ranks=1, steps=60),
    ],
    ids=["quick messages", "hidden messages", "one size", "healthy", "servers", "alone"],
)
def test_nothing_is_said_without_gain(scenario: Scenario) -> None:
    """Cheap or hidden messages are no loss; one size alone does not separate latency from bandwidth."""
    assert small(scenario) == []


@pytest.mark.parametrize("runs", few_or_many(3, 12))
def test_healthy_runs_are_left_alone(runs: int) -> None:
    """No noisy run with large buckets is told to join them."""
    sizes = (8 * MIB, 25 * MIB, 25 * MIB, 3 * MIB)
    for seed in range(runs):
        healthy = Scenario(
            ranks=4, steps=40, seed=seed, noise=0.2, buckets=4, bucket_sizes=sizes, transfer_ms=3.0
        )
        assert small(healthy) == []


def test_a_line_needs_sizes_and_calls() -> None:
    """No line from few calls or equal sizes."""
    sizes = np.array([1000, 1500] * 20)
    assert cost_line.fit_cost_model(sizes, sizes * 2) is None
    assert cost_line.fit_cost_model(np.array([10, 1000]), np.array([1, 2])) is None


def test_disturbed_calls_do_not_bend_the_line() -> None:
    """A quarter of the calls may take ten times as long."""
    random = np.random.default_rng(1)
    sizes = random.choice([1 << 10, 1 << 14, 1 << 18, 1 << 22], 400)
    ns = 20_000 + sizes * 0.25
    ns[random.random(400) < 0.25] *= 10
    line = cost_line.fit_cost_model(sizes, ns.astype(np.int64))
    assert line is not None
    assert line.latency_ns == pytest.approx(20_000, rel=0.02)
    assert line.ns_per_byte == pytest.approx(0.25, rel=0.02)
    assert line.half_bandwidth_bytes == pytest.approx(80_000, rel=0.04)


def test_the_line_is_never_negative() -> None:
    """Times that fall with size give latency only, times beyond proportion bandwidth only."""
    sizes = np.repeat([1000, 10_000, 100_000], 20)
    flat = cost_line.fit_cost_model(sizes, np.repeat([900, 800, 700], 20))
    steep = cost_line.fit_cost_model(sizes, np.repeat([10, 200, 4000], 20))
    assert flat is not None
    assert (flat.ns_per_byte, flat.half_bandwidth_bytes) == (0, np.inf)
    assert steep is not None
    assert steep.latency_ns == 0
