"""A slow link is named by its messages and is no late rank; what slows all transfers is congestion."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest
from support.runs.analysed import faults, report, trace

from tracelens.accounting.phases import job_ns
from tracelens.simulator.synthetic import Fault, Scenario

if TYPE_CHECKING:
    from tracelens.analyses.collectives.links import Links
    from tracelens.model.findings import Finding

RING = Scenario(ranks=4, ranks_per_host=1, steps=60, hops=True, transfer_ms=2.0)
SLOW = Fault("link", (1,), factor=4.0)
BRIEF = Fault("link", (2,), steps=(20, 44), factor=5.0)
CROWDED = Fault("reduction", (), steps=(20, 44), factor=6.0)


def only(scenario: Scenario) -> Finding:
    """Return the one fault that is found."""
    (found,) = faults(report(scenario))
    return found


def saved(scenario: Scenario) -> float:
    """Return the share of the job that goes away without the faults."""
    healthy = replace(scenario, faults=())
    return 1 - job_ns(trace(healthy)) / job_ns(trace(scenario))


@pytest.mark.parametrize(
    "scenario",
    [
        RING,
        replace(RING, overlap=False),
        replace(RING, ranks=8),
        replace(RING, noise=0.08),
        replace(RING, ranks=16, steps=40),
    ],
    ids=["overlapped", "blocking", "eight", "noisy", "sixteen"],
)
def test_a_slow_link_is_named(scenario: Scenario) -> None:
    """From whom to whom, how slow, and what it costs, although every rank's reductions are slow."""
    slow = replace(scenario, faults=(SLOW,))
    found = only(slow)
    assert (found.kind, found.ranks, found.phase) == ("slow_link", (1, 2), "reduction")
    assert found.slowdown == pytest.approx(4.0, rel=0.15)
    assert found.saving == pytest.approx(saved(slow), rel=0.1, abs=0.005)
    assert found.sentence.startswith("The link from rank 1 to rank 2 is slow, steps 0\N{EN DASH}")


def test_a_link_slow_for_a_while_has_its_steps() -> None:
    """Edges are found to within a block of steps."""
    found = only(replace(RING, faults=(BRIEF,)))
    assert (found.kind, found.ranks, found.pattern) == ("slow_link", (2, 3), "transient")
    assert found.steps is not None
    first, last = found.steps
    assert (abs(first - 20), abs(last - 44)) <= (4, 4)
    assert found.saving == pytest.approx(saved(replace(RING, faults=(BRIEF,))), rel=0.15)


@pytest.mark.parametrize("ranks", [4, 8])
def test_a_late_rank_is_no_slow_link(ranks: int) -> None:
    """Its partners wait in their messages, but the messages do not take long."""
    late = Fault("backprop", (2,), factor=1.5)
    found = only(replace(RING, ranks=ranks, faults=(late,)))
    assert (found.kind, found.ranks) == ("straggler", (2,))


def test_links_between_hosts_are_no_fault() -> None:
    """What crosses hosts is slower than what stays on one, and compared with its own kind only."""
    between = Fault("link", (1, 3, 5, 7), factor=4.0)
    scenario = Scenario(
        ranks=8, ranks_per_host=2, steps=60, hops=True, transfer_ms=2.0, faults=(between,)
    )
    assert faults(report(scenario)) == []


def test_within_a_host_there_are_no_links() -> None:
    """Messages go through memory there: long ones mean that ranks share cores."""
    assert faults(report(replace(RING, ranks_per_host=4, faults=(SLOW,)))) == []


def test_both_links_of_a_rank_are_one_finding() -> None:
    """All links of a rank are slow: its network interface."""
    both = Fault("link", (2, 3), factor=4.0)
    found = only(replace(RING, ranks=8, faults=(both,)))
    assert (found.kind, found.ranks) == ("slow_link", (3,))
    assert found.sentence.startswith("All links of rank 3 are slow,")


def test_collectives_alone_do_not_tell_a_link() -> None:
    """All ranks have long reductions: what they cost is told, and that no link can be named."""
    found = report(replace(RING, hops=False, faults=(Fault("link", (1,), factor=12.0),)))
    assert faults(found) == []
    (chance,) = (one for one in found.findings if one.kind == "exposed_communication")
    assert "do not tell which" in chance.sentence
    assert chance.evidence["link_identifiable"] is False


@pytest.mark.parametrize("hops", [True, False])
@pytest.mark.parametrize("overlap", [True, False])
def test_congestion_has_its_steps_and_price(*, hops: bool, overlap: bool) -> None:
    """Transfers that are slow for all in a part of the run are nobody's fault."""
    scenario = replace(RING, hops=hops, overlap=overlap, faults=(CROWDED,))
    found = only(scenario)
    assert (found.kind, found.ranks, found.steps) == ("congestion", (), (20, 44))
    assert found.slowdown == pytest.approx(6.0, rel=0.1)
    assert found.saving == pytest.approx(saved(scenario), rel=0.1)
    assert found.interval is not None
    assert found.interval[0] <= saved(scenario) * 1.02
    assert found.interval[1] >= saved(scenario) * 0.98


def test_congestion_is_told_from_a_hundredth_of_the_job_on() -> None:
    """Where transfers are short, slow ones cost little, and are told all the same."""
    found = only(replace(RING, transfer_ms=0.1, overlap=False, faults=(CROWDED,)))
    assert (found.kind, found.steps) == ("congestion", (20, 44))
    assert found.saving is not None
    assert 0.01 < found.saving < 0.03


def test_a_slow_machine_is_no_congestion() -> None:
    """If computation slows down as much in the same steps, the network is not to blame."""
    together = tuple(
        Fault(phase, (), steps=(20, 44), factor=3.0)
        for phase in ("reduction", "forward", "backprop", "update")
    )
    kinds = {found.kind for found in faults(report(replace(RING, faults=together)))}
    assert kinds == {"slow_all"}


def test_hidden_congestion_is_harmless() -> None:
    """Slow transfers that backprop hides cost nothing."""
    hidden = Scenario(ranks=4, steps=60, transfer_ms=0.02, faults=(CROWDED,))
    assert faults(report(hidden)) == []


def test_healthy_runs_are_left_alone() -> None:
    """Of 24 runs with noisy links and waits none has a slow link or congestion."""
    for seed in range(24):
        noise = 0.05 + 0.25 * (seed % 2)
        healthy = replace(RING, seed=seed, noise=noise, steps=50, correlation=0.5 * (seed % 3 == 0))
        assert [f.kind for f in faults(report(healthy)) if f.kind != "straggler"] == []


def test_links_are_listed() -> None:
    """Each pair of ranks with its messages, bytes and bandwidth; the slowest first."""
    scenario = replace(RING, faults=(SLOW,))
    table = cast("Links", report(scenario).results["links"]).links
    assert table.select("sender", "receiver").row(0) == (1, 2)
    assert table["messages"][0] == 60 * 2 * 6
    assert table["bytes"][0] == 60 * 2 * 6 * (4 << 20) // 4
    ratio = table["message_ns"][0] / table["message_ns"][1]
    assert ratio == pytest.approx(4.0, rel=0.1)
