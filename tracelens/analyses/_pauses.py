"""Pauses of many ranks at different times: each is short, yet in many steps somebody pauses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens import words
from tracelens.analyses._counterfactual import price
from tracelens.analyses.result import Finding

if TYPE_CHECKING:
    from tracelens.analyses._own_time import OwnTime

NOTICEABLE: Final = 0.03  # of the job,
LITTLE: Final = 0.005  # or so much, which others' noise may hide, if somebody pauses
OFTEN: Final = 0.5  # in so many of the steps,
LONG: Final = 0.1  # and for so much of one
MOST_OF_ONE: Final = 0.5  # of all pauses: beyond, that rank is a finding by itself


def findings(own: OwnTime, job_ns: int) -> list[Finding]:
    """Report garbage collection that the ranks do out of step."""
    if "gc" not in own.phases:
        return []
    paused = np.nan_to_num(own.own[own.phases.index("gc")], nan=0.0)
    by_rank = paused.sum(axis=0)
    cost = price(own.total, paused, own.wait, job_ns)
    hit = np.flatnonzero(paused.any(axis=1))
    length = float(paused[paused > 0].mean()) if hit.size else 0.0
    plain = len(hit) >= OFTEN * len(own.steps) and length >= LONG * own.step_ns
    least = LITTLE if plain else NOTICEABLE
    if by_rank.max() > MOST_OF_ONE * by_rank.sum() or cost.saving < least:
        return []
    ranks = tuple(rank for rank, ns in zip(own.ranks, by_rank, strict=True) if ns > 0)
    who = words.capital(words.listing("rank", ranks))
    sentence = (
        f"{who} collect garbage at different times: somebody pauses in {len(hit)} of "
        f"{len(own.steps)} steps, {words.duration(length)} at a time, and the others wait. Without, or "
        "with all pausing in the same few steps, the job would be up to "
        f"{words.percent(cost.saving)} shorter."
    )
    return [
        Finding(
            kind="gc_stall",
            category="fault",
            sentence=sentence,
            saving=cost.saving,
            interval=cost.interval,
            cost=cost.cost,
            ranks=ranks,
            phase="gc",
            pattern="rotating",
            steps=(int(own.steps[hit[0]]), int(own.steps[hit[-1]])),
            evidence={"pause_ns": round(length), "steps_paused": len(hit)},
        )
    ]
