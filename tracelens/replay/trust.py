"""How far the replay of a run can be trusted: does it equal the run, and would it follow a change?

The replay without edits is compared with the recorded run. Even so the replay may
be rigid: waits for an unknown reason stay as long as they were, and the replay equals the run for that
very reason. So all explained lags are made a little shorter. A replay whose lags are all explained gets
shorter by the same share; a rigid one by less.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self

from tracelens.caching import cached_property
from tracelens.errors import InvalidArgument
from tracelens.model.fmt import percent
from tracelens.replay.cores import CoreShortage
from tracelens.replay.edits.variant import Variant

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.arrays import Floats
    from tracelens.replay.event_graph import EventGraph

__all__ = ["Ambiguity", "Identity", "VariantReplay"]

# share of the run, or of the usual step: a replay without edits that is further off
# is not reliable [chosen]
MAX_IDENTITY_ERROR_IF_RELIABLE: Final = 0.03
# share of the critical path: a replay is not reliable if more has no known reason [chosen; one
# decision in Identity.widen_interval, Identity.doubt]
MAX_RIGID_SHARE_IF_RELIABLE: Final = 0.25
# share of all known lengths: a probe shortens them by so little that the critical
# path stays [chosen]
SHARE_TO_SHORTEN_LENGTHS: Final = 0.01
# share of a saving: explanations of a run that differ by more make the answer unreliable [chosen]
MAX_SHARE_OF_SAVING_UNKNOWN: Final = 0.1
# share of the run: explanations of a run may always differ by so little [chosen]
NEGLIGIBLE_SAVING: Final = 0.004


@dataclass(frozen=True)
class Ambiguity:
    """What may be saved, at least and at most, as shares of the run; `reason` is why it is not known."""

    reason: str
    saving_share: float
    min_saving_share: float
    max_saving_share: float

    @classmethod
    def from_alternatives(
        cls,
        replayed: VariantReplay,
        job_ns: float,
        edit: Callable[[EventGraph], Variant],
    ) -> Self | None:
        """Ask the graphs that explain a run as well, and whether cores are short; None if all agree.

        `replayed` is the run with edits, in which the replayed steps took `job_ns`; `edit` applies the
        same edits to another graph.
        """
        saving = float(replayed.saved_ns_by_step.sum()) / job_ns
        saving_by_reason, shortage = {"": saving}, replayed.core_shortage
        for missing_fact, other_graph in replayed.variant.graph.alternatives:
            with suppress(InvalidArgument):
                saved_ns = float(edit(other_graph).measure_savings_ns().sum())
                saving_by_reason[f"the recording does not tell {missing_fact}"] = saved_ns / job_ns
        if shortage is not None:
            saving_by_reason[shortage.sentence] = saving - shortage.delay_ns / job_ns
        differences = {why: abs(other - saving) for why, other in saving_by_reason.items()}
        main_reason = max(differences, key=differences.__getitem__)
        max_difference = max(MAX_SHARE_OF_SAVING_UNKNOWN * abs(saving), NEGLIGIBLE_SAVING)
        if differences[main_reason] <= max_difference:
            return None
        savings = saving_by_reason.values()
        return cls(
            reason=main_reason,
            saving_share=saving,
            min_saving_share=min(savings),
            max_saving_share=max(savings),
        )

    def widen_interval(self, interval: tuple[float, float]) -> tuple[float, float]:
        """Return an interval of the saving, as shares of the run, that holds all possible savings."""
        bounds = zip(interval, (self.min_saving_share, self.max_saving_share), strict=True)
        low, high = (bound + share - self.saving_share for bound, share in bounds)
        return low, high

    @property
    def doubt(self) -> str:
        """Why the saving may not be relied upon."""
        savings = (
            percent(share, digits=1) for share in (self.min_saving_share, self.max_saving_share)
        )
        return f"{self.reason}; it may save {' to '.join(savings)}"


@dataclass(frozen=True)
class Identity:
    """How far the replay without edits is from the recorded run, and how rigid it is, as shares.

    The errors are of the run's length (below 0: too short), and of the median step. `unexplained_share`
    is that of workers' time in which they are blocked for an unknown reason: no edit changes it.
    `rigid_share` is such time on the critical path of the replay, as a share of the run.
    """

    run_error_share: float
    median_step_error_share: float
    unexplained_share: float
    rigid_share: float

    @classmethod
    def from_graph(cls, graph: EventGraph) -> Self:
        """Replay a run without edits, and with all explained lags shorter."""
        rigid_share = max(_measure_rigid_share(Variant(graph), graph.baseline_times_ns), 0.0)
        return cls(*graph.identity_error_shares, graph.unexplained_share, rigid_share)

    def widen_interval(self, interval: tuple[float, float]) -> tuple[float, float]:
        """Return an interval of a saving that also holds what rigid time may save.

        Waits for an unknown reason may get shorter by the same share as the rest of the critical path.
        """
        low, high = interval
        known_share = max(1.0 - self.rigid_share, 1.0 - MAX_RIGID_SHARE_IF_RELIABLE)
        return min(low, low / known_share), max(high, high / known_share)

    @property
    def is_reliable(self) -> bool:
        """Whether answers may be relied upon."""
        return self.doubt is None

    @property
    def doubt(self) -> str | None:
        """Why answers may not be relied upon; None if they may."""
        error = max(abs(self.run_error_share), self.median_step_error_share)
        if error > MAX_IDENTITY_ERROR_IF_RELIABLE:
            return f"without edits it differs from the run by {percent(error, digits=1)}, more than 3 %"
        if self.rigid_share > MAX_RIGID_SHARE_IF_RELIABLE:
            return (
                f"{percent(self.rigid_share)} of its critical path is waiting for a reason that the "
                "trace does not tell, which no edit changes"
            )
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the identity as plain values, for JSON."""
        return {
            "whole": self.run_error_share,
            "median_step": self.median_step_error_share,
            "kept": self.unexplained_share,
            "rigid": self.rigid_share,
            "reliable": self.is_reliable,
            "doubt": self.doubt,
        }


@dataclass(frozen=True, eq=False)
class VariantReplay:
    """The replay of a run with edits; `baseline_identity` is that of the run without them."""

    variant: Variant
    baseline_identity: Identity

    @cached_property
    def event_times_ns(self) -> Floats:
        """When events occur, [event]."""
        return self.variant.replay()

    @cached_property
    def saved_ns_by_step(self) -> Floats:
        """By how much shorter each step is than without the edits, [step]."""
        return self.variant.measure_savings_ns(self.event_times_ns)

    @cached_property
    def core_shortage(self) -> CoreShortage | None:
        """The cores that ranks lack with the edits; None if they lack none, or it is not known."""
        return CoreShortage.from_replay(self.variant, self.event_times_ns)

    @cached_property
    def identity(self) -> Identity:
        """How reliable the saving is: another path may be critical, which is more rigid.

        It takes a second replay, so ask only for what a saving is stated of.
        """
        baseline = self.baseline_identity
        rigid_share = _measure_rigid_share(self.variant, self.event_times_ns)
        return replace(baseline, rigid_share=max(baseline.rigid_share, rigid_share))


def _measure_rigid_share(variant: Variant, times_ns: Floats) -> float:
    """Return the share of a replay's critical path that has no known reason, 1 at most.

    `times_ns` is when its events occur, [event]. All lengths with a known reason are shortened by a
    share: the run would get shorter by that share of them.
    """
    shortened_times_ns = variant.replay(SHARE_TO_SHORTEN_LENGTHS)
    replayed_ns, shortened_ns, baseline_ns = (
        float(variant.graph.measure_steps_ns(event_times_ns).sum())
        for event_times_ns in (times_ns, shortened_times_ns, variant.graph.baseline_times_ns)
    )
    rigid_ns = replayed_ns - (replayed_ns - shortened_ns) / SHARE_TO_SHORTEN_LENGTHS
    return min(rigid_ns / max(baseline_ns, 1.0), 1.0)
