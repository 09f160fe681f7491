"""What goes beside what: reductions beside backprop, or after it; a background write between steps.

A gradient bucket is full when the last span of backprop that has its number ends. Where no span has, it
is full when its share of the step's bytes is done of backprop: gradients come in the order of layers,
whose work is taken to be as their bytes. What compute and communication then take from each other is not
known.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import polars as pl

from tracelens.caching import cached_property
from tracelens.errors import InvalidArgument
from tracelens.memory import BoundedCache
from tracelens.model import fmt
from tracelens.model.columns import FOREVER
from tracelens.replay.edits.costs import Costs
from tracelens.replay.edits.rank_links import find_rank_links
from tracelens.replay.timeline import IS_BACKPROP
from tracelens.simulator.algorithms import transfer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Flags, Floats, Indices, Ints
    from tracelens.model.columns import Columns
    from tracelens.replay.calls import Calls
    from tracelens.replay.edits.changed import Changed
    from tracelens.replay.model import Model
    from tracelens.replay.threads import Threads

__all__ = ["beside_backprop", "no_overlap", "write_in_background"]

_REDUCTIONS: Final = ("allreduce", "reduce_scatter")
_READ: Final = ("type", "kind", "step", "bucket", "start_ns", "end_ns")


def no_overlap(changed: Changed) -> None:
    """Let the first call in flight of a step go when the last one is begun by all.

    Raises:
        InvalidArgument: no step has several.
    """
    model, links = changed.model, changed.model.links
    begins = links.source < model.threads.moment_count
    found = 0
    for call in model.calls:
        wires, runs = call.wires.tolist(), _runs(call, np.flatnonzero(call.in_flight))
        goes = {wires[last]: wires[first] for first, last in runs}
        rows = np.flatnonzero(begins & np.isin(links.target, list(goes)))
        target = np.array([goes[one] for one in links.target[rows].tolist()], np.int64)
        several = target != links.target[rows]
        changed.follow(links.source[rows[several]], target[several])
        found += int(several.sum())
    if not found:
        raise InvalidArgument("this needs steps with several collectives in flight; none has them.")


def beside_backprop(changed: Changed) -> None:
    """Let reductions go while backprop runs, where their ranks begin them after it or wait in them.

    Each goes when all ranks have its gradients and the one before is through; ranks wait for all of them
    where they waited for the last.

    Raises:
        InvalidArgument: no reduction is begun right after backprop.
    """
    model = changed.model
    count, has_spans = 0, False
    for call in model.calls:
        if call.line.what in _REDUCTIONS:
            reductions = _Reductions.of(changed, call)
            for chain in reductions.chains:
                count += reductions.overlap(changed, chain)
                has_spans |= bool((reductions.full_at >= 0).any())
    if not count:
        raise InvalidArgument(
            "this needs reductions that their ranks begin after backprop; "
            f"{_explain_refusal(model)}."
        )
    by_spans = "its bucket's last span of it ends, else when " if has_spans else ""
    changed.notes.append(
        f"{fmt.count(count, 'reduction')} would go beside backprop, each when {by_spans}its share of "
        "the step's bytes is done of it; what they take from compute is not in it."
    )


def _explain_refusal(model: Model) -> str:
    """Return why no reduction can be moved beside backprop."""
    reductions = [call for call in model.calls if call.line.what in _REDUCTIONS]
    if not reductions:
        return "this trace has no all-reduce or reduce-scatter that all ranks came to and left"
    if not model.worked(("backprop",)).any():
        return "this trace has no span of backprop"
    if all(call.in_flight.all() for call in reductions):
        return "all of its reductions are in flight beside backprop already"
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
    for call in model.calls:
        wires = call.wires.tolist()
        for first, last in _runs(call, np.arange(call.height)):
            ends = (wires[first], wires[last] + 1)
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
class _Reductions:
    """Reductions of a communicator.

    [call, worker]: `begin` are the moments at which ranks begin them, -1 where it is none; `enters` and
    `leaves` the links to the wire, and from it. [moment]: `since_backprop` is how long before it
    backprop was over, `backprop` how much of it lies between the moment and the one before, `other` of
    updates, forward and data; all ns.
    """

    model: Model
    call: Calls
    begin: Ints
    enters: Indices
    leaves: Indices
    since_backprop: Floats
    backprop: Floats
    other: Floats

    @classmethod
    def of(cls, changed: Changed, call: Calls) -> Self:
        """Find them in a run."""
        model = changed.model
        enters, leaves = find_rank_links(model, call)
        begin = np.where(enters >= 0, model.links.source[enters], -1)
        backprop, other = (
            model.threads.add_after_moments(changed.worked(names))
            for names in (("backprop",), ("update", "forward", "data"))
        )
        since_backprop = _since_backprop(model.threads)
        return cls(model, call, begin, enters, leaves, since_backprop, backprop, other)

    @property
    def chains(self) -> list[list[list[int]]]:
        """The calls that can go earlier, as rows: chains of parts of calls.

        A chain is of one step, with nothing but backprop between its calls; a part is the calls that
        follow the same stretch of backprop. Calls in flight can go earlier only if all of them
        are begun when backprop is over.
        """
        is_begun = (self.begin >= 0).all(axis=1)
        blocking = self._find_chains(is_begun & np.asarray(self.call.stops.all(axis=1)))
        flying = self._find_chains(is_begun & self.call.in_flight)
        return blocking + [chain for chain in flying if len(chain) == 1 and len(chain[0]) > 1]

    def _find_chains(self, is_usable: Flags) -> list[list[list[int]]]:
        """Return the chains among some calls (flags), as rows: [chain][part][call]."""
        rows = np.flatnonzero(is_usable)
        follows_backprop = self.backprop[self.begin[rows]].min(axis=1) > 0
        continues = self.other[self.begin[rows]].max(axis=1) <= 0
        continues &= (np.diff(rows, prepend=-2) == 1) & (
            np.diff(self.call.step[rows], prepend=-1) == 0
        )
        chains: list[list[list[int]]] = []
        chain: list[list[int]] = []
        for row, is_new_part, is_next in zip(
            rows.tolist(), follows_backprop.tolist(), continues.tolist(), strict=True
        ):
            if not is_next:
                chain = []
            if is_new_part:
                chain.append([row])
                if len(chain) == 1:
                    chains.append(chain)
            elif chain:
                chain[-1].append(row)
        return chains

    def overlap(self, changed: Changed, chain: Sequence[Sequence[int]]) -> int:
        """Let the calls of a chain go beside backprop; return how many there are."""
        for part in chain:
            begin = self.begin[part[0]]
            # A thread has a moment more than links from one to the next.
            edge = begin - 1 - self.call.worker
            sizes = np.maximum(self.call.nbytes[part], 1).astype(np.float64)
            left = (1 - np.cumsum(sizes) / sizes.sum())[:, None]
            # Gradients come in the order of calls; numbers in another order are none of buckets.
            is_ordered = (np.diff(self.full_at[part], axis=0, prepend=0) >= 0).all(axis=0)
            if is_ordered.any():
                left = np.where(is_ordered, self._measure_left(part), left)
            since = self.since_backprop[begin] + left * self.backprop[begin]
            lag = np.maximum(changed.lag[edge] - since, 0.0)
            source, target = np.broadcast_arrays(begin - 1, self.call.wires[part][:, None])
            changed.follow(source.ravel(), target.ravel(), lag.ravel())
        rows = np.concatenate(chain)
        wire = self.call.wires[rows]
        changed.release(self.enters[rows].ravel())
        changed.follow(wire[:-1] + 1, wire[1:])
        leaves = self.leaves[rows[:-1]][self.call.stops[rows[:-1]]]
        changed.release(leaves[leaves >= 0])
        return len(rows)

    def _measure_left(self, part: Sequence[int]) -> Floats:
        """Return what share of backprop before a part is left when buckets are full, [call, rank]."""
        threads, begin = self.model.threads, self.begin[part[0]]
        places = (self.full_at[part], threads.positions[begin - 1], threads.positions[begin])
        full_ns, first_ns, last_ns = (
            threads.timeline.spent_before(IS_BACKPROP, place) for place in places
        )
        return np.clip((last_ns - full_ns) / np.maximum(last_ns - first_ns, 1.0), 0.0, 1.0)

    @cached_property
    def full_at(self) -> Ints:
        """Where the last span of backprop with each bucket ends on the line, [call, rank]; -1 = none."""
        call, trace, cache = self.call, self.model.trace, BoundedCache()
        full_at = np.full(call.start.shape, -1, np.int64)
        if (call.bucket < 0).all():
            return full_at
        calls = pl.DataFrame({"step": call.step, "bucket": call.bucket.astype(np.int64)})
        processes = trace.workers["process"].to_list()
        for column, worker in enumerate(call.worker.tolist()):
            ends = _read_bucket_ends(trace.source.columns(processes[worker], _READ, cache))
            end_ns = calls.join(ends, on=calls.columns, how="left", maintain_order="left")["end_ns"]
            end_at = self.model.threads.timeline.locate(worker, end_ns.fill_null(0).to_numpy())
            full_at[:, column] = np.where(end_ns.is_null(), -1, end_at)
        return full_at


def _read_bucket_ends(columns: Columns) -> pl.DataFrame:
    """Return when the last span of backprop for each `step` and `bucket` ends, `end_ns`."""
    end_ns, bucket = columns.number("end_ns"), columns.number("bucket")
    has_bucket = columns.is_span & (bucket >= 0) & (end_ns < FOREVER)
    rows = np.flatnonzero(has_bucket & columns.word("kind").among(("backprop",)))
    step = columns.number("step")
    ends = {"step": step[rows], "bucket": bucket[rows], "end_ns": end_ns[rows]}
    table = pl.DataFrame(ends, schema=dict.fromkeys(ends, pl.Int64()))
    return table.group_by("step", "bucket").agg(pl.col("end_ns").max())


def _since_backprop(threads: Threads) -> Floats:
    """Return how long before each moment the last backprop of its thread was over, ns."""
    timeline, positions = threads.timeline, threads.positions
    over = np.append(timeline.bounds[1:][timeline.is_in(IS_BACKPROP)[:-1]], -1)
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
