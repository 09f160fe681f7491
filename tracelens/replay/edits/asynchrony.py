"""Servers at which no worker waits for another one: each gradient is applied as it comes.

What joined the gradients of all workers is done for each of them, and takes as long each time. A worker
goes on when its own gradients are applied, and weights are sent when they are asked for. Servers go on
doing one thing after the other, as it comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.errors import InvalidArgument
from tracelens.replay.links import Bond

if TYPE_CHECKING:
    from tracelens.arrays import Indices, Ints
    from tracelens.replay.edits.changed import Changed
    from tracelens.replay.model import Model

__all__ = ["first_come"]

# share of steps x ranks: servers take workers in turn if more begin behind a barrier [chosen]
MIN_SHARE_OF_PULLS_IN_TURN: Final = 0.5


def first_come(changed: Changed) -> None:
    """Let servers apply each gradient when it is there, and answer when they are asked.

    Raises:
        InvalidArgument: no server joins gradients of several workers, or takes workers in turn.
    """
    model, links = changed.model, changed.model.links
    joined, goes_on = model.requests.joined, np.unique(links.target[links.bond == Bond.BARRIER])
    rounds = len(model.steps) * len(model.ranks)
    in_turn = len(goes_on) > MIN_SHARE_OF_PULLS_IN_TURN * rounds
    if len(model.ranks) < 2 or not (len(joined) or in_turn):
        raise InvalidArgument(
            "this needs servers that join the gradients of several workers, or take workers in turn; "
            "there are none."
        )
    _apply_each(changed, joined)
    bound = links.bond == Bond.NONE
    others = np.bincount(links.target[bound], minlength=len(model.recorded)) > 0
    begin = model.requests_at + 2 * np.arange(model.requests.served.height)
    worker = model.requests.worker_of_services
    # Workers go on here that waited for an update: without barriers, that is when they come.
    waiting = _by_worker(model, model.threads.find_owners(goes_on), goes_on)
    if in_turn:
        # What a server began by itself follows when its worker waits.
        alone = ~others[begin] & (worker >= 0)
        waits, begins = _latest(_by_worker(model, worker[alone], begin[alone]), waiting)
        changed.follow(waits, begins)
        others[begins] = True
    # Who went on after an update of all goes on after the last service of its own.
    changed.follow(*_latest(waiting, _by_worker(model, worker, begin + 1)))
    changed.release(np.flatnonzero(~bound & others[links.target]))
    changed.notes.append(
        "Every worker makes as many steps as it did; what gradients of older weights do to the training "
        "is not in it. Workers compute at the same time then: where they share cores, less is saved."
    )


def _apply_each(changed: Changed, joined: Indices) -> None:
    """Make updates that joined all workers' gradients once after each of these, as long each time."""
    model, served = changed.model, changed.model.requests.served
    wires = model.service_links
    services = served.select("server", "step", "op", key=pl.col("key").fill_null(-1)).with_columns(
        row=pl.Series(np.arange(served.height)),
        ns=pl.Series(changed.lag[wires]),
        worker=pl.Series(model.requests.worker_of_services),
    )
    updates = services[joined]
    gradients = services.filter(pl.col("op") == "aggregate")
    for of_key in (False, True):
        group = ["server", "step", *(["key"] if of_key else [])]
        update = updates.filter((pl.col("key") >= 0) == of_key)
        takes = update.group_by(group).agg(pl.col("ns").sum())
        last = gradients.group_by(*group, "worker", maintain_order=True).agg(pl.col("row").last())
        more = last.join(takes, on=group, nulls_equal=True)
        changed.lag[wires[more["row"].to_numpy()]] += more["ns"].to_numpy()
    changed.lag[wires[joined]] = 0.0


def _by_worker(model: Model, worker: Ints, moment: Ints) -> pl.DataFrame:
    rows = {"worker": worker, "at": model.recorded[moment], "moment": moment}
    return pl.DataFrame(rows).sort("at", "moment")


def _latest(rows: pl.DataFrame, among: pl.DataFrame) -> tuple[Ints, Ints]:
    """Return the latest moment of the same worker among some that was over by then, and each's own."""
    found = rows.join_asof(
        among, on="at", by="worker", suffix="_before", check_sortedness=False
    ).drop_nulls()
    return found["moment_before"].to_numpy(), found["moment"].to_numpy()
