"""Ranks are peers if they play the same part: the stages of pipelines, by messages and communicators."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import polars as pl
import pytest
from benchmarks.labelled import kinds_of_pipelines, kinds_of_ranks, pipeline
from benchmarks.labelled.recording import Recording
from benchmarks.labelled.setting import Setting
from support.runs.matrices import healthy, own_time
from support.runs.traces import span, trace_of
from support.tiers import mark_slow

from tracelens.accounting.stages import Stages, find_server_rank, find_stages
from tracelens.load import prepare
from tracelens.model.trace import Trace

RANKS, STAGES = 64, pipeline.STAGES[64]


@cache
def record_pipeline(*, by_stage: bool = True) -> Recording:
    setting = Setting(RANKS, 8, 8, "mild", "lognormal", 0)
    case = kinds_of_pipelines.staged(kinds_of_ranks.nothing, by_stage=by_stage)(setting)
    return case.recording


def stages_of(trace: Trace) -> Stages | None:
    return find_stages(prepare(trace))


@pytest.mark.parametrize("by_stage", mark_slow([True, False], quick=[True]))
def test_stages_of_a_pipeline_are_found(*, by_stage: bool) -> None:
    """Found by the communicators of replicas, or by the order of messages."""
    stages = stages_of(record_pipeline(by_stage=by_stage).trace())
    assert stages is not None
    assert stages.stage_of_column.tolist() == [rank * STAGES // RANKS for rank in range(RANKS)]
    assert len(set(stages.chain_of_column.tolist())) == RANKS // STAGES


def test_a_communicator_of_first_and_last_stage_joins_none() -> None:
    """As of embeddings that both share: its ranks are in one chain."""
    run = record_pipeline()
    replica_events = run.events.filter(pl.col("communicator") == pipeline.replicas(0)).head(0)
    ends = [rank for rank in range(RANKS) if rank % 16 == 0 and rank // 16 in {0, STAGES - 1}]
    rows = run.events.filter(
        (pl.col("op") == "allreduce") & pl.col("rank").is_in(ends)
    ).with_columns(communicator=pl.lit("embeddings").cast(replica_events["communicator"].dtype))
    events = pl.concat([run.events, rows.unique(["rank", "step"])]).sort("process", "start_ns")
    stages = stages_of(replace(run, events=events).trace())
    assert stages is not None
    assert len(stages.columns_by_stage) == STAGES


def exchange(ranks: int, *, together: bool) -> Trace:
    """Let neighbours exchange borders in each step: all together, or one after the other."""
    rows = []
    for step in range(4):
        for rank in range(ranks):
            step_begin_ns = 100 * step
            start_ns = step_begin_ns + (10 if together else 10 * rank + 10)
            rows.append(span(rank, "step", step_begin_ns, step_begin_ns + 100, step=step))
            sides = [("send", rank + 1), ("recv", rank - 1)]
            for op, peer in sides:
                if 0 <= peer < ranks:
                    fields: dict[str, Any] = {
                        "op": op,
                        "peer": peer,
                        "seq": step,
                        "depth": 1,
                        "step": step,
                    }
                    length = 15 if together else 8
                    start = start_ns + (9 if op == "send" and not together else 0)
                    rows.append(span(rank, "reduction", start, start + length, **fields))
    return trace_of(rows, ranks=ranks)


def test_neighbours_that_exchange_borders_are_all_peers() -> None:
    """All send at the same time, so no work is handed on within a step."""
    assert stages_of(exchange(6, together=True)) is None


def test_work_that_is_handed_on_makes_stages() -> None:
    """Each receives before it sends, and no communicator joins any two."""
    stages = stages_of(exchange(6, together=False))
    assert stages is not None
    assert stages.stage_of_column.tolist() == list(range(6))


def test_ranks_that_send_nothing_are_all_peers() -> None:
    trace = record_pipeline().trace()
    events = trace.events.filter(pl.col("op").is_in(["send", "recv"]).not_().fill_null(value=True))
    assert stages_of(trace.with_(events=events)) is None


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_levelling_hides_unequal_stages_but_not_a_slow_rank(replicas: int) -> None:
    """A stage with twice the work is as usual as any; a slow rank of it still stands out."""
    count = 3
    ranks = count * replicas
    matrices = [values.copy() for values in healthy(1, ranks, 80)]
    stage = np.arange(ranks) // replicas
    for values in matrices:
        values[:, stage == 1] *= 2
        values[60:, ranks - 1] *= 1.5
    compute_time = replace(own_time(matrices), stages=Stages(stage, np.arange(ranks) % replicas))
    level = compute_time.with_equal_stages
    assert level.stages is None
    early, late = (
        np.median(level.total_compute_ns[rows], axis=0) for rows in (slice(5, 60), slice(60, None))
    )
    median = np.median(early)
    assert np.all(np.abs(early / median - 1) < 0.15)
    assert late[-1] > 1.2 * median
    assert np.all(late[:-1] < 1.1 * median)


def test_without_stages_nothing_is_levelled() -> None:
    """All ranks are peers, and the matrices are the same."""
    own = own_time(healthy(1, 4, 40))
    assert own.with_equal_stages is own
    assert own.find_peer_columns((1,)).tolist() == [0, 2, 3]


def served_trace(order: list[int], *, directly: bool = True, others: bool = False) -> Trace:
    """Let rank 0 answer requests of ranks 1 to 3: each before the next, or all of them at last."""
    rows: list[dict[str, Any]] = []
    counts = dict.fromkeys(range(1, 4), 0)
    end_ns = 10 * len(order)
    for index, peer in enumerate(order):
        asked_ns, answered_ns = 10 * index, 10 * index + 5 if directly else end_ns + 10 * index
        for rank, op, partner, key, moment_ns in (
            (peer, "send", 0, 1, asked_ns),
            (0, "recv", peer, 1, asked_ns + 1),
            (0, "send", peer, 2, answered_ns),
            (peer, "recv", 0, 2, answered_ns + 1),
        ):
            fields: dict[str, Any] = {"op": op, "peer": partner, "key": key, "communicator": "c"}
            fields["seq"] = counts[peer]
            rows.append(span(rank, "reduction", moment_ns, moment_ns + 2, **fields))
        counts[peer] += 1
    if others:
        fields = {"op": "send", "peer": 2, "key": 3, "seq": 0, "communicator": "d"}
        rows.append(span(1, "reduction", 3 * end_ns, 3 * end_ns + 2, **fields))
    return prepare(trace_of(rows, ranks=4))


ORDER = [1, 2, 3, 3, 1, 2, 2, 3, 1, 1, 2, 3]


def test_who_answers_all_others_is_a_server() -> None:
    assert find_server_rank(served_trace(ORDER)) == 0


def test_who_gathers_and_then_answers_is_a_peer() -> None:
    """It may work as the others do."""
    assert find_server_rank(served_trace(ORDER, directly=False)) is None


def test_a_rank_that_others_bypass_is_no_server() -> None:
    assert find_server_rank(served_trace(ORDER, others=True)) is None
    assert find_server_rank(prepare(exchange(3, together=True))) is None


def test_a_server_is_compared_only_if_it_takes_longer() -> None:
    """What it idles says nothing of those whom it serves."""
    compute_time = replace(own_time(healthy(0, 4, 40)), server_column=0)
    idle, slow = compute_time.compute_ns.copy(), compute_time.compute_ns.copy()
    idle[:, :, 0], slow[:, :, 0] = 0.0, 9 * compute_time.compute_ns[:, :, 0]
    median = np.median(compute_time.compute_ns[:, :, 1:], axis=2)
    assert (
        replace(compute_time, compute_ns=idle).with_equal_stages.compute_ns[:, :, 0] == median
    ).all()
    assert (
        replace(compute_time, compute_ns=slow).with_equal_stages.compute_ns[:, :, 0]
        == slow[:, :, 0]
    ).all()
    assert replace(compute_time, compute_ns=idle).find_peer_columns((1,)).tolist() == [2, 3]
