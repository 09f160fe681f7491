"""What goes beside what: reductions beside backprop, or after it; a background write between steps.

A gradient bucket is full when its share of the step's bytes is done of backprop: gradients come in the
order of layers, whose work is taken to be as their bytes. What compute and
communication then take from each other is not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from tracelens.accounting.categories import CATEGORIES
from tracelens.errors import InvalidArgument
from tracelens.model import fmt
from tracelens.replay.edits.costs import Costs
from tracelens.replay.edits.rank_links import find_rank_links
from tracelens.simulator.algorithms import transfer

if TYPE_CHECKING:
    from tracelens.arrays import Floats, Indices, Ints
    from tracelens.replay.calls import Calls
    from tracelens.replay.edits.changed import Changed
    from tracelens.replay.model import Model
    from tracelens.replay.threads import Threads

__all__ = ["beside_backprop", "no_overlap", "write_in_background"]

_REDUCTIONS: Final = ("allreduce", "reduce_scatter")
_BACKPROP: Final = CATEGORIES.index("backprop")


def no_overlap(changed: Changed) -> None:
    """Let the first call in flight of a step go when the last one is begun by all.

    Raises:
        InvalidArgument: no step has several.
    """
    model, links = changed.model, changed.model.links
    begins = links.source < model.threads.moment_count
    found = 0
    for call, at in zip(model.calls, model.calls_at, strict=True):
        goes = {
            at + 2 * last: at + 2 * first
            for first, last in _runs(call, np.flatnonzero(call.in_flight))
        }
        rows = np.flatnonzero(begins & np.isin(links.target, list(goes)))
        target = np.array([goes[one] for one in links.target[rows].tolist()], np.int64)
        several = target != links.target[rows]
        changed.follow(links.source[rows[several]], target[several])
        found += int(several.sum())
    if not found:
        raise InvalidArgument("this needs steps with several collectives in flight; none has them.")


def beside_backprop(changed: Changed) -> None:
    """Let reductions that stop their ranks after backprop go while it runs.

    Each goes when all ranks have its gradients and the one before is through; ranks wait for all of them
    where they waited for the last.

    Raises:
        InvalidArgument: no reduction stops its ranks right after backprop.
    """
    model = changed.model
    found = 0
    for call, at in zip(model.calls, model.calls_at, strict=True):
        if call.line.what in _REDUCTIONS:
            blocking = _Blocking.of(model, call, at)
            found += sum(blocking.overlap(changed, run) for run in blocking.runs)
    if not found:
        reason = _explain_refusal(model)
        raise InvalidArgument(
            f"this needs reductions that stop their ranks right after backprop; {reason}."
        )
    changed.notes.append(
        f"{fmt.count(found, 'reduction')} would go beside backprop, each when its share of the step's "
        "bytes is done of it; what they take from compute is not in it."
    )


def _explain_refusal(model: Model) -> str:
    """Return why no reduction can be moved beside backprop."""
    reductions = [call for call in model.calls if call.line.what in _REDUCTIONS]
    if not reductions:
        return "this trace has no all-reduce or reduce-scatter that all ranks came to and left"
    if not model.worked(("backprop",)).any():
        return "this trace has no span of backprop"
    if all(call.in_flight.all() for call in reductions):
        return "all of its reductions are in flight already"
    return "before each of its blocking reductions ranks do something else"


def write_in_background(changed: Changed, nbytes: str) -> None:
    """Let each step's last collective be followed by so many bytes more on the same links.

    Raises:
        InvalidArgument: it is no size, or the bandwidth of links is not known.
    """
    try:
        wanted = fmt.parsed_size(nbytes)
    except ValueError as error:
        raise InvalidArgument(f"{error}.") from None
    model = changed.model
    costs = Costs(model.links)
    pace = [
        cost.ns_per_byte / transfer("ring", line.ranks)[1]
        for number, cost in costs.models.items()
        if (line := model.links.lines[number]).ranks > 1 and line.what in _REDUCTIONS
    ]
    if not pace:
        raise InvalidArgument(costs.lacks(network=True))
    ns_per_byte = max(pace)
    longest = wanted * ns_per_byte
    by_step: dict[int, list[tuple[int, int]]] = {}  # when runs of calls go, and are through
    for call, at in zip(model.calls, model.calls_at, strict=True):
        for first, last in _runs(call, np.arange(call.height)):
            ends = (at + 2 * first, at + 2 * last + 1)
            by_step.setdefault(int(call.step[first]), []).append(ends)
    for now, then in pairwise(by_step[step] for step in sorted(by_step)):
        over = max((through for _, through in now), key=lambda moment: model.recorded[moment])
        goes = np.array([begin for begin, _ in then], np.int64)
        changed.follow(np.full(len(goes), over), goes, np.full(len(goes), longest))
    changed.notes.append(
        f"{fmt.size(wanted)} a step take {fmt.duration(longest)} of a link "
        f"({fmt.bandwidth(1 / ns_per_byte)}, a ring assumed) between the last collective of a step and "
        "the first of the next; what reading and writing them costs a core or a disk is not in it."
    )


@dataclass(frozen=True, eq=False)
class _Blocking:
    """Reductions of a communicator that stop their ranks; number i goes at moment `at` + 2 i.

    [call, worker]: `begin` are the moments at which ranks come to them, -1 where it is none; `enters`
    and `leaves` the links to the wire, and from it. [moment]: `ready` is how long before it backprop was
    over, `backprop` how much of it lies between the moment and the one before, `other` of updates,
    forward and data.
    """

    call: Calls
    at: int
    begin: Ints
    enters: Indices
    leaves: Indices
    ready: Floats
    backprop: Floats
    other: Floats

    @classmethod
    def of(cls, model: Model, call: Calls, at: int) -> Self:
        """Find them in a run."""
        enters, leaves = find_rank_links(model, call, at)
        begin = np.where(enters >= 0, model.links.source[enters], -1)
        backprop, other = (
            model.threads.add_after_moments(model.worked(names))
            for names in (("backprop",), ("update", "forward", "data"))
        )
        ready = _since_backprop(model.threads)
        return cls(call, at, begin, enters, leaves, ready, backprop, other)

    @property
    def runs(self) -> list[tuple[int, int]]:
        """The first and the last call of each stretch after backprop, in which ranks do little else."""
        whole = self.call.stops.all(axis=1) & (self.begin >= 0).all(axis=1)
        goes_on = self.other[self.begin].max(axis=1) <= 0
        found: list[tuple[int, int]] = []
        follows_backprop = whole & (self.backprop[self.begin].min(axis=1) > 0)
        for begin, last in _runs(self.call, np.flatnonzero(whole)):
            # Calls before backprop, of a loss for instance, stay where they are.
            for first in (begin + np.flatnonzero(follows_backprop[begin : last + 1])).tolist():
                if found and first <= found[-1][1]:
                    continue
                later = np.arange(first + 1, last + 1)
                stop = later[~(whole & goes_on)[later]]
                found.append((first, int(stop[0]) - 1 if len(stop) else last))
        return found

    def overlap(self, changed: Changed, run: tuple[int, int]) -> int:
        """Let the calls of a step go beside backprop; return how many there are."""
        first, last = run
        rows = np.arange(first, last + 1)
        sizes = np.maximum(self.call.nbytes[rows], 1).astype(np.float64)
        left = 1 - np.cumsum(sizes) / sizes.sum()
        begin, wire = self.begin[first], self.at + 2 * rows
        edge = (
            begin - 1 - self.call.worker
        )  # a thread has a moment more than links from one to the next
        since = self.ready[begin] + left[:, None] * self.backprop[begin]
        lag = np.maximum(changed.lag[edge] - since, 0.0)
        target = np.broadcast_to(wire[:, None], lag.shape)
        changed.release(self.enters[rows].ravel())
        changed.follow(np.broadcast_to(begin - 1, lag.shape).ravel(), target.ravel(), lag.ravel())
        changed.follow(wire[:-1] + 1, wire[1:])
        leaves = self.leaves[rows[:-1]]
        changed.release(leaves[leaves >= 0])
        return len(rows)


def _since_backprop(threads: Threads) -> Floats:
    """Return how long before each moment the last backprop of its thread was over, ns."""
    timeline, positions = threads.timeline, threads.positions
    over = np.append(timeline.bounds[1:][timeline.category[:-1] == _BACKPROP], -1)
    latest = over[np.searchsorted(over[:-1], positions, side="right") - 1]
    is_same = timeline.workers_at(latest) == timeline.workers_at(positions)
    return np.where(is_same, positions - latest, 0).astype(np.float64)


def _runs(call: Calls, rows: Indices) -> list[tuple[int, int]]:
    """Return the first and last of the calls of each step among some."""
    if not len(rows):
        return []
    heads = np.flatnonzero(np.append(True, np.diff(call.step[rows]) != 0))
    lasts = np.append(heads[1:], len(rows)) - 1
    return list(zip(rows[heads].tolist(), rows[lasts].tolist(), strict=True))
