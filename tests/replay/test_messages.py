"""A replay of messages is the run itself; with less work, it is the run that would have been."""

from typing import Any

import numpy as np
import pytest
from benchmarks.labelled import kinds_of_pipelines, kinds_of_ranks
from benchmarks.labelled.endtoend import report
from benchmarks.labelled.setting import Setting
from support.runs.traces import span, trace_of
from support.tiers import mark_slow

from tracelens.accounting import phases
from tracelens.accounting.compute_time import measure_compute_time
from tracelens.arrays import Floats
from tracelens.load import prepare
from tracelens.model.trace import Trace
from tracelens.replay.edges import LayeredGraph
from tracelens.replay.edits.variant import Variant
from tracelens.replay.event_graph import EventGraph

MS = 10**6
SETTING = Setting(8, 80, 2, "harsh", "lognormal", 5)


def replay_run(trace: Trace) -> tuple[EventGraph, Floats]:
    """Return the replay, and compute time [step, rank]."""
    spent = phases.run(trace)
    compute_time = measure_compute_time(trace, spent)
    graph = EventGraph.from_trace(trace, spent)
    assert graph
    assert graph.step_numbers.tolist() == compute_time.step_numbers.tolist()
    return graph, np.nan_to_num(compute_time.total_compute_ns)


def test_moments_follow_the_last_that_they_wait_for() -> None:
    """Two ways to the same moment: the longer one counts, and another one with other lags."""
    recorded, source, target = np.array([0.0, 3.0, 5.0, 9.0]), [0, 0, 1, 2], [1, 2, 3, 3]
    lag = np.array([3.0, 5.0, 2.0, 4.0])
    graph = LayeredGraph.from_edges(recorded, np.array(source), np.array(target), lag)
    assert graph.replay(lag).tolist() == recorded.tolist()
    assert graph.replay(np.array([3.0, 1.0, 2.0, 1.0])).tolist() == [0.0, 3.0, 1.0, 5.0]


def test_moments_that_follow_nothing_any_more_come_as_they_did() -> None:
    """A graph without edges is replayed like one that never had them, layers without edges included."""
    rng = np.random.default_rng(3)
    source = rng.integers(0, 40, 120)
    target = source + rng.integers(1, 10, 120)
    recorded, lag = np.sort(rng.random(50)), rng.random(120)
    graph = LayeredGraph.from_edges(recorded, source, target, lag)
    for share in (0.0, 0.1, 0.5, 1.0):
        kept = rng.random(120) < share
        fewer = LayeredGraph.from_edges(recorded, source[kept], target[kept], lag[kept])
        assert graph.keep(kept).replay(lag).tolist() == fewer.replay(lag[kept]).tolist()


def test_the_unchanged_replay_is_the_run() -> None:
    """To the nanosecond, clocks that were aligned included."""
    trace = prepare(kinds_of_pipelines.staged(kinds_of_ranks.nothing)(SETTING).recording.trace())
    graph, total = replay_run(trace)
    assert graph.layered_graph.replay(graph.layered_graph.lag_ns) == pytest.approx(
        graph.layered_graph.recorded_times_ns, abs=1
    )
    unchanged = Variant(graph)
    unchanged.reduce_work(("forward", "backprop"), np.zeros_like(total))
    assert not unchanged.measure_savings_ns().any()


@pytest.mark.parametrize("seed", mark_slow(range(3), quick=[0]))
@pytest.mark.parametrize("by_stage", mark_slow([True, False], quick=[True]))
def test_a_straggler_of_a_pipeline_costs_what_removing_it_saves(
    seed: int, *, by_stage: bool
) -> None:
    make = kinds_of_pipelines.staged(kinds_of_pipelines.straggler, by_stage=by_stage)
    case = make(Setting(8, 120, 2, "mild", "lognormal", seed))
    (finding,) = (one for one in report(case).findings if one.category == "fault")
    assert finding.saving == pytest.approx(case.label.saving, rel=0.03)


def hand_on_messages(*, at_once: bool = False) -> Trace:
    """Two steps of 100 ms: rank 0 works 60 ms and sends, rank 1 receives after 20 ms and works 30.

    `at_once` says that it posts the receive before, in flight, and waits for it.
    """
    rows = []
    for step in range(2):
        begin_ns = 100 * step * MS
        fields: dict[str, Any] = {"step": step, "depth": 1}
        message = fields | {"seq": step}
        rows += [
            *(span(rank, "step", begin_ns, begin_ns + 100 * MS, step=step) for rank in range(2)),
            span(0, "backprop", begin_ns, begin_ns + 60 * MS, **fields),
            span(
                0, "reduction", begin_ns + 60 * MS, begin_ns + 61 * MS, op="send", peer=1, **message
            ),
            span(1, "backprop", begin_ns, begin_ns + 20 * MS, **fields),
            span(1, "backprop", begin_ns + 65 * MS, begin_ns + 95 * MS, **fields),
        ]
        receive = {"op": "recv", "peer": 0, **message}
        if at_once:
            rows.append(span(1, "wait", begin_ns + 20 * MS, begin_ns + 65 * MS, **fields))
            rows.append(
                span(1, "reduction", begin_ns + MS, begin_ns + 65 * MS, **receive | {"thread": 1})
            )
        else:
            rows.append(span(1, "reduction", begin_ns + 20 * MS, begin_ns + 65 * MS, **receive))
    return prepare(trace_of(rows, ranks=2))


@pytest.mark.parametrize("at_once", [False, True])
def test_a_receive_waits_for_its_message_and_no_longer(*, at_once: bool) -> None:
    """Rank 1 gains what rank 0 does not work, until it has itself to do; in flight as well."""
    graph, total = replay_run(hand_on_messages(at_once=at_once))
    for less_ms, gained_ms in ((10.0, 10.0), (50.0, 45.0)):
        effect = np.zeros_like(total)
        effect[0, 0] = less_ms * MS
        ends = graph.layered_graph.replay(_lags_without(graph, effect))[graph.step_end_events[0]]
        assert (100 * MS - ends).tolist() == [less_ms * MS, gained_ms * MS]


def _lags_without(graph: EventGraph, effect: Floats) -> Floats:
    """Return the lags if the first step's work of rank 0 takes less."""
    lag_ns = graph.layered_graph.lag_ns.copy()
    is_begin = graph.threads.event_times_ns[1 : graph.threads.first_events[1]] == 60 * MS
    (first_event,) = np.flatnonzero(is_begin)
    lag_ns[first_event] -= effect[0, 0]
    return lag_ns


def exchange_together() -> Trace:
    """Two steps: rank 1 works 50 ms, the others 10; all send to all and wait for all in one call."""
    rows = []
    for step in range(2):
        for rank in range(3):
            begin_ns = 100 * step * MS
            work_end_ns = begin_ns + (50 if rank == 1 else 10) * MS + rank * 1000
            over = begin_ns + 52 * MS + rank * 1000
            fields: dict[str, Any] = {"step": step, "depth": 1}
            rows += [
                span(rank, "step", begin_ns, begin_ns + 100 * MS, step=step),
                span(rank, "backprop", begin_ns, work_end_ns, **fields),
                span(rank, "wait", work_end_ns + 9000, over + 9000, op="request_wait", **fields),
            ]
            others = [other for other in range(3) if other != rank]
            for number, (op, peer) in enumerate((op, p) for op in ("send", "recv") for p in others):
                flight: dict[str, Any] = {"op": op, "peer": peer, "seq": step, "thread": 1} | fields
                first = work_end_ns + 2000 * number
                rows.append(span(rank, "reduction", first, over + 2000 * number, **flight))
    return prepare(trace_of(rows, ranks=3))


def test_a_call_that_waits_for_several_is_held_by_the_last() -> None:
    """The others' messages, noted with it, were there before: no call waits for them."""
    graph, total = replay_run(exchange_together())
    assert graph.layered_graph.replay(graph.layered_graph.lag_ns) == pytest.approx(
        graph.layered_graph.recorded_times_ns, abs=1
    )
    effect = np.zeros_like(total)
    effect[:, 1] = 30 * MS
    variant = Variant(graph)
    variant.reduce_work(("backprop",), effect)
    assert variant.measure_savings_ns() == pytest.approx(30 * MS, abs=0.1 * MS)


def note_receives_late() -> Trace:
    """Two steps of 100 ms: rank 0 sends to rank 1, receives from rank 2 until 60 ms, and waits then."""
    rows = []
    for step in range(2):
        begin_ns = 100 * step * MS
        fields: dict[str, Any] = {"step": step, "depth": 1}
        message: dict[str, Any] = {"seq": step, **fields}
        rows += [
            *(span(rank, "step", begin_ns, begin_ns + 100 * MS, step=step) for rank in range(3)),
            *(span(rank, "backprop", begin_ns, begin_ns + 5 * MS, **fields) for rank in range(2)),
            span(2, "backprop", begin_ns, begin_ns + 59 * MS, **fields),
            span(
                0,
                "reduction",
                begin_ns + 5 * MS,
                begin_ns + 62 * MS,
                op="send",
                peer=1,
                thread=1,
                **message,
            ),
            span(
                1, "reduction", begin_ns + 6 * MS, begin_ns + 7 * MS, op="recv", peer=0, **message
            ),
            span(
                2, "reduction", begin_ns + 59 * MS, begin_ns + 60 * MS, op="send", peer=0, **message
            ),
            span(
                0, "reduction", begin_ns + 8 * MS, begin_ns + 60 * MS, op="recv", peer=2, **message
            ),
            span(0, "wait", begin_ns + 61 * MS, begin_ns + 62 * MS, op="request_wait", **fields),
            span(0, "update", begin_ns + 62 * MS, begin_ns + 100 * MS, **fields),
        ]
    return prepare(trace_of(rows, ranks=3))


def test_a_send_that_was_over_before_anybody_waited_for_it_holds_nobody() -> None:
    graph, total = replay_run(note_receives_late())
    effect = np.zeros_like(total)
    effect[0, 2] = 20 * MS
    variant = Variant(graph)
    variant.reduce_work(("backprop",), effect)
    ends = variant.replay()[graph.step_end_events[0]]
    assert 100 * MS - ends[0] == pytest.approx(20 * MS, abs=1.1 * MS)


def answer_after_work(*, receive_is_slow: bool) -> Trace:
    """40 steps: rank 0 sends and waits; rank 1 works for about 30 ms, receives, and sends back.

    Its receives take 0.2 ms, or wait for a message that arrives 31 ms after it was sent.
    """
    rows, begin_ns = [], 0
    for step, delay_ns in enumerate(np.random.default_rng(1).integers(0, MS, 40).tolist()):
        fields: dict[str, Any] = {"step": step, "depth": 1}
        message = fields | {"seq": step}
        work_end_ns = begin_ns + 29 * MS + delay_ns
        received_ns = work_end_ns + 200_000 if receive_is_slow else begin_ns + 31 * MS
        answered_ns = received_ns + 100_000
        end_ns = answered_ns + 10_000
        rows += [
            *(span(rank, "step", begin_ns, end_ns, step=step) for rank in range(2)),
            span(0, "reduction", begin_ns, begin_ns + 10_000, op="send", peer=1, **message),
            span(0, "reduction", begin_ns + 10_000, answered_ns, op="recv", peer=1, **message),
            span(1, "backprop", begin_ns, work_end_ns, **fields),
            span(1, "reduction", work_end_ns, received_ns, op="recv", peer=0, **message),
            span(1, "reduction", received_ns, received_ns + 9_000, op="send", peer=0, **message),
        ]
        begin_ns = end_ns
    return prepare(trace_of(rows, ranks=2))


@pytest.mark.parametrize(("receive_is_slow", "saved_ms"), [(True, 10.0), (False, 0.0)])
def test_a_slow_receive_is_told_from_a_late_message(
    *, receive_is_slow: bool, saved_ms: float
) -> None:
    """Less work before a slow receive saves as much; before a message that is late, nothing."""
    graph, total = replay_run(answer_after_work(receive_is_slow=receive_is_slow))
    effect = np.zeros_like(total)
    effect[:, 1] = 10 * MS
    variant = Variant(graph)
    variant.reduce_work(("backprop",), effect)
    assert variant.measure_savings_ns() / MS == pytest.approx(saved_ms, abs=0.3)
