"""What the pipeline absorbs of a rank's delay: savings hold also where reductions never stop."""

from dataclasses import replace

import pytest
from support.runs.analysed import report
from support.tiers import mark_slow

from tracelens.simulator.synthetic import Fault, Scenario, duration_ns

FAULTS = {
    "lasting": Fault("backprop", (2,), factor=1.5),
    "passing": Fault("backprop", (2,), steps=(30, 69), factor=1.5),
    "before": Fault("forward", (2,), factor=1.5),
    "stalls": Fault("backprop", (2,), extra_ms=10, every=6),
    "loading": Fault("data", (2,), extra_ms=7, every=5),
}
RUN = Scenario(ranks=8, steps=100, buckets=8, backprop_ms=16, noise=0.03)


@pytest.mark.parametrize("transfer_ms", mark_slow([0.5, 2.0, 3.0, 6.0], quick=[2.0]))
@pytest.mark.parametrize("name", mark_slow(FAULTS, quick=("passing", "stalls")))
def test_saving_is_that_of_the_run_without(name: str, transfer_ms: float) -> None:
    """From reductions that are hidden to ones that take three times as long as backprop."""
    scenario = replace(RUN, transfer_ms=transfer_ms, faults=(FAULTS[name],))
    truth = 1 - duration_ns(replace(scenario, faults=())) / duration_ns(scenario)
    (finding,) = (one for one in report(scenario).findings if one.kind == "straggler")
    assert finding.saving == pytest.approx(truth, rel=0.1, abs=0.005)


@pytest.mark.slow
def test_what_is_absorbed_is_said() -> None:
    """A pause while the wire is busy is absorbed; one before any reduction is not."""
    (during,) = report(replace(RUN, transfer_ms=6, faults=(FAULTS["lasting"],))).findings[:1]
    assert during.evidence["absorbed_in_flight"] > 0.75
    assert "reductions in flight absorb 8" in during.sentence
    (before,) = report(replace(RUN, transfer_ms=6, faults=(FAULTS["before"],))).findings[:1]
    assert before.evidence["absorbed_in_flight"] == 0.0
    assert "absorb" not in before.sentence


@pytest.mark.parametrize(("transfer_ms", "overlap"), [(0.5, True), (6.0, False)])
def test_nothing_is_absorbed_without_a_backlog(transfer_ms: float, *, overlap: bool) -> None:
    """Nor where the training thread itself waits for every reduction."""
    scenario = replace(RUN, faults=(FAULTS["lasting"],), transfer_ms=transfer_ms, overlap=overlap)
    (finding,) = (one for one in report(scenario).findings if one.kind == "straggler")
    assert finding.evidence["absorbed_in_flight"] < 0.02
    assert finding.evidence["absorbed"] < 0.1
