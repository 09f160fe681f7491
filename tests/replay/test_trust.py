"""A replay that would not follow a change says so, though it equals the run."""

from __future__ import annotations

import pytest
from support.runs.analysed import trace as run
from support.runs.traces import call, span, trace_of

from tracelens.accounting import phases
from tracelens.load import prepare
from tracelens.replay.model import Model
from tracelens.replay.trust import Identity
from tracelens.simulator.synthetic import Scenario
from tracelens.verdicts.whatif import whatif

MS = 10**6


@pytest.mark.parametrize("wait_ms", [1, 3, 10])
def test_waits_without_a_reason_make_a_replay_rigid(wait_ms: int) -> None:
    """Ranks work 10 ms in each step, and are blocked; nothing that was recorded ends that."""
    step_ms, rows = 10 + wait_ms, []
    for rank in range(2):
        for step in range(30):
            begin = step * step_ms
            middle, end = (begin + 10) * MS, (begin + step_ms) * MS
            rows += [
                span(rank, "step", begin * MS, end, step=step),
                span(rank, "backprop", begin * MS, middle, step=step, depth=1),
                span(rank, "wait", middle, end, step=step, depth=1),
            ]
    rows.sort(key=lambda row: (row["process"], row["start_ns"], -row["end_ns"]))
    trace = prepare(trace_of(rows, ranks=2))
    model = Model.of(trace, phases.run(trace))
    assert model
    identity = Identity.of(model)
    assert identity.whole == pytest.approx(0.0, abs=1e-3)
    assert identity.rigid == pytest.approx(wait_ms / step_ms, abs=0.01)
    assert identity.reliable == (wait_ms < 10)
    said = "Not reliable: " in whatif(trace, "phase:backprop/2").trust
    assert said == (wait_ms == 10)


def test_an_edit_after_which_unknown_waits_are_critical_is_doubted() -> None:
    """Rank 0 works while rank 1 is blocked by what nothing tells; then both meet."""
    rows = []
    for step in range(30):
        begin, end = 30 * step * MS, (30 * step + 22) * MS
        for rank, (kind, lasts_ms) in enumerate((("backprop", 20), ("wait", 15))):
            over = begin + lasts_ms * MS
            rows += [
                span(rank, "step", begin, end, step=step),
                span(rank, kind, begin, over, step=step, depth=1),
                call(rank, step, over, end, step=step, depth=1, thread=0),
            ]
    rows.sort(key=lambda row: (row["process"], row["start_ns"], -row["end_ns"]))
    found = whatif(prepare(trace_of(rows, ranks=2)), "phase:backprop=0")
    assert found.identity.reliable
    assert found.answers[0].doubt is not None


def test_the_interval_holds_what_rigid_time_may_save() -> None:
    """Waits without a known reason may get shorter as the rest does, up to where it is refused."""
    identity = Identity(whole=0.0, median_step=0.0, kept=0.2, rigid=0.2)
    assert identity.widen((0.4, 0.6)) == pytest.approx((0.4, 0.75))
    assert identity.widen((-0.4, 0.6)) == pytest.approx((-0.5, 0.75))


def test_a_run_whose_waits_have_reasons_is_not_rigid() -> None:
    trace = run(Scenario(ranks=4, steps=40, transfer_ms=4, noise=0.1))
    model = Model.of(trace, phases.run(trace))
    assert model
    assert Identity.of(model).rigid < 0.01
