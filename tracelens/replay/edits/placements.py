"""Other loads of parameter servers: variables placed otherwise, cut into chunks, or on more shards.

What a service takes, and the way of what is pushed or pulled, goes by the line that was fitted to its
kind, with as many times the bytes as its shard then holds. With other numbers of shards every shard is
as loaded as each of so many would be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.errors import InvalidArgument
from tracelens.model import fmt
from tracelens.placement import CHUNK_BYTES, STRATEGIES, chunked, loads
from tracelens.replay.edits.costs import Costs

if TYPE_CHECKING:
    from tracelens.arrays import Floats
    from tracelens.replay.edits.changed import Changed
    from tracelens.replay.model import Model

__all__ = ["arrange", "held", "load", "place", "spread"]


def place(changed: Changed, strategy: str, chunk: str | None) -> None:
    """Place the variables of all shards by a strategy.

    Raises:
        InvalidArgument: it is none, or variables are not known.
    """
    known = (*STRATEGIES, f"chunked:{CHUNK_BYTES // 1024}KiB")
    if strategy not in STRATEGIES or (chunk is not None and strategy != "chunked"):
        raise InvalidArgument(f"the placement is none of {', '.join(known)}.")
    model = changed.model
    now = held(model)
    sizes = list(model.variables.values())
    if strategy == "chunked":
        try:
            size = CHUNK_BYTES if chunk is None else fmt.parsed_size(chunk)
        except ValueError as error:
            raise InvalidArgument(f"{error}.") from None
        pieces = chunked(sizes or [int(sum(now.values()))], len(now), size)
    elif not sizes:
        raise InvalidArgument(
            "this needs the bytes of each variable, by the key of its requests; only the bytes of "
            "shards are known, which placement=chunked can deal out."
        )
    else:
        pieces = STRATEGIES[strategy](sizes, len(now))
    then = np.array(loads(pieces, len(now)), np.float64)
    then *= sum(now.values()) / max(then.sum(), 1.0)
    load(changed, now, dict(zip(now, then.tolist(), strict=True)))
    changed.notes.append(
        f"The fullest shard holds {fmt.percent(float(then.max() / then.sum()), 1)} of the bytes, "
        f"before {fmt.percent(max(now.values()) / sum(now.values()), 1)}."
    )


def spread(changed: Changed, count: str) -> None:
    """Deal all bytes out evenly to so many shards.

    Raises:
        InvalidArgument: there are no servers, or no shard is asked for.
    """
    now = held(changed.model)
    if not int(count):
        raise InvalidArgument("expected at least one shard.")
    each = sum(now.values()) / int(count)
    load(changed, now, dict.fromkeys(now, each))
    changed.notes.append(
        f"Each shard holds {fmt.size(each)} of what a worker exchanges in a step on average; what more "
        "messages cost the workers is not in it."
    )


def arrange(changed: Changed, form: str) -> None:
    """Let one server hold all bytes (central), or deal them out to a server for each worker (sharded).

    Raises:
        InvalidArgument: there are no servers.
    """
    spread(changed, "1" if form == "central" else str(len(changed.model.ranks)))


def held(model: Model) -> dict[int, float]:
    """Return how many bytes a mean step's requests of all workers have at each shard."""
    links = model.links
    rows = np.flatnonzero((links.shard >= 0) & (links.nbytes > 0))
    if not len(rows):
        raise InvalidArgument(
            "this needs parameter servers, and bytes of their services; none are here."
        )
    # Every kind of service has the same: that with the most bytes knows it of all requests.
    by_line = np.bincount(links.line[rows], links.nbytes[rows])
    rows = rows[links.line[rows] == by_line.argmax()]
    total = np.bincount(links.shard[rows], links.nbytes[rows]) / len(model.steps)
    return {shard: float(total[shard]) for shard in np.unique(links.shard[rows]).tolist()}


def load(changed: Changed, now: dict[int, float], then: dict[int, float]) -> None:
    """Let shards hold other bytes than now, of each so many.

    Raises:
        InvalidArgument: services of two sizes are needed to tell what bytes cost, and are not here.
    """
    links = changed.model.links
    costs = Costs(links)
    served = {
        number: model
        for number, model in costs.models.items()
        if (links.shard[links.line == number] >= 0).all()
    }
    if not served:
        raise InvalidArgument(costs.lacks(network=False))
    more = np.ones(max(now) + 2)
    for shard, nbytes_now in now.items():
        more[shard] = then[shard] / max(nbytes_now, 1.0)
    inside = np.where((links.shard >= 0) & (links.shard <= max(now)), links.shard, len(more) - 1)
    nbytes: Floats = links.nbytes * more[inside]
    changed.lag = costs.loaded(changed.lag, served, nbytes)
