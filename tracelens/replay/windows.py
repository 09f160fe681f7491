"""The replay of a long run, in windows of its steps.

The replay of a whole run takes several times as long as the rest of a report, and a finding mostly
concerns some of the steps. So a long run is replayed in a few windows of neighbouring steps. What the
steps between them save follows from what an effect saves where it was replayed: that share of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.caching import cached_property
from tracelens.replay.calls import IMPLICIT
from tracelens.replay.edits.fixes import WorkFix, apply_fix
from tracelens.replay.event_graph import EventGraph
from tracelens.replay.trust import Identity, VariantReplay

if TYPE_CHECKING:
    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Floats, Indices, Ints
    from tracelens.model.trace import Trace
    from tracelens.replay.edits.variant import Variant

__all__ = ["Savings", "WindowedReplay"]

# pieces of workers' time: more are replayed in windows; as many take about a second
# of CPU [tests/benchmarks/replaying.py]
MAX_PIECES_REPLAYED: Final = 250_000
# services of servers: more are replayed in windows; each takes about 20 us [chosen]
MAX_SERVICES_REPLAYED: Final = 100_000
# windows: steps are replayed in no more, since each takes time for every rank [policy]
MAX_WINDOWS_REPLAYED: Final = 4
# steps: a window has as many, so that its first and last one matter little [chosen; one decision in
# WindowedReplay.build_around, WindowedReplay._choose_windows]
MIN_STEPS_OF_WINDOW: Final = 6


@dataclass(frozen=True, eq=False)
class Savings:
    """By how much shorter each step is, [step], by the `replays` of windows.

    `has_calls_in_flight` is true if reductions run during other work, `has_inferred_calls` if ranks meet
    in collectives that no span shows.
    """

    saved_ns_by_step: Floats
    has_calls_in_flight: bool
    has_inferred_calls: bool
    replays: tuple[VariantReplay, ...]

    @cached_property
    def identity(self) -> Identity:
        """That of the least reliable replay."""
        identities = (replay.identity for replay in self.replays)
        return max(identities, key=lambda identity: identity.rigid_share)

    def widen_interval(self, interval: tuple[float, float], job_ns: float) -> tuple[float, float]:
        """Return an interval of the saving, as a share of the job, that holds what replays do not know.

        Ranks may lack cores without the effect, and other steps than the replayed ones lack as many.
        """
        low, high = self.identity.widen_interval(interval)
        shortages = [replay.core_shortage for replay in self.replays]
        shortage_ns = sum(shortage.delay_ns for shortage in shortages if shortage)
        replayed_saving_ns = sum(float(replay.saved_ns_by_step.sum()) for replay in self.replays)
        saving_share = float(self.saved_ns_by_step.sum()) / job_ns
        shortage_share = shortage_ns / max(replayed_saving_ns, 1.0) * saving_share
        return max(low - shortage_share, min(low, 0.0)), high


@dataclass(eq=False)
class WindowedReplay:
    """Estimate what a run would save without an effect; each window is replayed when first needed."""

    trace: Trace
    phases: Phases
    max_pieces: int = MAX_PIECES_REPLAYED
    _graphs: dict[tuple[int, int], EventGraph | None] = field(default_factory=dict)
    _identities: dict[EventGraph, Identity] = field(default_factory=dict)

    def measure_savings(self, fix: WorkFix, factor: float = 1.0) -> Savings | None:
        """Return by how much shorter each step of a fix is if its one change is made, times a factor.

        None where ranks were left out, where the run cannot be replayed reliably, or where nothing is
        taken off. Steps that are not replayed save the same share of their longest delay.
        """
        if self.trace.partial_communicators:
            return None
        ((phase_names, effect_ns),) = fix.phases_and_effects_ns
        step_numbers, effect_ns = fix.step_numbers, effect_ns * factor
        delay_ns, fix = (
            effect_ns.max(axis=1),
            WorkFix(fix.step_numbers, phases_and_effects_ns=((phase_names, effect_ns),)),
        )
        saved_ns, is_replayed = np.zeros(len(step_numbers)), np.zeros(len(step_numbers), np.bool_)
        replays: list[VariantReplay] = []
        for first_row, stop_row in self._choose_windows(
            np.flatnonzero(delay_ns), len(step_numbers)
        ):
            graph = self._build_reliable(step_numbers[first_row:stop_row])
            if graph is None:
                return None
            rows = np.arange(first_row, stop_row)
            replays.append(self.replay(apply_fix(graph, fix)))
            saved_ns[rows] = replays[-1].saved_ns_by_step[
                np.searchsorted(graph.step_numbers, step_numbers[rows])
            ]
            # Calls that a window cuts through are not replayed, so its first and last step do not count.
            is_replayed[rows[first_row > 0 : len(rows) - (stop_row < len(step_numbers))]] = True
        if not replays:
            return None
        saved_share = saved_ns[is_replayed].sum() / max(delay_ns[is_replayed].sum(), 1.0)
        calls = [call for replay in replays for call in replay.variant.graph.calls]
        return Savings(
            saved_ns_by_step=np.where(is_replayed, saved_ns, delay_ns * saved_share),
            has_calls_in_flight=any(call.is_in_flight.any() for call in calls),
            has_inferred_calls=any(call.communicator == IMPLICIT for call in calls),
            replays=tuple(replays),
        )

    def replay(self, variant: Variant) -> VariantReplay:
        """Replay a window with edits."""
        return VariantReplay(variant, self.find_identity(variant.graph))

    def build_whole(self) -> EventGraph | None:
        """Return the graph of all steps, however many there are; None if no replay is reliable."""
        return self._build_reliable(self._steps)

    def build_around(self, step_numbers: Ints) -> EventGraph | None:
        """Return the graph of the run, or of a window amid some steps; None if unreliable."""
        length = max(self._max_steps, MIN_STEPS_OF_WINDOW)
        if length >= len(self._steps):
            return self.build_whole()
        middle_row = int(np.searchsorted(self._steps, step_numbers[len(step_numbers) // 2]))
        first_row = min(max(middle_row - length // 2, 0), len(self._steps) - length)
        return self._build_reliable(self._steps[first_row : first_row + length])

    @property
    def doubt(self) -> str:
        """Why a window of the run could not be replayed reliably; empty if all could."""
        doubts = (identity.doubt for identity in self._identities.values())
        return next((doubt for doubt in doubts if doubt), "")

    def build_graphs(self) -> list[EventGraph]:
        """Return the windows that were replayed, else some from begin to end of the run.

        Empty if ranks were left out, or the run cannot be replayed.
        """
        steps = self._steps
        if not self._graphs and len(steps) and not self.trace.partial_communicators:
            for first_row, stop_row in self._choose_windows(np.arange(len(steps)), len(steps)):
                self._build(steps[first_row:stop_row])
        return [graph for graph in self._graphs.values() if graph is not None]

    def _choose_windows(self, touched_rows: Indices, step_count: int) -> list[tuple[int, int]]:
        """Return first and stop row of a grid's windows that hold touched rows, of all steps.

        `touched_rows` are those of steps that a fix changes.
        """
        if self._max_steps >= len(self._steps):
            return [(0, step_count)]
        length = max(self._max_steps // MAX_WINDOWS_REPLAYED, MIN_STEPS_OF_WINDOW)  # steps
        touched_windows = np.unique(touched_rows // length)
        if not len(touched_windows):
            return []
        count = max(min(self._max_steps // length, len(touched_windows)), 1)
        evenly = np.linspace(0, len(touched_windows) - 1, count + 2).round().astype(np.int64)[1:-1]
        first_rows = (touched_windows[np.unique(evenly)] * length).tolist()
        return [(first_row, min(first_row + length, step_count)) for first_row in first_rows]

    @cached_property
    def _steps(self) -> Ints:
        """The numbers of all steps, ascending."""
        return np.unique(self.trace.steps["step"].to_numpy()).astype(np.int64)

    @cached_property
    def _max_steps(self) -> int:
        """The number of steps that have as many pieces and services as are replayed at most."""
        piece_count = sum(len(packed.lengths_ns) for packed in self.phases.pieces.store)
        server_processes = self.trace.shards["process"].implode()
        service_count = int(self.trace.requests["process"].is_in(server_processes).sum())
        max_service_share = MAX_SERVICES_REPLAYED / max(service_count, 1)
        return int(len(self._steps) * min(self.max_pieces / max(piece_count, 1), max_service_share))

    def find_identity(self, graph: EventGraph) -> Identity:
        """Return the identity of the replay of a window."""
        if graph not in self._identities:
            self._identities[graph] = Identity.from_graph(graph)
        return self._identities[graph]

    def _build_reliable(self, step_numbers: Ints) -> EventGraph | None:
        """Return the graph of neighbouring steps; None without any, or if it is not reliable."""
        graph = self._build(step_numbers) if len(step_numbers) else None
        return graph if graph is not None and self.find_identity(graph).is_reliable else None

    def _build(self, steps: Ints) -> EventGraph | None:
        bounds = int(steps[0]), int(steps[-1])
        if bounds not in self._graphs:
            self._graphs[bounds] = EventGraph.from_trace(self.trace, self.phases, bounds)
        return self._graphs[bounds]
