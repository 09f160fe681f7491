"""How far the replay of a run can be trusted: does it equal the run, and would it follow a change?

The replay without edits is compared with the recorded run. Even so the replay may
be rigid: waits for an unknown reason stay as long as they were, and the replay equals the run for that
very reason. So all explained lags are made a little shorter. A replay whose lags are all explained gets
shorter by the same share; a rigid one by less.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

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
# decision in Identity.widen, Identity.doubt]
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
    """A `saving` that may be `low` to `high`, as shares of the run; `reason` is why it is unknown."""

    reason: str
    saving: float
    low: float
    high: float

    @classmethod
    def from_alternatives(
        cls,
        replayed: VariantReplay,
        job_ns: float,
        edit: Callable[[EventGraph], Variant],
    ) -> Self | None:
        """Ask the graphs that explain a run as well, and whether cores are short; None if all agree.

        `job_ns` is the length of the replayed steps; `edit` applies the same edits to another graph.
        """
        saving = float(replayed.saved_ns.sum()) / job_ns
        saving_by_reason, shortage = {"": saving}, replayed.shortage
        for missing_fact, other_graph in replayed.variant.graph.alternatives:
            with suppress(InvalidArgument):
                saved_ns = float(edit(other_graph).measure_savings_ns().sum())
                saving_by_reason[f"the recording does not tell {missing_fact}"] = saved_ns / job_ns
        if shortage is not None:
            saving_by_reason[shortage.sentence] = saving - shortage.delay_ns / job_ns
        main_reason = max(saving_by_reason, key=lambda why: abs(saving_by_reason[why] - saving))
        max_difference = max(MAX_SHARE_OF_SAVING_UNKNOWN * abs(saving), NEGLIGIBLE_SAVING)
        if abs(saving_by_reason[main_reason] - saving) <= max_difference:
            return None
        savings = saving_by_reason.values()
        return cls(main_reason, saving, min(savings), max(savings))

    def widen(self, interval: tuple[float, float]) -> tuple[float, float]:
        """Return an interval of the saving that holds all savings that are possible."""
        return interval[0] + self.low - self.saving, interval[1] + self.high - self.saving

    @property
    def doubt(self) -> str:
        """Why the saving may not be relied upon."""
        return f"{self.reason}; it may save {percent(self.low, 1)} to {percent(self.high, 1)}"


@dataclass(frozen=True)
class Identity:
    """How far the replay without edits is from the recorded run, and how rigid it is, as shares.

    `whole` is of the run's length, `median_step` of the median step. `kept` is the share of workers'
    time in which they are blocked for an unknown reason: no edit changes it. `rigid` is such time on the
    critical path of the replay, as a share of the run.
    """

    whole: float
    median_step: float
    kept: float
    rigid: float

    @classmethod
    def from_graph(cls, graph: EventGraph) -> Self:
        """Replay a run without edits, and with all explained lags shorter."""
        rigid = max(_measure_rigid_share(Variant(graph), graph.baseline_ns), 0.0)
        return cls(*graph.identity_errors, graph.unexplained_share, rigid)

    def widen(self, interval: tuple[float, float]) -> tuple[float, float]:
        """Return an interval of a saving that also holds what rigid time may save.

        Waits for an unknown reason may get shorter by the same share as the rest of the critical path.
        """
        low, high = interval
        known_share = max(1.0 - self.rigid, 1.0 - MAX_RIGID_SHARE_IF_RELIABLE)
        return min(low, low / known_share), max(high, high / known_share)

    @property
    def reliable(self) -> bool:
        """Whether answers may be relied upon."""
        return self.doubt is None

    @property
    def doubt(self) -> str | None:
        """Why answers may not be relied upon; None if they may."""
        error = max(abs(self.whole), self.median_step)
        if error > MAX_IDENTITY_ERROR_IF_RELIABLE:
            return f"without edits it differs from the run by {percent(error, 1)}, more than 3 %"
        if self.rigid > MAX_RIGID_SHARE_IF_RELIABLE:
            return (
                f"{percent(self.rigid)} of its critical path is waiting for a reason that the trace "
                "does not tell, which no edit changes"
            )
        return None


@dataclass(frozen=True, eq=False)
class VariantReplay:
    """The replay of a run with edits; `baseline` is the identity of the run without them."""

    variant: Variant
    baseline: Identity

    @cached_property
    def times_ns(self) -> Floats:
        """When events occur."""
        return self.variant.replay()

    @cached_property
    def saved_ns(self) -> Floats:
        """By how much shorter each step is than without the edits, [step]."""
        return self.variant.measure_savings_ns(self.times_ns)

    @cached_property
    def shortage(self) -> CoreShortage | None:
        """The cores that ranks lack with the edits; None if they lack none, or it is not known."""
        return CoreShortage.from_replay(self.variant, self.times_ns)

    @cached_property
    def identity(self) -> Identity:
        """How reliable the saving is: another path may be critical, which is more rigid.

        It takes a second replay, so ask only for what a saving is stated of.
        """
        rigid = max(self.baseline.rigid, _measure_rigid_share(self.variant, self.times_ns))
        return replace(self.baseline, rigid=rigid)


def _measure_rigid_share(variant: Variant, times_ns: Floats) -> float:
    """Return the share of a replay's critical path that has no known reason, 1 at most.

    `times_ns` is when its events occur, [event]. All lengths with a known reason are shortened by a
    share: the run would get shorter by that share of them.
    """
    shortened_times_ns = variant.replay(SHARE_TO_SHORTEN_LENGTHS)
    replayed_ns, shortened_ns, baseline_ns = (
        float(variant.graph.measure_steps_ns(event_times_ns).sum())
        for event_times_ns in (times_ns, shortened_times_ns, variant.graph.baseline_ns)
    )
    rigid_ns = replayed_ns - (replayed_ns - shortened_ns) / SHARE_TO_SHORTEN_LENGTHS
    return min(rigid_ns / max(baseline_ns, 1.0), 1.0)
