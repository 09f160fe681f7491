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
    from tracelens.arrays import Flags, Floats, Ints
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
    """Return for whom all others wait most, and where it is later than its peers; may be empty."""
    rank, share = ledger.awaited_rank, ledger.awaited_share
    if rank is None or share is None:
        return ""
    how_much = "most of it" if share > MIN_SHARE_CALLED_MOST else fmt.percent(share)
    return f"{how_much} for rank {rank}{_describe_delay(facts, rank)}"


def _describe_delay(facts: Facts, rank: int) -> str:
    trace, phases, times = facts.trace, facts.phases, facts.compute_time.levelled
    column = times.ranks.index(rank)
    delays_ns = [
        np.nan_to_num(phase_ns[:, column] - medians(phase_ns, axis=1), nan=0.0)
        for phase_ns in times.own
    ]
    if not delays_ns:
        return ""
    positive_ns = [np.maximum(phase_ns, 0.0) for phase_ns in delays_ns]
    longest_phase = int(np.argmax([float(phase_ns.sum()) for phase_ns in positive_ns]))
    phase, delay_ns = times.phases[longest_phase], positive_ns[longest_phase]
    if delay_ns.sum() < len(times.steps):  # not a nanosecond per step
        return ", whose own time is no longer than that of the others"
    is_few = find_few_outlying_steps(delay_ns) & (
        delay_ns > delay_ns.max() / MAX_RATIO_OF_DELAYS_NAMED
    )
    if (
        not is_few.any()
        or delay_ns[is_few].sum() < MIN_SHARE_OF_DELAY_IN_FEW_STEPS * delay_ns.sum()
    ):
        per_step = fmt.duration(float(delay_ns.sum()) / len(times.steps))
        return f" ({fmt.phase(phase)}: {per_step} per step beyond the others)"
    steps, peers = times.steps[is_few], tuple(one for one in times.ranks if one != rank)
    words = [fmt.phase(phase)]
    if phase == CATEGORIES[UNINSTRUMENTED]:
        place = find_gap(phases, (rank,), peers, steps)
        words += [place.text] if place and place.share >= MIN_SHARE_OF_DELAY_AT_PLACE else []
    extra_ns = float(delay_ns[is_few].mean())
    culprit = sampled_code.find_in_ranks(
        trace, phases, (rank,), peers, phase, steps=steps, extra_ns=extra_ns
    )
    code = f", in {sampled_code.path_text(culprit.path)}" if culprit else ""
    return f" ({', '.join(words)}: {_describe_steps(delay_ns, is_few, times.steps)}{code})"


def _describe_steps(delay_ns: Floats, is_few: Flags, steps: Ints) -> str:
    """Return by how much it is later in which few steps."""
    duration, named_steps = fmt.duration(float(delay_ns[is_few].mean())), steps[is_few].tolist()
    each_of = "each of " if len(named_steps) > 1 else ""
    return f"{duration} beyond the others in {each_of}{fmt.listing('step', named_steps)}"
