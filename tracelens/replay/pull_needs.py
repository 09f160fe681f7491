"""When workers need the variables that they pull while forward runs.

Forward goes through variables in the order in which a worker asks for them. Each variable's share of
forward is that of backprop before its gradient is pushed, else all have equal shares. Where a worker
waited for a variable, forward came to it; between two such places this is interpolated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.categories import CATEGORIES
from tracelens.replay.timeline import IS_BACKPROP, IS_BLOCKED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.accounting.pieces import WorkerPieces
    from tracelens.arrays import Flags, Floats, Ints
    from tracelens.replay.timeline import Timeline

__all__ = ["find_need_times_ns", "measure_unknown_share"]

# share of a pull: a worker that is blocked for as much needs it when it ends [chosen]
MIN_SHARE_OF_PULL_BLOCKED: Final = 0.9
_IS_FORWARD: Final = np.isin(CATEGORIES, ("forward",))


def find_need_times_ns(
    requests: pl.DataFrame, timeline: Timeline, worker_steps: Sequence[pl.DataFrame]
) -> Ints:
    """Return from when on workers need the answers to pulls, ns, [request]; -1 where unknown.

    `requests` has a row for each request, `worker_steps` a frame for each worker, a row per step.
    """
    needs_ns = np.full(requests.height, -1, np.int64)
    op = pl.col("op")
    in_flight = requests.filter(~pl.col("is_blocking"), op.is_in(["pull", "push"]))
    if in_flight["key"].null_count() or in_flight.is_empty():
        return needs_ns
    requests_by_worker: dict[int, pl.DataFrame] = {
        worker: own_requests
        for (worker,), own_requests in in_flight.partition_by("worker", as_dict=True).items()
    }
    backprop_ns = _measure_backprop_by_key(requests_by_worker, timeline.worker_pieces, worker_steps)
    _, wait_ends = timeline.blocked_stretches  # positions
    for worker, own_requests in requests_by_worker.items():
        request_row, key, begin_ns, end_ns = (
            own_requests.filter(op == "pull")[name].to_numpy()
            for name in ("row", "key", "start_ns", "end_ns")
        )
        steps_ns = worker_steps[worker].select("start_ns", "end_ns").to_numpy()
        step_row = np.searchsorted(steps_ns[:, 0], begin_ns, "right") - 1
        pieces = timeline.worker_pieces[worker]
        forward = pieces.bounds_ns, pieces.sum_ns_before(_IS_FORWARD, pieces.bounds_ns)
        is_awaited = np.isin(timeline.to_positions(np.full(1, worker), end_ns), wait_ends)
        for row in np.unique(step_row[step_row >= 0]).tolist():
            rows = np.flatnonzero(step_row == row)
            if len(rows) > 1:  # of a single variable, forward needs all at once
                pulls = key[rows], end_ns[rows], is_awaited[rows]
                step_needs_ns = _find_needs_of_step(pulls, forward, steps_ns[row], backprop_ns)
                needs_ns[request_row[rows]] = step_needs_ns
    return needs_ns


def measure_unknown_share(requests: pl.DataFrame, needs_ns: Ints, timeline: Timeline) -> float:
    """Return the share of pulls needed at an unknown time (-1, [request]), while the worker computed.

    `requests` has one row per request; `needs_ns` is when its worker needed it.
    """
    is_pull = (requests["op"] == "pull") & (requests["bytes"] > 0)
    pull_rows = np.flatnonzero(is_pull.fill_null(value=False).to_numpy())
    is_unknown = ~requests["is_blocking"].to_numpy() & (needs_ns < 0)  # [request]
    unknown_rows = pull_rows[is_unknown[pull_rows]]
    worker, begin_ns, end_ns = (
        requests[name].to_numpy()[unknown_rows] for name in ("worker", "start_ns", "end_ns")
    )
    blocked_by_begin_ns, blocked_by_end_ns = (
        timeline.sum_ns_before(IS_BLOCKED, timeline.to_positions(worker, times_ns))
        for times_ns in (begin_ns, end_ns)
    )
    min_blocked_ns = MIN_SHARE_OF_PULL_BLOCKED * (end_ns - begin_ns)
    is_computing = blocked_by_end_ns - blocked_by_begin_ns < min_blocked_ns
    return int(is_computing.sum()) / max(len(pull_rows), 1)


def _find_needs_of_step(
    pulls: tuple[Ints, Ints, Flags],
    forward: tuple[Ints, Floats],
    step_ns: Ints,
    weight_by_key: dict[int, float],
) -> Ints:
    """Return from when on forward of a step needs each pull, ns, [pull]; if it waited, since that ended.

    Forward came to an anchor, a variable that the worker waited for, when that arrived.

    Args:
        pulls: The key of each pull's variable, when it ended, ns, and True if the worker waited for it.
        forward: Bounds of the worker's pieces, ns, and how much of forward was done at each, ns.
        step_ns: The begin and end of the step.
        weight_by_key: The share of forward of each variable, in any unit.
    """
    (key, end_ns, is_awaited), (bounds_ns, done_ns) = pulls, forward
    done_at_begin_ns, done_at_end_ns = np.interp(step_ns, bounds_ns, done_ns)
    if done_at_end_ns <= done_at_begin_ns:
        return np.full(len(key), -1, np.int64)
    keys, first_pull, variable = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(first_pull)  # of the variables, as they were asked for
    # All that follows is [variable], in this order, unless it is of anchors.
    weight = np.array([weight_by_key.get(key, 1.0) for key in keys[order].tolist()])
    share_before = np.cumsum(weight) - weight
    share_before /= max(float(weight.sum()), 1e-12)
    arrival_ns, is_anchor = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.bool_)
    np.maximum.at(arrival_ns, variable, end_ns)
    np.logical_or.at(is_anchor, variable, is_awaited & (end_ns == arrival_ns[variable]))
    arrival_ns, is_anchor = arrival_ns[order], is_anchor[order]
    # Of what came at once, the worker waited for the first.
    is_first = np.zeros_like(is_anchor)
    is_first[np.unique(arrival_ns, return_index=True)[1]] = True
    is_anchor &= is_first
    anchor_shares = np.r_[0.0, share_before[is_anchor], 1.0]
    done_at_arrival_ns = np.interp(arrival_ns[is_anchor], bounds_ns, done_ns)
    anchor_done_ns = np.r_[done_at_begin_ns, done_at_arrival_ns, done_at_end_ns]
    needed_done_ns = np.interp(share_before, anchor_shares, anchor_done_ns)
    bound = np.clip(np.searchsorted(done_ns, needed_done_ns, "left"), 1, len(bounds_ns) - 1)
    is_forward = done_ns[bound] > done_ns[bound - 1]
    missing_ns = np.where(is_forward, done_ns[bound] - needed_done_ns, 0.0)
    need_ns = np.maximum(bounds_ns[bound] - missing_ns, step_ns[0])
    need_ns = np.maximum(np.rint(need_ns).astype(np.int64), arrival_ns)
    need_of_variable_ns = np.empty(len(keys), np.int64)
    need_of_variable_ns[order] = np.where(is_anchor, arrival_ns, need_ns)
    return need_of_variable_ns[variable]


def _measure_backprop_by_key(
    requests_by_worker: dict[int, pl.DataFrame],
    worker_pieces: Sequence[WorkerPieces],
    worker_steps: Sequence[pl.DataFrame],
) -> dict[int, float]:
    """Sum the backprop since the last push (or step's begin), ns, by pushed key; empty of only one.

    Tables have one row per request, and per step of a worker.
    """
    backprop_ns: dict[int, float] = {}
    for worker, requests in requests_by_worker.items():
        pushes = requests.filter(pl.col("op") == "push").sort("start_ns")
        sent_ns = pushes["start_ns"].to_numpy()
        begins_ns = worker_steps[worker]["start_ns"].to_numpy()
        step_number = np.searchsorted(begins_ns, sent_ns, "right")  # 1 for the first step, [push]
        done_ns = worker_pieces[worker].sum_ns_before(IS_BACKPROP, sent_ns)
        done_at_begins_ns = worker_pieces[worker].sum_ns_before(IS_BACKPROP, begins_ns)  # [step]
        is_same_step = np.diff(step_number, prepend=-1) == 0
        done_at_push_before_ns = np.append(0.0, done_ns)[:-1]
        done_at_step_begin_ns = done_at_begins_ns[np.maximum(step_number - 1, 0)]
        added_ns = done_ns - np.where(is_same_step, done_at_push_before_ns, done_at_step_begin_ns)
        for key, ns in zip(pushes["key"].to_list(), added_ns.tolist(), strict=True):
            backprop_ns[key] = backprop_ns.get(key, 0.0) + ns
    has_several = sum(ns > 0 for ns in backprop_ns.values()) > 1
    return backprop_ns if has_several else {}
