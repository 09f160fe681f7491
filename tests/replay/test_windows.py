"""A long run is replayed in windows of its steps, and saves about what the whole of it would."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.runs.analysed import trace as run
from support.runs.traces import span, trace_of

from tracelens.accounting import phases
from tracelens.accounting.compute_time import measure_compute_time
from tracelens.arrays import Floats
from tracelens.load import prepare
from tracelens.replay.cores import CoreShortage
from tracelens.replay.edits.fixes import WorkFix
from tracelens.replay.trust import Identity
from tracelens.replay.windows import Savings, WindowedReplay
from tracelens.simulator.synthetic import Fault, Scenario

FAULTS = {
    "lasting": Fault("backprop", (2,), factor=1.5),
    "passing": Fault("backprop", (2,), steps=(300, 420), factor=1.5),
    "stalls": Fault("backprop", (2,), extra_ms=10, every=40),
}
LONG = Scenario(ranks=4, steps=600, buckets=8, backprop_ms=16, transfer_ms=3, noise=0.03)


def measure(fault: Fault, max_pieces: int) -> tuple[Floats, Floats]:
    """Return the true saving of each step and the estimated one, in ns."""
    scenario = Scenario(**{**vars(LONG), "faults": (fault,)})
    trace = run(scenario)
    partition = phases.run(trace)
    compute_time = measure_compute_time(trace, partition)
    own_backprop = compute_time.compute_ns[compute_time.phase_names.index("backprop")]
    effect = np.zeros(compute_time.total_compute_ns.shape)
    first_step, last_step = fault.steps or (0, scenario.steps - 1)
    touched = np.arange(first_step, last_step + 1, fault.every)
    others = np.median(np.delete(own_backprop, 2, axis=1), axis=1)
    effect[touched, 2] = np.maximum(own_backprop[:, 2] - others, 0.0)[touched]
    measured = WindowedReplay(trace, partition, max_pieces).measure_savings(
        WorkFix(compute_time.step_numbers, ((("backprop",), effect),))
    )
    assert measured is not None
    assert measured.has_calls_in_flight
    assert not measured.has_inferred_calls
    return measured.saved_ns_by_step, effect.max(axis=1)


@pytest.mark.parametrize("name", FAULTS)
def test_windows_save_about_what_the_whole_run_does(name: str) -> None:
    whole_ns, late = measure(FAULTS[name], 10**9)
    windows_ns, _ = measure(FAULTS[name], 10_000)
    assert 0 < whole_ns.sum() < 0.8 * late.sum()  # reductions absorb a part of it
    assert windows_ns.sum() == pytest.approx(whole_ns.sum(), rel=0.15)
    assert not windows_ns[late == 0].any()


def test_a_run_whose_waits_have_no_reason_is_not_replayed() -> None:
    """Rank 0 is blocked in half of each step, and nothing that was recorded ends that."""
    ms = 10**6
    rows = [
        span(rank, kind, (step * 10 + begin_ms) * ms, (step * 10 + begin_ms + 5) * ms, step=step)
        for rank in range(2)
        for step in range(30)
        for kind, begin_ms in (("backprop", 0), ("wait", 5))
    ]
    rows += [
        span(rank, "step", step * 10 * ms, (step + 1) * 10 * ms, step=step)
        for rank in range(2)
        for step in range(30)
    ]
    trace = prepare(trace_of(rows, ranks=2))
    replay = WindowedReplay(trace, phases.run(trace))
    fix = WorkFix(np.arange(30), ((("backprop",), np.ones((30, 2))),))
    assert replay.measure_savings(fix) is None


def test_an_interval_holds_what_ranks_lack_cores_for() -> None:
    """Of the replayed steps a fifth of the saving is lost to that, and so of all steps."""
    identity = Identity(
        run_error_share=0.0, median_step_error_share=0.0, unexplained_share=0.0, rigid_share=0.0
    )
    replay: Any = SimpleNamespace(
        identity=identity,
        saved_ns_by_step=np.full(10, 10.0),
        core_shortage=CoreShortage(4, 2.0, delay_ns=20.0),
    )
    savings = Savings(
        np.full(50, 10.0), has_calls_in_flight=False, has_inferred_calls=False, replays=(replay,)
    )
    assert savings.widen_interval((0.4, 0.6), job_ns=1000.0) == pytest.approx((0.3, 0.6))
    assert savings.widen_interval((0.05, 0.6), job_ns=1000.0) == (0.0, 0.6)
