"""Find collectives that no span shows, by how stretches of the training threads begin and end.

Ranks that begin a stretch of code at different times and end it together, step after step, wait for each
other in it. A barrier or an all-reduce was not recorded, such as that of a gradient's norm. The replay
treats such a stretch like a recorded collective. Otherwise it would keep these waits as work.

Two ranks that end together although neither waits, since one has less left to do, are told apart by what
varies: who waits ends a stretch no later when it begins it later; who works does.

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
from tracelens.replay.threads import Sides
from tracelens.schema.vocabulary import COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracelens.arrays import Flags, Ints
    from tracelens.replay.timeline import Timeline

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
# times the uncertainty of clocks: begins that are closer together, or vary less, tell nothing [chosen]
CLOCK_UNCERTAINTIES_BETWEEN_BEGINS: Final = 3.0
# ratio: ranks do not wait if their ends vary by as much of what their begins vary by [chosen]
MIN_SLOPE_OF_ENDS_IF_WORKING: Final = 0.5
_BARRIER: Final = COLLECTIVES.index("barrier")
_IS_OWN: Final = np.isin(CATEGORIES, OWN_CATEGORIES)
_IS_SPAN: Final = np.arange(len(CATEGORIES)) != UNINSTRUMENTED
_NOT_OWN: Final = -1  # code: the category of a span of communication [definition]
# A place is a span's name, or the gap before it; it may occur several times in a step of a worker.
_KEY: Final = ("place", "occurrence", "occurrences")
_COLUMNS: Final = ("step", *_KEY, "begin", "end", "worker")


def find_implicit_calls(
    timeline: Timeline,
    step_numbers: Sequence[Ints],
    communication: Sequence[Sides],
    groups: Sequence[tuple[int, ...]],
    uncertainty_ns: int,
) -> Iterator[Calls]:
    """Yield the collectives that stretches of the training threads imply.

    Args:
        timeline: The pieces of all workers' time.
        step_numbers: The number of each step window, by worker.
        communication: Recorded messages, collectives and requests.
        groups: Places of workers that may meet: those of each communicator, and all.
        uncertainty_ns: How far apart the clocks of two workers may be.
    """
    worker_ns = np.array([one.bounds[-1] - one.bounds[0] for one in timeline.pieces])
    stretches = _collect_stretches(timeline, step_numbers, communication, int(worker_ns.sum()))
    step_ns = worker_ns / [*map(len, step_numbers)]
    clock_ns = CLOCK_UNCERTAINTIES_BETWEEN_BEGINS * uncertainty_ns
    min_spread_ns = max(MIN_SPREAD_OF_BEGINS * float(np.median(step_ns)), clock_ns)
    largest_first = sorted(set(groups), key=lambda group: (-len(group), group))
    for stretch in stretches.partition_by(_KEY, maintain_order=True):
        free = set(stretch["worker"].unique().to_list())
        for group in largest_first:
            if free.issuperset(group) and (
                calls := _infer_calls(stretch, group, min_spread_ns, clock_ns)
            ):
                free -= set(group)
                yield calls


def _collect_stretches(
    timeline: Timeline,
    step_numbers: Sequence[Ints],
    communication: Sequence[Sides],
    total_ns: int,
) -> pl.DataFrame:
    """Return those stretches that take long enough in all: a row per stretch, worker and step.

    Begins and ends are those of `_list_stretches`, and `total_ns` is how long all workers' time is.
    """
    step, place, begin, end = _list_stretches(timeline, step_numbers)
    worker = timeline.workers_at(begin)
    occurrence, occurrences = _count_occurrences(worker, step, place)
    is_alone = ~_may_end_by_communication(begin, end, communication, timeline)
    moments = (timeline.moments_at(at) for at in (begin, end))
    columns = (step, place, occurrence, occurrences, *moments, worker)
    alone = pl.DataFrame(
        {name: values[is_alone] for name, values in zip(_COLUMNS, columns, strict=True)}
    )
    min_ns = MIN_SHARE_OF_TIME_TO_EXAMINE * total_ns
    totals = alone.group_by(_KEY).agg((pl.col("end") - pl.col("begin")).sum().alias("ns"))
    return alone.join(totals.filter(pl.col("ns") >= min_ns), on=_KEY, maintain_order="left")


def _list_stretches(timeline: Timeline, step_numbers: Sequence[Ints]) -> tuple[Ints, ...]:
    """Return the spans of own work, and the gaps before spans: step, place, begin and end on the line.

    They are worker by worker.
    """
    begin, end = timeline.bounds, np.append(timeline.bounds[1:], 0)
    name = timeline.name.astype(np.int64)
    # Behind a worker's last piece is none, which is of no step.
    step = np.append(np.concatenate(step_numbers), -1)[timeline.window]
    is_own = timeline.is_in(_IS_OWN)
    category = np.where(is_own, timeline.category, _NOT_OWN)
    spans = np.flatnonzero(timeline.is_in(_IS_SPAN))
    before, after = spans[:-1], spans[1:]
    # A span of communication may be several pieces: waiting, then transfer.
    is_same_span = ~is_own[after] & (name[before] == name[after]) & (end[before] == begin[after])
    follows = (step[before] == step[after]) & ~is_same_span
    follows &= timeline.workers_at(begin[before]) == timeline.workers_at(begin[after])
    before, after, work = before[follows], after[follows], spans[is_own[spans]]
    rows = np.concatenate([after, work])
    is_gap = np.arange(len(rows)) < len(after)
    place = (name[rows] * len(CATEGORIES) + category[rows] - _NOT_OWN) * 2 + is_gap
    begins = np.concatenate([end[before], begin[work]])
    ends = np.concatenate([begin[after], end[work]])
    order = np.argsort(timeline.workers_at(begins), kind="stable")
    return step[rows][order], place[order], begins[order], ends[order]


def _count_occurrences(worker: Ints, step: Ints, place: Ints) -> tuple[Ints, Ints]:
    """Return of each row how many of its place came before it in its step, and how many there are."""
    order = np.lexsort((place, step, worker))
    is_first = np.zeros(len(order), np.bool_)
    for column in (worker, step, place):
        is_first |= np.diff(column[order], prepend=-1) != 0
    heads = np.flatnonzero(is_first)
    counts = np.diff(np.append(heads, len(order)))
    occurrence, occurrences = np.empty((2, len(order)), np.int64)
    occurrence[order] = np.arange(len(order)) - np.repeat(heads, counts)
    occurrences[order] = np.repeat(counts, counts)
    return occurrence, occurrences


def _may_end_by_communication(
    stretch_begin: Ints, stretch_end: Ints, communication: Sequence[Sides], timeline: Timeline
) -> Flags:
    """Return True for stretches near whose end some communication ends that was under way before.

    Begins and ends of stretches are on the line.
    """
    begin, end = Sides.join(communication).locate(timeline)
    order = np.argsort(end, kind="stable")
    begin, end = np.append(begin[order], FOREVER), end[order]
    margin_ns = (MARGIN_OF_SAME_END * (stretch_end - stretch_begin)).astype(np.int64)
    last = (timeline.workers_at(stretch_begin) + 1) * timeline.period_ns - 1
    first_row = np.searchsorted(end, stretch_end - margin_ns)
    stop_row = np.searchsorted(end, np.minimum(stretch_end + margin_ns, last), side="right")
    rows = np.stack([first_row, stop_row], axis=1).ravel()
    earliest_begin = np.minimum.reduceat(begin, rows)[::2] if len(rows) else begin[:0]
    return np.asarray((first_row < stop_row) & (earliest_begin < stretch_end))


def _infer_calls(
    stretch: pl.DataFrame, group: tuple[int, ...], min_spread_ns: float, clock_ns: float
) -> Calls | None:
    """Return what a group does together in a stretch; None if its workers do not end it together.

    Begins that are less than `min_spread_ns` apart, or vary by less than `clock_ns`, tell nothing.
    """
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
    if _follows_begin(begin_ns[is_spread], end_ns[is_spread], clock_ns):
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
        start=begin_ns[waits],
        end=end_ns[waits],
        stops=np.ones((count, len(group)), np.bool_),
        thread=np.full((count, len(group)), -1, np.int64),
        step=step[waits, 0].astype(np.int64),
        nbytes=np.full(count, -1, np.int64),
        bucket=np.full(count, -1, np.int64),
        root=np.full(count, -1, np.int64),
        on_wire=on_wire[waits],
        through=end_ns[waits].min(axis=1),
        follows=np.zeros(count, np.bool_),
    )


def _follows_begin(begin_ns: Ints, end_ns: Ints, clock_ns: float) -> bool:
    """Return whether a stretch ends later on workers that begin it later than they usually do.

    Args:
        begin_ns: When workers begin it, [step, worker].
        end_ns: When they end it.
        clock_ns: Begins that vary by less tell nothing.
    """
    begin, end = (
        apart - np.median(apart, axis=0)
        for apart in (at - at.mean(axis=1, keepdims=True) for at in (begin_ns, end_ns))
    )
    variance = float(np.mean(begin**2))
    if variance <= clock_ns**2:
        return False
    return float(np.mean(begin * end)) > MIN_SLOPE_OF_ENDS_IF_WORKING * variance
