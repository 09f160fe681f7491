"""How far the replay of a run can be trusted: does it equal the run, and would it follow a change?

The replay without edits is held against the recorded run. That alone does not tell whether the replay is
rigid: waits whose reason it does not know stay as long as they were, and the replay equals the run for
that very reason. So all lengths whose reason is known are made a little shorter at once. A replay of
which every length is known gets shorter by the same share; a rigid one by less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from tracelens.model.fmt import percent

if TYPE_CHECKING:
    from tracelens.replay.model import Model

__all__ = ["Identity"]

# share of the run, or of the usual step: a replay without edits that is further off
# is not reliable [chosen]
MAX_IDENTITY_ERROR_IF_RELIABLE: Final = 0.03
# share of the critical path: a replay is not reliable if more has no known reason [chosen]
MAX_RIGID_SHARE_IF_RELIABLE: Final = 0.1
# share of all known lengths: a probe shortens them by so little that the critical
# path stays [chosen]
SHARE_TO_SHORTEN_LENGTHS: Final = 0.01


@dataclass(frozen=True)
class Identity:
    """How far the replay without edits is from the recorded run, and how rigid it is, as shares.

    `whole` is of the run's length, `median_step` that of the usual step. `kept` is the share of workers'
    time in which they were blocked by what the trace does not tell: no edit changes it. `rigid` is the
    share of such time on the critical path of the replay.
    """

    whole: float
    median_step: float
    kept: float
    rigid: float

    @classmethod
    def of(cls, model: Model) -> Self:
        """Replay a run without edits, and with all known lengths shorter."""
        usual = model.lengths(model.usual)
        shorter = model.lengths(
            model.replayed(model.links.lag - SHARE_TO_SHORTEN_LENGTHS * model.known_lags)
        )
        replayed_ns = max(float(usual.sum()), 1.0)
        response = float((usual - shorter).sum()) / (SHARE_TO_SHORTEN_LENGTHS * replayed_ns)
        whole, median_step = model.errors
        return cls(
            whole=whole,
            median_step=median_step,
            kept=model.kept_share,
            rigid=min(max(1.0 - response, 0.0), 1.0),
        )

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
