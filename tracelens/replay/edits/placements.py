"""Other loads of parameter servers: variables placed otherwise, cut into chunks, or on more shards.

What a service takes, and the way of what is pushed or pulled, goes by the line that was fitted to its
kind, with as many times the bytes as its shard then holds. With other numbers of shards every shard is
as loaded as each of so many would be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import polars as pl

from tracelens.errors import InvalidArgument
from tracelens.model import fmt
from tracelens.placement import CHUNK_BYTES, STRATEGIES, chunked
from tracelens.replay.edits.costs import Costs
from tracelens.replay.links import Bond
from tracelens.replay.resources import Tasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Floats, Indices, Ints
    from tracelens.placement import Piece
    from tracelens.replay.edits.changed import Changed
    from tracelens.replay.model import Model

__all__ = ["Layout", "arrange", "check_received", "held", "place", "place_by", "spread"]

# share of all bytes: shards hold the same before and after if no load differs more [policy]
MAX_DIFFERENCE_OF_EQUAL_LOADS: Final = 1e-3
# share of pulls: edits are refused if it is unknown for more when workers need them [chosen]
MAX_SHARE_OF_NEEDS_UNKNOWN: Final = 0.05
# share of the time of pushes: edits are refused if no server is known to receive
# for longer [chosen]
MAX_SHARE_OF_PUSHES_UNRECEIVED: Final = 0.05
# steps: the median pace of as many is the usual one in the middle of them [chosen]
STEPS_OF_USUAL_PACE: Final = 5
# times what its bytes usually take: a message on a shared link that takes longer stalled [chosen]
MIN_RATIO_OF_STALLED_MESSAGE: Final = 1.5
ROUNDS_OF_STALLS: Final = 4  # rounds: the pace without stalls is found as often [policy]


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
    variables = model.served_variables
    sizes = list(variables.values())
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
    layout = Layout.from_pieces(pieces, list(variables), len(now))
    place_by(changed, layout)
    then = layout.loads(variables)
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
    shards, variables = int(count), changed.model.served_variables
    layout = Layout(np.zeros(0, np.int64), np.full((1, shards), 1 / shards), np.ones((1, shards)))
    if variables:
        layout = Layout.from_pieces(chunked([*variables.values()], shards), [*variables], shards)
    place_by(changed, layout)
    changed.notes.append(
        f"Each shard holds {fmt.size(each)} of what a worker exchanges in a step on average; what more "
        "messages cost the workers is not in it."
    )


def arrange(changed: Changed, form: str) -> None:
    """Let one server hold all bytes (central), or deal them out to a server for each worker (sharded).

    Raises:
        InvalidArgument: there are no servers, or it is another form.
    """
    if form not in ("central", "sharded"):
        raise InvalidArgument(
            "a replay of this trace cannot answer that: which links a worker and a server on its "
            "machine would share is not recorded; arrangement=central and arrangement=sharded can be."
        )
    spread(changed, "1" if form == "central" else str(len(changed.model.ranks)))


def check_received(model: Model) -> None:
    """Check that servers recorded when they received what workers pushed.

    Raises:
        InvalidArgument: they did not, and it takes a share of pushes that matters.
    """
    share = model.requests.hidden_transfer_share
    if share > MAX_SHARE_OF_PUSHES_UNRECEIVED:
        raise InvalidArgument(
            "not recorded: when servers received what workers pushed (spans with op=receive), which is "
            f"{fmt.percent(share)} of the time of pushes."
        )


def held(model: Model) -> dict[int, float]:
    """Return how many bytes a mean step's requests of all workers have at each shard.

    Raises:
        InvalidArgument: there are no servers, or their bytes are not known.
    """
    check_received(model)
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
    held_bytes = dict.fromkeys(model.requests.servers.tolist(), 0.0)
    return held_bytes | {
        shard: float(total[shard]) for shard in np.unique(links.shard[rows]).tolist()
    }


@dataclass(frozen=True, eq=False)
class Layout:
    """Which share of each variable lies on each of some shards, and in how many pieces.

    A variable is a row, `keys` are theirs; a single row without key is for all variables.
    """

    keys: Ints
    shares: Floats
    pieces: Floats

    @classmethod
    def from_pieces(cls, pieces: Sequence[Piece], keys: Sequence[int], shards: int) -> Self:
        """Sum up pieces, whose variables are numbered as in `keys`."""
        cells = (
            np.array([piece.variable for piece in pieces], np.intp),
            np.array([piece.shard for piece in pieces], np.intp),
        )
        nbytes, count = np.zeros((2, max(len(keys), 1), shards))
        np.add.at(nbytes, cells, [piece.nbytes for piece in pieces])
        np.add.at(count, cells, 1.0)
        shares = nbytes / np.maximum(nbytes.sum(axis=1, keepdims=True), 1.0)
        return cls(np.array(keys, np.int64), shares, count)

    def loads(self, variables: dict[int, int]) -> Floats:
        """Return what share of all bytes lies on each shard."""
        sizes = np.array([variables[key] for key in self.keys.tolist()] or [1], np.float64)
        return np.asarray(sizes @ self.shares / max(float(sizes.sum()), 1.0))


def place_by(changed: Changed, layout: Layout) -> None:
    """Let servers hold variables by another layout.

    Raises:
        InvalidArgument: services of two sizes are needed to tell what bytes cost, and are not here; or
            it is not known when workers need what they pull.
    """
    model, links, costs = changed.model, changed.model.links, Costs(changed.model.links)
    now, shares = held(model), layout.loads(model.requests.variables)
    moves_any = len(now) != len(shares) or (len(now) > 1 and bool(model.served_variables))
    held_shares = np.array([*now.values()]) / sum(now.values())
    if not moves_any and np.abs(shares - held_shares).max() <= MAX_DIFFERENCE_OF_EQUAL_LOADS:
        return
    if model.requests.unknown_needs > MAX_SHARE_OF_NEEDS_UNKNOWN:
        raise InvalidArgument(
            f"not recorded: the variables (key) of requests, so that of "
            f"{fmt.percent(model.requests.unknown_needs)} of the pulls it is not known when workers "
            "need them."
        )
    served = [line for line in costs.models if (links.shard[links.line == line] >= 0).all()]
    if not served:
        raise InvalidArgument(costs.lacks(network=False))
    tasks = model.tasks
    if not model.served_variables and len(shares) != len(now):
        shares = np.full(len(now), 1 / len(shares))
    then = np.pad(shares, (0, len(now)))[: len(now)] * sum(now.values())
    more = np.ones(max(now) + 2)
    more[[*now]] = then / np.maximum([*now.values()], 1.0)
    inside = np.where((links.shard >= 0) & (links.shard <= max(now)), links.shard, len(more) - 1)
    # What has no resource takes as long as its server's bytes say; so do updates of all variables.
    loaded = costs.load(changed.lag, served, links.nbytes * more[inside])
    service = (links.source[tasks.link] - model.requests_at) // 2
    of_worker = model.requests.worker_of_services[service] >= 0
    moves = of_worker & (links.nbytes[tasks.link] > 0)
    rows = np.flatnonzero(moves)
    loaded[tasks.link[rows]] = changed.lag[tasks.link[rows]]
    changed.lag = loaded
    part, after = np.arange(len(rows)), tasks.take(rows)
    nbytes = links.nbytes[after.link] * more[inside[after.link]]
    if model.served_variables:
        part, after, nbytes = _cut_tasks(changed, layout, after)
        _update_after_all(changed)
    changed.tasks = _move_tasks(changed, rows, (part, after, nbytes), costs)


def _cut_tasks(changed: Changed, layout: Layout, tasks: Tasks) -> tuple[Indices, Tasks, Floats]:
    """Return the parts of tasks, for workers' requests, where a layout has their bytes.

    These are the row of each one's task, the parts as tasks, and their bytes.
    """
    model, links = changed.model, changed.model.links
    service = (links.source[tasks.link] - model.requests_at) // 2
    variable = np.searchsorted(layout.keys, model.requests.keys[service])
    part, place = np.nonzero(layout.shares[variable] > 0)
    parts = tasks.take(part)
    nbytes = links.nbytes[parts.link] * layout.shares[variable[part], place]
    pieces = np.where(parts.stream < 0, layout.pieces[variable[part], place], 1.0)
    return part, replace(parts, place=place, messages=parts.messages * pieces), nbytes


def _move_tasks(
    changed: Changed, rows: Indices, parts: tuple[Indices, Tasks, Floats], costs: Costs
) -> Tasks:
    """Return the tasks with parts of some of them, as of `_cut_tasks`, instead of these."""
    model, links, (part, after, nbytes) = changed.model, changed.model.links, parts
    before = model.tasks.take(rows)
    line = links.line[before.link]
    predicted_of_task = costs.predict(line, links.nbytes[before.link])
    predicted_of_part = costs.predict(line[part], nbytes)
    step = np.searchsorted(model.steps, links.step[before.link])
    at_server, at_other = (before.kind, step, before.place), (after.kind, step[part], after.place)
    shape = [
        1 + int(np.append(*cells).max(initial=0)) for cells in zip(at_server, at_other, strict=True)
    ]
    lag, predicted = changed.lag[before.link], _sum_cells(shape, at_server, predicted_of_task)
    is_shared, usual_of_task = ~np.isnan(before.crowding)[before.kind], np.full(len(rows), np.inf)
    for _ in range(ROUNDS_OF_STALLS):
        is_stalled = is_shared & (lag > MIN_RATIO_OF_STALLED_MESSAGE * usual_of_task)
        stall = np.where(is_stalled, lag - usual_of_task, 0.0)
        worked = _sum_cells(shape, at_server, lag - stall)
        pace = np.divide(worked, predicted, out=np.full(shape, np.nan), where=predicted > 0)
        usual = _find_usual_paces(pace)
        usual_of_task = usual[at_server] * predicted_of_task
    _hold_up(changed, links.source[before.link], stall)
    # What a server took beyond that does not grow with its bytes, but shrinks with them, as queues do.
    beyond = worked - usual * predicted
    predicted_then = _sum_cells(shape, at_other, predicted_of_part)
    ratio = np.divide(predicted_then, predicted, out=np.ones(shape), where=predicted > 0)
    work_then = usual * predicted_then + beyond * np.minimum(ratio, 1.0)
    pace_then = np.divide(work_then, predicted_then, out=usual, where=predicted_then > 0)
    share = after.share * predicted_of_part / predicted_of_task[part]
    share = share * pace_then[at_other] / pace[at_server][part]
    share = share * (1 - stall / np.maximum(lag, 1.0))[part]
    others = np.setdiff1d(np.arange(len(model.tasks.link)), rows)
    return Tasks.concatenate([model.tasks.take(others), replace(after, share=share)])


def _sum_cells(shape: Sequence[int], cells: tuple[Ints, ...], values: Floats) -> Floats:
    """Return sums of values by cell of a table."""
    sums = np.zeros(shape)
    np.add.at(sums, cells, values)
    return sums


def _hold_up(changed: Changed, begins: Ints, stall: Floats) -> None:
    """Let services come to their link later by as much as each stalled: it was not at work then, ns."""
    links = changed.model.links
    held = np.zeros(len(changed.model.recorded))
    np.maximum.at(held, begins, stall)
    changed.lag += np.where(links.bond == Bond.QUEUE, 0.0, held[links.target])


def _find_usual_paces(pace: Floats) -> Floats:
    """Return the usual pace of each server in each kind and step: the median of the steps around it.

    A slow spell is usual then, a stall of single steps is not. Without tasks it is that of all servers.

    Args:
        pace: How many times as long as predicted tasks took, [kind, step, server]; nan = no tasks.
    """
    usual = np.ones(pace.shape)
    around = STEPS_OF_USUAL_PACE // 2
    for kind, paces in enumerate(pace):
        known = ~np.isnan(paces)
        if known.any():
            usual[kind] = np.median(paces[known])
        for server in np.flatnonzero(known.any(axis=0)).tolist():
            steps = np.flatnonzero(known[:, server])
            padded = np.pad(paces[steps, server], around, mode="edge")
            windows = np.lib.stride_tricks.sliding_window_view(padded, STEPS_OF_USUAL_PACE)
            usual[kind, steps, server] = np.median(windows, axis=1)
    return usual


def _update_after_all(changed: Changed) -> None:
    """Let updates of all variables of a server follow what any server adds up in their step."""
    model = changed.model
    served = model.requests.served.select("op", "step", "key").with_row_index("row")
    adds = served.filter(pl.col("op") == "aggregate").select("step", add="row")
    unkeyed = served[model.requests.joined].filter(pl.col("key").is_null())
    both = unkeyed.join(adds, on="step", nulls_equal=True)
    at = model.requests_at + 2 * both.select("row", "add").to_numpy().astype(np.int64)
    changed.follow(at[:, 1] + 1, at[:, 0])
