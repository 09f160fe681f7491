"""Edges between events, and when events occur with other lags."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeAlias

import numpy as np

from tracelens.caching import cached_property

if TYPE_CHECKING:
    from tracelens.arrays import Array, Flags, Floats, Indices, Ints

__all__ = [
    "UNEXPLAINED",
    "Carrier",
    "CostLine",
    "EdgeList",
    "EdgeReason",
    "EdgeTable",
    "LayeredGraph",
]

# What carries transfers: a communicator its collectives, or a sender and a receiver their messages.
Carrier: TypeAlias = str | tuple[int, int]


class EdgeReason(IntEnum):
    """Why an event follows another one; only `DATA` edges hold in every way of training.

    `TURN`: a server does one thing after the other, or answers after an update. `BARRIER`: a worker
    continues after an update. `QUEUE`: both need the same resource (`resources.py`).
    """

    DATA = 0
    TURN = 1
    BARRIER = 2
    QUEUE = 3


class CostLine(NamedTuple):
    """Operations with one latency and bandwidth; `rank_count` is that of collectives, 0 for others."""

    operation: str
    is_network: bool
    rank_count: int = 0


UNEXPLAINED: Final = CostLine("kept as recorded", is_network=False)  # no edit changes such edges


@dataclass(frozen=True, eq=False)
class EdgeTable:
    """Edges as columns, [edge]: the target event occurs no earlier than `lag_ns` after the source event.

    `cost_line_indices` refer to `cost_lines`, `communicator_indices` to `communicators`, `reasons` are
    values of `EdgeReason`. `nbytes` are those that the lag is for. `shard_numbers` are those of servers,
    `pair_numbers` are sender * workers + receiver of a message. -1 where an edge has none.
    """

    source_events: Ints
    target_events: Ints
    lag_ns: Floats
    cost_line_indices: Ints
    nbytes: Floats
    step_numbers: Ints
    shard_numbers: Ints
    reasons: Ints
    communicator_indices: Ints
    pair_numbers: Ints
    cost_lines: tuple[CostLine, ...]
    communicators: tuple[str, ...]


@dataclass(eq=False)
class EdgeList:
    """Collect edges. Drop those with a missing endpoint (-1), and self-loops."""

    _cost_lines: dict[CostLine, int] = field(default_factory=dict)
    _communicators: dict[str, int] = field(default_factory=dict)
    _columns: list[tuple[Array, ...]] = field(default_factory=list)

    def add(
        self,
        source: Ints,
        target: Ints,
        lag_ns: Ints | Floats | None = None,
        is_present: Flags | None = None,
        *,
        cost_line: CostLine | None = None,
        nbytes: Ints | None = None,
        step: Ints | None = None,
        shard: Ints | None = None,
        pair_number: Ints | None = None,
        reason: EdgeReason = EdgeReason.DATA,
        communicator: str | None = None,
    ) -> None:
        """Add edges between events, [edge]: those that are present (flags; None = all), with both ends.

        An end is missing if it is below 0. The lag is 0 by default. `cost_line` and `communicator` say
        what the lag is the cost of, `nbytes` how many bytes, `step` and `shard` (a server's) are
        numbers, `pair_number` is sender * workers + receiver; None = unknown.
        """
        is_edge = (source >= 0) & (target >= 0) & (source != target)
        rows = np.flatnonzero(is_edge if is_present is None else is_edge & is_present)
        lags_ns = np.zeros(len(rows)) if lag_ns is None else np.asarray(lag_ns[rows], np.float64)
        line_index = _get_or_add_index(self._cost_lines, cost_line)
        communicator_index = _get_or_add_index(self._communicators, communicator)
        lines, reasons, communicators = (
            np.full(len(rows), value) for value in (line_index, reason, communicator_index)
        )
        sizes_bytes, steps, shards, pairs = (
            np.full(len(rows), -1) if values is None else values[rows]
            for values in (nbytes, step, shard, pair_number)
        )
        sizes_bytes = sizes_bytes.astype(np.float64)
        ends = source[rows], target[rows], lags_ns
        numbers = lines, sizes_bytes, steps, shards, reasons, communicators, pairs
        self._columns.append((*ends, *numbers))

    def add_before_others(self, source: Ints, target: Ints, lag_ns: Ints) -> None:
        """Add edges that stand before all others in the table."""
        self.add(source, target, lag_ns)
        self._columns.insert(0, self._columns.pop())

    @property
    def target_events(self) -> Ints:
        """The events that follow others by the edges added so far, ascending."""
        return np.unique(
            np.concatenate([np.zeros(0, np.int64), *(part[1] for part in self._columns)])
        )

    def shift_to_recorded_times(self, first_part: int, event_times_ns: Floats) -> None:
        """Shift lags of edges since call `first_part` of `add`: targets occur as recorded, [event]."""
        if first_part == self.part_count:
            return
        sources, targets, lags_ns, *_ = zip(*self._columns[first_part:], strict=True)
        source, target, lag_ns = map(np.concatenate, (sources, targets, lags_ns))
        latest_ns = np.full(len(event_times_ns), -np.inf)  # [event]; -inf = follows none of them
        np.maximum.at(latest_ns, target, event_times_ns[source] + lag_ns)
        missing_ns = np.where(np.isfinite(latest_ns), event_times_ns - latest_ns, 0.0)[target]
        part_ends = np.cumsum([*map(len, sources)])[:-1]
        for part, extra_ns in enumerate(np.split(missing_ns, part_ends), first_part):
            source, target, lag_ns, *others = self._columns[part]
            self._columns[part] = (source, target, lag_ns + extra_ns, *others)

    @property
    def part_count(self) -> int:
        """How often `add` was called."""
        return len(self._columns)

    def to_table(self, event_times_ns: Ints) -> EdgeTable:
        """Return all edges in order, but for those to an earlier event: clocks are not that certain."""
        columns = [np.concatenate(column) for column in zip(*self._columns, strict=True)]
        is_forward = event_times_ns[columns[0]] <= event_times_ns[columns[1]]  # source, target
        names: list[Any] = [tuple(self._cost_lines), tuple(self._communicators)]
        return EdgeTable(*(column[is_forward] for column in columns), *names)


def _get_or_add_index(index_by_value: dict[Any, int], value: Any) -> int:
    """Return the index of a value, which is added if it is new; -1 for None."""
    return -1 if value is None else index_by_value.setdefault(value, len(index_by_value))


@dataclass(frozen=True, eq=False)
class LayeredGraph:
    """Events and edges: an event occurs when all its sources have, each after the edge's lag.

    `edge_order` sorts the edges into layers that are replayed one after the other; `layer_begins` are
    positions in it, one more than layers.
    """

    recorded_times_ns: Floats
    source_events: Indices
    target_events: Indices
    lag_ns: Floats
    edge_order: Indices
    layer_begins: Ints

    @classmethod
    def from_edges(
        cls, recorded_times_ns: Floats, source: Indices, target: Indices, lag_ns: Floats
    ) -> Self:
        """Sort edges into layers: `source`, `target`, lag, [edge]; raise `ValueError` if in a circle."""
        layer = _find_layers(len(recorded_times_ns), source, target)[target]  # [edge], from 1 on
        order = np.lexsort((target, layer))
        layer_begins = np.searchsorted(layer[order], np.arange(1, layer.max(initial=0) + 2))
        return cls(
            recorded_times_ns,
            source_events=source,
            target_events=target,
            lag_ns=lag_ns,
            edge_order=order,
            layer_begins=layer_begins,
        )

    def keep(self, is_kept: Flags) -> Self:
        """Return the graph with some of its edges (flags), in the same order."""
        kept_in_order = is_kept[self.edge_order]
        kept_before = np.append(0, np.cumsum(kept_in_order))
        begins = np.unique(kept_before[self.layer_begins])
        return replace(self, edge_order=self.edge_order[kept_in_order], layer_begins=begins)

    def replay(self, lag_ns: Floats) -> Floats:
        """Return when events occur, ns, [event], with other lags, [edge]; without edges, as recorded."""
        times_ns = self.recorded_times_ns.copy()
        source, lag_ns = self.source_events[self.edge_order], lag_ns[self.edge_order]
        first_edges, target_events, layer_bounds = self._target_groups
        layers = zip(pairwise(self.layer_begins.tolist()), pairwise(layer_bounds), strict=True)
        # Of a layer the edges (positions in `edge_order`), and the targets (rows of `target_events`).
        for (begin, end), (first_target, stop_target) in layers:
            arrival_ns = times_ns[source[begin:end]] + lag_ns[begin:end]
            layer_first_edges = first_edges[first_target:stop_target] - begin
            latest_ns = np.maximum.reduceat(arrival_ns, layer_first_edges)
            times_ns[target_events[first_target:stop_target]] = latest_ns
        return times_ns

    @cached_property
    def _target_groups(self) -> tuple[Indices, Indices, list[int]]:
        """The first position in `edge_order` of each target, that target, and each layer's first row."""
        target = self.target_events[self.edge_order]
        first_edges = np.flatnonzero(np.diff(target, prepend=-1) != 0)
        layer_rows = np.searchsorted(first_edges, self.layer_begins).tolist()
        return first_edges, target[first_edges], layer_rows

    def replay_backwards(self, latest_ns: Floats, lag_ns: Floats) -> Floats:
        """Return the latest times of events, ns, [event], at which all keep to `latest_ns`."""
        times_ns = latest_ns.copy()
        source, target = self.source_events[self.edge_order], self.target_events[self.edge_order]
        lag_ns = lag_ns[self.edge_order]
        for begin, end in reversed([*pairwise(self.layer_begins.tolist())]):
            required_ns = times_ns[target[begin:end]] - lag_ns[begin:end]
            np.minimum.at(times_ns, source[begin:end], required_ns)
        return times_ns


def _find_layers(event_count: int, source: Indices, target: Indices) -> Ints:
    """Return the number of edges on the longest way to each event, [event]; raise on a circle."""
    order = np.argsort(source, kind="stable")
    followers = target[order]
    first_follower = np.searchsorted(source[order], np.arange(event_count + 1))
    open_counts = np.bincount(target, minlength=event_count)
    layers = np.zeros(event_count, np.int64)
    ready, layer = np.flatnonzero(open_counts == 0), 0
    while len(ready):
        layers[ready] = layer
        reached = followers[_expand_ranges(first_follower[ready], first_follower[ready + 1])]
        np.subtract.at(open_counts, reached, 1)
        ready = np.unique(reached[open_counts[reached] == 0])
        layer += 1
    if open_counts.any():
        raise ValueError(f"{np.count_nonzero(open_counts)} events follow each other in a circle")
    return layers


def _expand_ranges(begin: Ints, end: Ints) -> Indices:
    """Return the numbers of several ranges (`begin` up to before `end`), one range after the other."""
    count = end - begin
    before = np.cumsum(count) - count
    return np.asarray(np.arange(count.sum()) - np.repeat(before - begin, count))
