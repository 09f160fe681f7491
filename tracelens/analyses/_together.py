"""Puts late ranks together: phases of a rank, a host's ranks, ranks at the same time, what wanders."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.analyses import _hosts
from tracelens.analyses._over_phases import by_rank

if TYPE_CHECKING:
    from tracelens.analyses._late import Late
    from tracelens.analyses._own_time import OwnTime

_SAME_TIME: Final = 0.6  # overlap of two intervals, of both together, that makes them one
_SHORT: Final = 0.25  # of the run: how long a wandering lateness stays on a rank
_MANY: Final = (3, 1 / 8)  # ranks that it visits: so many, and such a share of all


def put_together(own: OwnTime, found: list[Late]) -> list[Late]:
    """Return one entry for what is likely one cause."""
    merged = by_rank(found)
    wandering = _wandering(own, merged)
    if wandering:
        return [wandering]
    hosts = _hosts.find(own)
    return _by_time([*hosts, *(late for late in merged if not _hosts.explained(late, hosts))])


def _by_time(found: list[Late]) -> list[Late]:
    """Join ranks that are late in a common phase and the same steps: only together is it felt."""
    groups: list[Late] = []
    for late in found:
        index = next((i for i, group in enumerate(groups) if _one_cause(group, late)), None)
        if index is None:
            groups.append(late)
        else:
            groups[index] = _joined(groups[index], late)
    return groups


def _joined(group: Late, late: Late) -> Late:
    return replace(
        group,
        ranks=tuple(sorted({*group.ranks, *late.ranks})),
        first=min(group.first, late.first),
        last=max(group.last, late.last),
        effect=group.effect + late.effect,
        p=max(group.p, late.p),
        unsure=max(group.unsure, late.unsure),
        also=tuple(
            name
            for name in dict.fromkeys((*group.also, late.phase, *late.also))
            if name != group.phase
        ),
    )


def _one_cause(one: Late, other: Late) -> bool:
    """Say whether two share a phase and their steps; which phase grew most is often chance."""
    common = {one.phase, *one.also} & {other.phase, *other.also}
    return bool(common) and _alike(one, other)


def _alike(one: Late, other: Late) -> bool:
    both = len(np.intersect1d(one.touched, other.touched))
    return both >= _SAME_TIME * len(np.union1d(one.touched, other.touched))


def _wandering(own: OwnTime, found: list[Late]) -> Late | None:
    """Return one entry for a lateness that wanders from rank to rank, if it does."""
    short = _SHORT * np.count_nonzero(own.settled)
    least, share = _MANY
    phases = {late.phase for late in found}
    many = len({late.ranks[0] for late in found}) >= max(least, share * len(own.ranks))
    brief = all(
        late.pattern == "transient" and late.last - late.first + 1 < short for late in found
    )
    apart = not any(_alike(one, two) for i, one in enumerate(found) for two in found[:i])
    if not (many and brief and apart and len(phases) == 1):
        return None
    whole = found[0]
    for late in found[1:]:
        whole = _joined(whole, late)
    return replace(whole, pattern="rotating")
