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
    """Compare each rank with an earlier one that it shares a group with.

    Args:
        calls: With `rank`, `host`, `communicator`, `seq`, `step` and `end_ns`.
    """
    calls_of_rank = calls.filter(pl.col("step") >= 0).partition_by("rank", as_dict=True)
    ranks = sorted(rank for (rank,) in calls_of_rank)
    groups = {rank: set(calls_of_rank[rank,]["communicator"].unique()) for rank in ranks}
    shifts, unknown_ranks = dict.fromkeys(ranks[:1], 0), []
    for number, rank in enumerate(ranks[1:], 1):
        peer = next((one for one in ranks[:number] if groups[one] & groups[rank]), None)
        shift = 0 if peer is None else _shift(calls_of_rank[peer,], calls_of_rank[rank,])
        unknown_ranks += [rank] if shift is None else []
        shifts[rank] = (shift or 0) + (0 if peer is None else shifts[peer])
    smallest_shift = min(shifts.values(), default=0)
    return Shifts(
        {rank: shift - smallest_shift for rank, shift in shifts.items()}, tuple(unknown_ranks)
    )


def _shift(peer_calls: pl.DataFrame, rank_calls: pl.DataFrame) -> int | None:
    """Return by how many steps a rank counts less than its peer; None if that is unknown."""
    group = pl.col("communicator")
    peer_calls, rank_calls = (
        some.filter(group.is_in(others["communicator"].unique().implode()))
        for some, others in ((peer_calls, rank_calls), (rank_calls, peer_calls))
    )
    key = ["communicator", "seq"]
    matched = rank_calls.join(peer_calls, on=key, suffix="_of_peer").unique(key)
    if matched.height:
        apart = Counter(matched["step_of_peer"] - matched["step"])
        shift, count = apart.most_common(1)[0]
        return shift if count >= MIN_SHARE_OF_CALLS_THAT_AGREE * matched.height else None
    hosts = pl.concat([peer_calls["host"], rank_calls["host"]]).unique()
    return _shift_by_exits(
        _exits(peer_calls), _exits(rank_calls), one_clock=len(hosts) == 1 and hosts[0] is not None
    )


def _exits(calls: pl.DataFrame) -> tuple[Ints, Ints]:
    """Return the steps of a rank, and when it left the last call of each."""
    last = calls.group_by("step").agg(pl.col("end_ns").max()).sort("step")
    return last["step"].to_numpy(), last["end_ns"].to_numpy()


def _shift_by_exits(
    peer_exits: tuple[Ints, Ints], rank_exits: tuple[Ints, Ints], *, one_clock: bool
) -> int | None:
    """Return by how many steps two ranks are apart; null if neither clocks nor exits tell.

    `one_clock`: both ranks read the same clock, which then decides.
    """
    lowest_shift, highest_shift = (
        int(peer_exits[0][0] - rank_exits[0][-1]),
        int(peer_exits[0][-1] - rank_exits[0][0]),
    )
    step_ns = float(np.median(np.diff(peer_exits[1]))) if len(peer_exits[1]) > 1 else 0.0
    near_ns = max(MAX_OFFSET_OF_SAME_STEP * step_ns, MAX_OFFSET_OF_CLOCKS_NS)
    unmoved = _compare_exits(peer_exits, rank_exits, 0)
    if unmoved and unmoved.offset_ns <= near_ns:
        return 0
    exits_by_shift = {
        shift: _compare_exits(peer_exits, rank_exits, shift)
        for shift in range(lowest_shift, highest_shift + 1)
    }
    comparable = {shift: exits for shift, exits in exits_by_shift.items() if exits}
    if not comparable:
        return 0
    near = [shift for shift, exits in comparable.items() if exits.offset_ns <= near_ns]
    possible = near if one_clock else list(comparable)
    most_ns = MIN_RATIO_OF_SCATTER * min(
        (comparable[exits].scatter_ns for exits in possible), default=0.0
    )
    alike = [shift for shift in possible if comparable[shift].scatter_ns <= most_ns]
    nearest = [shift for shift in alike if shift in near]
    return next((some[0] for some in (alike, nearest) if len(some) == 1), None)


class _Exits(NamedTuple):
    """How far exits of two ranks are apart in the same steps, and by how much that varies."""

    offset_ns: float
    scatter_ns: float


def _compare_exits(
    peer_exits: tuple[Ints, Ints], rank_exits: tuple[Ints, Ints], shift: int
) -> _Exits | None:
    """Compare exits if the steps of a rank are moved; null where too few are then in common."""
    _, rows, peer_rows = np.intersect1d(rank_exits[0] + shift, peer_exits[0], return_indices=True)
    fewer = min(len(peer_exits[0]), len(rank_exits[0]))
    if len(rows) < max(MIN_STEPS_IN_COMMON, MIN_SHARE_OF_STEPS_IN_COMMON * fewer):
        return None
    apart = rank_exits[1][rows] - peer_exits[1][peer_rows]
    middle = float(np.median(apart))
    return _Exits(abs(middle), float(np.median(np.abs(apart - middle))))
