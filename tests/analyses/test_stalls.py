"""When all ranks are slow at the same time, nobody is to blame."""

import pytest
from support.runs.analysed import faults, report
from support.tiers import mark_slow

from tracelens.simulator.synthetic import Fault, Scenario


def test_slow_loading_of_all_is_a_data_stall() -> None:
    """An interval in which every rank loads slowly: its steps and price, no straggler."""
    fault = Fault("data", (), steps=(40, 59), extra_ms=10)
    (finding,) = faults(report(Scenario(ranks=4, steps=100, faults=(fault,))))
    assert (finding.kind, finding.phase, finding.steps) == ("data_stall", "data", (40, 59))
    assert finding.pattern == "transient"
    assert "no single rank is the cause" in finding.sentence


def test_scattered_stalls_of_all_are_counted() -> None:
    """Every tenth batch is late on every rank."""
    fault = Fault("data", (), extra_ms=20, every=10)
    (found,) = faults(report(Scenario(ranks=8, steps=100, faults=(fault,))))
    assert (found.kind, found.pattern) == ("data_stall", "sparse")
    assert found.evidence["steps_slow"] == 9  # the tenth lies in the warm-up


def test_slow_computing_of_all_is_not_loading() -> None:
    """Another phase than data is told as what it is."""
    fault = Fault("backprop", (), steps=(30, 69), extra_ms=14)
    (found,) = faults(report(Scenario(ranks=4, steps=120, faults=(fault,))))
    assert (found.kind, found.phase, found.steps) == ("slow_all", "backprop", (30, 69))


@pytest.mark.parametrize(("steps", "category"), [((0, 39), "opportunity"), ((80, 119), "fault")])
def test_a_run_that_warms_up_is_no_fault(steps: tuple[int, int], category: str) -> None:
    """What is slow from the first step on was never faster; what gets slow was."""
    fault = Fault("backprop", (), steps=steps, extra_ms=6)
    (found,) = report(Scenario(ranks=4, steps=120, faults=(fault,))).findings
    assert (found.kind, found.phase, found.category) == ("slow_all", "backprop", category)
    assert ("at first" in found.sentence) == (category == "opportunity")


def test_always_loading_is_an_opportunity() -> None:
    """Loading that takes a quarter of each step is not a fault, but could be done ahead."""
    found = report(Scenario(ranks=4, steps=60, data_ms=6))
    assert faults(found) == []
    (chance,) = (finding for finding in found.findings if finding.kind == "data_stall")
    assert chance.saving == pytest.approx(6 / 24, abs=0.03)


@pytest.mark.parametrize("seed", mark_slow(range(5), quick=[0, 1]))
def test_a_machine_that_wanders_is_no_stall(seed: int) -> None:
    """Noise that all ranks share is not an event."""
    scenario = Scenario(ranks=4, steps=100, seed=seed, common=0.15, noise=0.1, correlation=0.6)
    assert faults(report(scenario)) == []
