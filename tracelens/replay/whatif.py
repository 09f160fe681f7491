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

from tracelens.accounting import phases as accounting
from tracelens.caching import cached_property
from tracelens.errors import InvalidArgument
from tracelens.model.findings import predicted
from tracelens.model.fmt import percent
from tracelens.replay.edits.read import edited, fix_number, known_edits
from tracelens.replay.model import Model
from tracelens.replay.stretches import Stretches
from tracelens.replay.trust import Ambiguity, ChangedReplay, Identity
from tracelens.stats.robust import bootstrap_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Floats
    from tracelens.model.findings import Finding
    from tracelens.model.trace import Trace
    from tracelens.replay.edits.fixes import Fix

__all__ = ["FORMAT", "Answer", "Identity", "Replay", "WhatIf"]

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


@dataclass(frozen=True, eq=False)
class Replay:
    """A run that answers again and again; `findings` are those of its report, for ``fix:N``."""

    trace: str
    model: Model
    findings: Sequence[Finding] = ()

    @classmethod
    def of(
        cls, trace: Trace, phases: Phases | None = None, findings: Sequence[Finding] = ()
    ) -> Self:
        """Make it of a trace.

        Args:
            trace: As `tracelens.open` returns it.
            phases: The partition of its time, if that was made before.
            findings: Those of its report, in the order of the report.

        Raises:
            InvalidArgument: it has no steps.
        """
        model = Model.of(trace, accounting.run(trace) if phases is None else phases)
        if model is None or not model.lengths(model.recorded).any():
            raise InvalidArgument(
                "The run has no steps that last on all its workers: there is nothing to replay."
            )
        return cls(trace.path.name if trace.path else "", model, findings)

    @property
    def fixes(self) -> tuple[Fix | None, ...]:
        """The fix of each finding; None where its saving is no replay's."""
        return tuple(finding.fix for finding in self.findings)

    def asked(self, *edits: str) -> WhatIf:
        """Answer edits that are made together; with ``all``, every single one that is known.

        Raises:
            InvalidArgument: an edit is none, or one that this trace cannot answer.
        """
        if not edits:
            raise InvalidArgument("what if what? Name at least one edit, such as 'rank:3=median'.")
        if EVERY not in edits:
            return self._found([self._answer(edits)], [])
        answers, refused = [], []
        fixes = [f"fix:{number}" for number, fix in enumerate(self.fixes, 1) if fix is not None]
        for edit in (*fixes, *known_edits(self.model)):
            try:
                answers.append(self._answer([edit]))
            except InvalidArgument as error:
                refused.append((edit, str(error).removeprefix(f"{edit}: ")))
        return self._found(sorted(answers, key=lambda answer: -answer.saving), refused)

    def step(self, row: int, *edits: str) -> tuple[Stretches, Stretches]:
        """Return what ranks do in a step, a place in `Model.steps`, without edits and with them.

        Raises:
            InvalidArgument: as `asked` does.
        """
        model, replayed = self.model, self._replay(edits)
        return (
            Stretches.of(model, model.usual, model.links.lag, row),
            Stretches.of(model, replayed.times, replayed.changed.lag, row),
        )

    def saved(self, *edits: str) -> Floats:
        """Return by how much each step is shorter with some edits, ns, [step].

        Raises:
            InvalidArgument: as `asked` does.
        """
        return self._replay(edits).saved_ns

    @cached_property
    def identity(self) -> Identity:
        """How far the replay without edits is from the recorded run."""
        return Identity.of(self.model)

    def _answer(self, edits: Sequence[str]) -> Answer:
        model, replayed = self.model, self._replay(edits)
        saved, identity = replayed.saved_ns, replayed.identity
        recorded = model.lengths(model.recorded)
        whole, count = float(recorded.sum()), len(recorded)
        share = float(saved.sum() / whole)
        doubt = identity.doubt if self.identity.reliable else None
        low, high = predicted(share, identity.widen(bootstrap_interval(saved, whole)))
        ambiguity = Ambiguity.find(
            replayed, whole, lambda other: edited(other, edits, self.fixes).measure_savings_ns()
        )
        if ambiguity is not None:
            low, high = low + ambiguity.low - share, high + ambiguity.high - share
            doubt = ambiguity.doubt
        low, high = self._interval_of_finding(edits, share) or (low, high)
        before = whole / count
        waits = (
            model.waited(model.usual, model.links.lag),
            model.waited(replayed.times, replayed.changed.lag),
        )
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
            notes=tuple(replayed.changed.notes),
            doubt=doubt,
        )

    def _interval_of_finding(
        self, edits: Sequence[str], share: float
    ) -> tuple[float, float] | None:
        """Return the interval that the report gives for what the fix of one finding saves.

        It knows more than the replay does: in which steps the loss is, and how sure its size is.
        """
        if len(edits) != 1 or (number := fix_number(edits[0])) is None:
            return None
        finding = self.findings[number - 1]
        if not finding.saving or finding.interval is None:
            return None
        low, high = finding.interval
        return low * share / finding.saving, high * share / finding.saving

    def _replay(self, edits: Sequence[str]) -> ChangedReplay:
        return ChangedReplay(edited(self.model, edits, self.fixes), self.identity)

    def _found(self, answers: Sequence[Answer], refused: Sequence[tuple[str, str]]) -> WhatIf:
        steps = len(self.model.steps)
        return WhatIf(self.trace, steps, self.identity, tuple(answers), tuple(refused))
