"""What a finding saves is what the replay of the whole run says, though it is found without one.

Findings price matrices of steps and ranks, which are there anyway; the replay follows every dependency.
Both are asked about the same fault of real runs.
"""

from __future__ import annotations

import pytest
from support.samples import manifest, sample_report, sample_trace

from tracelens.verdicts.whatif import whatif

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
    (answer,) = whatif(sample_trace(name), "placement=chunked").answers
    assert finding.saving is not None
    assert answer.saving == pytest.approx(finding.saving, abs=0.03)
