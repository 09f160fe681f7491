"""Allreduces by another algorithm, or of more ranks; collectives joined into larger ones.

A kind of calls has a fitted line, which is taken apart by what its algorithm sends:
its latency is that of so many messages one after the other, its time per byte that of so many payloads
over one link. Another algorithm, or number of ranks, sends more or less of both; each call keeps what it
differed from its line by. Of more ranks the slowest is slower: by how much, as the greatest of so many
draws from what ranks of this run differed by from the median rank of their step.

A joined call goes when its last part would, and takes the share of what its parts took that the line of
such calls says. Ranks leave it once, each as much later than the first as they left its last part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting.categories import OWN_CATEGORIES
from tracelens.errors import InvalidArgument
from tracelens.model import fmt
from tracelens.replay.edits.costs import Costs
from tracelens.replay.edits.placements import check_received
from tracelens.simulator.algorithms import ALGORITHMS, transfer

if TYPE_CHECKING:
    from tracelens.arrays import Flags, Floats, Ints
    from tracelens.replay.calls import Calls
    from tracelens.replay.edits.changed import Changed
    from tracelens.replay.model import Model
    from tracelens.stats.cost_line import CostModel

__all__ = ["carry_out_by", "join", "with_ranks"]

_ASSUMED: Final = "ring"
_FAR: Final = 4  # times as many ranks: what has been compared with simulated runs
_FEWEST: Final = 2


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
    if min(ranks, now) < _FEWEST:
        raise InvalidArgument(
            f"found {ranks} ranks instead of {now}, expected at least two of each."
        )
    check_received(model)
    served = model.links.shard >= 0
    if not served.any() or model.calls:
        _resize(changed, None, ranks)
    _serve_workers(changed, served, ranks)
    later = _slowest_of(model, ranks)
    from_ranks = model.links.source < sum(len(thread.moments) for thread in model.threads)
    for call, at in zip(model.calls, model.calls_at, strict=True):
        if len(call.worker) == now and not call.is_rooted:
            last = np.append(np.flatnonzero(np.diff(call.step)), call.height - 1)
            wires = at + 2 * last
            changed.lag[from_ranks & np.isin(model.links.target, wires)] += later
    far = f" More than {_FAR} times the ranks: not validated." if ranks > _FAR * now else ""
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
    for number, cost in costs.models.items():
        line = links.lines[number]
        if line.what != "allreduce" or line.ranks < _FEWEST:
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
        factors *= _factors(costs, number, cost, (now, line.ranks), (algorithm or now, then))
        found += 1
    if not found:
        raise InvalidArgument(costs.lacks(network=True))
    changed.lag = changed.lag * factors
    if assumed:
        changed.notes.append(
            f"How allreduces were carried out was not recorded: taken for a {_ASSUMED}."
        )


def _factors(
    costs: Costs, number: int, cost: CostModel, now: tuple[str, int], then: tuple[str, int]
) -> Floats:
    (messages, payloads), (more, larger) = transfer(*now), transfer(*then)
    return costs.factors(
        {number: cost}, costs.links.nbytes, latency=more / messages, pace=larger / payloads
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
    for call, at in zip(model.calls, model.calls_at, strict=True):
        total = _joined(changed, costs, call, at, wanted)
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


def _joined(changed: Changed, costs: Costs, call: Calls, at: int, wanted: int) -> Ints:
    """Join calls of one kind, of which number i goes at moment `at` + 2 i; return the new sizes."""
    links = changed.model.links
    number = links.lines.index(call.line) if call.line in links.lines else -1
    sized = call.nbytes[call.nbytes > 0]
    if len(sized) < 2 or call.is_rooted or number not in costs.models:
        return np.zeros(0, np.int64)
    if wanted < np.median(sized):
        raise InvalidArgument(
            f"the calls recorded have {fmt.size(float(np.median(sized)))}: when a part of one is ready "
            "was not recorded, so they can only be joined."
        )
    groups = _groups(call.step, call.nbytes, wanted)
    total = np.bincount(groups, np.maximum(call.nbytes, 0))
    parts = costs.predicted(number, np.maximum(call.nbytes, 1).astype(np.float64))
    share = costs.predicted(number, total.astype(np.float64)) / np.bincount(groups, parts)
    last = np.append(np.diff(groups) > 0, True)
    wires = changed.model.wires[at + 2 * np.arange(call.height)]
    taken = np.bincount(groups, changed.lag[wires])
    changed.lag[wires] = np.where(last, taken[groups] * share[groups], 0.0)
    leaves = np.flatnonzero(np.isin(links.source, at + 1 + 2 * np.flatnonzero(~last)))
    of_ranks = links.target[leaves] < sum(len(thread.moments) for thread in changed.model.threads)
    changed.lag[leaves[of_ranks]] = 0.0
    return total.astype(np.int64)


def _groups(step: Ints, nbytes: Ints, wanted: int) -> Ints:
    """Number the joined calls: one is full when it has as many bytes as wanted."""
    groups = np.zeros(len(step), np.int64)
    number, held = 0, 0
    for row, (one, more) in enumerate(zip(step.tolist(), nbytes.tolist(), strict=True)):
        if row and (one != step[row - 1] or held >= wanted or held + more > wanted):
            number, held = number + 1, 0
        groups[row] = number
        held += max(more, 0)
    return groups
