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

    lost_share: float
    where: str
    why: str


def find_last_ranks(facts: Facts, waits_share: float) -> LastRanks | None:
    """Measure the loss to ranks that are last in their steps; None where no rank waits for another.

    `waits_share` is what ranks wait for each other, as a share of ranks x job time. No more is lost than
    if one rank at a time had waited.
    """
    times = facts.compute_time.with_equal_stages
    spent_ns = np.nan_to_num(times.compute_ns, nan=0.0)  # [phase, step, rank]
    rank_count = len(times.ranks)
    if not spent_ns.size or rank_count < 2 or not waits_share:
        return None
    total_ns = spent_ns.sum(axis=0)  # [step, rank]
    step_count, last_column = len(total_ns), total_ns.argmax(axis=1)
    lost_ns = float((total_ns.max(axis=1) - lower_medians(total_ns)).sum())
    delays_ns = [
        phase_ns[np.arange(step_count), last_column] - lower_medians(phase_ns)
        for phase_ns in spent_ns
    ]
    delay_ns = np.maximum(np.array(delays_ns), 0.0)  # of the last rank, [phase, step]
    if not delay_ns.any():
        return None
    phase_delays_ns = delay_ns.sum(axis=1)
    rank_delays_ns = np.bincount(last_column, delay_ns.sum(axis=0), minlength=rank_count)
    min_delay_ns = MIN_SHARE_OF_DELAY_OF_RANK_NAMED * rank_delays_ns.sum()
    columns = np.flatnonzero(rank_delays_ns >= min_delay_ns)
    ranks = [times.ranks[column] for column in columns.tolist()]
    times_last = np.bincount(last_column, minlength=rank_count)
    most_often = columns[np.argsort(-times_last[columns], kind="stable")][: fmt.MOST_LISTED]
    rank_texts = [f"rank {times.ranks[i]} in {times_last[i]:,}" for i in most_often.tolist()]
    last_text = fmt.join_words(rank_texts or ["another rank each time"])
    phase = fmt.phase(times.phase_names[int(phase_delays_ns.argmax())])
    mostly = f" (mostly {fmt.listing('rank', ranks)})" if 0 < len(ranks) < rank_count else ""
    extra = fmt.duration(float(phase_delays_ns.max()) / step_count)
    return LastRanks(
        lost_share=min(lost_ns / max(job_ns(facts.trace), 1), waits_share * rank_count),
        where=f"{phase}{mostly}",
        why=f"Last of {step_count:,} steps was {last_text}; {phase} took {extra} longer there than "
        "on the usual rank.",
    )
