"""Of calls that begin when their stream gets free, the replay estimates when they were ready."""

from dataclasses import replace

import numpy as np
import pytest
from support.runs.analysed import trace as run
from support.runs.streams import prepare_stream_run
from support.tiers import mark_slow

from tracelens.accounting import phases
from tracelens.replay.calls import select_complete_calls
from tracelens.replay.event_graph import EventGraph
from tracelens.replay.readiness import find_queued_entries
from tracelens.replay.timeline import Timeline
from tracelens.simulator.synthetic import Fault, Scenario, duration_ns
from tracelens.verdicts.whatif import whatif

BASE = Scenario(
    ranks=4,
    steps=60,
    seed=11,
    noise=0.03,
    buckets=6,
    bucket_sizes=tuple(1 << power for power in (20, 22, 21, 23, 20, 22)),
    transfer_ms=2.5,
    message_ms=0.05,
)
LATE = (Fault("backprop", (1,), factor=1.3),)
SIZES = tuple(1 << power for power in (18, 20, 20, 21, 22, 22, 23, 19, 21, 20, 22, 18))
RUNS = {
    "two ranks": replace(BASE, ranks=2),
    "four ranks": BASE,
    "eight ranks": replace(BASE, ranks=8),
    "many buckets": replace(BASE, buckets=12, bucket_sizes=SIZES, transfer_ms=1.2),
    "short transfers": replace(BASE, transfer_ms=1.0),
    "noise": replace(BASE, noise=0.1),
    "a straggler": replace(BASE, faults=LATE),
    "devices": replace(BASE, on_device=True),
    "a straggler of two": replace(BASE, ranks=2, transfer_ms=1.5, faults=LATE),
}


@pytest.mark.parametrize(
    "name", mark_slow(RUNS, quick=("two ranks", "a straggler", "noise", "devices"))
)
def test_a_faster_network_saves_what_it_really_does(name: str) -> None:
    """Calls that queued are ready before their stream is free, so they go earlier."""
    scenario = RUNS[name]
    truth = 1 - duration_ns(replace(scenario, transfer_ms=scenario.transfer_ms / 2)) / duration_ns(
        scenario
    )
    answer = whatif(prepare_stream_run(scenario), "bandwidth*2")
    assert abs(answer.identity.run_error_share) < 1e-3
    assert answer.answers[0].saving == pytest.approx(truth, rel=0.06, abs=0.002)


def test_shares_are_measured_where_calls_did_not_queue() -> None:
    """Shares of bytes would be wrong, and steps outside of the episode tell the right ones."""
    early = replace(
        BASE,
        bucket_ready=(0.05, 0.1, 0.15, 0.2, 0.25, 1.0),
        backprop_ms=40.0,
        transfer_ms=0.5,
        faults=(Fault("reduction", steps=(20, 44), factor=12.0),),
    )
    graph, truth = (
        EventGraph.from_trace(trace, phases.run(trace))
        for trace in (prepare_stream_run(early), run(early))
    )
    assert graph is not None
    assert truth is not None
    (estimated,), (recorded,) = graph.calls, truth.calls
    error_ns = np.abs(estimated.begin_ns - recorded.begin_ns)
    assert np.quantile(error_ns, 0.95) < 0.02 * 40e6


@pytest.mark.parametrize("overlap", [True, False])
def test_calls_with_recorded_readiness_are_left_alone(*, overlap: bool) -> None:
    """Calls in flight that overlap, and calls that stop their rank, do not queue on a stream."""
    trace = run(replace(BASE, overlap=overlap))
    first, last = (trace.steps[name].to_numpy() for name in ("start_ns", "end_ns"))
    bounds = np.full(4, first.min()), np.full(4, last.max())
    pieces = phases.run(trace).pieces
    timeline = Timeline.from_pieces([pieces.unpack_worker(worker) for worker in range(4)])
    calls = [*select_complete_calls(trace, *bounds)]
    assert find_queued_entries(calls, timeline).is_empty()
