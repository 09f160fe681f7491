"""A replay without edits gives back the recorded run, on every sample trace."""

import numpy as np
import pytest
from support.samples import manifest, sample_trace
from support.tiers import mark_slow_in_turn

from tracelens.accounting import phases
from tracelens.replay.event_graph import EventGraph

SYNCHRONOUS, OTHERS = 0.01, 0.03
QUICK = (
    "ddp-slow-backprop",
    "easgd-async",
    "grpc-pipelined",
    "horovod-slow-rank",
    "mpi-killed-rank",
    "mpi-late-rank",
    "ps-hot-shard",
)
AT_THEIR_OWN_PACE = ("async", "hogwild", "measgd", "original", "pipelined", "tensorflow")


@pytest.mark.parametrize("name", mark_slow_in_turn([sample.name for sample in manifest()], QUICK))
def test_a_replay_without_edits_takes_as_long_as_the_run(name: str) -> None:
    """The usual step differs by 1 % at most where ranks meet in every step, by 3 % elsewhere."""
    trace = sample_trace(name)
    graph = EventGraph.from_trace(trace, phases.run(trace))
    assert graph is not None
    recorded, replayed = (
        graph.measure_steps_ns(graph.recorded_times_ns),
        graph.measure_steps_ns(graph.baseline_times_ns),
    )
    error = np.abs(replayed / recorded - 1)
    most = OTHERS if any(word in name for word in AT_THEIR_OWN_PACE) else SYNCHRONOUS
    assert np.median(error) <= most
    assert abs(replayed.sum() / recorded.sum() - 1) <= most
    own = graph.threads.event_count
    follows = np.unique(graph.edges.target_events[graph.edges.target_events < own])
    assert len(follows) == own - graph.threads.worker_count, "a moment within a run follows nothing"


def test_blocked_time_is_replayed_from_its_causes() -> None:
    """Waits are no lengths of their own: a rank that works less makes the others wait less."""
    trace = sample_trace("mpi-late-rank")
    graph = EventGraph.from_trace(trace, phases.run(trace))
    assert graph is not None
    late = graph.ranks.index(2)
    mine = np.flatnonzero(graph.threads.worker_of_interval == late)
    lag = graph.edges.lag_ns.copy()
    lag[mine] /= 2
    blocked_ns = graph.measure_blocked_ns(graph.baseline_times_ns, graph.edges.lag_ns)
    replayed_ns = graph.measure_blocked_ns(graph.replay(lag), lag)
    others = [rank for rank in range(len(graph.ranks)) if rank != late]
    assert (replayed_ns[others] < blocked_ns[others]).all()
    assert replayed_ns[late] > blocked_ns[late]
