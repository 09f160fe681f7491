"""Servers at which no worker waits for another one: each gradient is applied as it comes.

What joined the gradients of all workers is done for each of them, and takes as long each time. A worker
goes on when its own gradients are applied, and weights are sent when they are asked for. Servers go on
doing one thing after the other, as it comes: in which order is found by replaying until the order stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.errors import InvalidArgument
from tracelens.replay.links import BARRIER
from tracelens.stats.constants import MAJORITY

if TYPE_CHECKING:
    from tracelens.arrays import Indices, Ints
    from tracelens.replay.edits.changed import Changed

__all__ = ["as_they_come"]

_TRIES: Final = 30  # replays, until the order in which servers do things stays


def as_they_come(changed: Changed) -> None:
    """Let servers apply each gradient when it is there, and answer when they are asked.

    Raises:
        InvalidArgument: no worker waits for others at a server.
    """
    model = changed.model
    bond, joined = model.links.bond, model.requests.joined
    barriers = np.flatnonzero(bond == BARRIER)
    often = len(barriers) > MAJORITY * len(model.steps) * len(model.ranks)
    if len(model.ranks) < 2 or not (len(joined) or often):
        raise InvalidArgument(
            "this needs servers that join the gradients of several workers, or take workers in turn; "
            "there are none."
        )
    _apply_each(changed, joined)
    _await_own(changed, barriers)
    changed.release(np.flatnonzero(bond > 0))
    _in_turn(changed)
    changed.notes.append(
        "Every worker makes as many steps as it did; what gradients of older weights do to the training "
        "is not in it."
    )


def _apply_each(changed: Changed, joined: Indices) -> None:
    """Add what updates of all workers' gradients take to what is done for each gradient."""
    model, served = changed.model, changed.model.requests.served
    lags = changed.lag[model.wires[model.requests_at + 2 * np.arange(served.height)]]
    table = (
        served.select("server", "step", op="op")
        .with_row_index("row")
        .with_columns(ns=pl.Series(lags))
    )
    update = table[joined].group_by("server", "step").agg(pl.col("ns").sum())
    each = table.filter(pl.col("op") == "aggregate").select("row", "server", "step")
    count = pl.len().over("server", "step")
    more = each.with_columns(count=count).join(update, on=["server", "step"], nulls_equal=True)
    rows = model.wires[model.requests_at + 2 * more["row"].to_numpy().astype(np.int64)]
    changed.lag[model.wires[model.requests_at + 2 * joined]] = 0.0
    changed.lag[rows] += (more["ns"] * len(model.ranks) / more["count"]).to_numpy()


def _await_own(changed: Changed, barriers: Indices) -> None:
    """Let workers that went on after an update of all go on after the last service of their own."""
    model, links = changed.model, changed.model.links
    first = np.cumsum([0, *(len(thread.moments) for thread in model.threads)])
    goes_on = links.target[barriers]
    waiting = pl.DataFrame(
        {
            "worker": np.searchsorted(first, goes_on, side="right") - 1,
            "at": model.recorded[goes_on],
            "moment": goes_on,
        }
    ).sort("at")
    end = model.requests_at + 2 * np.arange(model.requests.served.height) + 1
    services = pl.DataFrame(
        {"worker": model.requests.worker_of_services, "at": model.recorded[end], "end": end}
    ).sort("at")
    found = waiting.join_asof(services, on="at", by="worker", check_sortedness=False).drop_nulls()
    changed.follow(found["end"].to_numpy(), found["moment"].to_numpy())


def _in_turn(changed: Changed) -> None:
    """Let servers that did one thing after the other do so as things come.

    Where lags are no negative ones, what follows something comes no earlier: so no order of what can
    come first lets services wait for each other.
    """
    model = changed.model
    busy = [services for services in model.requests.in_turn if len(services) > 1]
    if not busy:
        return
    begin = model.requests_at + 2 * np.concatenate(busy)
    server = np.repeat(np.arange(len(busy)), [len(services) for services in busy])
    same = server[1:] == server[:-1]
    kept, links = changed.kept, model.links
    lag = np.maximum(changed.lag, 0.0)
    more = [(source, target, np.maximum(after, 0.0)) for source, target, after in changed.more]
    every = [(links.source[kept], links.target[kept], lag[kept]), *more]
    turns: tuple[Ints, Ints] = (begin[:0], begin[:0])
    for _ in range(_TRIES):
        times = model.replayed(lag, kept, [*more, (*turns, np.zeros(len(turns[0])))])
        able = np.full(len(times), -np.inf)
        for source, target, after in every:
            np.maximum.at(able, target, times[source] + after)
        order = begin[np.lexsort((model.recorded[begin], able[begin], server))]
        last, turns = turns, (order[:-1][same] + 1, order[1:][same])
        if np.array_equal(last[1], turns[1]):
            break
    changed.follow(*turns)
