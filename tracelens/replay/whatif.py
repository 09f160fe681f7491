"""Answer "what if": how long the steps of a run would be with edits, and how sure that is.

The run is replayed without edits and with them (`event_graph.py`); what the steps differ by is the
saving, and its interval resamples blocks of steps (Künsch 1989), and adds what predictions were off by
where fixes were made (`model.findings`). `trust.py` says whether an answer may be relied upon. An answer
leaves out what an edit does beyond the lengths that it names, such as contention for cores.

Keep the `Replay` to ask more than once: the run is read once.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from tracelens.accounting import phases as accounting
from tracelens.caching import cached_property
from tracelens.errors import InvalidArgument
from tracelens.model.findings import widen_by_prediction_error
from tracelens.model.fmt import percent
from tracelens.replay.edits.read import apply_edits, list_edits, parse_fix_number
from tracelens.replay.event_graph import EventGraph
from tracelens.replay.stretches import Stretches
from tracelens.replay.trust import Ambiguity, Identity, VariantReplay
from tracelens.stats.robust import bootstrap_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Floats
    from tracelens.model.findings import Finding
    from tracelens.model.trace import Trace
    from tracelens.replay.edits.fixes import Fix

__all__ = ["EVERY", "FORMAT", "Answer", "Replay", "WhatIf"]

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
    """The answers to edits of a run, the largest saving first; `steps` is its number of steps.

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
        run_error = percent(abs(identity.run_error_share), digits=1)
        step_error = percent(identity.median_step_error_share, digits=1)
        unexplained = percent(identity.unexplained_share, digits=1)
        doubt = f" Not reliable: {identity.doubt}." if identity.doubt else ""
        return (
            f"Without edits the replay of {self.steps} steps differs from the run by {run_error} "
            f"(usual step: {step_error}); {unexplained} of the ranks' time is blocked for a reason "
            f"that the trace does not tell, and stays as it was.{doubt}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain values, for JSON."""
        return {
            "format": FORMAT,
            "trace": self.trace,
            "steps": self.steps,
            "identity": self.identity.to_dict(),
            "answers": [asdict(answer) for answer in self.answers],
            "refused": [{"edit": edit, "reason": reason} for edit, reason in self.refused],
        }


@dataclass(frozen=True, eq=False)
class Replay:
    """A run that answers again and again; `findings` are those of its report, for ``fix:N``."""

    trace: str
    graph: EventGraph
    findings: Sequence[Finding] = ()

    @classmethod
    def from_trace(
        cls, trace: Trace, phases: Phases | None = None, findings: Sequence[Finding] = ()
    ) -> Self:
        """Build the event graph of a trace; `findings` are those of its report, in order."""
        graph = EventGraph.from_trace(trace, accounting.run(trace) if phases is None else phases)
        if graph is None or not graph.measure_steps_ns(graph.recorded_times_ns).any():
            raise InvalidArgument(
                "The run has no steps that last on all its workers: there is nothing to replay."
            )
        return cls(trace.path.name if trace.path else "", graph, findings)

    @property
    def fixes(self) -> tuple[Fix | None, ...]:
        """The fix of each finding; None where its saving is no replay's."""
        return tuple(finding.fix for finding in self.findings)

    def answer(self, *edits: str) -> WhatIf:
        """Answer edits that are made together; with ``all``, every single one that is known."""
        if not edits:
            raise InvalidArgument("what if what? Name at least one edit, such as 'rank:3=median'.")
        answers, refused = [], []
        if EVERY not in edits:
            answers.append(self._answer(edits))
        else:
            fixes = [f"fix:{number}" for number, fix in enumerate(self.fixes, 1) if fix is not None]
            for edit in (*fixes, *list_edits(self.graph)):
                try:
                    answers.append(self._answer([edit]))
                except InvalidArgument as error:
                    refused.append((edit, str(error).removeprefix(f"{edit}: ")))
            answers.sort(key=lambda answer: -answer.saving)
        steps = len(self.graph.step_numbers)
        return WhatIf(self.trace, steps, self.identity, tuple(answers), tuple(refused))

    def replay_step(self, row: int, *edits: str) -> tuple[Stretches, Stretches]:
        """Return the stretches of a step, a row of `EventGraph.step_numbers`, without and with edits."""
        graph, replayed = self.graph, self._replay(edits)
        return (
            Stretches.from_replay(graph, graph.baseline_times_ns, graph.edges.lag_ns, row),
            Stretches.from_replay(graph, replayed.event_times_ns, replayed.variant.lag_ns, row),
        )

    def measure_savings_ns(self, *edits: str) -> Floats:
        """Return by how much each step is shorter with some edits, [step]."""
        return self._replay(edits).saved_ns_by_step

    @cached_property
    def identity(self) -> Identity:
        """How far the replay without edits is from the recorded run."""
        return Identity.from_graph(self.graph)

    def _answer(self, edits: Sequence[str]) -> Answer:
        """Answer edits (texts) that are made together; savings are shares of the recorded steps."""
        graph, replayed = self.graph, self._replay(edits)
        saved_ns, identity = replayed.saved_ns_by_step, replayed.identity
        recorded_ns = graph.measure_steps_ns(graph.recorded_times_ns)
        total_ns, step_count = float(recorded_ns.sum()), len(recorded_ns)
        saving = float(saved_ns.sum() / total_ns)
        doubt = identity.doubt if self.identity.is_reliable else None
        interval = widen_by_prediction_error(
            saving, identity.widen_interval(bootstrap_interval(saved_ns, total_ns))
        )
        ambiguity = Ambiguity.from_alternatives(
            replayed, total_ns, lambda other_graph: apply_edits(other_graph, edits, self.fixes)
        )
        if ambiguity is not None:
            interval, doubt = ambiguity.widen_interval(interval), ambiguity.doubt
        low, high = self._find_interval_of_finding(edits, saving) or interval
        before_ns = total_ns / step_count  # the mean step
        blocked_ns = (  # [rank], without and with the edits
            graph.measure_blocked_ns(times_ns, lag_ns) / step_count
            for times_ns, lag_ns in (
                (graph.baseline_times_ns, graph.edges.lag_ns),
                (replayed.event_times_ns, replayed.variant.lag_ns),
            )
        )
        return Answer(
            edits=tuple(edits),
            before_ns=before_ns,
            after_ns=before_ns * (1 - saving),
            after_interval_ns=(before_ns * (1 - high), before_ns * (1 - low)),
            saving=saving,
            interval=(low, high),
            waits={
                rank: (float(wait_ns), float(new_wait_ns))
                for rank, wait_ns, new_wait_ns in zip(graph.ranks, *blocked_ns, strict=True)
            },
            notes=tuple(replayed.variant.notes),
            doubt=doubt,
        )

    def _find_interval_of_finding(
        self, edits: Sequence[str], saving: float
    ) -> tuple[float, float] | None:
        """Return the interval that the report gives for what ``fix:N`` saves; None for other edits.

        The report knows more than the replay does: in which steps the loss is, and how sure its size is.
        Its interval is scaled to the replay's `saving`; all are shares of the run.
        """
        if len(edits) != 1 or (number := parse_fix_number(edits[0])) is None:
            return None
        finding = self.findings[number - 1]
        if not finding.saving or finding.interval is None:
            return None
        low, high = finding.interval
        return low * saving / finding.saving, high * saving / finding.saving

    def _replay(self, edits: Sequence[str]) -> VariantReplay:
        return VariantReplay(apply_edits(self.graph, edits, self.fixes), self.identity)
