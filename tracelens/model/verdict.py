"""The verdict on a run, and the ledger of losses that it stands on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = [
    "MOST_UNEXPLAINED",
    "Cause",
    "Lead",
    "Ledger",
    "Loss",
    "State",
    "Verdict",
    "is_mostly_lost",
    "lead_of",
]

State = Literal["faults", "healthy", "inconclusive"]
Lead = Literal["fault", "opportunity", "healthy", "inconclusive"]
Cause = Literal["finding", "known", "bubble", "jitter", "unexplained"]
# of ranks x job time: no run with more unexplained time is healthy [policy]
MOST_UNEXPLAINED: Final = 0.05
# of ranks x job time: the headline of a run with less useful time reports what is lost [policy]
MIN_USEFUL_SHARE_IF_HEALTHY: Final = 0.5


@dataclass(frozen=True)
class Loss:
    """A share of ranks x job time that was no useful computation, and why it was lost.

    `category` is one of the partition's, or ``outside``; of uninstrumented time only what ranks have
    beyond their peers is a loss. `cause` is ``finding`` (of which number in the report, from 0),
    ``known`` (the category says it all; of ``wait``, that a rank that serves the others waits until they
    ask), ``bubble`` (stages of a pipeline wait for each other as its schedule makes them, however alike
    they are), ``jitter`` (ranks wait for each other in turns, as much for one as for another, and in
    many steps) or ``unexplained``.
    """

    category: str
    share: float
    cause: Cause
    finding: int | None = None


@dataclass(frozen=True)
class Ledger:
    """Where ranks x job time went: `useful` and the shares of all losses add up to 1 (to rounding).

    Every loss is claimed by at most one finding. `startup_ns` is the time from the first record to the
    first step, which is in no share; null where it is not known. For `awaited_rank` all others waited
    longest at collectives, or, without these, for its pushes at servers, a share `awaited_share` of the
    time in which they waited for one rank alone; null without either.
    """

    useful: float
    losses: tuple[Loss, ...]
    startup_ns: int | None = None
    awaited_rank: int | None = None
    awaited_share: float | None = None

    def of(self, cause: Cause) -> float:
        """Add up the losses of one cause."""
        return sum(loss.share for loss in self.losses if loss.cause == cause)

    @property
    def unexplained(self) -> float:
        """What no finding claims and no category explains."""
        return self.of("unexplained")


@dataclass(frozen=True)
class Verdict:
    """What is to be said first, in four lines.

    `state` is ``healthy`` only if no fault was found and less than `MOST_UNEXPLAINED` is unexplained.
    `headline` names it, `why` shows it in numbers, `action` is what to do next, `scope` what it is about
    and what is not known; `kind` is that of the finding that it rests on, null without one.
    """

    state: State
    headline: str
    why: str
    action: str
    scope: str
    kind: str | None = None


def is_mostly_lost(ledger: Ledger | None) -> bool:
    """Return whether so little of the time is computed in that the headline says how much is lost."""
    return ledger is not None and ledger.useful <= MIN_USEFUL_SHARE_IF_HEALTHY


def lead_of(verdict: Verdict, ledger: Ledger | None) -> Lead:
    """Return what the headline names first, which pages give its colour."""
    if verdict.state == "healthy":
        return "opportunity" if is_mostly_lost(ledger) else "healthy"
    return "fault" if verdict.state == "faults" else "inconclusive"
