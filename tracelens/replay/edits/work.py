"""Work of ranks in phases: as much as others, none, or times as much."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.accounting.categories import OWN_CATEGORIES
from tracelens.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Floats
    from tracelens.replay.edits.changed import Changed

__all__ = ["draw_like_others", "factor", "work"]


def factor(sign: str, number: str) -> float:
    """Return how many times as much is meant.

    Raises:
        InvalidArgument: none, or less.
    """
    value = float(number)
    if value <= 0:
        raise InvalidArgument(f"the factor is {number}, expected one above 0.")
    return value if sign == "*" else 1 / value


def work(changed: Changed, rank: str | None, phase: str | None, to: str) -> None:
    """Let a rank, or all, work for less in a phase, or in all."""
    model = changed.model
    if phase is not None and phase not in OWN_CATEGORIES:
        raise InvalidArgument(f"phase {phase} is none of {', '.join(OWN_CATEGORIES)}.")
    if rank is not None and int(rank) not in model.ranks:
        raise InvalidArgument(f"rank {rank} is none of {_shown(model.ranks)}.")
    if to == "=median" and len(model.ranks) < 2:
        raise InvalidArgument("the median of the others needs at least two ranks.")
    chosen = range(len(model.ranks)) if rank is None else [model.ranks.index(int(rank))]
    for name in OWN_CATEGORIES if phase is None else (phase,):
        worked = changed.worked((name,))
        if not worked.any():
            continue
        each = model.sum_by_step(worked)
        relieved_ns = np.zeros_like(each)
        for worker in chosen:
            target = _choose_target(each, worker, to, changed.balanced_ranks, model.ranks)
            relieved_ns[:, worker] = each[:, worker] - target
        changed.reduce_work((name,), relieved_ns)


def _shown(ranks: Sequence[int]) -> str:
    return f"{ranks[0]} to {ranks[-1]}"


def _choose_target(
    each: Floats, worker: int, to: str, balanced_ranks: frozenset[int], ranks: Sequence[int]
) -> Floats:
    """Return how long a worker is to be in a phase in each step, of [step, worker]."""
    if to == "=median":
        is_model = ~np.isin(ranks, [*balanced_ranks])
        is_model[worker] = False
        if not is_model.any():
            is_model = np.arange(len(ranks)) != worker
        return draw_like_others(each[:, is_model], worker)
    if to == "=0":
        return np.zeros(len(each))
    return np.asarray(each[:, worker] * factor(to[0], to[1:]))


def draw_like_others(others: Floats, seed: int) -> Floats:
    """Return what a rank like some others, [step, rank], would take: [step].

    That is their median in the step, and what one of them differed by from it in some step: else the
    rank would be the only one without noise, and the slowest of all be too quick.
    """
    random = np.random.default_rng(seed)
    usual = np.median(others, axis=1)
    rows = random.permutation(len(others))
    columns = random.integers(0, others.shape[1], len(others))
    return np.maximum(usual + others[rows, columns] - usual[rows], 0.0)
