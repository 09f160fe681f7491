"""What findings on the network save is what the same simulated run comes to without what they name."""

from dataclasses import replace
from typing import Any

import pytest
from support.runs.analysed import report
from support.runs.analysed import trace as run
from support.runs.streams import prepare_stream_run
from support.runs.traces import call, span, trace_of
from support.tiers import mark_slow

from tracelens.accounting import phases
from tracelens.analyses.links import slow_links
from tracelens.facts import Facts
from tracelens.load import prepare
from tracelens.model.findings import Finding
from tracelens.model.trace import Trace
from tracelens.replay import windows
from tracelens.replay.event_graph import EventGraph
from tracelens.replay.windows import WindowedReplay
from tracelens.simulator.synthetic import Fault, Scenario, duration_ns
from tracelens.verdicts.report import analyze
from tracelens.verdicts.whatif import whatif

MS = 1_000_000
BASE = Scenario(
    ranks=4,
    ranks_per_host=1,
    steps=60,
    seed=7,
    noise=0.03,
    buckets=6,
    bucket_sizes=tuple(1 << power for power in (20, 22, 21, 23, 20, 22)),
    transfer_ms=2.0,
    message_ms=0.05,
)
LINK = Fault("link", (1,), factor=4.0)
BRIEF_LINK = Fault("link", (2,), steps=(20, 44), factor=3.0)
CROWDED = Fault("reduction", steps=(20, 44), factor=4.0)
LATE = Fault("backprop", (1,), factor=1.3)
HOPS = replace(BASE, hops=True)
# The run without the fault, the fault, and what reports it.
FAULTS = {
    "a slow link": (HOPS, LINK, "slow_link"),
    "a slow link for a while": (HOPS, BRIEF_LINK, "slow_link"),
    "a slow link of eight ranks": (replace(HOPS, ranks=8), LINK, "slow_link"),
    "a slow link, with a straggler": (replace(HOPS, faults=(LATE,)), LINK, "slow_link"),
    "congestion": (BASE, CROWDED, "congestion"),
    "congestion of two ranks": (replace(BASE, ranks=2), CROWDED, "congestion"),
    "congestion, with a straggler": (replace(BASE, faults=(LATE,)), CROWDED, "congestion"),
    "congestion, noisy": (replace(BASE, noise=0.1), CROWDED, "congestion"),
}
QUICK = ("a slow link for a while", "congestion of two ranks", "congestion, with a straggler")
SMALL = replace(
    BASE,
    buckets=16,
    bucket_sizes=tuple((1 << 18) * (1 + bucket) // 4 for bucket in range(16)),
    message_ms=0.8,
    transfer_ms=0.2,
)


def find(trace: Trace, kind: str) -> Finding:
    """Return the finding of a kind."""
    (finding,) = (finding for finding in analyze(trace).findings if finding.kind == kind)
    return finding


def join(scenario: Scenario, nbytes: int) -> Scenario:
    """Return the run with buckets joined up to this number of bytes."""
    sizes = [0]
    for size in scenario.bucket_sizes:
        if sizes[-1] and (sizes[-1] >= nbytes or sizes[-1] + size > nbytes):
            sizes.append(0)
        sizes[-1] += size
    transfer_ms = scenario.transfer_ms * scenario.buckets / len(sizes)
    return replace(scenario, buckets=len(sizes), bucket_sizes=tuple(sizes), transfer_ms=transfer_ms)


@pytest.mark.parametrize("name", mark_slow(FAULTS, QUICK))
def test_calls_that_queued_cost_what_they_do(name: str) -> None:
    """Each begins when its stream gets free; fixed, it goes when its data is ready."""
    healthy, fault, kind = FAULTS[name]
    slow = replace(healthy, faults=(*healthy.faults, fault))
    truth = 1 - duration_ns(healthy) / duration_ns(slow)
    finding = find(prepare_stream_run(slow), kind)
    assert finding.saving == pytest.approx(truth, rel=0.08)
    assert finding.interval is not None
    assert finding.interval[0] <= truth <= finding.interval[1]


@pytest.mark.parametrize(
    "scenario",
    mark_slow(
        (SMALL, replace(SMALL, overlap=False), replace(SMALL, ranks=8, noise=0.1)), quick=(SMALL,)
    ),
)
def test_small_messages_save_what_the_edit_says(scenario: Scenario) -> None:
    """A finding names the size; `buckets=` of that size saves the same, and so does the real run."""
    trace = prepare_stream_run(scenario) if scenario.overlap else run(scenario)
    finding = find(trace, "small_messages")
    nbytes = finding.evidence["bucket_bytes"]
    (answer,) = whatif(trace, f"buckets={nbytes}B").answers
    truth = 1 - duration_ns(join(scenario, nbytes)) / duration_ns(scenario)
    assert finding.saving == pytest.approx(answer.saving, rel=0.001)
    assert finding.saving == pytest.approx(truth, rel=0.06)


def count_replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each event graph that is built adds its number of steps."""
    replayed: list[int] = []
    build = EventGraph.from_trace

    def count_steps(*arguments: Any) -> EventGraph | None:
        graph = build(*arguments)
        replayed.append(len(graph.step_numbers) if graph else 0)
        return graph

    monkeypatch.setattr(EventGraph, "from_trace", count_steps)
    return replayed


def test_of_a_long_run_a_window_of_steps_is_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other steps save follows from what their calls lose."""
    slow = replace(BASE, steps=160, faults=(replace(CROWDED, steps=(30, 139)),))
    truth = 1 - duration_ns(replace(slow, faults=())) / duration_ns(slow)
    trace = run(slow)
    whole_finding = find(trace, "congestion")
    replayed = count_replays(monkeypatch)
    facts = Facts(trace, phases.run(trace))
    facts.__dict__["replay"] = WindowedReplay(trace, facts.phases, max_pieces=100)
    (window_finding,) = slow_links.run(facts).findings
    assert replayed == [windows.MIN_STEPS_OF_WINDOW]
    assert window_finding.saving == pytest.approx(whole_finding.saving, rel=0.02)
    assert window_finding.saving == pytest.approx(truth, rel=0.02)


def test_the_event_graph_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    replayed = count_replays(monkeypatch)
    crowded = replace(SMALL, faults=(replace(CROWDED, factor=3.0),))
    kinds = {finding.kind for finding in analyze(run(crowded)).findings}
    assert {"congestion", "small_messages"} <= kinds
    assert replayed == [BASE.steps]


@pytest.mark.parametrize("overlap", [True, False])
def test_ranks_leave_a_faster_ring_sooner(*, overlap: bool) -> None:
    """In a ring with a slow link they leave one after the other."""
    slow = replace(HOPS, overlap=overlap, message_ms=0.0, faults=(LINK,))
    truth = 1 - duration_ns(replace(slow, transfer_ms=1.0)) / duration_ns(slow)
    trace = prepare_stream_run(slow) if overlap else run(slow)
    (answer,) = whatif(trace, "bandwidth*2").answers
    assert answer.saving == pytest.approx(truth, rel=0.02)


def waits_for_each(op: str, work: str) -> Trace:
    """Twenty steps with four calls in flight, each waited for before some work of its layer."""
    rows = []
    for step in range(20):
        begin_ns = 100 * step * MS
        for rank in range(2):
            fields: dict[str, Any] = {"step": step, "depth": 1}
            rows.append(span(rank, "step", begin_ns, begin_ns + 90 * MS, step=step))
            for layer in range(4):
                asked_ns = begin_ns + 20 * layer * MS
                nbytes = 1000 if layer % 2 else 4000
                done_ns = asked_ns + (4 + layer % 2) * MS
                calls = {"op": op, "bytes": nbytes}
                rows += [
                    call(rank, 4 * step + layer, asked_ns, done_ns, **calls, **fields),
                    span(rank, "wait", asked_ns, done_ns, **fields),
                    span(rank, work, done_ns, asked_ns + 20 * MS, **fields),
                ]
    return prepare(trace_of(rows, ranks=2))


@pytest.mark.parametrize(
    ("op", "work", "joined"),
    [
        ("all_gather", "forward", 80),
        ("reduce_scatter", "backprop", 80),
        ("allreduce", "backprop", 20),
    ],
)
def test_what_a_rank_computes_with_is_not_joined(op: str, work: str, joined: int) -> None:
    """Weights of a layer are needed before the next ones are asked for; reduced gradients are not."""
    (answer,) = whatif(waits_for_each(op, work), "buckets=10000B").answers
    assert answer.notes[0] == f"80 calls become {joined}."
    assert (answer.saving > 0.01) == (joined < 80)


def test_overlap_saves_at_most_what_fits() -> None:
    """The price of overlap is that of the run which overlaps."""
    blocking = replace(BASE, overlap=False, transfer_ms=1.0)
    truth = 1 - duration_ns(replace(blocking, overlap=True)) / duration_ns(blocking)
    (finding,) = (
        finding for finding in report(blocking).findings if finding.kind == "exposed_communication"
    )
    assert finding.saving == pytest.approx(truth, rel=0.05)
