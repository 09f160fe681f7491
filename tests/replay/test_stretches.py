"""What ranks do in a step of a replay adds up to the step, and changes as edits say."""

from functools import cache

import numpy as np
import pytest
from support.samples import manifest, sample_trace
from support.tiers import mark_slow_in_turn

import tracelens as tl
from tracelens.replay.stretches import Stretches
from tracelens.replay.whatif import Replay

SAMPLE = "ddp-slow-backprop"
QUICK = (SAMPLE, "easgd-async", "mpi-killed-rank", "ps-hot-shard")


@cache
def replay(name: str) -> Replay:
    return Replay.from_trace(sample_trace(name))


@pytest.mark.parametrize("name", mark_slow_in_turn([sample.name for sample in manifest()], QUICK))
def test_stretches_of_all_steps_are_the_threads(name: str) -> None:
    """They lie one after the other without a gap, and what ranks work is what their moments say."""
    graph = replay(name).graph
    rows = [
        Stretches.from_replay(graph, graph.baseline_times_ns, graph.edges.lag_ns, row)
        for row in range(len(graph.step_numbers))
    ]
    for worker, rank in enumerate(graph.ranks):
        inside = np.flatnonzero(
            (graph.interval_step_rows >= 0) & (graph.threads.worker_of_interval == worker)
        )
        lasts = np.diff(graph.baseline_times_ns)[graph.threads.interval_begin_events[inside]]
        worked = np.minimum(graph.edges.lag_ns[inside], lasts)
        own_rows = [(row.rank == rank) for row in rows]
        spent_ns = sum(
            float((row.end_ns - row.begin_ns)[is_own_row].sum())
            for row, is_own_row in zip(rows, own_rows, strict=True)
        )
        works = sum(
            float((row.end_ns - row.begin_ns)[is_own_row & row.is_work].sum())
            for row, is_own_row in zip(rows, own_rows, strict=True)
        )
        assert spent_ns == pytest.approx(lasts.sum(), rel=1e-6, abs=2 * len(lasts))
        assert works == pytest.approx(worked.sum(), rel=1e-6, abs=2 * len(lasts))


def test_a_step_ends_when_its_last_rank_does() -> None:
    """Which is its length, from when the step before was over."""
    graph = replay(SAMPLE).graph
    baseline, edited = replay(SAMPLE).replay_step(40, "rank:1=median")
    assert baseline.end_ns.max() == pytest.approx(
        graph.measure_steps_ns(graph.baseline_times_ns)[40]
    )
    saved = replay(SAMPLE).measure_savings_ns("rank:1=median")[40]
    assert baseline.end_ns.max() - edited.end_ns.max() == pytest.approx(saved)
    assert saved > 40e6


def test_whoever_asks_often_builds_the_run_once() -> None:
    """Repeated queries build the run once and return the same answers."""
    once = tl.whatif(sample_trace(SAMPLE), "rank:1=median", "phase:data=0")
    assert replay(SAMPLE).answer("rank:1=median", "phase:data=0") == once
