"""Slow hosts: the ranks of a host judged as one, which tells more than each of them alone.

What a host's ranks have in common is its median rank: noise that every rank has for itself averages
out there, and one late rank does not make its host late. Hosts are judged against each other as ranks
are; a host is slow if nearly all of its ranks lose about as much as the median one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.analyses import _lateness
from tracelens.analyses._blocks import Noise, block_edges, block_levels
from tracelens.analyses._detector import paired_excess
from tracelens.analyses._over_phases import by_rank

if TYPE_CHECKING:
    from tracelens.analyses._late import Floats, Late
    from tracelens.analyses._own_time import OwnTime

__all__ = ["WHOLE_HOST", "explained", "find", "members"]

WHOLE_HOST: Final = 0.75  # of a host's ranks
FALSE_RATE: Final = 0.001  # the chance that any host is accused wrongly
_LATE: Final = 0.5  # of what a host's ranks usually lose: nearer to that than to nothing
_SAME: Final = 0.5  # overlap, of the shorter one, of two intervals
_ENOUGH: Final = 0.25  # of the run: so many steps outside say what is normal for a rank
_PASSING: Final = ("sparse", "rotating")
_FEWEST: Final = 3  # hosts: of two, nobody says which is normal


def members(hosts: tuple[str, ...]) -> dict[str, list[int]]:
    """Return the ranks (columns) of every host."""
    found: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        found.setdefault(host, []).append(rank)
    return found


def find(own: OwnTime) -> list[Late]:
    """Return every host that is late as a whole for a while, with its late ranks."""
    ranks = [*members(own.hosts).values()]
    usual = float(np.median([len(each) for each in ranks])) if ranks else 0.0
    alike = [each for each in ranks if len(each) >= max(usual, 2)]
    if len(alike) < _FEWEST:
        return []
    hosts = _as_ranks(own, alike)
    lasting = [late for late in _lateness.find(hosts) if late.pattern not in _PASSING]
    sure = [late for late in by_rank(lasting) if late.p * len(alike) <= FALSE_RATE]
    found = (_with_ranks(own, late, alike[late.ranks[0]]) for late in sure)
    return [late for late in found if late is not None]


def explained(late: Late, hosts: list[Late]) -> bool:
    """Say whether a rank is late because its host is: in a phase and in steps in which that is."""
    return any(
        set(late.ranks) <= set(host.ranks)
        and {late.phase, *late.also} & {host.phase, *host.also}
        and len(np.intersect1d(late.touched, host.touched))
        >= _SAME * min(len(late.touched), len(host.touched))
        for host in hosts
    )


def _as_ranks(own: OwnTime, ranks: list[list[int]]) -> OwnTime:
    """Present every host as one rank: its median one."""
    return replace(
        own,
        ranks=tuple(range(len(ranks))),
        hosts=tuple(own.hosts[each[0]] for each in ranks),
        own=np.stack([_middle(own.own[..., each]) for each in ranks], axis=-1),
        length=np.stack([_middle(own.length[:, each]) for each in ranks], axis=-1),
        wait=np.stack([own.wait[:, each].mean(axis=1) for each in ranks], axis=-1),
    )


def _middle(values: Floats) -> Floats:
    """Return the median rank's values; nan where no rank has one."""
    nobody = np.asarray(np.isnan(values).all(axis=-1))
    known = np.where(nobody[..., None], 0.0, values)
    return np.where(nobody, np.nan, np.nanmedian(known, axis=-1))


def _with_ranks(own: OwnTime, late: Late, ranks: list[int]) -> Late | None:
    """Say which ranks a host's lateness is one of, and what each loses; null if only of some."""
    levels, error = _levels(own, late, ranks)
    usual = float(np.sort(levels)[len(levels) // 2])
    slow = np.asarray(levels > max(_LATE * usual, 0.0))
    if slow.mean() < WHOLE_HOST:
        return None
    height = float(late.effect[late.touched].max(axis=1).mean()) / own.step_ns
    apart = levels[slow] - levels[slow].mean()
    true = 1 - error**2 / float(np.mean(apart**2)) if apart.any() else 0.0
    each = np.maximum(1 + max(true, 0.0) * apart / height, 0.0)
    effect = np.zeros(own.total.shape)
    named = [rank for rank, is_slow in zip(ranks, slow, strict=True) if is_slow]
    effect[:, named] = late.effect.max(axis=1)[:, None] * each
    return replace(late, ranks=tuple(named), effect=effect)


def _levels(own: OwnTime, late: Late, ranks: list[int]) -> tuple[Floats, float]:
    """Return what each rank loses in a host's late steps, as a share of the step, and its error."""
    rows = np.flatnonzero(own.settled)
    wanted = [own.phases.index(name) for name in {late.phase, *late.also}]
    values = paired_excess(own.own[wanted].sum(axis=0), own.step_ns)[rows][:, ranks]
    inside = (rows >= late.first) & (rows <= late.last)
    edges = block_edges(int(inside.sum()))
    blocks = block_levels(values[inside], edges)
    levels = blocks.mean(axis=0)
    if np.count_nonzero(~inside) >= _ENOUGH * len(rows):
        levels = levels - np.median(values[~inside], axis=0)
    return levels, float(np.sqrt(Noise.of(blocks).variance(len(blocks))))
