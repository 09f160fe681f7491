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
    most = "most of it" if share > MIN_SHARE_CALLED_MOST else fmt.percent(share)
    return f"{most} for rank {rank}{_describe_delay(facts, rank)}"


def _describe_delay(facts: Facts, rank: int) -> str:
    trace, phases, own = facts.trace, facts.phases, facts.compute_time.levelled
    column = own.ranks.index(rank)
    beyond = [np.nan_to_num(by[:, column] - medians(by, axis=1), nan=0.0) for by in own.own]
    if not beyond:
        return ""
    longer = [np.maximum(by, 0.0) for by in beyond]
    most = int(np.argmax([float(by.sum()) for by in longer]))
    phase, extra = own.phases[most], longer[most]
    if extra.sum() < len(own.steps):  # not a nanosecond per step
        return ", whose own time is no longer than that of the others"
    few = find_few_outlying_steps(extra) & (extra > extra.max() / MAX_RATIO_OF_DELAYS_NAMED)
    if not few.any() or extra[few].sum() < MIN_SHARE_OF_DELAY_IN_FEW_STEPS * extra.sum():
        per_step = fmt.duration(float(extra.sum()) / len(own.steps))
        return f" ({fmt.phase(phase)}: {per_step} per step beyond the others)"
    steps, peers = own.steps[few], tuple(one for one in own.ranks if one != rank)
    parts = [fmt.phase(phase)]
    if phase == CATEGORIES[UNINSTRUMENTED]:
        place = find_gap(phases, (rank,), peers, steps)
        parts += [place.text] if place and place.share >= MIN_SHARE_OF_DELAY_AT_PLACE else []
    usual = float(extra[few].mean())
    seen = sampled_code.find_in_ranks(
        trace, phases, (rank,), peers, phase, steps=steps, extra_ns=usual
    )
    code = f", in {sampled_code.path_text(seen.path)}" if seen else ""
    return f" ({', '.join(parts)}: {_describe_steps(extra, few, own.steps)}{code})"


def _describe_steps(extra: Floats, few: Flags, steps: Ints) -> str:
    """Return by how much it is later in which few steps."""
    lasted, named = fmt.duration(float(extra[few].mean())), steps[few].tolist()
    each = "each of " if len(named) > 1 else ""
    return f"{lasted} beyond the others in {each}{fmt.listing('step', named)}"
