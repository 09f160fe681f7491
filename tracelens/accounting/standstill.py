"""Standstills: ranks in calls that never ended, the ranks that they wait for, and the root of it all.

A rank in an open call waits for the members that did not enter it, or that made another call under its
number. A rank that others wait for, and that is in no open call, is a root; the others are its victims.
Where ranks wait for each other in a circle, and most ranks of a group are in one call after equally many
calls, these are right, and the rank that does otherwise is the root; else the whole circle is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np
import polars as pl

from tracelens.align.collectives import (
    find_minority,
    find_mismatched,
    split_by_variant,
)
from tracelens.model.columns import FOREVER
from tracelens.schema.vocabulary import COLLECTIVES, POINT_TO_POINT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracelens.arrays import Int32s
    from tracelens.model.calls import CallGrid
    from tracelens.model.trace import Trace


@dataclass(frozen=True)
class OpenCall:
    """A call that ranks `inside` did not leave, and the members that they wait for in it.

    `strayed` are those of them that made another call under its number, or under one before. Messages
    have the `seq` -1.
    """

    communicator: str
    seq: int
    op: str
    step: int
    inside: tuple[int, ...]
    awaited: tuple[int, ...]
    strayed: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Root:
    """A rank that waits for no other, or a circle of ranks, and the calls in which others wait for it.

    `victims` are the ranks that wait for it, directly or in turn.
    """

    ranks: tuple[int, ...]
    calls: tuple[OpenCall, ...]
    victims: tuple[int, ...]

    @property
    def is_strayed(self) -> bool:
        """Whether it made another call than its peers, rather than none."""
        return any(call.strayed.issuperset(self.ranks) for call in self.calls)


@dataclass(frozen=True)
class Standstill:
    """The open calls of a run and the roots of its standstill, the one with most victims first."""

    calls: tuple[OpenCall, ...]
    roots: tuple[Root, ...]

    def waiting_for(self, rank: int) -> list[OpenCall]:
        """Return the first open call of each communicator in which a rank is awaited."""
        first_calls: dict[str, OpenCall] = {}
        for call in self.calls:
            if rank in call.awaited:
                first_calls.setdefault(call.communicator, call)
        return list(first_calls.values())


def find_standstill(trace: Trace) -> Standstill:
    """Return the calls that were open at the end, and the roots that all their ranks wait for."""
    communicators = trace.communicators.unique("communicator", keep="first", maintain_order=True)
    members = dict(communicators.select(pl.col("communicator").cast(pl.String), "ranks").rows())
    present = _expected_ranks(trace)
    calls = [
        call
        for grid in trace.calls
        for call in _open_calls(grid, members.get(grid.uid), present, trace.equal_bytes)
    ]
    calls += _open_messages(trace)
    return Standstill(tuple(calls), tuple(_find_roots(calls, _count_calls(trace))))


def _count_calls(trace: Trace) -> Counter[int]:
    """Count how many calls each rank entered, by their numbers: early ones may have been lost."""
    counts: Counter[int] = Counter()
    for grid in trace.calls:
        counts.update(_last_numbers(grid))
    return counts


def _last_numbers(grid: CallGrid) -> dict[int, int]:
    """Return the number of the last call that each rank entered."""
    if not grid.height:
        return {}
    last_row = grid.height - 1 - grid.took_part[::-1].argmax(axis=0)
    return dict(zip(grid.ranks.tolist(), grid.seq[last_row].tolist(), strict=True))


def _expected_ranks(trace: Trace) -> frozenset[int] | None:
    """Return the ranks that a call can lack; null where those without a recording count as well."""
    if trace.is_snapshot and trace.choice.ranks is None:
        return None
    cut = [note.file for note in trace.notes if note.kind == "truncated"]
    return frozenset(trace.workers.filter(~pl.col("file").is_in(cut))["rank"])


def _open_calls(
    grid: CallGrid,
    members: Sequence[int] | None,
    present: frozenset[int] | None,
    equal_bytes: Sequence[str],
) -> Iterator[OpenCall]:
    """Yield the open calls of a communicator, in order."""
    if grid.is_closed:
        return
    rows = np.flatnonzero((grid.end_ns == FOREVER).any(axis=1))
    open_rows = grid.take(rows)
    ranks = grid.ranks.tolist()
    last_seq = _last_numbers(grid)
    expected = {*ranks} if members is None else {*members}
    if present is not None:
        expected &= present
    mismatched = find_mismatched(open_rows, equal_bytes)
    astray = strayed = frozenset[int]()
    for row, seq in enumerate(open_rows.seq.tolist()):
        parties = [frozenset(ranks)]
        if mismatched[row] and not astray:
            variants = [ranks_of for _, ranks_of in split_by_variant(open_rows, row, equal_bytes)]
            strayed = astray = frozenset(find_minority(variants))
            if not astray:  # no party is the largest: each waits for the others
                parties = [frozenset(ranks_of) for ranks_of in variants]
                strayed = frozenset().union(*parties)
        ranks_inside = {
            rank for rank, end in zip(ranks, open_rows.end_ns[row], strict=True) if end == FOREVER
        }
        entered = {rank for rank in ranks if last_seq[rank] >= seq} - astray
        for party in parties:
            yield OpenCall(
                grid.uid,
                seq,
                COLLECTIVES[int(open_rows.op[row].max())],
                int(open_rows.step[row].max()),
                tuple(sorted(ranks_inside & party - astray)),
                tuple(sorted(expected - (entered & party))),
                strayed,
            )


def _open_messages(trace: Trace) -> Iterator[OpenCall]:
    """Yield sends and receives that did not end; whose other side is open as well lack no rank."""
    messages = trace.opened.filter(
        pl.col("op").cast(pl.String).is_in(POINT_TO_POINT) & (pl.col("peer") >= 0)
    ).select(pl.col("communicator", "op").cast(pl.String), "rank", "peer", "step")
    pairs = {(row[0], row[1], row[2], row[3]) for row in messages.iter_rows()}
    for communicator, op, rank, peer, step in messages.sort("rank").iter_rows():
        opposite = "send" if op == "recv" else "recv"
        awaited = () if (communicator, opposite, peer, rank) in pairs else (peer,)
        yield OpenCall(communicator or "", -1, op, step, (rank,), awaited)


def _find_roots(calls: Sequence[OpenCall], counts: Counter[int]) -> list[Root]:
    """Return the ranks at the ends of the graph in which each rank leads to those that it waits for.

    An end is a rank that leads nowhere, or a circle that leads to no other rank.
    """
    entered = [call for call in calls if call.inside]
    if not entered:
        return []
    graph = _Graph.of_calls(entered)
    while (opened := graph.open_circle(counts)) is not None:
        graph = opened
    roots = []
    for members in graph.find_ends():
        awaiting = tuple(call for call in calls if not members.isdisjoint(call.awaited))
        victims = graph.find_waiting(members)
        roots.append(Root(tuple(sorted(members)), awaiting, tuple(sorted(victims))))
    return sorted(roots, key=lambda root: (-len(root.victims), root.ranks))


@dataclass(frozen=True, eq=False)
class _Graph:
    """Ranks lead to the open calls that they are in, and calls to the ranks that are awaited in them.

    The first nodes are ranks (`number`), the others `calls`; nodes that lead to each other have one
    `part`. An edge is a pair of nodes. A call in which no rank is awaited leads nowhere.
    """

    calls: list[OpenCall]
    number: dict[int, int]
    edges: Int32s
    part: Int32s

    @classmethod
    def of_calls(cls, calls: list[OpenCall]) -> Self:
        from scipy.sparse import coo_array  # noqa: PLC0415 - few runs stand still
        from scipy.sparse.csgraph import connected_components  # noqa: PLC0415

        ranks = sorted({rank for call in calls for rank in (*call.inside, *call.awaited)})
        number = {rank: node for node, rank in enumerate(ranks)}
        edges = [
            edge
            for node, call in enumerate(calls, len(ranks))
            for edge in (
                *((number[rank], node) for rank in call.inside),
                *((node, number[rank]) for rank in call.awaited),
            )
        ]
        ends = np.array(edges, np.int32).reshape(-1, 2)
        size = len(ranks) + len(calls)
        graph = coo_array((np.ones(len(ends), np.int8), ends.T), shape=(size, size))
        part = connected_components(graph, connection="strong")[1]
        return cls(calls, number, ends, part)

    def find_ends(self) -> list[set[int]]:
        """Return the ranks of each component that waits for no other; mostly one rank."""
        begins, ends = self.part[self.edges.T]
        leads_on = set(begins[begins != ends].tolist())
        members: dict[int, set[int]] = {}
        for rank, node in self.number.items():
            members.setdefault(int(self.part[node]), set()).add(rank)
        return [found for part, found in members.items() if part not in leads_on]

    def open_circle(self, counts: Counter[int]) -> Self | None:
        """Return the graph with one circle less, where most ranks of a group are in one of its calls.

        Those of them that made equally many calls before (`counts`) do what the program wants: one that
        made more or fewer waits for no rank by right, and no rank elsewhere waits for them by right.
        Null where no circle has such a call.
        """
        for members in self.find_ends():
            circle_calls = [
                call
                for call in self.calls
                if not (members.isdisjoint(call.inside) or members.isdisjoint(call.awaited))
            ]
            if not circle_calls:
                continue
            *smaller_calls, largest_call = sorted(circle_calls, key=lambda call: len(call.inside))
            usual_count, ranks_with_it = Counter(
                counts[rank] for rank in largest_call.inside
            ).most_common(1)[0]
            is_larger = all(
                len(largest_call.inside) > len(circle_call.inside) for circle_call in smaller_calls
            )
            if not is_larger or ranks_with_it <= max(
                len(largest_call.awaited), len(largest_call.inside) / 2
            ):
                continue
            wrong_ranks = {
                rank for rank in members & {*largest_call.inside} if counts[rank] != usual_count
            }
            corrected = [_correct(call, largest_call, wrong_ranks) for call in circle_calls]
            other_calls = [
                call
                for call in self.calls
                if all(call is not circle_call for circle_call in circle_calls)
            ]
            return self.of_calls(
                [
                    *other_calls,
                    *(
                        circle_call
                        for circle_call in corrected
                        if circle_call.inside and circle_call.awaited
                    ),
                ]
            )
        return None

    def find_waiting(self, ranks: set[int]) -> set[int]:
        """Return all other ranks that wait for some ranks, directly or in turn."""
        begins_of: dict[int, list[int]] = {}
        for begin, end in self.edges.tolist():
            begins_of.setdefault(end, []).append(begin)
        reached = {self.number[rank] for rank in ranks}
        unvisited = list(reached)
        while unvisited:
            reached_next = set(begins_of.get(unvisited.pop(), ())) - reached
            reached |= reached_next
            unvisited += reached_next
        return {rank for rank, node in self.number.items() if node in reached} - ranks


def _correct(call: OpenCall, correct_call: OpenCall, wrong_ranks: set[int]) -> OpenCall:
    """Return a call of a circle without what is wrong in it: the ranks inside, or those awaited."""
    if wrong_ranks:
        return replace(call, inside=tuple(rank for rank in call.inside if rank not in wrong_ranks))
    if call is correct_call:
        return call
    return replace(call, awaited=tuple(sorted({*call.awaited} - {*correct_call.inside})))
