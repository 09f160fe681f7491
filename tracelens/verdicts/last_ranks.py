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
    """Measure the loss to ranks that are last in their steps; None where no rank waits for another.

    `waits` is for how long ranks wait for each other, as a share of ranks x job time. No more is lost
    than if one rank at a time had waited.
    """
    times = facts.compute_time.levelled
    spent_ns = np.nan_to_num(times.own, nan=0.0)
    count = len(times.ranks)
    if not spent_ns.size or count < 2 or not waits:
        return None
    total_ns = spent_ns.sum(axis=0)
    last_rank, rows = total_ns.argmax(axis=1), np.arange(len(total_ns))
    lost_share = float((total_ns.max(axis=1) - lower_medians(total_ns)).sum()) / max(
        job_ns(facts.trace), 1
    )
    delay_ns = np.array(
        [
            np.maximum(phase_ns[rows, last_rank] - lower_medians(phase_ns), 0.0)
            for phase_ns in spent_ns
        ]
    )
    if not delay_ns.any():
        return None
    by_phase, by_rank = (
        delay_ns.sum(axis=1),
        np.bincount(last_rank, delay_ns.sum(axis=0), minlength=count),
    )
    named_ranks = np.flatnonzero(by_rank >= MIN_SHARE_OF_DELAY_OF_RANK_NAMED * by_rank.sum())
    counts = np.bincount(last_rank, minlength=count)
    frequent_ranks = named_ranks[np.argsort(-counts[named_ranks], kind="stable")][
        : fmt.MOST_LISTED
    ].tolist()
    phase = fmt.phase(times.phases[int(by_phase.argmax())])
    ranks = [times.ranks[column] for column in named_ranks.tolist()]
    mostly = f" (mostly {fmt.listing('rank', ranks)})" if 0 < len(ranks) < count else ""
    rank_counts = fmt.series(
        [f"rank {times.ranks[column]} in {counts[column]:,}" for column in frequent_ranks]
        or ["another rank each time"]
    )
    extra = fmt.duration(float(by_phase.max()) / len(total_ns))
    return LastRanks(
        share=min(lost_share, waits * count),
        where=f"{phase}{mostly}",
        why=f"Last of {len(total_ns):,} steps was {rank_counts}; {phase} took {extra} longer there than "
        "on the usual rank.",
    )
