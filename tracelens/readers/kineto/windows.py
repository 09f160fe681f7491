"""Finds by how many steps the profiles of ranks are apart that number the same steps differently.

A profiler counts steps from its own begin. Calls with a sequence number say which steps of two ranks are
the same; else exits of collectives do, which all ranks leave at nearly the same time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens.arrays import Ints

# share of a step: exits that are closer at equal numbers are of the same step [chosen]
MAX_OFFSET_OF_SAME_STEP: Final = 0.5
# ns: clocks of profiles differ by as much, also on one host, whatever a step takes [chosen]
MAX_OFFSET_OF_CLOCKS_NS: Final = 5_000_000
# ratio: the steps of two ranks belong together if exits scatter less by as much than otherwise [chosen]
MIN_RATIO_OF_SCATTER: Final = 2.0
# share of the steps of a rank: two profiles overlap in as many [chosen]
MIN_SHARE_OF_STEPS_IN_COMMON: Final = 0.5
# share of matched calls: as many agree by how many steps two ranks are apart [chosen]
MIN_SHARE_OF_CALLS_THAT_AGREE: Final = 0.5
# pairs: if steps of two ranks that have gaps make more, no shift is searched for [policy]
MAX_PAIRS_OF_STEPS: Final = 1 << 22
MIN_STEPS_IN_COMMON: Final = 3  # steps: exits of fewer do not scatter enough to tell [chosen]


@dataclass(frozen=True)
class Shifts:
    """How the step numbers of ranks are made the same."""

    step_shift_by_rank: Mapping[int, int]  # steps to add to the numbers of a rank
    unknown_ranks: tuple[int, ...] = ()  # those whose shift is not known


def find_shifts(calls: pl.DataFrame) -> Shifts:
    """Return the step shifts of ranks, each compared with an earlier one that shares a group.

    The smallest shift is 0. A rank without such a peer, or whose shift is not known, is not shifted.

    Args:
        calls: With `rank`, `host`, `communicator`, `seq`, `step` (-1 outside steps) and `end_ns`.
    """
    calls_by_rank = calls.filter(pl.col("step") >= 0).partition_by("rank", as_dict=True)
    ranks = sorted(rank for (rank,) in calls_by_rank)
    groups_by_rank = {rank: set(calls_by_rank[rank,]["communicator"].unique()) for rank in ranks}
    shift_by_rank, unknown_ranks = dict.fromkeys(ranks[:1], 0), []
    for index, rank in enumerate(ranks[1:], 1):
        peer = next((r for r in ranks[:index] if groups_by_rank[r] & groups_by_rank[rank]), None)
        shift = 0 if peer is None else _find_shift(calls_by_rank[peer,], calls_by_rank[rank,])
        unknown_ranks += [rank] if shift is None else []
        shift_by_rank[rank] = (shift or 0) + (0 if peer is None else shift_by_rank[peer])
    smallest_shift = min(shift_by_rank.values(), default=0)
    shift_by_rank = {rank: shift - smallest_shift for rank, shift in shift_by_rank.items()}
    return Shifts(shift_by_rank, tuple(unknown_ranks))


def _find_shift(peer_calls: pl.DataFrame, rank_calls: pl.DataFrame) -> int | None:
    """Return by how many steps a rank counts less than its peer; None if that is unknown.

    Only calls of groups that both are in tell it: those with equal numbers, else when steps end.
    `peer_calls` and `rank_calls` have one row per collective.
    """
    group = pl.col("communicator")
    peer_calls, rank_calls = (
        own_calls.filter(group.is_in(other_calls["communicator"].unique().implode()))
        for own_calls, other_calls in ((peer_calls, rank_calls), (rank_calls, peer_calls))
    )
    key = ["communicator", "seq"]
    matched = rank_calls.join(peer_calls, on=key, suffix="_of_peer").unique(key)
    if matched.height:
        shift_votes = Counter(matched["step_of_peer"] - matched["step"])
        shift, count = shift_votes.most_common(1)[0]
        return shift if count >= MIN_SHARE_OF_CALLS_THAT_AGREE * matched.height else None
    hosts = pl.concat([peer_calls["host"], rank_calls["host"]]).unique()
    is_one_host = len(hosts) == 1 and hosts[0] is not None
    return _find_shift_by_exits(
        _find_exits(peer_calls), _find_exits(rank_calls), have_one_clock=is_one_host
    )


def _find_exits(calls: pl.DataFrame) -> _Exits:
    """Return the steps of a rank, and when it left the last call of each."""
    last_calls = calls.group_by("step").agg(pl.col("end_ns").max()).sort("step")
    return _Exits(last_calls["step"].to_numpy(), last_calls["end_ns"].to_numpy())


def _find_shift_by_exits(
    peer_exits: _Exits, rank_exits: _Exits, *, have_one_clock: bool
) -> int | None:
    """Return the number of steps to add to those of a rank; None if neither clocks nor exits show it.

    At the right shift, exits of equal steps scatter little around one distance, which is near zero if
    both ranks read the same clock (`have_one_clock`). 0 if no shift is needed, or too
    few steps are in common at any.
    """
    step_ns = float(np.median(np.diff(peer_exits.exit_ns))) if len(peer_exits.exit_ns) > 1 else 0.0
    max_near_ns = max(MAX_OFFSET_OF_SAME_STEP * step_ns, MAX_OFFSET_OF_CLOCKS_NS)
    unshifted = _compare_exits(peer_exits, rank_exits, shift=0)
    if unshifted and unshifted.distance_ns <= max_near_ns:
        return 0
    comparison_by_shift = {
        shift: comparison
        for shift in _list_possible_shifts(peer_exits.steps, rank_exits.steps)
        if (comparison := _compare_exits(peer_exits, rank_exits, shift))
    }
    if not comparison_by_shift:
        return 0
    near_shifts = [s for s, c in comparison_by_shift.items() if c.distance_ns <= max_near_ns]
    possible_shifts = near_shifts if have_one_clock else list(comparison_by_shift)
    scatter_by_shift_ns = {
        shift: comparison_by_shift[shift].scatter_ns for shift in possible_shifts
    }
    max_scatter_ns = MIN_RATIO_OF_SCATTER * min(scatter_by_shift_ns.values(), default=0.0)
    regular_shifts = [s for s in possible_shifts if scatter_by_shift_ns[s] <= max_scatter_ns]
    near_regular_shifts = [shift for shift in regular_shifts if shift in near_shifts]
    candidates = (regular_shifts, near_regular_shifts)
    return next((shifts[0] for shifts in candidates if len(shifts) == 1), None)


def _list_possible_shifts(peer_steps: Ints, rank_steps: Ints) -> Sequence[int]:
    """Return the shifts at which enough steps of two ranks may be equal; numbers of steps ascend."""
    lowest_shift = int(peer_steps[0] - rank_steps[-1])
    highest_shift = int(peer_steps[-1] - rank_steps[0])
    if highest_shift - lowest_shift <= 2 * (len(peer_steps) + len(rank_steps)):
        return range(lowest_shift, highest_shift + 1)
    # Most numbers in between are no steps.
    if len(peer_steps) * len(rank_steps) > MAX_PAIRS_OF_STEPS:
        return ()
    shifts, counts = np.unique(np.subtract.outer(peer_steps, rank_steps), return_counts=True)
    return [int(shift) for shift in shifts[counts >= _count_needed_steps(peer_steps, rank_steps)]]


def _count_needed_steps(peer_steps: Ints, rank_steps: Ints) -> float:
    """Return the number of steps that two ranks must have in common."""
    step_count = min(len(peer_steps), len(rank_steps))
    return max(MIN_STEPS_IN_COMMON, MIN_SHARE_OF_STEPS_IN_COMMON * step_count)


class _Exits(NamedTuple):
    """The steps of a rank, ascending, and when it left the last call of each."""

    steps: Ints
    exit_ns: Ints


class _Comparison(NamedTuple):
    """How far exits of two ranks are apart in the same steps, and by how much that varies."""

    distance_ns: float
    scatter_ns: float


def _compare_exits(peer_exits: _Exits, rank_exits: _Exits, shift: int) -> _Comparison | None:
    """Compare exits if `shift` is added to the steps of a rank; None if then too few are in common."""
    rank_steps = rank_exits.steps + shift
    _, rank_rows, peer_rows = np.intersect1d(rank_steps, peer_exits.steps, return_indices=True)
    if len(rank_rows) < _count_needed_steps(peer_exits.steps, rank_steps):
        return None
    delays_ns = rank_exits.exit_ns[rank_rows] - peer_exits.exit_ns[peer_rows]  # [common step]
    median_ns = float(np.median(delays_ns))
    scatter_ns = float(np.median(np.abs(delays_ns - median_ns)))
    return _Comparison(distance_ns=abs(median_ns), scatter_ns=scatter_ns)
