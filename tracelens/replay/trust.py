"""How far the replay of a run can be trusted: does it equal the run, and would it follow a change?

The replay without edits is held against the recorded run. That alone does not tell whether the replay is
rigid: waits whose reason it does not know stay as long as they were, and the replay equals the run for
that very reason. So all lengths whose reason is known are made a little shorter at once. A replay of
which every length is known gets shorter by the same share; a rigid one by less.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

from tracelens.caching import cached_property
from tracelens.errors import InvalidArgument
from tracelens.model.fmt import percent
from tracelens.replay.cores import CoreShortage
from tracelens.replay.edits.changed import Changed

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.arrays import Floats
    from tracelens.replay.model import Model

__all__ = ["Ambiguity", "ChangedReplay", "Identity"]

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
    """A saving that may be `low` to `high`, as shares of the run; `reason` is why that is not known."""

    reason: str
    low: float
    high: float

    @classmethod
    def find(
        cls,
        replayed: ChangedReplay,
        job_ns: float,
        measure_savings_ns: Callable[[Model], Floats],
    ) -> Self | None:
        """Ask the models that explain a run as well, and whether cores are short; None if all agree.

        Args:
            replayed: The run with changes.
            job_ns: How long the run took.
            measure_savings_ns: Returns what another model says of the same changes, ns, [step].
        """
        saving = float(replayed.saved_ns.sum()) / job_ns
        savings, shortage = {"": saving}, replayed.shortage
        for unknown, other in replayed.changed.model.alternatives:
            with suppress(InvalidArgument):
                saved_ns = float(measure_savings_ns(other).sum())
                savings[f"the recording does not tell {unknown}"] = saved_ns / job_ns
        if shortage is not None:
            savings[shortage.sentence] = saving - shortage.delay_ns / job_ns
        reason = max(savings, key=lambda one: abs(savings[one] - saving))
        widest = max(MAX_SHARE_OF_SAVING_UNKNOWN * abs(saving), NEGLIGIBLE_SAVING)
        if abs(savings[reason] - saving) <= widest:
            return None
        return cls(reason, min(savings.values()), max(savings.values()))

    @property
    def doubt(self) -> str:
        """Why the saving may not be relied upon."""
        return f"{self.reason}; it may save {percent(self.low, 1)} to {percent(self.high, 1)}"


@dataclass(frozen=True)
class Identity:
    """How far the replay without edits is from the recorded run, and how rigid it is, as shares.

    `whole` is of the run's length, `median_step` that of the usual step. `kept` is the share of workers'
    time in which they were blocked by what the trace does not tell: no edit changes it. `rigid` is such
    time on the critical path of the replay, as a share of the run.
    """

    whole: float
    median_step: float
    kept: float
    rigid: float

    @classmethod
    def of(cls, model: Model) -> Self:
        """Replay a run without edits, and with all known lengths shorter."""
        whole, median_step = model.errors
        rigid = max(_measure_rigid_share(Changed(model), model.usual), 0.0)
        return cls(whole, median_step, model.kept_share, rigid)

    def widen(self, interval: tuple[float, float]) -> tuple[float, float]:
        """Return an interval of a saving that also holds what rigid time may save.

        Waits for an unknown reason may get shorter by the same share as the rest of the critical path.
        """
        low, high = interval
        known = max(1.0 - self.rigid, 1.0 - MAX_RIGID_SHARE_IF_RELIABLE)
        return min(low, low / known), max(high, high / known)

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
class ChangedReplay:
    """The replay of a run with changes; `before` is the identity of the run without them."""

    changed: Changed
    before: Identity

    @cached_property
    def times(self) -> Floats:
        """When moments come, ns."""
        return self.changed.replayed()

    @cached_property
    def saved_ns(self) -> Floats:
        """By how much shorter each step is than without the changes, ns, [step]."""
        model = self.changed.model
        return model.lengths(model.usual) - model.lengths(self.times)

    @cached_property
    def shortage(self) -> CoreShortage | None:
        """The cores that ranks lack with the changes; None if they lack none, or it is not known."""
        return CoreShortage.find(self.changed, self.times)

    @cached_property
    def identity(self) -> Identity:
        """How reliable the saving is: another path may be critical, which is more rigid.

        It takes a second replay, so ask only for what a saving is stated of.
        """
        rigid = max(self.before.rigid, _measure_rigid_share(self.changed, self.times))
        return replace(self.before, rigid=rigid)


def _measure_rigid_share(changed: Changed, times: Floats) -> float:
    """Return the rigid share of the critical path; `times` are when moments come, ns."""
    lengths = changed.model.lengths
    replayed_ns = float(lengths(times).sum())
    shorter_ns = float(lengths(changed.replayed(SHARE_TO_SHORTEN_LENGTHS)).sum())
    rigid_ns = replayed_ns - (replayed_ns - shorter_ns) / SHARE_TO_SHORTEN_LENGTHS
    return min(rigid_ns / max(float(lengths(changed.model.usual).sum()), 1.0), 1.0)
