"""Puts late ranks together: phases of a rank, ranks at the same time, a lateness that wanders."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.analyses._over_phases import same_rank

if TYPE_CHECKING:
    from tracelens.analyses._late import Late
    from tracelens.analyses._own_time import OwnTime

_SAME_TIME: Final = 0.6  # overlap of two intervals, of both together, that makes them one
_SHORT: Final = 0.25  # of the run: how long a wandering lateness stays on a rank
_MANY: Final = (3, 1 / 8)  # ranks that it visits: so many, and such a share of all


def put_together(own: OwnTime, found: list[Late]) -> list[Late]:
    """Return one entry for what is likely one cause."""
    merged = _by_rank(found)
    wandering = _wandering(own, merged)
    return [wandering] if wandering else _by_time(merged)


def _by_rank(found: list[Late]) -> list[Late]:
    """Join the phases in which a rank is late at the same time; the largest gives the name."""
    merged: list[Late] = []
    for late in sorted(found, key=lambda late: -float(late.effect.sum())):
        same = (i for i, main in enumerate(merged) if same_rank(main, late))
        index = next(same, None)
        if index is None:
            merged.append(late)
            continue
        main = merged[index]
        also = tuple(dict.fromkeys((*main.also, late.phase, *late.also)))
        merged[index] = replace(main, effect=main.effect + late.effect, also=also)
    return merged


def _by_time(found: list[Late]) -> list[Late]:
    """Join ranks that are late in the same phase and steps: only together is their mend felt."""
    groups: list[Late] = []
    for late in found:
        same = (
            i for i, group in enumerate(groups) if group.phase == late.phase and _alike(group, late)
        )
        index = next(same, None)
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
        also=tuple(dict.fromkeys((*group.also, *late.also))),
    )


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
