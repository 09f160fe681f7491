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
    """Operations that share one latency and bandwidth; `network` is false for a server's own work."""

    operation: str
    ranks: int
    network: bool


UNEXPLAINED: Final = CostLine("kept as recorded", 0, network=False)  # no edit changes such edges


@dataclass(frozen=True, eq=False)
class EdgeTable:
    """Edges as columns, [edge]: event `target` occurs no earlier than `lag_ns` after event `source`.

    `cost_line` is an index in `cost_lines`, `communicator` one in `communicators`, `reason` an
    `EdgeReason`. `nbytes` are those that the lag is for. `step` is a step number, `shard` a server's,
    `pair` is sender * workers + receiver of a message. -1 where an edge has none.
    """

    source: Ints
    target: Ints
    lag_ns: Floats
    cost_line: Ints
    nbytes: Floats
    step: Ints
    shard: Ints
    reason: Ints
    communicator: Ints
    pair: Ints
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
        pair: Ints | None = None,
        reason: EdgeReason = EdgeReason.DATA,
        communicator: str | None = None,
    ) -> None:
        """Add the edges that are present (flags; None = all); the default lag is 0."""
        is_edge = (source >= 0) & (target >= 0) & (source != target)
        rows = np.flatnonzero(is_edge if is_present is None else is_edge & is_present)
        lags = np.zeros(len(rows)) if lag_ns is None else np.asarray(lag_ns[rows], np.float64)
        line_index = _index_in(self._cost_lines, cost_line)
        communicator_index = _index_in(self._communicators, communicator)
        lines, reasons, communicators = (
            np.full(len(rows), value) for value in (line_index, reason, communicator_index)
        )
        sizes, steps, shards, pairs = (
            np.full(len(rows), -1) if values is None else values[rows]
            for values in (nbytes, step, shard, pair)
        )
        sizes = sizes.astype(np.float64)
        ends = (source[rows], target[rows], lags)
        self._columns.append((*ends, lines, sizes, steps, shards, reasons, communicators, pairs))

    def add_before_others(self, source: Ints, target: Ints, lag_ns: Ints) -> None:
        """Add edges that stand before all others in the table."""
        self.add(source, target, lag_ns)
        self._columns.insert(0, self._columns.pop())

    @property
    def targets(self) -> Ints:
        """The events that follow others, ascending."""
        return np.unique(
            np.concatenate([np.zeros(0, np.int64), *(part[1] for part in self._columns)])
        )

    def settle(self, first_call: int, recorded_ns: Floats) -> None:
        """Shift all lags since the `first` call of `add` so that their targets occur as recorded."""
        columns = self._columns[first_call:]
        if not columns:
            return
        source, target, lag_ns = (
            np.concatenate([call_columns[at] for call_columns in columns]) for at in range(3)
        )
        latest_ns = np.full(len(recorded_ns), -np.inf)
        np.maximum.at(latest_ns, target, recorded_ns[source] + lag_ns)
        missing_ns = (recorded_ns - np.where(np.isfinite(latest_ns), latest_ns, recorded_ns))[
            target
        ]
        ends = np.cumsum([len(call_columns[0]) for call_columns in columns])[:-1]
        for index, extra_ns in enumerate(np.split(missing_ns, ends), first_call):
            call_columns = self._columns[index]
            self._columns[index] = (
                *call_columns[:2],
                call_columns[2] + extra_ns,
                *call_columns[3:],
            )

    def __len__(self) -> int:
        return len(self._columns)

    def to_table(self, recorded_ns: Ints) -> EdgeTable:
        """Return all edges in order, but for those to an earlier event: clocks are not that certain."""
        columns = [np.concatenate(column) for column in zip(*self._columns, strict=True)]
        is_forward = recorded_ns[columns[0]] <= recorded_ns[columns[1]]
        names: list[Any] = [tuple(self._cost_lines), tuple(self._communicators)]
        return EdgeTable(*(column[is_forward] for column in columns), *names)


def _index_in(numbers: dict[Any, int], value: Any) -> int:
    """Return the number of a value, which is added if it is new; -1 for None."""
    return -1 if value is None else numbers.setdefault(value, len(numbers))


@dataclass(frozen=True, eq=False)
class LayeredGraph:
    """Events and edges: an event occurs when all its sources have, each after the edge's lag.

    `order` sorts the edges into layers that are replayed one after the other; `layer_begins` are
    positions in it, one more than layers.
    """

    recorded_ns: Floats
    source: Indices
    target: Indices
    lag_ns: Floats
    order: Indices
    layer_begins: Ints

    @classmethod
    def from_edges(
        cls, recorded_ns: Floats, source: Indices, target: Indices, lag_ns: Floats
    ) -> Self:
        """Sort edges into layers; raise `ValueError` if events follow each other in a circle."""
        layer = _find_layers(len(recorded_ns), source, target)[target]
        order = np.lexsort((target, layer))
        begins = np.searchsorted(layer[order], np.arange(1, layer.max(initial=0) + 2))
        return cls(recorded_ns, source, target, lag_ns, order, begins)

    def keep(self, is_kept: Flags) -> Self:
        """Return the graph with some of its edges (flags), in the same order."""
        kept_in_order = is_kept[self.order]
        kept_before = np.append(0, np.cumsum(kept_in_order))
        begins = np.unique(kept_before[self.layer_begins])
        return replace(self, order=self.order[kept_in_order], layer_begins=begins)

    def replay(self, lag_ns: Floats) -> Floats:
        """Return when events occur with other lags, ns; those without edges occur as recorded."""
        times_ns = self.recorded_ns.copy()
        source, lag_ns = self.source[self.order], lag_ns[self.order]
        heads, targets, head_bounds = self._heads
        layers = zip(pairwise(self.layer_begins.tolist()), pairwise(head_bounds), strict=True)
        for (begin, end), (first_head, stop_head) in layers:
            arrival_ns = times_ns[source[begin:end]] + lag_ns[begin:end]
            layer_heads = heads[first_head:stop_head] - begin
            latest_ns = np.maximum.reduceat(arrival_ns, layer_heads)
            times_ns[targets[first_head:stop_head]] = latest_ns
        return times_ns

    @cached_property
    def _heads(self) -> tuple[Indices, Indices, list[int]]:
        """The first edge of each target in `order`, its target, and each layer's first such edge."""
        target = self.target[self.order]
        heads = np.flatnonzero(np.diff(target, prepend=-1) != 0)
        return heads, target[heads], np.searchsorted(heads, self.layer_begins).tolist()

    def replay_backwards(self, latest_ns: Floats, lag_ns: Floats) -> Floats:
        """Return the latest times of events, ns, that keep those of their followers and `latest_ns`."""
        times_ns = latest_ns.copy()
        source, target = self.source[self.order], self.target[self.order]
        lag_ns = lag_ns[self.order]
        for begin, end in reversed([*pairwise(self.layer_begins.tolist())]):
            required_ns = times_ns[target[begin:end]] - lag_ns[begin:end]
            np.minimum.at(times_ns, source[begin:end], required_ns)
        return times_ns


def _find_layers(event_count: int, source: Indices, target: Indices) -> Ints:
    """Return the number of edges on the longest way to each event, [event]."""
    order = np.argsort(source, kind="stable")
    followers = target[order]
    begins = np.searchsorted(source[order], np.arange(event_count + 1))
    open_edges = np.bincount(target, minlength=event_count)
    layers = np.zeros(event_count, np.int64)
    ready, layer = np.flatnonzero(open_edges == 0), 0
    while len(ready):
        layers[ready] = layer
        reached = followers[_expand_ranges(begins[ready], begins[ready + 1])]
        np.subtract.at(open_edges, reached, 1)
        ready = np.unique(reached[open_edges[reached] == 0])
        layer += 1
    if open_edges.any():
        raise ValueError(f"{np.count_nonzero(open_edges)} events follow each other in a circle")
    return layers


def _expand_ranges(begin: Ints, end: Ints) -> Indices:
    """Return the numbers of several ranges, one range after the other."""
    count = end - begin
    before = np.cumsum(count) - count
    return np.asarray(np.arange(count.sum()) - np.repeat(before - begin, count))
