"""Variant of a run: its event graph with edits, applied one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tracelens.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Flags, Floats, Indices, Ints
    from tracelens.replay.event_graph import EventGraph
    from tracelens.replay.resources import Tasks

__all__ = ["Variant"]


@dataclass(eq=False)
class Variant:
    """A run with edits: lags of its edges, [edge], and `added_edges` (source, target, lag, ns).

    `balanced_ranks` get the work of other ranks by some edit: they are no model for each other. `tasks`
    occupy servers, None = as recorded; these serve `rank_count` ranks, None = the recorded ones.
    `_is_kept` flags recorded edges that still hold, [edge]; `_work_ns` is what is left of work by phase,
    [interval].
    """

    graph: EventGraph
    balanced_ranks: frozenset[int] = frozenset()
    lag_ns: Floats = field(init=False)
    added_edges: list[tuple[Ints, Ints, Floats]] = field(default_factory=list)
    tasks: Tasks | None = None
    rank_count: int | None = None
    notes: list[str] = field(default_factory=list)
    _is_kept: Flags = field(init=False)
    _work_ns: dict[str, Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Keep all edges as recorded."""
        self.lag_ns = self.graph.edges.lag_ns.copy()
        self._is_kept = np.ones(len(self.lag_ns), np.bool_)

    @property
    def explained_lag_ns(self) -> Floats:
        """The part of each edge's lag that has a known reason, [edge]."""
        unexplained_ns = self.graph.edges.lag_ns - self.graph.explained_lag_ns
        return np.maximum(self.lag_ns - unexplained_ns, 0.0)

    def measure_work_ns(self, phases: Sequence[str]) -> Floats:
        """Return the time that threads still are in some phases, ns, [interval]."""
        for phase in phases:
            if phase not in self._work_ns:
                self._work_ns[phase] = self.graph.measure_work_ns((phase,))
        return np.asarray(np.sum([self._work_ns[phase] for phase in phases], axis=0))

    def reduce_work(
        self, phases: Sequence[str], effect_ns: Floats, step_numbers: Ints | None = None
    ) -> None:
        """Let workers work for less in some phases, but not for less than nothing.

        `effect_ns` is taken off them (below 0: added), [step, worker]; `step_numbers` are those of its
        rows, ascending; the graph may lack some. None = the rows are those of the graph.
        """
        graph = self.graph
        if step_numbers is not None:
            is_replayed, given_effect_ns = np.isin(step_numbers, graph.step_numbers), effect_ns
            effect_ns = np.zeros((len(graph.step_numbers), graph.threads.worker_count))
            rows = np.searchsorted(graph.step_numbers, step_numbers[is_replayed])
            effect_ns[rows] = given_effect_ns[is_replayed]
        work_ns = self.measure_work_ns(phases)  # [interval of a thread]
        relief_ns = np.minimum(graph.spread_over_intervals(effect_ns, work_ns), work_ns)
        saved_share = np.divide(relief_ns, work_ns, out=np.zeros_like(relief_ns), where=work_ns > 0)
        for phase in phases:
            self._work_ns[phase] = self._work_ns[phase] * (1 - saved_share)
        interval_edges = slice(len(relief_ns))  # edge i of the first ones is interval i
        self.lag_ns[interval_edges] = np.maximum(self.lag_ns[interval_edges] - relief_ns, 0.0)

    def add_edges(self, source: Ints, target: Ints, lag_ns: Floats | None = None) -> None:
        """Let `target` events follow `source` events after a lag, by default 0; all are [added edge]."""
        lag_ns = np.zeros(len(source)) if lag_ns is None else lag_ns
        self.added_edges.append((source, target, lag_ns))

    def drop_edges(self, rows: Indices) -> None:
        """Let the targets of some edges no longer follow their sources."""
        self._is_kept[rows] = False

    def measure_savings_ns(self, times_ns: Floats | None = None) -> Floats:
        """Return by how much shorter each step is than without the edits, ns, [step], by its replay."""
        graph, times_ns = self.graph, self.replay() if times_ns is None else times_ns
        return graph.measure_steps_ns(graph.baseline_times_ns) - graph.measure_steps_ns(times_ns)

    def replay(self, shorter_share: float = 0.0) -> Floats:
        """Return when events occur, ns, [event], with all explained lags shorter by a share (0 to 1)."""
        lag_ns, added_edges = self.lag_ns, self.added_edges
        if shorter_share:
            lag_ns = lag_ns - shorter_share * self.explained_lag_ns
            added_edges = [
                (source, target, (1 - shorter_share) * added_lag_ns)
                for source, target, added_lag_ns in added_edges
            ]
        try:
            servers = self.tasks, self.rank_count
            return self.graph.replay(lag_ns, self._is_kept, added_edges, *servers)
        except ValueError:
            raise InvalidArgument(
                "with these edits, what the last call of a step follows needs an earlier one to be over."
            ) from None
