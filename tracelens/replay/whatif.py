"""Asks a run "what if": how long its steps would be with one or several edits, and how sure that is.

The run is replayed without edits and with them (`model.py`); what the steps differ by is the saving, and
its interval resamples blocks of steps (Künsch 1989), and adds what predictions were off by where fixes
were made (`model.findings`). `trust.py` says whether an answer may be relied upon. An answer tells
nothing of what an edit does beyond the lengths that it names: of contention for cores, caches and links,
for one.

Whoever asks more than once keeps the `Replay`: the run is read once.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from tracelens.accounting import phases as accounting
from tracelens.caching import cached_property
from tracelens.errors import InvalidArgument
from tracelens.model.findings import predicted
from tracelens.model.fmt import percent
from tracelens.replay.edits.changed import Changed
from tracelens.replay.edits.placements import Layout, held, place_by
from tracelens.replay.edits.read import edited, known_edits
from tracelens.replay.model import Model
from tracelens.replay.stretches import Stretches
from tracelens.replay.trust import Ambiguity, Identity
from tracelens.stats.robust import bootstrap_interval

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Floats
    from tracelens.model.trace import Trace

__all__ = ["FORMAT", "Answer", "Identity", "Replay", "WhatIf", "whatif"]

FORMAT: Final = "tracelens.whatif/1"
EVERY: Final = "all"


@dataclass(frozen=True)
class Answer:
    """What edits do to the mean step: `saving` is a share of it, with its 95 % `interval`.

    `waits` are nanoseconds a step that each rank waits or communicates, before and after. `doubt` is why
    it may not be relied upon, though the replay may; None if it may.
    """

    edits: tuple[str, ...]
    before_ns: float
    after_ns: float
    after_interval_ns: tuple[float, float]
    saving: float
    interval: tuple[float, float]
    waits: dict[int, tuple[float, float]]
    notes: tuple[str, ...] = ()
    doubt: str | None = None

    @property
    def remarks(self) -> tuple[str, ...]:
        """What to know about it, in sentences."""
        return (*([f"Not reliable: {self.doubt}."] if self.doubt else []), *self.notes)


@dataclass(frozen=True)
class WhatIf:
    """The answers to what was asked of a run of so many steps, the largest saving first.

    `refused` are edits that it cannot answer, and why.
    """

    trace: str
    steps: int
    identity: Identity
    answers: tuple[Answer, ...]
    refused: tuple[tuple[str, str], ...] = ()

    @property
    def trust(self) -> str:
        """How far the replay without edits is from the run, and what no edit changes, in a sentence."""
        identity = self.identity
        error = (
            f"Without edits the replay of {self.steps} steps differs from the run by "
            f"{percent(abs(identity.whole), 1)} (usual step: {percent(identity.median_step, 1)})"
        )
        kept = (
            f"; {percent(identity.kept, 1)} of the ranks' time is blocked for a reason that the trace "
            "does not tell, and stays as it was."
        )
        doubt = f" Not reliable: {identity.doubt}." if identity.doubt else ""
        return f"{error}{kept}{doubt}"

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return {
            "format": FORMAT,
            "trace": self.trace,
            "steps": self.steps,
            "identity": asdict(self.identity)
            | {"reliable": self.identity.reliable, "doubt": self.identity.doubt},
            "answers": [asdict(answer) for answer in self.answers],
            "refused": [{"edit": edit, "reason": reason} for edit, reason in self.refused],
        }


def whatif(trace: Trace, *edits: str, phases: Phases | None = None) -> WhatIf:
    """Answer edits that are made together; with ``all``, every single one that is known.

    Args:
        trace: As `tracelens.open` returns it.
        edits: Such as ``rank:3=median`` (docs/whatif.md).
        phases: The partition of its time, if that was made before.

    Raises:
        InvalidArgument: an edit is none, or one that this trace cannot answer; or it has no steps.
    """
    return Replay.of(trace, phases).asked(*edits)


@dataclass(frozen=True, eq=False)
class Replay:
    """A run that answers again and again."""

    trace: str
    model: Model

    @classmethod
    def of(cls, trace: Trace, phases: Phases | None = None) -> Self:
        """Make it of a trace; `phases` are the partition of its time, if that was made before.

        Raises:
            InvalidArgument: it has no steps.
        """
        model = Model.of(trace, accounting.run(trace) if phases is None else phases)
        if model is None:
            raise InvalidArgument(
                "The run has no steps on all its workers: there is nothing to replay."
            )
        return cls(trace.path.name if trace.path else "", model)

    def asked(self, *edits: str) -> WhatIf:
        """Answer edits that are made together; with ``all``, every single one that is known.

        Raises:
            InvalidArgument: an edit is none, or one that this trace cannot answer.
        """
        if not edits:
            raise InvalidArgument("what if what? Name at least one edit, such as 'rank:3=median'.")
        if EVERY not in edits:
            return self._found([_answer(self.model, edits)], [])
        answers, refused = [], []
        for edit in known_edits(self.model):
            try:
                answers.append(_answer(self.model, [edit]))
            except InvalidArgument as error:
                refused.append((edit, str(error).removeprefix(f"{edit}: ")))
        return self._found(sorted(answers, key=lambda answer: -answer.saving), refused)

    def step(self, row: int, *edits: str) -> tuple[Stretches, Stretches]:
        """Return what ranks do in a step, a place in `Model.steps`, without edits and with them.

        Raises:
            InvalidArgument: as `asked` does.
        """
        model, changed = self.model, edited(self.model, edits)
        times = _replayed(changed, edits)
        return (
            Stretches.of(model, model.usual, model.links.lag, row),
            Stretches.of(model, times, changed.lag, row),
        )

    def saved(self, *edits: str) -> Floats:
        """Return by how much each step is shorter with some edits, ns, [step].

        Raises:
            InvalidArgument: as `asked` does.
        """
        model = self.model
        return model.lengths(model.usual) - model.lengths(_replayed(edited(model, edits), edits))

    def saved_by_placing(self, shares: Mapping[int, float]) -> Floats:
        """Return by how much each step is shorter with other shares of all bytes on shards, ns, [step].

        Raises:
            InvalidArgument: shards are not known, or not what bytes cost.
        """
        model = self.model
        changed, now = Changed(model, model.links.lag.copy()), held(model)
        if not now.keys() <= shares.keys():
            raise InvalidArgument("The run exchanges with shards that recorded nothing.")
        place_by(changed, Layout.from_loads(np.array([shares[shard] for shard in now])))
        return model.lengths(model.usual) - model.lengths(_replayed(changed, ["placement"]))

    @cached_property
    def identity(self) -> Identity:
        """How far the replay without edits is from the recorded run."""
        return Identity.of(self.model)

    def _found(self, answers: Sequence[Answer], refused: Sequence[tuple[str, str]]) -> WhatIf:
        steps = len(self.model.steps)
        return WhatIf(self.trace, steps, self.identity, tuple(answers), tuple(refused))


def _answer(model: Model, edits: Sequence[str]) -> Answer:
    changed = edited(model, edits)
    times = _replayed(changed, edits)
    saved = model.lengths(model.usual) - model.lengths(times)
    recorded = model.lengths(model.recorded)
    whole, count = float(recorded.sum()), len(recorded)
    share = float(saved.sum() / whole)
    low, high = predicted(share, bootstrap_interval(saved, whole))
    ambiguity = Ambiguity.find(model, share, lambda other: _saving(other, edits))
    if ambiguity is not None:
        low, high = low + ambiguity.low - share, high + ambiguity.high - share
    before = whole / count
    waits = model.waited(model.usual, model.links.lag), model.waited(times, changed.lag)
    return Answer(
        edits=tuple(edits),
        before_ns=before,
        after_ns=before * (1 - share),
        after_interval_ns=(before * (1 - high), before * (1 - low)),
        saving=share,
        interval=(low, high),
        waits={
            rank: (float(was) / count, float(then) / count)
            for rank, was, then in zip(model.ranks, *waits, strict=True)
        },
        notes=tuple(changed.notes),
        doubt=None if ambiguity is None else ambiguity.doubt,
    )


def _saving(model: Model, edits: Sequence[str]) -> float:
    """Return what edits save of a run."""
    saved = model.lengths(model.usual) - model.lengths(edited(model, edits).replayed())
    return float(saved.sum() / model.lengths(model.recorded).sum())


def _replayed(changed: Changed, edits: Sequence[str]) -> Any:
    try:
        return changed.replayed()
    except ValueError:
        raise InvalidArgument(
            f"{', '.join(edits)}: what the last call of a step follows needs an earlier one to be over."
        ) from None
