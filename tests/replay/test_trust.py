"""A replay that would not follow a change says so, though it equals the run."""

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from support.runs.analysed import trace as run
from support.runs.traces import WORLD, call, span, trace_of

from tracelens.accounting import phases
from tracelens.analyses import stage_imbalance
from tracelens.facts import Facts
from tracelens.load import prepare
from tracelens.model.trace import Trace
from tracelens.replay.edits.fixes import TransferFix
from tracelens.replay.event_graph import EventGraph
from tracelens.replay.pricing import price_edits, price_faster_calls, price_joined_calls
from tracelens.replay.trust import Identity
from tracelens.replay.windows import WindowedReplay
from tracelens.simulator.synthetic import Scenario
from tracelens.stats.cost_line import CostModel
from tracelens.verdicts.whatif import whatif

MS = 10**6
STEPS = 30
PAIR = "pair"


def in_order(rows: list[dict[str, Any]], ranks: int, pair: tuple[int, ...] = ()) -> Trace:
    """Return the trace of some spans; two of the ranks may have a communicator of their own."""
    rows.sort(key=lambda row: (row["process"], row["start_ns"], -row["end_ns"]))
    trace = trace_of(rows, ranks=ranks)
    own = pl.DataFrame([(PAIR, PAIR, list(pair))], schema=trace.communicators.schema, orient="row")
    communicators = pl.concat([trace.communicators, own[: len(pair)]])
    return prepare(replace(trace, communicators=communicators))


def wait_before_meeting() -> Trace:
    """Rank 0 works while rank 1 is blocked by what nothing tells; then both meet."""
    rows = []
    for step in range(STEPS):
        begin_ns, end = 30 * step * MS, (30 * step + 22) * MS
        for rank, (kind, lasts_ms) in enumerate((("backprop", 20), ("wait", 15))):
            over = begin_ns + lasts_ms * MS
            rows += [
                span(rank, "step", begin_ns, end, step=step),
                span(rank, kind, begin_ns, over, step=step, depth=1),
                call(rank, step, over, end, step=step, depth=1, thread=0),
            ]
    return in_order(rows, 2)


def wait_beside_calls() -> Trace:
    """Two ranks make 8 calls in 20 ms; another is blocked for 10 ms by what nothing tells; all meet."""
    rows = []
    for step in range(STEPS):
        begin_ns, met_ns = 25 * step * MS, (25 * step + 20) * MS
        for rank in range(3):
            fields: dict[str, Any] = {"step": step, "depth": 1, "thread": 0}
            arrived_ns = met_ns if rank < 2 else begin_ns + 10 * MS
            rows += [
                span(rank, "step", begin_ns, met_ns + 2 * MS, step=step),
                call(rank, step, arrived_ns, met_ns + 2 * MS, **fields),
            ]
            if rank == 2:
                rows.append(span(rank, "wait", begin_ns, arrived_ns, **fields))
                continue
            for number in range(8):
                start, end = (begin_ns + (number + of) * 5 * MS // 2 for of in (0, 1))
                of_pair: dict[str, Any] = {"communicator": PAIR, "bytes": 1000}
                rows.append(call(rank, 8 * step + number, start, end, **of_pair, **fields))
    return in_order(rows, 3, pair=(0, 1))


def stages_with_a_wait() -> Trace:
    """Three stages work 8, 22 and 6 ms; the first is also blocked for 7 ms by what nothing tells."""
    rows = []
    free = [0, 0, 0]
    for step in range(STEPS):
        received = 0
        for rank, (own_ms, wait_ms) in enumerate(((8, 7), (22, 0), (6, 0))):
            begin_ns = free[rank]
            work = max(begin_ns, received)
            worked = work + own_ms * MS
            over = free[rank] = received = worked + wait_ms * MS
            fields: dict[str, Any] = {"step": step, "depth": 1}
            message: dict[str, Any] = {"seq": step, "bytes": 8, "communicator": WORLD}
            rows.append(span(rank, "step", begin_ns, over, step=step))
            if rank:
                message_end: dict[str, Any] = {"op": "recv", "peer": rank - 1}
                rows.append(
                    span(rank, "reduction", begin_ns, work, **message_end, **message, **fields)
                )
            rows.append(span(rank, "backprop", work, worked, **fields))
            if wait_ms:
                rows.append(span(rank, "wait", worked, over, **fields))
            if rank < 2:
                message_end = {"op": "send", "peer": rank + 1}
                rows.append(
                    span(rank, "reduction", over - 1000, over, **message_end, **message, **fields)
                )
    return in_order(rows, 3)


def windows_of(trace: Trace) -> WindowedReplay:
    """Return the replay that prices findings, reliable as long as nothing is changed."""
    replay = WindowedReplay(trace, phases.run(trace))
    assert replay.build_whole() is not None
    return replay


@pytest.mark.parametrize("wait_ms", [1, 3, 10])
def test_waits_without_a_reason_make_a_replay_rigid(wait_ms: int) -> None:
    """Ranks work 10 ms in each step, and are blocked; nothing that was recorded ends that."""
    step_ms, rows = 10 + wait_ms, []
    for rank in range(2):
        for step in range(30):
            begin_ns = step * step_ms
            middle, end = (begin_ns + 10) * MS, (begin_ns + step_ms) * MS
            rows += [
                span(rank, "step", begin_ns * MS, end, step=step),
                span(rank, "backprop", begin_ns * MS, middle, step=step, depth=1),
                span(rank, "wait", middle, end, step=step, depth=1),
            ]
    rows.sort(key=lambda row: (row["process"], row["start_ns"], -row["end_ns"]))
    trace = prepare(trace_of(rows, ranks=2))
    graph = EventGraph.from_trace(trace, phases.run(trace))
    assert graph
    identity = Identity.from_graph(graph)
    assert identity.run_error_share == pytest.approx(0.0, abs=1e-3)
    assert identity.rigid_share == pytest.approx(wait_ms / step_ms, abs=0.01)
    assert identity.is_reliable == (wait_ms < 10)
    said = "Not reliable: " in whatif(trace, "phase:backprop/2").trust
    assert said == (wait_ms == 10)


def test_an_edit_after_which_unknown_waits_are_critical_is_doubted() -> None:
    trace = wait_before_meeting()
    result = whatif(trace, "phase:backprop=0")
    assert result.identity.is_reliable
    assert result.answers[0].doubt is not None
    price = price_edits(windows_of(trace), "phase:backprop=0")
    assert price.saving_share is None
    assert price.refusal == result.answers[0].doubt


@pytest.mark.parametrize(("takes", "is_replayed"), [(0.9, True), (0.3, False)])
def test_faster_calls_beside_which_unknown_waits_are_critical(
    takes: float, *, is_replayed: bool
) -> None:
    """They are priced by what they lose, as in a run that cannot be replayed."""
    replay = windows_of(wait_beside_calls())
    steps, lost_ns = np.arange(STEPS), np.full(STEPS, (1 - takes) * 20 * MS)
    fix = TransferFix(steps, {PAIR: np.full(STEPS, takes)})
    price = price_faster_calls(replay, fix, lost_ns)
    assert (price.fix is fix) == is_replayed
    assert (price.identity is not None) == is_replayed


def test_calls_are_joined_as_long_as_no_unknown_wait_is_critical() -> None:
    """Into 4 messages: fewer are through before the unknown wait is over."""
    cost = CostModel(2.0 * MS, 500.0, (1.9 * MS, 2.1 * MS), (490.0, 510.0), 0.0, 1000, 8000)
    replay = windows_of(wait_beside_calls())
    joined = price_joined_calls(replay, PAIR, "allreduce", cost, min_saving_ns=0.0)
    assert joined is not None
    assert joined.messages_per_step == 4
    assert joined.replay.identity.is_reliable
    least_ns = float(joined.saved_ns_by_step.sum()) + 1
    assert price_joined_calls(replay, PAIR, "allreduce", cost, min_saving_ns=least_ns) is None


def test_stages_that_unknown_waits_make_unequal_are_not_priced() -> None:
    """With as much work as others the first stage would be the longest one, for it waits as well."""
    trace = stages_with_a_wait()
    assert windows_of(trace)
    imbalance = stage_imbalance.run(Facts(trace, phases.run(trace)))
    assert imbalance.stages["own_ns"].to_list() == pytest.approx(
        [8 * MS, 22 * MS, 6 * MS], rel=1e-3
    )
    assert not imbalance.findings


def test_the_interval_holds_what_rigid_time_may_save() -> None:
    """Waits without a known reason may get shorter as the rest does, up to where it is refused."""
    identity = Identity(
        run_error_share=0.0, median_step_error_share=0.0, unexplained_share=0.2, rigid_share=0.2
    )
    assert identity.widen_interval((0.4, 0.6)) == pytest.approx((0.4, 0.75))
    assert identity.widen_interval((-0.4, 0.6)) == pytest.approx((-0.5, 0.75))


def test_a_run_whose_waits_have_reasons_is_not_rigid() -> None:
    trace = run(Scenario(ranks=4, steps=40, transfer_ms=4, noise=0.1))
    graph = EventGraph.from_trace(trace, phases.run(trace))
    assert graph
    assert Identity.from_graph(graph).rigid_share < 0.01
