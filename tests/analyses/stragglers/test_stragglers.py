"""A straggler's finding names rank, phase, steps, delay, waiting ranks and cost."""

from itertools import product
from typing import Final

import pytest
from support.runs.analysed import faults, report

from tracelens.simulator.synthetic import Fault, Scenario, random_clocks

SLOW = Scenario(ranks=4, steps=80, faults=(Fault("backprop", (2,), steps=(40, 69), extra_ms=11.3),))


def test_everything_is_told() -> None:
    """Fields and sentence name the planted fault."""
    (finding,) = faults(report(SLOW))
    assert (finding.kind, finding.ranks, finding.phase) == ("straggler", (2,), "backprop")
    assert (finding.steps, finding.pattern, finding.hosts) == ((40, 69), "transient", ("host000",))
    assert finding.function == "backprop"
    assert finding.slowdown == pytest.approx(2.13, abs=0.05)
    assert finding.confidence is not None
    assert finding.confidence > 0.999
    assert finding.evidence["last_share"] == 1.0
    assert finding.sentence == (
        "Rank 2 is a straggler in backprop, steps 40\N{EN DASH}69: +11.4 ms per step (62 % of the "
        "median step of 18.4 ms); 3 ranks wait for it. Fixing it would shorten the job by 19 % (95 % CI "
        "15\N{EN DASH}22)."
    )


PHASES: Final = ("data", "forward", "backprop", "update")
SIZES: Final = (2, 3, 4, 16)  # ranks
QUICK_SIZES: Final = (2, 3, 4, 16, 3, 2, 16, 4)  # of each phase, with overlap and without


@pytest.mark.parametrize(
    ("phase", "overlap", "ranks"),
    [
        pytest.param(*case, ranks, marks=() if ranks == quick_size else pytest.mark.slow)
        for case, quick_size in zip(product(PHASES, (True, False)), QUICK_SIZES, strict=True)
        for ranks in SIZES
    ],
)
def test_every_phase_and_size(phase: str, ranks: int, *, overlap: bool) -> None:
    """The rank, the phase and the steps are found, whichever they are."""
    fault = Fault(phase, (ranks - 1,), steps=(30, 64), extra_ms=6)  # type: ignore[arg-type]  # str of a Literal
    scenario = Scenario(ranks=ranks, steps=90, seed=3, overlap=overlap, faults=(fault,))
    (found,) = faults(report(scenario))
    assert (found.ranks, found.phase, found.steps) == ((ranks - 1,), phase, (30, 64))


def test_parameter_servers_have_stragglers_too() -> None:
    """Workers that exchange through servers are compared as any others."""
    scenario = Scenario(
        ranks=4, shards=2, steps=80, faults=(Fault("forward", (1,), steps=(30, 59), extra_ms=8),)
    )
    (found,) = faults(report(scenario))
    assert (found.ranks, found.phase, found.steps) == ((1,), "forward", (30, 59))


def test_skewed_clocks_do_not_matter() -> None:
    """Hosts whose clocks are milliseconds apart show the same straggler, and a healthy run none."""
    clocks = random_clocks(4, seed=5)
    fault = Fault("forward", (9,), steps=(20, 49), factor=1.5)
    slow = Scenario(ranks=16, ranks_per_host=4, steps=60, clocks=clocks, faults=(fault,))
    (found,) = faults(report(slow))
    assert (found.ranks, found.steps) == ((9,), (20, 49))
    assert faults(report(Scenario(ranks=16, ranks_per_host=4, steps=60, clocks=clocks))) == []


def test_ranks_late_together_are_one_finding() -> None:
    """Fixing one of two equally late ranks saves nothing, so they are told and priced as one."""
    scenario = Scenario(
        ranks=8, steps=80, faults=(Fault("forward", (2, 5), steps=(20, 59), factor=1.6),)
    )
    (finding,) = faults(report(scenario))
    assert finding.ranks == (2, 5)
    assert finding.sentence.startswith(
        "Ranks 2 and 5 are stragglers in forward, steps 20\N{EN DASH}59"
    )
    assert finding.saving == pytest.approx(0.06, abs=0.015)


def test_a_whole_host_is_named() -> None:
    """When all ranks of a host are late, it is the host; one late rank is not."""
    scenario = Scenario(ranks=16, steps=60, faults=(Fault("backprop", (4, 5, 6, 7), factor=1.3),))
    (found,) = faults(report(scenario))
    assert (found.kind, found.hosts, found.ranks) == ("slow_host", ("host001",), (4, 5, 6, 7))
    assert found.sentence.startswith("Host host001 is slow in backprop")


def test_two_phases_of_a_rank_are_one_finding() -> None:
    """A rank that is slow in all it does is named once, by the phase that costs most."""
    slow = (Fault("forward", (3,), factor=1.5), Fault("backprop", (3,), factor=1.5))
    (found,) = faults(report(Scenario(ranks=8, steps=60, faults=slow)))
    assert (found.ranks, found.phase) == ((3,), "backprop")
    assert found.evidence["also_late_in"] == ["forward"]


def test_delays_that_wanders_is_one_finding() -> None:
    """A slowness that moves from rank to rank blames none of them alone."""
    hops = tuple(
        Fault("forward", (rank,), steps=(20 * rank + 10, 20 * rank + 29), factor=2)
        for rank in range(6)
    )
    (found,) = faults(report(Scenario(ranks=8, steps=200, faults=hops)))
    assert (found.pattern, found.ranks) == ("migrating", (0, 1, 2, 3, 4, 5))
    assert found.steps == (10, 129)


def test_growing_lateness_drifts() -> None:
    """A thermal ramp is later and later."""
    ramp = Fault("forward", (3,), steps=(20, 99), factor=2, ramp=True)
    (found,) = faults(report(Scenario(ranks=8, steps=100, faults=(ramp,))))
    assert (found.ranks, found.pattern) == ((3,), "drifting")
    assert "with growing delay" in found.sentence


def test_regular_stalls_have_their_period() -> None:
    """A loader that stalls every eighth batch is a stall, not a slow rank."""
    scenario = Scenario(ranks=8, steps=100, faults=(Fault("data", (3,), extra_ms=20, every=8),))
    (found,) = faults(report(scenario))
    assert (found.pattern, found.evidence["period"]) == ("sparse", 8)
    assert "stalls in data loading every 8 steps" in found.sentence


@pytest.mark.parametrize(("extra", "category"), [(2.4, "opportunity"), (6.0, "fault")])
def test_a_small_difference_of_two_ranks_is_no_fault(extra: float, category: str) -> None:
    """Two equal processes may differ by an eighth of a step for a whole run: nobody is normal."""
    slow = (Fault("backprop", (1,), extra_ms=extra),)
    found = report(Scenario(ranks=2, steps=200, faults=slow)).findings
    assert [(one.kind, one.ranks, one.category) for one in found] == [("straggler", (1,), category)]


def test_what_nobody_waits_for_is_no_fault() -> None:
    """A lateness that costs next to nothing is not reported."""
    scenario = Scenario(ranks=8, steps=400, faults=(Fault("forward", (3,), (5, 12), factor=1.3),))
    assert faults(report(scenario)) == []
