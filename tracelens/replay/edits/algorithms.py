"""Allreduces by another algorithm, or of more ranks; collectives joined into larger ones.

A kind of calls has a fitted line, which is taken apart by what its algorithm sends:
its latency is that of so many messages one after the other, its time per byte that of so many payloads
over one link. Another algorithm, or number of ranks, sends more or less of both; each call keeps what it
differed from its line by. Of more ranks the slowest is slower: by how much, as the greatest of so many
draws from what ranks of this run differed by from the median rank of their step.

A joined call goes when its last part would, and ranks meet in no other part. It takes what the line of
such calls says for all its bytes, times how much longer than usual its parts took. Ranks leave it once,
each as much later than the first as they left its last part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting.categories import OWN_CATEGORIES
from tracelens.errors import InvalidArgument
from tracelens.model import fmt
from tracelens.replay.edits.costs import Costs
from tracelens.replay.edits.placements import check_received
from tracelens.replay.edits.rank_links import find_rank_links
from tracelens.simulator.algorithms import ALGORITHMS, transfer

if TYPE_CHECKING:
    from tracelens.arrays import Flags, Floats, Ints
    from tracelens.replay.calls import Calls
    from tracelens.replay.edits.changed import Changed
    from tracelens.replay.model import Model
    from tracelens.stats.cost_line import CostModel

__all__ = ["carry_out_by", "join", "join_calls", "with_ranks"]

_ASSUMED: Final = "ring"
# times the recorded ranks: answers for more were not compared with simulated runs [chosen]
MAX_FACTOR_OF_RANKS_VALIDATED: Final = 4
MIN_RANKS_OF_ALLREDUCE: Final = 2  # ranks: one needs none [definition]
# calls: the median of as many says what calls of a size take better than the line [chosen]
MIN_CALLS_FOR_MEDIAN_OF_SIZE: Final = 16


def carry_out_by(changed: Changed, algorithm: str) -> None:
    """Carry all allreduces out by an algorithm.

    Raises:
        InvalidArgument: it is none, or what messages and bytes cost is not known.
    """
    wanted = algorithm.replace("-", "_")
    if wanted not in ALGORITHMS:
        raise InvalidArgument(f"the algorithm is none of {', '.join(ALGORITHMS)}.")
    _resize(changed, wanted, None)


def with_ranks(changed: Changed, count: str) -> None:
    """Let so many ranks take part, each with as much work as now; servers serve all of them.

    Raises:
        InvalidArgument: too few ranks, or what messages and bytes cost is not known.
    """
    model, ranks = changed.model, int(count)
    now = len(model.ranks)
    if min(ranks, now) < MIN_RANKS_OF_ALLREDUCE:
        raise InvalidArgument(
            f"found {ranks} ranks instead of {now}, expected at least two of each."
        )
    check_received(model)
    served = model.links.shard >= 0
    if not served.any() or model.calls:
        _resize(changed, None, ranks)
    _serve_workers(changed, served, ranks)
    later = _slowest_of(model, ranks)
    from_ranks = model.links.source < model.threads.moment_count
    for call in model.calls:
        if len(call.worker) == now and not call.is_rooted:
            last = np.append(np.flatnonzero(np.diff(call.step)), call.height - 1)
            changed.lag[from_ranks & np.isin(model.links.target, call.wires[last])] += later
    far = (
        f" More than {MAX_FACTOR_OF_RANKS_VALIDATED} times the ranks: not validated."
        if ranks > MAX_FACTOR_OF_RANKS_VALIDATED * now
        else ""
    )
    changed.notes.append(
        f"{ranks} ranks instead of {now}, with as much work each; the slowest one of a step is "
        f"{fmt.duration(later)} later than now.{far}"
    )


def _serve_workers(changed: Changed, served: Flags, ranks: int) -> None:
    """Let servers serve so many workers; what has no resource takes as much longer."""
    model, links = changed.model, changed.model.links
    times = ranks / len(model.ranks)
    changed.ranks = ranks
    free = served.copy()
    free[model.tasks.link] = False
    costs = Costs(links)
    sized = np.isin(links.line, list(costs.models)) & (links.nbytes > 0)
    changed.lag[free] *= costs.factors(costs.models, links.nbytes, pace=times)[free]
    services = free & ~sized & (links.source >= model.requests_at) & (links.line >= 0)
    joined = model.wires[model.requests_at + 2 * model.requests.joined]
    services[joined[joined >= 0]] = False
    changed.lag[services] *= times


def _resize(changed: Changed, algorithm: str | None, ranks: int | None) -> None:
    """Let allreduces of all ranks take what they would by another algorithm, or with more ranks."""
    model, links = changed.model, changed.model.links
    costs = Costs(links)
    factors = np.ones(len(links.lag))
    assumed = False
    found = 0
    for number in costs.models:
        line = links.lines[number]
        if line.what != "allreduce" or line.ranks < MIN_RANKS_OF_ALLREDUCE:
            continue
        recorded = model.algorithms.get(line.ranks, frozenset())
        if len(recorded) > 1:
            raise InvalidArgument(
                f"the allreduces of {line.ranks} ranks were carried out by "
                f"{fmt.series(sorted(recorded))}: one line does not fit all of them."
            )
        now = next(iter(recorded), _ASSUMED)
        assumed |= not recorded
        if now not in ALGORITHMS:
            raise InvalidArgument(
                f"what '{now}' sends is not known; known are {', '.join(ALGORITHMS)}."
            )
        then = line.ranks if ranks is None or line.ranks < len(model.ranks) else ranks
        messages, payloads = transfer(now, line.ranks)
        more, larger = transfer(algorithm or now, then)
        factors *= costs.factors([number], links.nbytes, more / messages, larger / payloads)
        found += 1
    if not found:
        raise InvalidArgument(costs.lacks(network=True))
    changed.lag = changed.lag * factors
    if assumed:
        changed.notes.append(
            f"How allreduces were carried out was not recorded: taken for a {_ASSUMED}."
        )


def _slowest_of(model: Model, ranks: int) -> float:
    """Return by how much later the slowest of so many ranks is than that of those that there are, ns."""
    own = model.sum_by_step(model.worked(OWN_CATEGORIES))
    residual = np.sort((own - np.median(own, axis=1, keepdims=True)).ravel())
    below = np.arange(len(residual) + 1) / len(residual)
    greatest = [
        float((residual * np.diff(below**count)).sum()) for count in (ranks, len(model.ranks))
    ]
    return greatest[0] - greatest[1]


def join(changed: Changed, nbytes: str) -> None:
    """Join consecutive calls of a step until they have so many bytes.

    Raises:
        InvalidArgument: it is no size, less than calls have, or what messages cost is not known.
    """
    model = changed.model
    try:
        wanted = fmt.parsed_size(nbytes.replace("MB", "000000").replace("KB", "000"))
    except ValueError as error:
        raise InvalidArgument(f"{error}.") from None
    costs, joined, before, largest = Costs(model.links), 0, 0, 0
    lines = model.links.lines
    for call in model.calls:
        line = lines.index(call.line) if call.line in lines else -1
        sized = call.nbytes[call.nbytes > 0]
        if len(sized) < 2 or call.is_rooted or line not in costs.models:
            continue
        if wanted < np.median(sized):
            raise InvalidArgument(
                f"the calls recorded have {fmt.size(float(np.median(sized)))}: when a part of one is "
                "ready was not recorded, so they can only be joined."
            )
        total = join_calls(changed, costs.models[line], call, wanted)
        if len(total):
            before, joined = before + call.height, joined + len(total)
            largest = max(largest, int(total.max()) // max(int(call.nbytes.max()), 1))
    if not before:
        raise InvalidArgument(
            "this needs collectives of at least two sizes, one twice the other, in 16 of a kind or "
            "more, that tell what is paid for a call from what is paid for its bytes."
        )
    changed.notes.append(f"{before} calls become {joined}.")
    if largest > 1:
        changed.notes.append(
            f"The largest call would be {largest} times the largest recorded: its time is extrapolated."
        )


def join_calls(
    changed: Changed, cost: CostModel, call: Calls, wanted: int, *, steps: Ints | None = None
) -> Ints:
    """Join calls of one kind until they have `wanted` bytes; return the new sizes.

    Args:
        changed: The run.
        cost: What such a call takes by its bytes.
        call: The calls.
        wanted: Bytes of a joined call.
        steps: The steps whose calls are joined, if not all.
    """
    links = changed.model.links
    ends_group = _find_needed_calls(changed.model, call)
    if steps is not None:
        ends_group |= ~np.isin(call.step, steps)
    groups = _groups(call.step, call.nbytes, wanted, ends_group)
    total = np.bincount(groups, np.maximum(call.nbytes, 0))
    wires = changed.model.wires[call.wires]
    recorded_ns = changed.lag[wires]
    parts_ns = _usual_ns(cost, call.nbytes, recorded_ns)
    joined_ns = cost.latency_ns + np.maximum(total, 1) * cost.ns_per_byte
    share = joined_ns / np.maximum(np.bincount(groups, parts_ns), 1e-9)
    share[np.bincount(groups) == 1] = 1.0
    is_last = np.append(np.diff(groups) > 0, True)
    group_ns = np.bincount(groups, recorded_ns) * share
    changed.lag[wires] = np.where(is_last, group_ns[groups], 0.0)
    # Ranks meet, and leave, once in a joined call, and its stream goes on at once within it.
    within = np.isin(links.source, call.wires[~is_last] + 1)
    changed.lag[within] = 0.0
    threads_end = changed.model.threads.moment_count
    changed.release(np.flatnonzero(within & (links.target < threads_end)))
    return total.astype(np.int64)


def _usual_ns(cost: CostModel, nbytes: Ints, recorded_ns: Floats) -> Floats:
    """Return what calls of each size usually take: their median, or the line for a rare size."""
    usual_ns = cost.latency_ns + np.maximum(nbytes, 1) * cost.ns_per_byte
    for size in np.unique(nbytes):
        rows = np.flatnonzero(nbytes == size)
        if len(rows) >= MIN_CALLS_FOR_MEDIAN_OF_SIZE:
            usual_ns[rows] = np.median(recorded_ns[rows])
    return usual_ns


def _find_needed_calls(model: Model, call: Calls) -> Flags:
    """Return True for calls in flight whose result some rank computes with before the next one.

    The rank waits for the call, and goes on with forward or backprop before it comes to the next one.
    Backprop does not need the gradients that an allreduce brings. A rank with a share of the weights
    frees its gradients once they are reduced and scattered.
    """
    phases = ("forward",) if call.line.what == "allreduce" else ("forward", "backprop")
    enters, leaves = find_rank_links(model, call)
    arrived, left = model.links.source[enters[1:]], model.links.target[leaves[:-1]]
    is_known = (enters[1:] >= 0) & (leaves[:-1] >= 0) & ~call.stops[:-1]
    computed_ns = np.cumsum(model.threads.add_after_moments(model.worked(phases)))
    is_needed = is_known & (left <= arrived) & (computed_ns[arrived] > computed_ns[left])
    return np.append(is_needed.any(axis=1), False)


def _groups(step: Ints, nbytes: Ints, wanted: int, ends_group: Flags) -> Ints:
    """Number the joined calls: one is full when it has as many bytes as wanted."""
    groups = np.zeros(len(step), np.int64)
    number, held = 0, 0
    columns = (step.tolist(), nbytes.tolist(), np.append(True, ends_group[:-1]).tolist())
    for row, (one, more, begins_group) in enumerate(zip(*columns, strict=True)):
        is_full = held >= wanted or held + more > wanted
        if row and (one != step[row - 1] or is_full or begins_group):
            number, held = number + 1, 0
        groups[row] = number
        held += max(more, 0)
    return groups
