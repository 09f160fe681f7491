"""Work of ranks in phases: as much as others, none, or times as much."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.accounting.categories import OWN_CATEGORIES
from tracelens.errors import InvalidArgument

if TYPE_CHECKING:
    from tracelens.arrays import Floats
    from tracelens.replay.edits.variant import Variant

__all__ = ["change_work", "draw_like_others", "parse_factor"]


def parse_factor(sign: str, number: str) -> float:
    """Return the factor that a sign (* or /) and a number mean."""
    factor = float(number)
    if factor <= 0:
        raise InvalidArgument(f"the factor is {number}, expected one above 0.")
    return factor if sign == "*" else 1 / factor


def change_work(variant: Variant, rank: str | None, phase: str | None, target: str) -> None:
    """Let a rank (its number), or all, work for less in a phase, or in all; None = all.

    `target` is the edit's right side: ``=median`` of other ranks, ``=0``, or a factor such as ``*0.5``.
    """
    ranks = variant.graph.ranks
    if phase is not None and phase not in OWN_CATEGORIES:
        raise InvalidArgument(f"phase {phase} is none of {', '.join(OWN_CATEGORIES)}.")
    if rank is not None and int(rank) not in ranks:
        raise InvalidArgument(f"rank {rank} is none of {ranks[0]} to {ranks[-1]}.")
    if target == "=median" and len(ranks) < 2:
        raise InvalidArgument("the median of the others needs at least two ranks.")
    workers = range(len(ranks)) if rank is None else [ranks.index(int(rank))]
    for name in OWN_CATEGORIES if phase is None else (phase,):
        work_ns = variant.graph.sum_by_step_and_worker(variant.measure_work_ns((name,)))
        if not work_ns.any():
            continue
        relief_ns = np.zeros_like(work_ns)
        for worker in workers:
            relief_ns[:, worker] = work_ns[:, worker] - _find_work(variant, work_ns, worker, target)
        variant.reduce_work((name,), relief_ns)


def _find_work(variant: Variant, work_ns: Floats, worker: int, target: str) -> Floats:
    """Return the work that a worker is to do, ns, [step], by that of all, `work_ns`, [step, worker].

    `target` is ``=median`` of the ranks that are no balanced ones, ``=0``, or a factor of its work.
    """
    if target == "=median":
        ranks = variant.graph.ranks
        is_model = ~np.isin(ranks, [*variant.balanced_ranks])
        is_model[worker] = False
        if not is_model.any():
            is_model = np.arange(len(ranks)) != worker
        return draw_like_others(work_ns[:, is_model], worker)
    return np.asarray(
        work_ns[:, worker] * (0.0 if target == "=0" else parse_factor(target[0], target[1:]))
    )


def draw_like_others(values: Floats, seed: int) -> Floats:
    """Draw the values of one more rank, [step], like those of some ranks, [step, rank].

    That is their median in the step, and what one of them differed by from it in some step: else the
    rank would be the only one without noise, and the slowest of all be too quick.
    """
    random = np.random.default_rng(seed)
    medians = np.median(values, axis=1)
    drawn_steps = random.permutation(len(values))
    drawn_ranks = random.integers(0, values.shape[1], len(values))
    drawn_values = medians + values[drawn_steps, drawn_ranks] - medians[drawn_steps]
    return np.asarray(np.maximum(drawn_values, 0.0))
