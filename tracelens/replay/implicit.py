"""Find collectives that no span shows, by how stretches of the training threads begin and end.

Ranks that begin a stretch of code at different times and end it together, step after step, wait for each
other in it. A barrier or an all-reduce was not recorded, such as that of a gradient's norm. The replay
treats such a stretch like a recorded collective. Otherwise it would keep these waits as work.

A stretch is a span of own work, or the time without a span before a span. If a recorded message or
collective of its rank ends at about the same time, that may be what ends it. Then it is not examined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.categories import CATEGORIES, OWN_CATEGORIES, UNINSTRUMENTED
from tracelens.model.columns import FOREVER
from tracelens.replay.calls import IMPLICIT, Calls
from tracelens.replay.threads import rows_by_worker
from tracelens.schema.vocabulary import COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracelens.accounting.pieces import WorkerPieces
    from tracelens.arrays import Flags, Ints
    from tracelens.replay.threads import Sides

__all__ = ["find_implicit_calls"]

# share of all workers' time: a stretch that takes less is not examined [policy]
MIN_SHARE_OF_TIME_TO_EXAMINE: Final = 0.002
# of a step: begins that are closer together tell nothing [chosen]
MIN_SPREAD_OF_BEGINS: Final = 0.01
# ratio: ranks wait if ends are spread this much of begins, in the median step; 0.0003 to 0.1 in two
# production jobs [chosen]
MAX_RATIO_OF_SPREADS_IF_WAITING: Final = 0.25
# share of steps: ends are less spread than begins in as many if ranks wait [chosen]
MIN_SHARE_OF_STEPS_IF_WAITING: Final = 0.8
MIN_STEPS_WITH_SPREAD: Final = 8  # steps: fewer steps with spread begins tell nothing [chosen]
# share of a stretch: communication that ends within it ends at about the same time [chosen]
MARGIN_OF_SAME_END: Final = 0.05
# times the uncertainty of clocks: begins that are closer together tell nothing [chosen]
CLOCK_UNCERTAINTIES_BETWEEN_BEGINS: Final = 3.0
_BARRIER: Final = COLLECTIVES.index("barrier")
_IS_OWN: Final = np.isin(CATEGORIES, OWN_CATEGORIES)
_NOT_OWN: Final = -1  # code: the category of a span of communication [definition]
_COLUMNS: Final = ("step", "place", "occurrence", "occurrences", "begin", "end", "worker")
_KEY: Final = (
    "place",
    "occurrence",
    "occurrences",
)  # a place is a span's name, or the gap before it


def find_implicit_calls(
    pieces: Sequence[WorkerPieces],
    step_numbers: Sequence[Ints],
    communication: Sequence[Sides],
    groups: Sequence[tuple[int, ...]],
    uncertainty_ns: int,
) -> Iterator[Calls]:
    """Yield the collectives that stretches of the training threads imply.

    Args:
        pieces: The partition of each worker's time.
        step_numbers: The number of each step window, by worker.
        communication: Recorded messages, collectives and requests.
        groups: Places of workers that may meet: those of each communicator, and all.
        uncertainty_ns: How far apart the clocks of two workers may be.
    """
    stretches = _collect_stretches(pieces, step_numbers, communication)
    step_ns = [
        np.ptp(one.bounds) / len(steps) for one, steps in zip(pieces, step_numbers, strict=True)
    ]
    min_spread_ns = max(
        MIN_SPREAD_OF_BEGINS * float(np.median(step_ns)),
        CLOCK_UNCERTAINTIES_BETWEEN_BEGINS * uncertainty_ns,
    )
    largest_first = sorted(set(groups), key=lambda group: (-len(group), group))
    for stretch in stretches.partition_by(_KEY, maintain_order=True):
        free = set(stretch["worker"].unique().to_list())
        for group in largest_first:
            if free.issuperset(group) and (calls := _infer_calls(stretch, group, min_spread_ns)):
                free -= set(group)
                yield calls


def _collect_stretches(
    pieces: Sequence[WorkerPieces], step_numbers: Sequence[Ints], communication: Sequence[Sides]
) -> pl.DataFrame:
    """Return those stretches that take long enough in all: a row per stretch, worker and step."""
    sides = [rows_by_worker(side.worker, len(pieces)) for side in communication]
    parts = []
    for worker, (one, steps) in enumerate(zip(pieces, step_numbers, strict=True)):
        stretches = _list_stretches(one, steps)
        of_worker = [
            side.taken(rows[worker]) for side, rows in zip(communication, sides, strict=True)
        ]
        is_alone = ~_may_end_by_communication(stretches[-2], stretches[-1], of_worker)
        rows = [column[is_alone] for column in stretches]
        parts.append([*rows, np.full(len(rows[0]), worker)])
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    alone = pl.DataFrame(dict(zip(_COLUMNS, columns, strict=True)))
    total_ns = sum(int(np.ptp(one.bounds)) for one in pieces)
    min_ns = MIN_SHARE_OF_TIME_TO_EXAMINE * total_ns
    totals = alone.group_by(_KEY).agg((pl.col("end") - pl.col("begin")).sum().alias("ns"))
    return alone.join(totals.filter(pl.col("ns") >= min_ns), on=_KEY, maintain_order="left")


def _list_stretches(pieces: WorkerPieces, step_numbers: Ints) -> tuple[Ints, ...]:
    """Return a worker's spans of own work, and its gaps before spans: step, `_KEY`, begin and end."""
    begin, end, name = pieces.bounds[:-1], pieces.bounds[1:], pieces.name.astype(np.int64)
    step = step_numbers[pieces.step]
    is_own = _IS_OWN[pieces.category]
    category = np.where(is_own, pieces.category, _NOT_OWN)
    spans = np.flatnonzero(pieces.category != UNINSTRUMENTED)
    before, after = spans[:-1], spans[1:]
    # A span of communication may be several pieces: waiting, then transfer.
    is_same_span = ~is_own[after] & (name[before] == name[after]) & (end[before] == begin[after])
    follows = (step[before] == step[after]) & ~is_same_span
    before, after, work = before[follows], after[follows], spans[is_own[spans]]
    rows = np.concatenate([after, work])
    is_gap = np.arange(len(rows)) < len(after)
    place = (name[rows] * len(CATEGORIES) + category[rows] - _NOT_OWN) * 2 + is_gap
    occurrence, occurrences = _count_occurrences(step[rows], place)
    begins = np.concatenate([end[before], begin[work]])
    return (
        step[rows],
        place,
        occurrence,
        occurrences,
        begins,
        np.concatenate([begin[after], end[work]]),
    )


def _count_occurrences(step: Ints, place: Ints) -> tuple[Ints, Ints]:
    """Return of each row how many of its place came before it in its step, and how many there are."""
    order = np.lexsort((place, step))
    is_first = np.append(True, (np.diff(step[order]) != 0) | (np.diff(place[order]) != 0))
    heads = np.flatnonzero(is_first[: len(order)])
    counts = np.diff(np.append(heads, len(order)))
    occurrence, occurrences = np.empty((2, len(order)), np.int64)
    occurrence[order] = np.arange(len(order)) - np.repeat(heads, counts)
    occurrences[order] = np.repeat(counts, counts)
    return occurrence, occurrences


def _may_end_by_communication(
    stretch_begin: Ints, stretch_end: Ints, communication: Sequence[Sides]
) -> Flags:
    """Return True for stretches near whose end some communication ends that was under way before.

    All are of one worker, times in ns.
    """
    begin_ns, end_ns = (
        np.concatenate([getattr(side, name) for side in communication]) for name in ("begin", "end")
    )
    order = np.argsort(end_ns, kind="stable")
    begin_ns, end_ns = np.append(begin_ns[order], FOREVER), end_ns[order]
    margin_ns = MARGIN_OF_SAME_END * (stretch_end - stretch_begin)
    first_row = np.searchsorted(end_ns, stretch_end - margin_ns)
    stop_row = np.searchsorted(end_ns, stretch_end + margin_ns, side="right")
    rows = np.stack([first_row, stop_row], axis=1).ravel()
    earliest_begin = np.minimum.reduceat(begin_ns, rows)[::2] if len(rows) else begin_ns[:0]
    return np.asarray((first_row < stop_row) & (earliest_begin < stretch_end))


def _infer_calls(
    stretch: pl.DataFrame, group: tuple[int, ...], min_spread_ns: float
) -> Calls | None:
    """Return what a group does together in a stretch; None if its workers do not end it together."""
    members = stretch.filter(pl.col("worker").is_in(group))
    complete = members.filter(pl.len().over("step") == len(group)).sort("step", "worker")
    shape = (complete.height // len(group), len(group))
    begin_ns, end_ns, step = (
        complete[name].to_numpy().reshape(shape) for name in ("begin", "end", "step")
    )
    spread_ns = np.ptp(begin_ns, axis=1)
    is_spread: Flags = spread_ns >= min_spread_ns
    if np.count_nonzero(is_spread) < MIN_STEPS_WITH_SPREAD:
        return None
    ratio = np.ptp(end_ns[is_spread], axis=1) / spread_ns[is_spread]
    if (
        np.median(ratio) > MAX_RATIO_OF_SPREADS_IF_WAITING
        or np.mean(ratio < 1) < MIN_SHARE_OF_STEPS_IF_WAITING
    ):
        return None
    on_wire = begin_ns.max(axis=1)
    # Whoever leaves before the last one has come did not wait for it in this step.
    waits = end_ns.min(axis=1) >= on_wire
    workers = np.array(sorted(group), np.int64)
    count = int(np.count_nonzero(waits))
    if count < MIN_STEPS_WITH_SPREAD:
        return None
    return Calls(
        uid=IMPLICIT,
        op=_BARRIER,
        worker=workers,
        ranks=workers,
        start=begin_ns[waits],
        end=end_ns[waits],
        stops=np.ones((count, len(group)), np.bool_),
        thread=np.full((count, len(group)), -1, np.int64),
        step=step[waits, 0].astype(np.int64),
        nbytes=np.full(count, -1, np.int64),
        root=np.full(count, -1, np.int64),
        on_wire=on_wire[waits],
        through=end_ns[waits].min(axis=1),
        follows=np.zeros(count, np.bool_),
    )
