"""Which ranks are last in each step, in which phase they take longer, and what the job loses by it.

Where no finding says why ranks wait for each other, compute time still says for whom: in each step the
job lasts as long as its slowest rank. What that rank takes beyond the usual one is lost, however few
ranks wait meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting.phases import job_ns
from tracelens.model import fmt
from tracelens.stats.robust import lower_medians

if TYPE_CHECKING:
    from tracelens.facts import Facts

# share of what last ranks take longer: a rank with less is not named [policy]
MIN_SHARE_OF_DELAY_OF_RANK_NAMED: Final = 0.1


@dataclass(frozen=True)
class LastRanks:
    """What the job loses to ranks that others wait for, as a share of it.

    `where` names the phase in which they take longer, and, unless all do, the ranks; `why` holds numbers
    to it.
    """

    share: float
    where: str
    why: str


def find_last_ranks(facts: Facts, waits: float) -> LastRanks | None:
    """Return what is lost to ranks that are last in their steps; None where no rank waits for another.

    `waits` is for how long ranks wait for each other, as a share of ranks x job time. No more is lost
    than if one rank at a time had waited.
    """
    own = facts.compute_time.levelled
    spent = np.nan_to_num(own.own, nan=0.0)
    count = len(own.ranks)
    if not spent.size or count < 2 or not waits:
        return None
    total = spent.sum(axis=0)
    last, rows = total.argmax(axis=1), np.arange(len(total))
    lost = float((total.max(axis=1) - lower_medians(total)).sum()) / max(job_ns(facts.trace), 1)
    later = np.array([np.maximum(one[rows, last] - lower_medians(one), 0.0) for one in spent])
    if not later.any():
        return None
    by_phase, by_rank = later.sum(axis=1), np.bincount(last, later.sum(axis=0), minlength=count)
    named = np.flatnonzero(by_rank >= MIN_SHARE_OF_DELAY_OF_RANK_NAMED * by_rank.sum())
    counts = np.bincount(last, minlength=count)
    often = named[np.argsort(-counts[named], kind="stable")][: fmt.MOST_LISTED].tolist()
    phase = fmt.phase(own.phases[int(by_phase.argmax())])
    ranks = [own.ranks[column] for column in named.tolist()]
    most = f" (mostly {fmt.listing('rank', ranks)})" if 0 < len(ranks) < count else ""
    each = fmt.series(
        [f"rank {own.ranks[column]} in {counts[column]:,}" for column in often]
        or ["another rank each time"]
    )
    extra = fmt.duration(float(by_phase.max()) / len(total))
    return LastRanks(
        share=min(lost, waits * count),
        where=f"{phase}{most}",
        why=f"Last of {len(total):,} steps was {each}; {phase} took {extra} longer there than on "
        "the usual rank.",
    )
