"""From when on a worker's forward needs what it pulled, if that came before the worker waited for it.

Forward goes through variables in the order in which a worker asks for them. Each variable's share of
forward is that of backprop before its gradient is pushed, else all have equal shares. Where a worker
waited for a variable, forward came to it; between two such places this is interpolated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.categories import CATEGORIES
from tracelens.replay.timeline import IS_BACKPROP, IS_BLOCKED, Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.accounting.pieces import WorkerPieces
    from tracelens.arrays import Flags, Floats, Ints

__all__ = ["find_needs", "measure_unknown_needs"]

# share of a pull: a worker that is blocked for as much needs it when it ends [chosen]
MIN_SHARE_OF_PULL_BLOCKED: Final = 0.9
_IS_FORWARD: Final = np.isin(CATEGORIES, ("forward",))


def find_needs(asked: pl.DataFrame, timeline: Timeline, steps: Sequence[pl.DataFrame]) -> Ints:
    """Return from when on the worker needs each pull, [request]; -1 where that is not known.

    Args:
        asked: Requests of workers, in order of time.
        timeline: What each worker did.
        steps: The steps of each worker.
    """
    needs = np.full(asked.height, -1, np.int64)
    op, columns = pl.col("op"), ["worker", "key", "start_ns", "end_ns", "stops"]
    sent = asked.with_row_index("place").filter(~pl.col("stops"), op.is_in(["pull", "push"]))
    if sent["key"].null_count() or sent.is_empty():
        return needs
    by_worker = sent.select("place", "op", *columns).partition_by("worker", as_dict=True)
    shares = _measure_shares(by_worker, timeline.pieces, steps)
    for (worker,), requests in by_worker.items():
        pulls = requests.filter(op == "pull")
        place, key, start, end = (
            pulls[name].to_numpy() for name in ("place", "key", "start_ns", "end_ns")
        )
        windows = steps[worker].select("start_ns", "end_ns").to_numpy()
        window = np.searchsorted(windows[:, 0], start, "right")
        bounds = timeline.pieces[worker].bounds
        forward = bounds, timeline.pieces[worker].spent_before(_IS_FORWARD, bounds)
        waited = np.isin(timeline.locate(worker, end), timeline.blocked[1])
        for number in np.unique(window[window > 0]).tolist():
            rows = np.flatnonzero(window == number)
            if len(rows) > 1:
                pulled = key[rows], end[rows], waited[rows]
                needs[place[rows]] = _needs_of_step(pulled, forward, windows[number - 1], shares)
    return needs


def measure_unknown_needs(asked: pl.DataFrame, needs: Ints, timeline: Timeline) -> float:
    """Return the share of pulls of which it is not known when the worker needed them.

    The worker computed while they were open, and nothing tells how far it would come without them.
    """
    is_pull = ((asked["op"] == "pull") & (asked["bytes"] > 0)).fill_null(value=False).to_numpy()
    pulls = np.flatnonzero(is_pull)
    unknown = pulls[~asked["stops"].to_numpy()[pulls] & (needs[pulls] < 0)]
    worker, start, end = (
        asked[name].to_numpy()[unknown] for name in ("worker", "start_ns", "end_ns")
    )
    before_end, before_start = (
        timeline.spent_before(IS_BLOCKED, timeline.locate(worker, at)) for at in (end, start)
    )
    beside = before_end - before_start < MIN_SHARE_OF_PULL_BLOCKED * (end - start)
    return int(beside.sum()) / max(len(pulls), 1)


def _needs_of_step(
    pulls: tuple[Ints, Ints, Flags],
    forward: tuple[Ints, Floats],
    step: Ints,
    shares: dict[int, float],
) -> Ints:
    """Return from when on forward of a step needs what was pulled; where it waited, since that ended.

    Args:
        pulls: The variable of each pull, when it ended, and whether the worker waited for it.
        forward: Bounds of pieces, and how much of forward was done at each.
        step: When the step began and ended.
        shares: The share of forward of each variable, in any unit.
    """
    (key, end, waited), (bounds, done) = pulls, forward
    before, after = np.interp(step, bounds, done)
    if after <= before:
        return np.full(len(key), -1, np.int64)
    variables, first, row = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(first)
    weight = np.array([shares.get(one, 1.0) for one in variables[order].tolist()])
    begun = np.cumsum(weight) - weight
    begun /= max(float(weight.sum()), 1e-12)
    arrived, blocked = np.zeros(len(variables), np.int64), np.zeros(len(variables), np.bool_)
    np.maximum.at(arrived, row, end)
    np.logical_or.at(blocked, row, waited & (end == arrived[row]))
    arrived, blocked = arrived[order], blocked[order]
    # Of what came at once, the worker waited for the first.
    blocked[np.setdiff1d(np.arange(len(arrived)), np.unique(arrived, return_index=True)[1])] = False
    done_at_waits = np.interp(arrived[blocked], bounds, done)
    levels = np.r_[before, done_at_waits, after]
    done_when_needed = np.interp(begun, np.r_[0.0, begun[blocked], 1.0], levels)
    place = np.clip(np.searchsorted(done, done_when_needed, "left"), 1, len(bounds) - 1)
    missing = np.where(done[place] > done[place - 1], done[place] - done_when_needed, 0.0)
    moment = bounds[place] - missing
    moment = np.maximum(np.rint(np.maximum(moment, step[0])).astype(np.int64), arrived)
    needs = np.empty(len(variables), np.int64)
    needs[order] = np.where(blocked, arrived, moment)
    return needs[row]


def _measure_shares(
    by_worker: dict[tuple[object, ...], pl.DataFrame],
    pieces: Sequence[WorkerPieces],
    steps: Sequence[pl.DataFrame],
) -> dict[int, float]:
    """Return how much of backprop precedes each variable's push, by key; empty if that tells nothing."""
    spent: dict[int, float] = {}
    for (worker,), requests in by_worker.items():
        assert isinstance(worker, int)
        pushes = requests.filter(pl.col("op") == "push").sort("start_ns")
        sent = pushes["start_ns"].to_numpy()
        starts = steps[worker]["start_ns"].to_numpy()
        window = np.searchsorted(starts, sent, "right")
        done = pieces[worker].spent_before(IS_BACKPROP, sent)
        since = pieces[worker].spent_before(IS_BACKPROP, starts)[np.maximum(window - 1, 0)]
        is_same = np.diff(window, prepend=-1) == 0
        before = np.where(is_same, np.append(0.0, done)[:-1], since)
        for key, ns in zip(pushes["key"].to_list(), (done - before).tolist(), strict=True):
            spent[key] = spent.get(key, 0.0) + ns
    values = np.array(list(spent.values()))
    if len(values) < 2 or np.sort(values)[-2] <= 0:
        return {}
    return spent
