"""The verdict on a run, and the ledger of losses that it stands on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

__all__ = ["MOST_UNEXPLAINED", "STATES", "Cause", "Ledger", "Loss", "State", "Verdict"]

State = Literal["fault", "bottleneck", "healthy", "inconclusive"]
STATES: Final[tuple[State, ...]] = get_args(State)
Cause = Literal["finding", "known", "bubble", "jitter", "launching", "uncovered", "unexplained"]
# of ranks x job time: no run with more unexplained time is healthy [policy]
MOST_UNEXPLAINED: Final = 0.05


@dataclass(frozen=True)
class Loss:
    """A share of ranks x job time that was no useful computation, and why it was lost.

    `category` is a category of the partition, ``copies`` of devices, or ``outside``. Uninstrumented time
    is a loss only if some computation of the program is recorded. Values of `cause`:

    - ``finding``: the finding with the number `finding` in the report, from 0;
    - ``known``: the category says it all; of ``wait``, a rank that serves others waits until they ask;
    - ``bubble``: stages of a pipeline wait for each other as its schedule makes them;
    - ``jitter``: ranks wait now for one rank, now for another, as much for each, in many steps;
    - ``launching``: devices wait until the host queues work for them;
    - ``uncovered``: all ranks ran code that no span covers, and nothing more is known of it;
    - ``unexplained``: nothing that was recorded says why.
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

    def sum_share(self, cause: Cause) -> float:
        """Add up the losses of one cause."""
        return sum(loss.share for loss in self.losses if loss.cause == cause)

    @property
    def unexplained(self) -> float:
        """What no finding claims and no category explains."""
        return self.sum_share("unexplained")


@dataclass(frozen=True)
class Verdict:
    """What is to be said first, in four lines.

    `state` is ``fault`` if something is wrong with some rank, link, server, host, or in some steps;
    ``bottleneck`` if nothing is, and one named cause takes much of the time; ``healthy`` if nearly all
    of the time was useful; ``inconclusive`` if too much is not known (limits: docs/report.md).
    `headline` names it, `why` shows it in numbers, `action` is what to do next, `scope` what it is about
    and what is not known; `kind` is that of the finding that it rests on, null without one.
    """

    state: State
    headline: str
    why: str
    action: str
    scope: str
    kind: str | None = None
