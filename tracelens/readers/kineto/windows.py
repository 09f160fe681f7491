"""Finds by how many steps the profiles of ranks are apart that number the same steps differently.

A profiler counts steps from its own begin. Calls with a sequence number say which steps of two ranks are
the same; else exits of collectives do, which all ranks leave at nearly the same time: of the right
steps they differ by one offset of the clocks, of others also by what steps vary.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.arrays import Ints

__all__ = ["Shifts", "find_shifts"]

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
MIN_STEPS_IN_COMMON: Final = 3  # steps: exits of fewer do not scatter enough to tell [chosen]


@dataclass(frozen=True)
class Shifts:
    """Offsets to add to the step numbers of each rank, and the ranks with unknown offsets."""

    steps: Mapping[int, int]
    unknown: tuple[int, ...] = ()


def find_shifts(calls: pl.DataFrame) -> Shifts:
    """Return the step shifts of ranks, each compared with an earlier one that shares a group.

    Args:
        calls: With `rank`, `host`, `communicator`, `seq`, `step` and `end_ns`.
    """
    calls_of_rank = calls.filter(pl.col("step") >= 0).partition_by("rank", as_dict=True)
    ranks = sorted(rank for (rank,) in calls_of_rank)
    groups_of_rank = {rank: set(calls_of_rank[rank,]["communicator"].unique()) for rank in ranks}
    shifts, unknown_ranks = dict.fromkeys(ranks[:1], 0), []
    for index, rank in enumerate(ranks[1:], 1):
        peer = next((r for r in ranks[:index] if groups_of_rank[r] & groups_of_rank[rank]), None)
        shift = 0 if peer is None else _find_shift(calls_of_rank[peer,], calls_of_rank[rank,])
        unknown_ranks += [rank] if shift is None else []
        shifts[rank] = (shift or 0) + (0 if peer is None else shifts[peer])
    smallest_shift = min(shifts.values(), default=0)
    shifts = {rank: shift - smallest_shift for rank, shift in shifts.items()}
    return Shifts(shifts, tuple(unknown_ranks))


def _find_shift(peer_calls: pl.DataFrame, rank_calls: pl.DataFrame) -> int | None:
    """Return by how many steps a rank counts less than its peer; None if that is unknown."""
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
    one_clock = len(hosts) == 1 and hosts[0] is not None
    return _shift_by_exits(_find_exits(peer_calls), _find_exits(rank_calls), one_clock=one_clock)


def _find_exits(calls: pl.DataFrame) -> _Exits:
    """Return the steps of a rank, and when it left the last call of each."""
    last_calls = calls.group_by("step").agg(pl.col("end_ns").max()).sort("step")
    return _Exits(last_calls["step"].to_numpy(), last_calls["end_ns"].to_numpy())


def _shift_by_exits(peer_exits: _Exits, rank_exits: _Exits, *, one_clock: bool) -> int | None:
    """Return by how many steps two ranks are apart; None if neither clocks nor exits tell.

    At the right shift, exits of equal steps scatter little around one offset, which is near zero if
    both ranks read the same clock (`one_clock`).
    """
    lowest_shift = int(peer_exits.steps[0] - rank_exits.steps[-1])
    highest_shift = int(peer_exits.steps[-1] - rank_exits.steps[0])
    step_ns = float(np.median(np.diff(peer_exits.end_ns))) if len(peer_exits.end_ns) > 1 else 0.0
    near_ns = max(MAX_OFFSET_OF_SAME_STEP * step_ns, MAX_OFFSET_OF_CLOCKS_NS)
    unshifted = _compare_exits(peer_exits, rank_exits, 0)
    if unshifted and unshifted.offset_ns <= near_ns:
        return 0
    offset_by_shift = {
        shift: _compare_exits(peer_exits, rank_exits, shift)
        for shift in range(lowest_shift, highest_shift + 1)
    }
    offsets = {shift: offset for shift, offset in offset_by_shift.items() if offset}
    if not offsets:
        return 0
    near_shifts = [shift for shift, offset in offsets.items() if offset.offset_ns <= near_ns]
    possible_shifts = near_shifts if one_clock else list(offsets)
    scatter_ns = {shift: offsets[shift].scatter_ns for shift in possible_shifts}
    max_scatter_ns = MIN_RATIO_OF_SCATTER * min(scatter_ns.values(), default=0.0)
    regular_shifts = [shift for shift in possible_shifts if scatter_ns[shift] <= max_scatter_ns]
    nearest = [shift for shift in regular_shifts if shift in near_shifts]
    return next((shifts[0] for shifts in (regular_shifts, nearest) if len(shifts) == 1), None)


class _Exits(NamedTuple):
    """The steps of a rank, ascending, and when it left the last call of each."""

    steps: Ints
    end_ns: Ints


class _Offset(NamedTuple):
    """How far exits of two ranks are apart in the same steps, and by how much that varies."""

    offset_ns: float
    scatter_ns: float


def _compare_exits(peer_exits: _Exits, rank_exits: _Exits, shift: int) -> _Offset | None:
    """Compare exits if the steps of a rank are shifted; None if too few steps are then in common."""
    rank_steps = rank_exits.steps + shift
    _, rank_rows, peer_rows = np.intersect1d(rank_steps, peer_exits.steps, return_indices=True)
    step_count = min(len(peer_exits.steps), len(rank_exits.steps))
    if len(rank_rows) < max(MIN_STEPS_IN_COMMON, MIN_SHARE_OF_STEPS_IN_COMMON * step_count):
        return None
    delays_ns = rank_exits.end_ns[rank_rows] - peer_exits.end_ns[peer_rows]
    offset_ns = float(np.median(delays_ns))
    return _Offset(abs(offset_ns), float(np.median(np.abs(delays_ns - offset_ns))))
