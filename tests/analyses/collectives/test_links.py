"""A slow link is named by its messages and is no late rank; what slows all transfers is congestion."""

import random
from dataclasses import replace
from typing import Any, cast

import pytest
from support.runs.analysed import faults, report
from support.runs.traces import WORLD, call, span, trace_of
from support.tiers import few_or_many, mark_slow

from tracelens.analyses.links.slow_links import Links
from tracelens.facts import Facts
from tracelens.load import prepare
from tracelens.model.findings import Finding
from tracelens.model.trace import Trace
from tracelens.simulator.synthetic import Fault, Scenario, duration_ns
from tracelens.verdicts.report import analyze

MS = 1_000_000
RING = Scenario(ranks=4, ranks_per_host=1, steps=60, hops=True, transfer_ms=2.0)
SLOW = Fault("link", (1,), factor=4.0)
BRIEF = Fault("link", (2,), steps=(20, 44), factor=5.0)
CROWDED = Fault("reduction", (), steps=(20, 44), factor=6.0)


def single_fault(scenario: Scenario) -> Finding:
    """Return the one fault that is found."""
    (found,) = faults(report(scenario))
    return found


def measure_saving(scenario: Scenario) -> float:
    """Return the share of the job that goes away without the faults."""
    healthy = replace(scenario, faults=())
    return 1 - duration_ns(healthy) / duration_ns(scenario)


@pytest.mark.parametrize(
    "scenario",
    [
        RING,
        replace(RING, overlap=False),
        pytest.param(replace(RING, ranks=8), marks=pytest.mark.slow),
        replace(RING, noise=0.08),
        pytest.param(replace(RING, ranks=16, steps=40), marks=pytest.mark.slow),
    ],
    ids=["overlapped", "blocking", "eight", "noisy", "sixteen"],
)
def test_a_slow_link_is_named(scenario: Scenario) -> None:
    """From whom to whom, how slow, and what it costs, although every rank's reductions are slow."""
    slow = replace(scenario, faults=(SLOW,))
    finding = single_fault(slow)
    assert (finding.kind, finding.ranks, finding.phase) == ("slow_link", (1, 2), "reduction")
    assert finding.slowdown == pytest.approx(4.0, rel=0.15)
    assert finding.saving == pytest.approx(measure_saving(slow), rel=0.1, abs=0.005)
    assert finding.sentence.startswith("The link from rank 1 to rank 2 is slow, steps 0\N{EN DASH}")


def test_a_link_slow_for_a_while_has_its_steps() -> None:
    """Edges are found to within a block of steps."""
    finding = single_fault(replace(RING, faults=(BRIEF,)))
    assert (finding.kind, finding.ranks, finding.pattern) == ("slow_link", (2, 3), "transient")
    assert finding.steps is not None
    first, last = finding.steps
    assert (abs(first - 20), abs(last - 44)) <= (4, 4)
    assert finding.saving == pytest.approx(measure_saving(replace(RING, faults=(BRIEF,))), rel=0.15)


@pytest.mark.parametrize("ranks", mark_slow([4, 8], quick=[4]))
def test_a_late_rank_is_no_slow_link(ranks: int) -> None:
    """Its partners wait in their messages, but the messages do not take long."""
    late = Fault("backprop", (2,), factor=1.5)
    found = single_fault(replace(RING, ranks=ranks, faults=(late,)))
    assert (found.kind, found.ranks) == ("straggler", (2,))


@pytest.mark.slow
def test_links_between_hosts_are_no_fault() -> None:
    """What crosses hosts is slower than what stays on one, and compared with its own kind only."""
    between = Fault("link", (1, 3, 5, 7), factor=4.0)
    scenario = Scenario(
        ranks=8, ranks_per_host=2, steps=60, hops=True, transfer_ms=2.0, faults=(between,)
    )
    assert faults(report(scenario)) == []


@pytest.mark.parametrize("ranks_per_host", mark_slow([2, 4, 8], quick=[2]))
def test_a_link_inside_a_host_is_named(ranks_per_host: int) -> None:
    """It is compared with other links inside hosts, and no late rank at its ends explains it."""
    inside = Fault("link", (4,), factor=4.0)
    scenario = replace(RING, ranks=8, ranks_per_host=ranks_per_host, faults=(inside,))
    finding = single_fault(scenario)
    assert (finding.kind, finding.ranks) == ("slow_link", (4, 5))
    assert finding.slowdown == pytest.approx(4.0, rel=0.15)
    assert finding.saving == pytest.approx(measure_saving(scenario), rel=0.1, abs=0.005)


@pytest.mark.slow
def test_all_links_of_a_rank_inside_a_host_are_named() -> None:
    """The rank computes as fast as others, so that it is no rank that shares its cores."""
    both = Fault("link", (2, 3), factor=4.0)
    found = single_fault(replace(RING, ranks=8, ranks_per_host=8, faults=(both,)))
    assert (found.kind, found.ranks) == ("slow_link", (3,))


def test_a_rank_that_shares_its_cores_is_no_slow_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside a host, all messages of such a rank are long."""
    monkeypatch.setattr(Facts, "core_wait_share", 0.5)
    inside = Fault("link", (2,), factor=4.0)
    kinds = {one.kind for one in faults(report(replace(RING, ranks_per_host=4, faults=(inside,))))}
    assert "slow_link" not in kinds


def test_a_rank_that_computes_slowly_is_no_slow_link() -> None:
    """Its messages inside the host are long for the same reason."""
    starved = (Fault("link", (2,), factor=4.0), Fault("backprop", (2,), factor=1.5))
    found = faults(report(replace(RING, ranks=8, ranks_per_host=8, faults=starved)))
    assert {one.kind for one in found} == {"straggler"}


ACROSS = ((0, 2), (1, 3))
INSIDE = ((0, 1), (2, 3))


def messages(
    links: dict[tuple[int, int], float], hosts: str = "aabb", seed: int = 0
) -> tuple[Trace, int]:
    """Send the messages together, some slower by a factor; return when all ranks have met."""
    noise, now_ns = random.Random(seed), 0
    rows: list[dict[str, Any]] = []
    for step in range(80):
        begin_ns, sent = now_ns, now_ns + 20 * MS
        rows += [span(rank, "backprop", begin_ns, sent, step=step) for rank in range(4)]
        for (sender, receiver), times in links.items():
            end = sent + int(2 * times * noise.lognormvariate(0, 0.1) * MS)
            rows += [_side("send", step, (sent, end), sender, receiver)]
            rows += [_side("recv", step, (sent, end), receiver, sender)]
            now_ns = max(now_ns, end)
        for rank in range(4):
            rows += [
                call(rank, step, sent, now_ns, thread=2, step=step),
                span(rank, "update", now_ns, now_ns + MS, step=step),
                span(rank, "step", begin_ns, now_ns + MS, step=step),
            ]
        now_ns += MS
    ordered = sorted(rows, key=lambda row: (row["process"], row["start_ns"], -row["end_ns"]))
    return prepare(trace_of(ordered, 4, host=list(hosts))), now_ns


def _side(op: str, step: int, times: tuple[int, int], rank: int, peer: int) -> dict[str, Any]:
    """Write one side of a message on a thread of its own."""
    return span(
        rank,
        "reduction",
        *times,
        op=op,
        communicator=WORLD,
        step=step,
        peer=peer,
        seq=step,
        key=0,
        bytes=1 << 20,
        thread=1,
    )


@pytest.mark.parametrize("slow", [(1, 3), (2, 3)], ids=["between hosts", "inside a host"])
def test_of_two_links_the_slow_one_is_named(slow: tuple[int, int]) -> None:
    """Two links of a sort, between hosts or inside them, say of each other what is normal."""
    links = dict.fromkeys(ACROSS + INSIDE, 1.0)
    run, took = messages(links | {slow: 5.0})
    (finding,) = faults(analyze(run))
    assert (finding.kind, finding.ranks) == ("slow_link", slow)
    assert finding.slowdown == pytest.approx(5.0, rel=0.1)
    assert finding.saving == pytest.approx(1 - messages(links)[1] / took, rel=0.1)


def test_inside_a_host_others_must_say_that_it_is_no_rank() -> None:
    """Where ranks use no other link, a slow one may be a rank that shares its cores."""
    run, _ = messages({(0, 2): 1.0, (1, 3): 5.0}, "aaaa")
    assert faults(analyze(run)) == []


@pytest.mark.parametrize("runs", few_or_many(3, 12))
def test_two_links_are_left_alone(runs: int) -> None:
    """No healthy run with two links of each sort has a slow one."""
    for seed in range(runs):
        healthy, _ = messages(dict.fromkeys(ACROSS + INSIDE, 1.0), seed=seed)
        assert faults(analyze(healthy)) == []


@pytest.mark.slow
def test_both_links_of_a_rank_are_one_finding() -> None:
    """All links of a rank are slow: its network interface."""
    both = Fault("link", (2, 3), factor=4.0)
    found = single_fault(replace(RING, ranks=8, faults=(both,)))
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
    finding = single_fault(scenario)
    assert (finding.kind, finding.ranks, finding.steps) == ("congestion", (), (20, 44))
    assert finding.slowdown == pytest.approx(6.0, rel=0.1)
    assert finding.saving == pytest.approx(measure_saving(scenario), rel=0.1)
    assert finding.interval is not None
    assert finding.interval[0] <= measure_saving(scenario) * 1.02
    assert finding.interval[1] >= measure_saving(scenario) * 0.98


def test_congestion_is_told_from_a_hundredth_of_the_job_on() -> None:
    """Where transfers are short, slow ones cost little, and are told all the same."""
    finding = single_fault(replace(RING, transfer_ms=0.1, overlap=False, faults=(CROWDED,)))
    assert (finding.kind, finding.steps) == ("congestion", (20, 44))
    assert finding.saving is not None
    assert 0.01 < finding.saving < 0.03


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


@pytest.mark.parametrize("runs", few_or_many(4, 12))
def test_healthy_runs_are_left_alone(runs: int) -> None:
    """No run with noisy links and waits has a slow link or congestion."""
    for seed in range(runs):
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
