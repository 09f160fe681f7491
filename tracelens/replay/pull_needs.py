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

__all__ = ["find_needs", "measure_unknown_needs"]

# share of a pull: a worker that is blocked for as much needs it when it ends [chosen]
MIN_SHARE_OF_PULL_BLOCKED: Final = 0.9
_IS_FORWARD: Final = np.isin(CATEGORIES, ("forward",))


def find_needs(sent: pl.DataFrame, timeline: Timeline, steps: Sequence[pl.DataFrame]) -> Ints:
    """Return from when on workers need the answers to pulls, ns, [request]; -1 where unknown."""
    needs_ns = np.full(sent.height, -1, np.int64)
    op = pl.col("op")
    in_flight = sent.filter(~pl.col("is_blocking"), op.is_in(["pull", "push"]))
    if in_flight["key"].null_count() or in_flight.is_empty():
        return needs_ns
    by_worker: dict[int, pl.DataFrame] = {
        worker: of_worker
        for (worker,), of_worker in in_flight.partition_by("worker", as_dict=True).items()
    }
    weights = _measure_backprop_of_keys(by_worker, timeline.pieces, steps)
    for worker, of_worker in by_worker.items():
        row, key, begin_ns, end_ns = (
            of_worker.filter(op == "pull")[name].to_numpy()
            for name in ("row", "key", "start_ns", "end_ns")
        )
        bounds_ns = steps[worker].select("start_ns", "end_ns").to_numpy()
        window = np.searchsorted(bounds_ns[:, 0], begin_ns, "right") - 1
        pieces = timeline.pieces[worker]
        forward = pieces.bounds, pieces.spent_before(_IS_FORWARD, pieces.bounds)
        is_awaited = np.isin(
            timeline.locate(np.full(1, worker), end_ns), timeline.blocked_stretches[1]
        )
        for index in np.unique(window[window >= 0]).tolist():
            pulls = np.flatnonzero(window == index)
            if len(pulls) > 1:
                pulled = key[pulls], end_ns[pulls], is_awaited[pulls]
                needs_ns[row[pulls]] = _find_needs_of_step(
                    pulled, forward, bounds_ns[index], weights
                )
    return needs_ns


def measure_unknown_needs(sent: pl.DataFrame, needs_ns: Ints, timeline: Timeline) -> float:
    """Return the share of pulls during which the worker computed, for an unknown time at most."""
    is_pull = (sent["op"] == "pull") & (sent["bytes"] > 0)
    pulls = np.flatnonzero(is_pull.fill_null(value=False).to_numpy())
    unknown = pulls[~sent["is_blocking"].to_numpy()[pulls] & (needs_ns[pulls] < 0)]
    worker, begin_ns, end_ns = (
        sent[name].to_numpy()[unknown] for name in ("worker", "start_ns", "end_ns")
    )
    blocked_by_begin, blocked_by_end = (
        timeline.spent_before(IS_BLOCKED, timeline.locate(worker, times_ns))
        for times_ns in (begin_ns, end_ns)
    )
    min_blocked_ns = MIN_SHARE_OF_PULL_BLOCKED * (end_ns - begin_ns)
    is_beside_work = blocked_by_end - blocked_by_begin < min_blocked_ns
    return int(is_beside_work.sum()) / max(len(pulls), 1)


def _find_needs_of_step(
    pulls: tuple[Ints, Ints, Flags],
    forward: tuple[Ints, Floats],
    step_ns: Ints,
    weights: dict[int, float],
) -> Ints:
    """Return from when on forward of a step needs each pull, ns; if it waited, since that ended.

    Args:
        pulls: The variable of each pull, when it ended, ns, and True if the worker waited for it.
        forward: Bounds of the worker's pieces, ns, and how much of forward was done at each, ns.
        step_ns: The begin and end of the step.
        weights: The share of forward of each variable, in any unit.
    """
    (key, end_ns, is_awaited), (bounds_ns, done_ns) = pulls, forward
    done_at_begin, done_at_end = np.interp(step_ns, bounds_ns, done_ns)
    if done_at_end <= done_at_begin:
        return np.full(len(key), -1, np.int64)
    keys, first_pull, variable = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(first_pull)
    weight = np.array([weights.get(one, 1.0) for one in keys[order].tolist()])
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
    done_at_anchors = np.interp(arrival_ns[is_anchor], bounds_ns, done_ns)
    levels = np.r_[done_at_begin, done_at_anchors, done_at_end]
    done_when_needed = np.interp(share_before, np.r_[0.0, share_before[is_anchor], 1.0], levels)
    bound = np.clip(np.searchsorted(done_ns, done_when_needed, "left"), 1, len(bounds_ns) - 1)
    is_forward = done_ns[bound] > done_ns[bound - 1]
    missing_ns = np.where(is_forward, done_ns[bound] - done_when_needed, 0.0)
    need_ns = np.maximum(bounds_ns[bound] - missing_ns, step_ns[0])
    need_ns = np.maximum(np.rint(need_ns).astype(np.int64), arrival_ns)
    of_variable = np.empty(len(keys), np.int64)
    of_variable[order] = np.where(is_anchor, arrival_ns, need_ns)
    return of_variable[variable]


def _measure_backprop_of_keys(
    by_worker: dict[int, pl.DataFrame],
    pieces: Sequence[WorkerPieces],
    steps: Sequence[pl.DataFrame],
) -> dict[int, float]:
    """Return the backprop before each variable's push, ns, by key; empty if it tells nothing."""
    backprop_ns: dict[int, float] = {}
    for worker, requests in by_worker.items():
        pushes = requests.filter(pl.col("op") == "push").sort("start_ns")
        sent_ns = pushes["start_ns"].to_numpy()
        begins_ns = steps[worker]["start_ns"].to_numpy()
        window = np.searchsorted(begins_ns, sent_ns, "right")
        done_ns = pieces[worker].spent_before(IS_BACKPROP, sent_ns)
        done_at_begin = pieces[worker].spent_before(IS_BACKPROP, begins_ns)
        is_same_step = np.diff(window, prepend=-1) == 0
        done_before = np.append(0.0, done_ns)[:-1]
        done_before = np.where(is_same_step, done_before, done_at_begin[np.maximum(window - 1, 0)])
        for key, ns in zip(pushes["key"].to_list(), (done_ns - done_before).tolist(), strict=True):
            backprop_ns[key] = backprop_ns.get(key, 0.0) + ns
    tells_order = sum(ns > 0 for ns in backprop_ns.values()) > 1
    return backprop_ns if tells_order else {}
