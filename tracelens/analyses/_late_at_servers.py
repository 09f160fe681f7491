"""What a late worker costs where workers meet at parameter servers: the exchange is played without it.

Workers that come together stand in each other's way at the servers, and a late one has them for itself.
So mending it saves less than its own time, or more where the others' requests delay its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tracelens.analyses import shards

if TYPE_CHECKING:
    from tracelens.analyses._counterfactual import Price
    from tracelens.analyses._late import Late
    from tracelens.analyses._own_time import OwnTime
    from tracelens.trace import Trace

__all__ = ["played"]


def played(trace: Trace, own: OwnTime, worth: list[tuple[Late, Price]]) -> list[tuple[Late, Price]]:
    """Price late workers that others wait for by the exchange, where it can be played again."""
    if trace.shards.is_empty() or not any(cost.waiting for _, cost in worth):
        return worth
    rounds = shards.rounds(trace)
    if rounds is None or rounds.workers != len(own.ranks):
        return worth
    return [
        (late, _scaled(cost, rounds.relieved(own.steps, late.effect)) if cost.waiting else cost)
        for late, cost in worth
    ]


def _scaled(cost: Price, saving: float) -> Price:
    """Move a price to another saving, with its interval."""
    times = saving / cost.saving if cost.saving > 0 else 1.0
    low, high = (edge * times for edge in cost.interval)
    absorbed = min(max(1 - (1 - cost.absorbed) * times, 0.0), 1.0)
    return replace(cost, saving=cost.saving * times, interval=(low, high), absorbed=absorbed)
