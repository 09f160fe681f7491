"""Standstills: ranks in calls that never ended, the ranks that they wait for, and the root of it all.

A rank in an open call waits for the members that did not enter it, or that made another call under its
number. A rank that others wait for, and that is in no open call, is a root; the others are its victims.
Where ranks wait for each other in a circle, and most ranks of a group are in one call after equally many
calls, these are right, and the rank that does otherwise is the root; else the whole circle is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import compress
from operator import not_
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import polars as pl

from tracelens.align.collectives import find_minority, find_mismatched, split_by_variant
from tracelens.model.columns import FOREVER
from tracelens.schema.vocabulary import COLLECTIVES, POINT_TO_POINT, STATUSES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracelens.arrays import Int32s
    from tracelens.model.calls import CallGrid
    from tracelens.model.trace import Trace


_FAILED: Final = STATUSES.index("exception")


@dataclass(frozen=True)
class OpenCall:
    """A call that `ranks_inside` did not leave, and the members that they wait for in it.

    `strayed_ranks` are those of them that made another call under its number, or under one before.
    Messages have the `seq` -1.
    """

    communicator: str
    seq: int
    op: str
    step: int
    ranks_inside: tuple[int, ...]
    awaited_ranks: tuple[int, ...]
    strayed_ranks: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Root:
    """A rank that waits for no other, or a circle of ranks, and the calls in which others wait for it.

    The victims are the ranks that wait for it, directly or in turn.
    """

    ranks: tuple[int, ...]
    calls: tuple[OpenCall, ...]
    victim_ranks: tuple[int, ...]

    @property
    def largest_call(self) -> OpenCall:
        """The call in which most ranks wait for it, of several the first."""
        return max(self.calls, key=lambda call: (len(call.ranks_inside), -call.seq))

    @property
    def is_strayed(self) -> bool:
        """Whether it made another call than its peers, rather than none."""
        return any(call.strayed_ranks.issuperset(self.ranks) for call in self.calls)


@dataclass(frozen=True)
class Standstill:
    """The open calls of a run and the roots of its standstill, the one with most victims first."""

    calls: tuple[OpenCall, ...]
    roots: tuple[Root, ...]

    def find_calls_awaiting(self, rank: int) -> list[OpenCall]:
        """Return the first open call of each communicator in which a rank is awaited."""
        first_calls: dict[str, OpenCall] = {}
        for call in self.calls:
            if rank in call.awaited_ranks:
                first_calls.setdefault(call.communicator, call)
        return list(first_calls.values())


def find_standstill(trace: Trace, *, is_interrupted: bool = False) -> Standstill:
    """Return the calls that were open at the end, and the roots that all their ranks wait for.

    `is_interrupted`: an exception closed what was open, as Ctrl-C does, so last calls that failed count.
    """
    communicators = trace.communicators.unique("communicator", keep="first", maintain_order=True)
    members_by_uid = dict(
        communicators.select(pl.col("communicator").cast(pl.String), "ranks").rows()
    )
    expected_ranks = _list_expected_ranks(trace)
    calls = [
        call
        for grid in trace.calls
        for call in find_open_calls(
            grid,
            members_by_uid.get(grid.communicator_uid),
            expected_ranks,
            trace.ops_of_equal_bytes,
            is_interrupted=is_interrupted,
        )
    ]
    calls += _find_open_messages(trace)
    return Standstill(tuple(calls), roots=tuple(find_roots(calls, _count_calls(trace))))


def _count_calls(trace: Trace) -> Counter[int]:
    """Count how many calls each rank entered, by their numbers: early ones may have been lost."""
    call_count_by_rank: Counter[int] = Counter()
    for grid in trace.calls:
        call_count_by_rank.update(find_last_seq_by_rank(grid))
    return call_count_by_rank


def find_last_seq_by_rank(grid: CallGrid) -> dict[int, int]:
    """Return the number of the last call that each rank entered."""
    if not grid.call_count:
        return {}
    last_row_by_column = grid.call_count - 1 - grid.is_made[::-1].argmax(axis=0)
    return dict(zip(grid.ranks.tolist(), grid.seq[last_row_by_column].tolist(), strict=True))


def _list_expected_ranks(trace: Trace) -> frozenset[int] | None:
    """Return the ranks that a call can lack; None where those without a recording count as well."""
    if trace.is_snapshot and trace.choice.rank_ranges is None:
        return None
    truncated_files = [note.file for note in trace.notes if note.kind == "truncated"]
    return frozenset(trace.workers.filter(~pl.col("file").is_in(truncated_files))["rank"])


def find_open_calls(
    grid: CallGrid,
    members: Sequence[int] | None,
    recorded_ranks: frozenset[int] | None,
    equal_bytes: Sequence[str],
    *,
    is_interrupted: bool = False,
) -> Iterator[OpenCall]:
    """Yield the calls of a communicator that ranks did not leave, in order.

    Ranks that once make another call than most have strayed; later calls await them. `members` are its
    ranks, None = those that made calls; a call can lack only `recorded_ranks`, None = all. In operations
    of `equal_bytes` all ranks must name the same number of bytes. `is_interrupted` is as of
    `find_standstill`.
    """
    if grid.is_closed and not is_interrupted:
        return
    ranks = grid.ranks.tolist()
    last_seq_by_rank = find_last_seq_by_rank(grid)
    is_open = grid.end_ns == FOREVER  # [call, rank]
    if is_interrupted and grid.call_count:
        last_seqs = np.array([last_seq_by_rank[rank] for rank in ranks])
        is_open |= (grid.status == _FAILED) & (grid.seq[:, None] == last_seqs)
    open_indices = np.flatnonzero(is_open.any(axis=1))
    open_grid = grid.take_calls(open_indices)
    expected_ranks = {*ranks} if members is None else {*members}
    if recorded_ranks is not None:
        expected_ranks &= recorded_ranks
    is_mismatched = find_mismatched(open_grid, equal_bytes)
    strayed_before = strayed = frozenset[int]()
    for index, seq in enumerate(open_grid.seq.tolist()):
        groups = [frozenset(ranks)]
        if is_mismatched[index] and not strayed_before:
            parties = [party for _, party in split_by_variant(open_grid, index, equal_bytes)]
            strayed = strayed_before = frozenset(find_minority(parties))
            if not strayed_before:  # no party is the largest: each waits for the others
                groups = [frozenset(party) for party in parties]
                strayed = frozenset().union(*groups)
        ranks_inside = {
            rank
            for rank, is_inside in zip(ranks, is_open[open_indices[index]], strict=True)
            if is_inside
        }
        entered_ranks = {rank for rank in ranks if last_seq_by_rank[rank] >= seq} - strayed_before
        for group in groups:
            yield OpenCall(
                communicator=grid.communicator_uid,
                seq=seq,
                op=COLLECTIVES[int(open_grid.op[index].max())],
                step=int(open_grid.step[index].max()),
                ranks_inside=tuple(sorted(ranks_inside & group - strayed_before)),
                awaited_ranks=tuple(sorted(expected_ranks - (entered_ranks & group))),
                strayed_ranks=strayed,
            )


def _find_open_messages(trace: Trace) -> Iterator[OpenCall]:
    """Yield sends and receives that did not end, as calls."""
    messages = trace.open_spans.filter(
        pl.col("op").cast(pl.String).is_in(POINT_TO_POINT) & (pl.col("peer") >= 0)
    ).select(pl.col("communicator", "op").cast(pl.String), "rank", "peer", "step")
    yield from pair_open_messages(messages.sort("rank").rows())


def pair_open_messages(
    messages: Sequence[tuple[str | None, str, int, int, int]],
) -> Iterator[OpenCall]:
    """Yield open messages as calls; one whose other side is open too awaits no rank.

    `messages` are the communicator, operation ("send" or "recv"), rank, peer and step of each.
    """
    open_sides = {message[:4] for message in messages}
    for communicator, op, rank, peer, step in messages:
        opposite_op = "send" if op == "recv" else "recv"
        is_peer_in_call = (communicator, opposite_op, peer, rank) in open_sides
        awaited_ranks = () if is_peer_in_call else (peer,)
        yield OpenCall(
            communicator or "",
            seq=-1,
            op=op,
            step=step,
            ranks_inside=(rank,),
            awaited_ranks=awaited_ranks,
        )


def find_roots(calls: Sequence[OpenCall], call_count_by_rank: Counter[int]) -> list[Root]:
    """Return the ranks at the ends of the graph in which each rank leads to those that it waits for.

    An end is a rank that leads nowhere, or a circle that leads to no other rank. The roots with most
    victims come first.
    """
    occupied_calls = [call for call in calls if call.ranks_inside]
    if not occupied_calls:
        return []
    graph = _WaitGraph.from_calls(occupied_calls)
    while (next_graph := graph.open_circle(call_count_by_rank)) is not None:
        graph = next_graph
    roots = []
    for ranks in graph.find_ends():
        awaiting_calls = tuple(call for call in calls if not ranks.isdisjoint(call.awaited_ranks))
        victims = graph.find_waiting_ranks(ranks)
        roots.append(
            Root(
                ranks=tuple(sorted(ranks)),
                calls=awaiting_calls,
                victim_ranks=tuple(sorted(victims)),
            )
        )
    return sorted(roots, key=lambda root: (-len(root.victim_ranks), root.ranks))


@dataclass(frozen=True, eq=False)
class _WaitGraph:
    """Ranks lead to the open calls that they are in, and calls to the ranks that are awaited in them.

    The first nodes are ranks (`node_by_rank`), the others `calls`; nodes that lead to each other have
    the same `component`, [node]. `edges` are pairs of nodes, [edge, 2]. A call that awaits no rank leads
    nowhere.
    """

    calls: list[OpenCall]
    node_by_rank: dict[int, int]
    edges: Int32s
    component: Int32s

    @classmethod
    def from_calls(cls, calls: list[OpenCall]) -> Self:
        """Build the graph of open calls; each call has ranks inside."""
        from scipy.sparse import coo_array  # noqa: PLC0415 - few runs stand still
        from scipy.sparse.csgraph import connected_components  # noqa: PLC0415

        ranks = sorted({rank for call in calls for rank in call.ranks_inside + call.awaited_ranks})
        node_by_rank = {rank: node for node, rank in enumerate(ranks)}
        pairs: list[tuple[int, int]] = []
        for call_node, call in enumerate(calls, len(ranks)):
            pairs += [(node_by_rank[rank], call_node) for rank in call.ranks_inside]
            pairs += [(call_node, node_by_rank[rank]) for rank in call.awaited_ranks]
        edges = np.array(pairs, np.int32).reshape(-1, 2)
        node_count = len(ranks) + len(calls)
        matrix = coo_array((np.ones(len(edges), np.int8), edges.T), shape=(node_count, node_count))
        component = connected_components(matrix, connection="strong")[1]
        return cls(calls, node_by_rank, edges, component)

    def find_ends(self) -> list[set[int]]:
        """Return the ranks of each component that waits for no other; mostly one rank."""
        begin_components, end_components = self.component[self.edges.T]  # each [edge]
        waiting_components = set(begin_components[begin_components != end_components].tolist())
        ranks_by_component: dict[int, set[int]] = {}
        for rank, node in self.node_by_rank.items():
            ranks_by_component.setdefault(int(self.component[node]), set()).add(rank)
        ends = ranks_by_component.keys() - waiting_components
        return [ranks for component, ranks in ranks_by_component.items() if component in ends]

    def open_circle(self, call_count_by_rank: Counter[int]) -> Self | None:
        """Return the graph with one circle of waits less; None where no circle can be opened.

        A circle is opened if most ranks of a group are in one of its calls. Those of them that made
        equally many calls before do what the program wants: one that made more or fewer waits for no
        rank by right, and no rank elsewhere waits for them by right.
        """
        for circle_ranks in self.find_ends():
            is_in_circle = [
                not circle_ranks.isdisjoint(call.ranks_inside)
                and not circle_ranks.isdisjoint(call.awaited_ranks)
                for call in self.calls
            ]
            circle_calls = [*compress(self.calls, is_in_circle)]
            if not circle_calls:
                continue
            *smaller_calls, largest_call = sorted(
                circle_calls, key=lambda call: len(call.ranks_inside)
            )
            size = len(largest_call.ranks_inside)
            call_counts = Counter(call_count_by_rank[rank] for rank in largest_call.ranks_inside)
            usual_call_count, usual_rank_count = call_counts.most_common(1)[0]
            is_larger = all(len(call.ranks_inside) < size for call in smaller_calls)
            if not is_larger or usual_rank_count <= max(len(largest_call.awaited_ranks), size / 2):
                continue
            wrong_ranks = {
                rank
                for rank in circle_ranks & {*largest_call.ranks_inside}
                if call_count_by_rank[rank] != usual_call_count
            }
            corrected = (_correct_call(call, largest_call, wrong_ranks) for call in circle_calls)
            kept_calls = [*compress(self.calls, map(not_, is_in_circle))]
            kept_calls += [call for call in corrected if call.ranks_inside and call.awaited_ranks]
            return self.from_calls(kept_calls)
        return None

    def find_waiting_ranks(self, ranks: set[int]) -> set[int]:
        """Return all other ranks that wait for some ranks, directly or in turn."""
        begins_by_end: dict[int, list[int]] = {}  # nodes from which edges lead to a node
        for begin, end in self.edges.tolist():
            begins_by_end.setdefault(end, []).append(begin)
        reached_nodes = {self.node_by_rank[rank] for rank in ranks}
        unvisited_nodes = list(reached_nodes)
        while unvisited_nodes:
            new_nodes = set(begins_by_end.get(unvisited_nodes.pop(), ())) - reached_nodes
            reached_nodes |= new_nodes
            unvisited_nodes += new_nodes
        return {rank for rank, node in self.node_by_rank.items() if node in reached_nodes} - ranks


def _correct_call(call: OpenCall, correct_call: OpenCall, wrong_ranks: set[int]) -> OpenCall:
    """Return a call of a circle without what is wrong in it: the ranks inside, or those awaited.

    If ranks of the correct call are wrong, they are in no call; else its ranks are awaited in no other.
    """
    if wrong_ranks:
        return replace(
            call, ranks_inside=tuple(rank for rank in call.ranks_inside if rank not in wrong_ranks)
        )
    if call is correct_call:
        return call
    return replace(
        call, awaited_ranks=tuple(sorted({*call.awaited_ranks} - {*correct_call.ranks_inside}))
    )
