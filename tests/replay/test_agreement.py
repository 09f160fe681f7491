"""A finding saves what `tracelens whatif` answers: both replay the same fix."""

from dataclasses import replace

import pytest
from support.runs.analysed import report
from support.runs.analysed import trace as run
from support.samples import manifest, sample_report, sample_trace
from support.tiers import mark_slow

from tracelens.errors import InvalidArgument
from tracelens.simulator.synthetic import Fault, Scenario, duration_ns
from tracelens.verdicts.whatif import replay_with_fixes, whatif

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

SAMPLES = [sample.name for sample in manifest()]


@pytest.mark.parametrize("name", mark_slow(SAMPLES, quick=("mpi-late-rank", "ps-hot-shard")))
def test_a_finding_saves_what_its_fix_does(name: str) -> None:
    """Finding N and ``fix:N`` state one number."""
    replay = replay_with_fixes(sample_trace(name))
    findings = sample_report(name).findings
    assert [one.kind for one in findings if one.fix is not None] == [
        findings[number].kind for number, fix in enumerate(replay.fixes) if fix is not None
    ]
    for number, finding in enumerate(findings, 1):
        if finding.fix is not None:
            (answer,) = replay.answer(f"fix:{number}").answers
            assert finding.saving == pytest.approx(answer.saving, rel=1e-3)
            if finding.interval is not None:
                assert finding.interval == pytest.approx(answer.interval, rel=1e-3)


def test_fixes_are_replayed_together() -> None:
    """Two fixes save more than the larger one, and at most their sum."""
    late, small = "fix:1", "fix:2"
    replay = replay_with_fixes(sample_trace("mpi-late-rank"))
    joint_saving, straggler_saving, second = (
        replay.answer(*edits).answers[0].saving for edits in ((late, small), (late,), (small,))
    )
    assert max(straggler_saving, second) < joint_saving <= straggler_saving + second


def test_a_fix_that_is_not_there_is_refused() -> None:
    """The message says which numbers there are."""
    trace = sample_trace("mpi-late-rank")
    with pytest.raises(
        InvalidArgument, match="the report has 2 findings; expected a number from 1"
    ):
        whatif(trace, "fix:9")


def test_a_hot_shard_costs_what_its_replay_saves() -> None:
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
