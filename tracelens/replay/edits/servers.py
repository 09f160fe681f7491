"""Servers whose processors or links are faster, that lose nothing to incast, or get fewer messages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.errors import InvalidArgument
from tracelens.model import fmt
from tracelens.replay.edits.costs import Costs
from tracelens.replay.edits.placements import check_received
from tracelens.replay.edits.work import draw_like_others, factor

if TYPE_CHECKING:
    from tracelens.arrays import Flags, Floats, Ints
    from tracelens.replay.edits.changed import Changed
    from tracelens.replay.model import Model

__all__ = ["remove_incast", "send_fewer", "speed_up"]

LINK: Final = "link"


def speed_up(changed: Changed, shard: str | None, part: str, to: str) -> None:
    """Let the processor or the link of a server, or of all, be faster, or as fast as the others'.

    Raises:
        InvalidArgument: there are no such servers, or what their links do was not recorded.
    """
    model = changed.model
    if part == LINK:
        check_received(model)
    shards = model.requests.servers
    if shard is not None and int(shard) not in shards:
        raise InvalidArgument(f"shard {shard} is none of {fmt.listing('shard', shards.tolist())}.")
    is_part = _is_of_part(model, part)
    if not is_part.any():
        raise InvalidArgument(f"this needs services of a {part} of servers; none are here.")
    of_shard = model.requests.served["server"].to_numpy()
    rows = np.flatnonzero(is_part if shard is None else is_part & (of_shard == int(shard)))
    links = model.service_links[rows]
    if to == "=median":
        if shard is None:
            raise InvalidArgument("the median of the others needs a shard: shard:N,... .")
        step, pace = _measure_pace(model, is_part)
        changed.lag[links] *= _take_like_others(pace, int(np.searchsorted(shards, int(shard))))[
            step[rows]
        ]
    else:
        changed.lag[links] /= factor(to[0], to[1:])


def _is_of_part(model: Model, part: str) -> Flags:
    """Return which services occupy links, or processors; those of links have bytes."""
    links = model.links
    lines = np.array([*(line.network for line in links.lines), False])
    rows = model.service_links
    on_network = lines[links.line[rows]] & (links.nbytes[rows] > 0)
    return np.asarray((rows >= 0) & (on_network if part == LINK else ~lines[links.line[rows]]))


def _measure_pace(model: Model, is_part: Flags) -> tuple[Ints, Floats]:
    """Return the step of each service, and what a part takes per byte, ns, [step, server]."""
    requests, links, rows = model.requests, model.links, model.service_links
    step, count = requests.step_of_services, len(requests.servers)
    place = np.searchsorted(requests.servers, requests.served["server"].to_numpy())
    shape = int(step.max()) + 1, count
    work_ns, moved = np.zeros((2, *shape))
    np.add.at(work_ns, (step, place), np.where(is_part, links.lag[rows], 0.0))
    np.add.at(moved, (step, place), np.where(rows >= 0, np.maximum(links.nbytes[rows], 0.0), 0.0))
    return step, np.divide(work_ns, moved, out=np.full(shape, np.nan), where=moved > 0)


def _take_like_others(pace: Floats, server: int) -> Floats:
    """Return how many times as long a server takes in each step at the others' pace, [step].

    Raises:
        InvalidArgument: no other server moves bytes in the same steps.
    """
    takes = np.ones(len(pace))
    others = np.delete(pace, server, axis=1)
    others = others[:, ~np.isnan(others).all(axis=0)]
    rows = np.flatnonzero((pace[:, server] > 0) & ~np.isnan(others).any(axis=1))
    if not others.shape[1] or not len(rows):
        raise InvalidArgument("the median of the others needs two servers that move bytes.")
    takes[rows] = draw_like_others(others[rows], server) / pace[rows, server]
    return takes


def remove_incast(changed: Changed) -> None:
    """Let links of servers get as much through with many messages at once as with few.

    Raises:
        InvalidArgument: nothing shows that they get less through with many.
    """
    model = changed.model
    check_received(model)
    tasks = model.tasks if changed.tasks is None else changed.tasks
    if not (tasks.crowding > 0).any():
        raise InvalidArgument(
            "this needs links that get less through the more messages share them; where as many do at "
            "all times, or none does, nothing tells that."
        )
    changed.tasks = replace(tasks, crowding=np.minimum(tasks.crowding, 0.0))


def send_fewer(changed: Changed, sign: str, number: str) -> None:
    """Let servers and workers exchange the same bytes in so many times as many messages.

    Raises:
        InvalidArgument: sizes do not tell what a message costs from what its bytes do.
    """
    check_received(changed.model)
    model, costs = changed.model, Costs(changed.model.links)
    rows = model.service_links[_is_of_part(model, LINK)]
    fixed = np.zeros(len(changed.lag))
    for line, cost in costs.models.items():
        fixed[rows[model.links.line[rows] == line]] = cost.latency_ns
    if not fixed.any():
        raise InvalidArgument(costs.lacks(network=True))
    saved_share = 1 - factor(sign, number)
    changed.lag -= np.minimum(changed.lag, fixed) * saved_share
