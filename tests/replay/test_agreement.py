"""What a finding saves is what the replay of the whole run says, though it is found without one.

Findings price matrices of steps and ranks, which are there anyway; the replay follows every dependency.
Both are asked about the same fault of real runs.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.runs.analysed import report
from support.runs.analysed import trace as run
from support.samples import manifest, sample_report, sample_trace
from support.tiers import mark_slow

from tracelens.replay.whatif import whatif
from tracelens.simulator.synthetic import Fault, Scenario, duration_ns

MIB = 1 << 20
ALIKE = Scenario(
    ranks=3,
    steps=40,
    seed=1000,
    shards=3,
    variables=(3 * MIB,) * 9,
    shared_links=True,
    beside_compute=True,
    forward_ms=20,
    backprop_ms=30,
    noise=0.05,
)
HOT = replace(ALIKE, variables=(MIB, 20 * MIB, 2 * MIB, MIB, 3 * MIB, MIB), seed=1001)
SERVERS = {
    "hot": (HOT, replace(HOT, placement="chunked"), "ps_hot_shard"),
    "processor": (
        replace(ALIKE, faults=(Fault("aggregate", (1,), factor=20.0),)), ALIKE, "ps_cpu_bound",
    ),
    "link": (
        replace(ALIKE, faults=(Fault("wire", (2,), factor=8.0),)), ALIKE, "ps_network_bound",
    ),
    "links": (
        replace(ALIKE, link_gbytes_per_s=1.0), replace(ALIKE, link_gbytes_per_s=2.0), "ps_network_bound",
    ),
    "incast": (
        replace(ALIKE, beside_compute=False, variables=(), bucket_bytes=8 * MIB, ranks=8, incast=0.5),
        replace(ALIKE, beside_compute=False, variables=(), bucket_bytes=8 * MIB, ranks=8),
        "ps_incast",
    ),
}  # fmt: skip

STRAGGLERS = [sample.name for sample in manifest() if sample.expect.get("kind") == "straggler"]


@pytest.mark.parametrize("name", STRAGGLERS)
def test_a_straggler_costs_what_its_replay_saves(name: str) -> None:
    """Replayed with the rank as fast as the others, the run gains what the finding says."""
    (finding, *_) = (one for one in sample_report(name).findings if one.kind == "straggler")
    (rank,) = finding.ranks
    (answer,) = whatif(sample_trace(name), f"rank:{rank},phase:{finding.phase}=median").answers
    assert finding.interval is not None
    low, high = finding.interval
    assert low <= answer.saving <= high


def test_a_hot_shard_costs_what_its_replay_saves() -> None:
    """Its bytes dealt out."""
    name = "ps-hot-shard"
    (finding,) = (one for one in sample_report(name).findings if one.kind == "ps_hot_shard")
    (answer,) = whatif(sample_trace(name), *finding.evidence["edits"]).answers
    assert finding.evidence["edits"] == ("placement=chunked",)
    assert finding.saving == pytest.approx(answer.saving, rel=1e-9)


@pytest.mark.parametrize("name", mark_slow(SERVERS, quick=("processor", "incast")))
def test_servers_cost_what_their_edit_saves(name: str) -> None:
    """A finding names the edits that answer the same, and the fixed run agrees."""
    scenario, healthy, kind = SERVERS[name]
    (finding,) = (one for one in report(scenario).findings if one.kind == kind)
    (answer,) = whatif(run(scenario), *finding.evidence["edits"]).answers
    truth = 1 - duration_ns(healthy) / duration_ns(scenario)
    assert finding.saving == pytest.approx(answer.saving, rel=1e-9)
    assert finding.saving == pytest.approx(truth, rel=0.1)
    assert finding.interval is not None
    assert finding.interval[0] <= truth <= finding.interval[1]
