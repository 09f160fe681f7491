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
from tracelens.replay.edits.fixes import WorkFix, apply_fix
from tracelens.replay.model import Model
from tracelens.replay.trust import ChangedReplay, Identity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Floats, Indices, Ints
    from tracelens.model.trace import Trace
    from tracelens.replay.edits.changed import Changed

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
MIN_STEPS_OF_WINDOW: Final = 12


@dataclass(frozen=True, eq=False)
class Savings:
    """By how much shorter each step is, ns, [step].

    `in_flight` says whether reductions run beside the training threads, `inferred` whether ranks meet in
    collectives that no span shows. `replays` are those of windows.
    """

    saved: Floats
    in_flight: bool
    inferred: bool
    replays: tuple[ChangedReplay, ...]

    @cached_property
    def identity(self) -> Identity:
        """That of the least reliable replay."""
        identities = (replay.identity for replay in self.replays)
        return max(identities, key=lambda identity: identity.rigid)

    def widen(self, interval: tuple[float, float], job_ns: float) -> tuple[float, float]:
        """Return an interval of the saving, as a share of the job, that holds what replays do not know.

        Ranks may lack cores without the effect, and other steps than the replayed ones lack as many.
        """
        low, high = self.identity.widen(interval)
        lost_ns = sum(replay.shortage.delay_ns for replay in self.replays if replay.shortage)
        replayed_ns = sum(float(replay.saved_ns.sum()) for replay in self.replays)
        lost_share = lost_ns / max(replayed_ns, 1.0) * float(self.saved.sum()) / job_ns
        return max(low - lost_share, min(low, 0.0)), high


@dataclass(eq=False)
class WindowedReplay:
    """Says what a run would save without an effect; a window is replayed when it is first needed."""

    trace: Trace
    phases: Phases
    max_pieces: int = MAX_PIECES_REPLAYED
    _models: dict[tuple[int, int], Model | None] = field(default_factory=dict)
    _identities: dict[Model, Identity] = field(default_factory=dict)

    def measure_savings(self, names: Sequence[str], effect: Floats, steps: Ints) -> Savings | None:
        """Return by how much shorter each step is if workers work less in some phases.

        None where ranks were left out, where the run cannot be replayed reliably, or where nothing is
        taken off.

        Args:
            names: The phases.
            effect: What is taken off them, ns, [step, worker].
            steps: The number of each step, ascending.
        """
        if self.trace.parted:
            return None
        late, fix = effect.max(axis=1), WorkFix(steps, ((tuple(names), effect),))
        windows = self._choose_windows(np.flatnonzero(late), len(steps))
        saved, is_replayed = np.zeros(len(steps)), np.zeros(len(steps), np.bool_)
        in_flight = inferred = False
        replays: list[ChangedReplay] = []
        for first, stop in windows:
            model = self._build_reliable(steps[first:stop])
            if model is None:
                return None
            in_flight |= any(call.in_flight.any() for call in model.calls)
            inferred |= any(call.is_implicit for call in model.calls)
            rows = np.arange(first, stop)
            replays.append(self.replay(apply_fix(model, fix)))
            saved[rows] = replays[-1].saved_ns[np.searchsorted(model.steps, steps[rows])]
            # Calls that a window cuts through are not replayed.
            inside = rows[first > 0 : len(rows) - (stop < len(steps))]
            is_replayed[inside] = True
        if not replays:
            return None
        share = saved[is_replayed].sum() / max(late[is_replayed].sum(), 1.0)
        saved = np.where(is_replayed, saved, late * share)
        return Savings(saved, in_flight, inferred, tuple(replays))

    def replay(self, changed: Changed) -> ChangedReplay:
        """Replay a window with changes."""
        return ChangedReplay(changed, self.identity_of(changed.model))

    def build_whole(self) -> Model | None:
        """Return the model of all steps, however many there are; None if no replay is reliable."""
        return self._build_reliable(self._steps)

    def build_around(self, steps: Ints) -> Model | None:
        """Return the model of the run, or of a window in the middle of some steps if it is long.

        None if the run cannot be replayed reliably.
        """
        every = self._steps
        length = max(self._replayed_steps, MIN_STEPS_OF_WINDOW)
        if length >= len(every):
            return self._build_reliable(every)
        middle = int(np.searchsorted(every, steps[len(steps) // 2]))
        first = min(max(middle - length // 2, 0), len(every) - length)
        return self._build_reliable(every[first : first + length])

    @property
    def doubt(self) -> str:
        """Why a window of the run could not be replayed reliably; empty if all could."""
        doubts = (identity.doubt for identity in self._identities.values())
        return next((doubt for doubt in doubts if doubt), "")

    def build_models(self) -> list[Model]:
        """Return the windows that were replayed, else some from begin to end of the run.

        Empty if ranks were left out, or the run cannot be replayed.
        """
        steps = self._steps
        if not self._models and len(steps) and not self.trace.parted:
            for first, stop in self._choose_windows(np.arange(len(steps)), len(steps)):
                self._build(steps[first:stop])
        return [model for model in self._models.values() if model is not None]

    def _choose_windows(self, touched: Indices, steps: int) -> list[tuple[int, int]]:
        """Return the first row and the one after the last of each window: on a fixed grid."""
        if self._replayed_steps >= len(self._steps):
            return [(0, steps)]
        length = max(self._replayed_steps // MAX_WINDOWS_REPLAYED, MIN_STEPS_OF_WINDOW)
        cells = np.unique(touched // length)
        if not len(cells):
            return []
        count = max(min(self._replayed_steps // length, len(cells)), 1)
        chosen = np.unique(np.linspace(0, len(cells) - 1, count + 2).round().astype(np.int64)[1:-1])
        begins = cells[chosen] * length
        return [(int(begin), min(int(begin) + length, steps)) for begin in begins]

    @cached_property
    def _steps(self) -> Ints:
        """The numbers of all steps, ascending."""
        return np.unique(self.trace.steps["step"].to_numpy()).astype(np.int64)

    @cached_property
    def _replayed_steps(self) -> int:
        """How many steps have so many pieces, and services, as are replayed at most."""
        pieces = sum(len(packed.lengths) for packed in self.phases.pieces.packed)
        servers = self.trace.shards["process"].implode()
        services = int(self.trace.requests["process"].is_in(servers).sum())
        share = min(self.max_pieces / max(pieces, 1), MAX_SERVICES_REPLAYED / max(services, 1))
        return int(len(self._steps) * share)

    def identity_of(self, model: Model) -> Identity:
        """Return how reliable the replay of a window is."""
        if model not in self._identities:
            self._identities[model] = Identity.of(model)
        return self._identities[model]

    def _build_reliable(self, steps: Ints) -> Model | None:
        """Return the model of neighbouring steps; None without any, or if it is not reliable."""
        model = self._build(steps) if len(steps) else None
        return model if model is not None and self.identity_of(model).reliable else None

    def _build(self, steps: Ints) -> Model | None:
        bounds = int(steps[0]), int(steps[-1])
        if bounds not in self._models:
            self._models[bounds] = Model.of(self.trace, self.phases, bounds)
        return self._models[bounds]
