"""For whom all others wait most if no finding says why, and where that rank is later than its peers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting import sampled_code
from tracelens.accounting.categories import CATEGORIES, UNINSTRUMENTED
from tracelens.accounting.jitter import find_few_outlying_steps
from tracelens.analyses.stragglers.location import find_gap
from tracelens.model import fmt
from tracelens.stats.robust import medians

if TYPE_CHECKING:
    from tracelens.arrays import Ints
    from tracelens.facts import Facts
    from tracelens.model.verdict import Ledger

MIN_SHARE_CALLED_MOST: Final = 0.5  # share of waits: more is called most of it [policy]
# times: a step whose delay is smaller than the largest one by more is not named [policy]
MAX_RATIO_OF_DELAYS_NAMED: Final = 16
# share of a delay: few steps that have less together are not named [policy]
MIN_SHARE_OF_DELAY_IN_FEW_STEPS: Final = 0.5
# share of a delay: if less is between the same neighbours, they are not named [policy]
MIN_SHARE_OF_DELAY_AT_PLACE: Final = 0.5


def describe_awaited_rank(facts: Facts, ledger: Ledger) -> str:
    """Describe for whom all others wait most, and where it is later than its peers; may be empty."""
    rank, share = ledger.awaited_rank, ledger.awaited_share
    if rank is None or share is None:
        return ""
    share_text = "most of it" if share > MIN_SHARE_CALLED_MOST else fmt.percent(share)
    return f"{share_text} for rank {rank}{_describe_delay(facts, rank)}"


def _describe_delay(facts: Facts, rank: int) -> str:
    """Describe in which phase, and in which steps if few, a rank takes longer than its peers.

    Delays are of a phase, beyond the median rank, ns, [step].
    """
    trace, phases, times = facts.trace, facts.phases, facts.compute_time.with_equal_stages
    column = times.ranks.index(rank)
    delays_ns = [
        np.maximum(np.nan_to_num(phase_ns[:, column] - medians(phase_ns, axis=1), nan=0.0), 0.0)
        for phase_ns in times.compute_ns
    ]
    if not delays_ns:
        return ""
    longest = int(np.argmax([float(phase_ns.sum()) for phase_ns in delays_ns]))
    phase, delay_ns = times.phase_names[longest], delays_ns[longest]
    if delay_ns.sum() < len(times.step_numbers):  # not a nanosecond per step
        return ", whose own time is no longer than that of the others"
    min_delay_ns = delay_ns.max() / MAX_RATIO_OF_DELAYS_NAMED
    is_few = find_few_outlying_steps(delay_ns) & (delay_ns > min_delay_ns)
    few_delays_ns = delay_ns[is_few]
    min_sum_ns = MIN_SHARE_OF_DELAY_IN_FEW_STEPS * delay_ns.sum()
    if not len(few_delays_ns) or few_delays_ns.sum() < min_sum_ns:
        per_step = fmt.duration(float(delay_ns.sum()) / len(times.step_numbers))
        return f" ({fmt.phase(phase)}: {per_step} per step beyond the others)"
    step_numbers, peers = (
        times.step_numbers[is_few],
        tuple(other for other in times.ranks if other != rank),
    )
    where = fmt.phase(phase)
    if phase == CATEGORIES[UNINSTRUMENTED]:
        gap = find_gap(phases, (rank,), peers, step_numbers)
        where += (
            f", {gap.location_text}" if gap and gap.share >= MIN_SHARE_OF_DELAY_AT_PLACE else ""
        )
    mean_ns = float(few_delays_ns.mean())
    culprit = sampled_code.find_in_ranks(
        trace, phases, (rank,), peers, phase, step_numbers=step_numbers, extra_ns=mean_ns
    )
    code = f", in {sampled_code.path_text(culprit.call_path)}" if culprit else ""
    return f" ({where}: {_describe_steps(mean_ns, step_numbers)}{code})"


def _describe_steps(mean_delay_ns: float, step_numbers: Ints) -> str:
    """Describe the mean delay in a few steps."""
    each_of = "each of " if len(step_numbers) > 1 else ""
    listed_steps = fmt.listing("step", step_numbers.tolist())
    return f"{fmt.duration(mean_delay_ns)} beyond the others in {each_of}{listed_steps}"
