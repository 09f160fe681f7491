"""Find collectives that no span shows, by how stretches of the training threads begin and end.

Ranks that begin a stretch of code at different times and end it together, step after step, wait for each
other in it. A barrier or an all-reduce was not recorded, such as that of a gradient's norm. The replay
treats such a stretch like a recorded collective. Otherwise it would keep these waits as work.

Two ranks may end together although neither waits, since one has less left to do. Their variation tells
that: a rank that waits ends a stretch no later when it begins it later; a rank that works does.

A stretch is a span of own work, or the time without a span before a span. It is not examined if a
recorded message or collective of its rank ends at about the same time, for that may be what ends it.
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
# A stretch's code is that of a span's name, or of the gap before it; a step may have it several times.
_STRETCH_KEY: Final = ("code", "occurrence", "occurrences")


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
        step_numbers: The numbers of each worker's steps.
        communication: Recorded messages, collectives and requests.
        groups: Workers that may meet: those of each communicator, and all.
        uncertainty_ns: How far apart the clocks of two workers may be.
    """
    all_bounds_ns = [pieces.bounds_ns for pieces in timeline.worker_pieces]
    worker_ns = np.array([bounds_ns[-1] - bounds_ns[0] for bounds_ns in all_bounds_ns])
    stretches = _collect_stretches(timeline, step_numbers, communication)
    min_total_ns = MIN_SHARE_OF_TIME_TO_EXAMINE * int(worker_ns.sum())
    total_ns = (pl.col("end") - pl.col("begin")).sum().over(*_STRETCH_KEY)
    stretches = stretches.filter(total_ns >= min_total_ns)
    step_ns = worker_ns / [*map(len, step_numbers)]
    min_deviation_ns = CLOCK_UNCERTAINTIES_BETWEEN_BEGINS * uncertainty_ns
    min_spread_ns = max(MIN_SPREAD_OF_BEGINS * float(np.median(step_ns)), min_deviation_ns)
    groups_by_size = sorted(set(groups), key=lambda group: (-len(group), group))
    for rows_of_stretch in stretches.partition_by(_STRETCH_KEY, maintain_order=True):
        free_workers = set(rows_of_stretch["worker"].unique().to_list())
        for group in groups_by_size:
            if free_workers.issuperset(group) and (
                calls := _infer_calls(rows_of_stretch, group, min_spread_ns, min_deviation_ns)
            ):
                free_workers -= set(group)
                yield calls


def _collect_stretches(
    timeline: Timeline, step_numbers: Sequence[Ints], communication: Sequence[Sides]
) -> pl.DataFrame:
    """Return the spans of own work, and the gaps before spans: a row per stretch, worker and step."""
    piece_begin = timeline.bound_positions  # as all begins and ends
    piece_end = np.append(timeline.bound_positions[1:], 0)
    name_number = timeline.name_numbers.astype(np.int64)
    # Behind a worker's last piece is none, which is of no step.
    step = np.append(np.concatenate(step_numbers), -1)[timeline.step_indices]
    is_own = timeline.is_in_categories(_IS_OWN)
    category = np.where(is_own, timeline.category_codes, _NOT_OWN)
    span_pieces = np.flatnonzero(timeline.is_in_categories(_IS_SPAN))
    span_before, span_after = span_pieces[:-1], span_pieces[1:]
    # A span of communication may be several pieces: waiting, then transfer.
    is_same_span = (
        ~is_own[span_after]
        & (name_number[span_before] == name_number[span_after])
        & (piece_end[span_before] == piece_begin[span_after])
    )
    is_neighbour = (step[span_before] == step[span_after]) & ~is_same_span
    is_neighbour &= timeline.to_workers(piece_begin[span_before]) == timeline.to_workers(
        piece_begin[span_after]
    )
    span_before, span_after = span_before[is_neighbour], span_after[is_neighbour]
    work_pieces = span_pieces[is_own[span_pieces]]
    pieces = np.concatenate([span_after, work_pieces])
    is_gap = np.arange(len(pieces)) < len(span_after)
    begins = np.concatenate([piece_end[span_before], piece_begin[work_pieces]])
    ends = np.concatenate([piece_begin[span_after], piece_end[work_pieces]])
    order = np.argsort(timeline.to_workers(begins), kind="stable")
    begins, ends = begins[order], ends[order]
    code = (name_number[pieces] * len(CATEGORIES) + category[pieces] - _NOT_OWN) * 2 + is_gap
    step, code, worker = step[pieces][order], code[order], timeline.to_workers(begins)
    occurrence, occurrences = _count_occurrences(worker, step, code)
    stretches = pl.DataFrame(
        {
            "step": step,
            "code": code,
            "begin": timeline.to_times_ns(begins),
            "end": timeline.to_times_ns(ends),
            "worker": worker,
            "occurrence": occurrence,
            "occurrences": occurrences,
        }
    )
    may_be_implicit = ~_may_end_by_communication(begins, ends, communication, timeline)
    return stretches.filter(pl.Series(may_be_implicit))


def _count_occurrences(worker: Ints, step: Ints, code: Ints) -> tuple[Ints, Ints]:
    """Return for each stretch how many equal ones of its step come before it, and how many there are.

    All are [stretch]. Polars' `over` of three columns needs more than twice the CPU time.
    """
    order = np.lexsort((code, step, worker))
    is_equal_to_last = np.ones(max(len(order) - 1, 0), np.bool_)
    for column in (worker, step, code):
        in_order = column[order]
        is_equal_to_last &= in_order[1:] == in_order[:-1]
    first_rows = np.flatnonzero(np.concatenate([[True], ~is_equal_to_last])[: len(order)])
    counts = np.diff(np.append(first_rows, len(order)))
    occurrence, occurrences = np.empty((2, len(order)), np.int64)
    occurrence[order] = np.arange(len(order)) - np.repeat(first_rows, counts)
    occurrences[order] = np.repeat(counts, counts)
    return occurrence, occurrences


def _may_end_by_communication(
    stretch_begin: Ints, stretch_end: Ints, communication: Sequence[Sides], timeline: Timeline
) -> Flags:
    """Return True for stretches near whose end some communication ends that was under way before.

    Begins and ends are positions on the timeline: a worker and a time, in one number; those of
    stretches are [stretch].
    """
    side_begin, side_end = Sides.join(communication).to_positions(timeline)
    order = np.argsort(side_end, kind="stable")
    side_begin, side_end = np.append(side_begin[order], FOREVER), side_end[order]
    margin_ns = (MARGIN_OF_SAME_END * (stretch_end - stretch_begin)).astype(np.int64)
    worker_end = (timeline.to_workers(stretch_begin) + 1) * timeline.period_ns - 1
    first_row = np.searchsorted(side_end, stretch_end - margin_ns)
    latest_end = np.minimum(stretch_end + margin_ns, worker_end)
    stop_row = np.searchsorted(side_end, latest_end, side="right")
    row_bounds = np.stack([first_row, stop_row], axis=1).ravel()
    earliest_begin = (  # of the sides that end near each stretch's end
        np.minimum.reduceat(side_begin, row_bounds)[::2] if len(row_bounds) else side_begin[:0]
    )
    return np.asarray((first_row < stop_row) & (earliest_begin < stretch_end))


def _infer_calls(
    stretch: pl.DataFrame, group: tuple[int, ...], min_spread_ns: float, min_deviation_ns: float
) -> Calls | None:
    """Return a group's calls that a stretch implies; None if its workers do not end it together.

    `stretch` has a row for each of its steps and workers. Begins that are less than `min_spread_ns`
    apart, or vary by less than `min_deviation_ns`, tell nothing.
    """
    of_group = stretch.filter(pl.col("worker").is_in(group))
    complete = of_group.filter(pl.len().over("step") == len(group)).sort("step", "worker")
    begin_ns, end_ns, step = (  # [step, worker]
        complete[name].to_numpy().reshape(-1, len(group)) for name in ("begin", "end", "step")
    )
    spread_ns = np.ptp(begin_ns, axis=1)
    is_spread: Flags = spread_ns >= min_spread_ns
    if np.count_nonzero(is_spread) < MIN_STEPS_WITH_SPREAD:
        return None
    ratio = np.ptp(end_ns[is_spread], axis=1) / spread_ns[is_spread]
    if (
        np.median(ratio) > MAX_RATIO_OF_SPREADS_IF_WAITING
        or np.mean(ratio < 1) < MIN_SHARE_OF_STEPS_IF_WAITING
        or _ends_vary_with_begins(begin_ns[is_spread], end_ns[is_spread], min_deviation_ns)
    ):
        return None
    departure_ns = begin_ns.max(axis=1)
    # A rank that leaves before the last one has come did not wait for it in this step.
    waits = end_ns.min(axis=1) >= departure_ns
    if np.count_nonzero(waits) < MIN_STEPS_WITH_SPREAD:
        return None
    begin_ns, end_ns, departure_ns = begin_ns[waits], end_ns[waits], departure_ns[waits]
    no_value = np.full(begin_ns.shape, -1, np.int64)
    return Calls(
        communicator=IMPLICIT,
        op_code=_BARRIER,
        workers=np.array(sorted(group), np.int64),
        begin_ns=begin_ns,
        end_ns=end_ns,
        is_blocking=np.ones(begin_ns.shape, np.bool_),
        thread=no_value,
        step_numbers=step[waits, 0].astype(np.int64),
        nbytes=no_value[:, 0],
        bucket=no_value[:, 0],
        root_column=no_value[:, 0],
        departure_ns=departure_ns,
        completion_ns=end_ns.min(axis=1),
        is_queued=np.zeros(len(begin_ns), np.bool_),
    )


def _ends_vary_with_begins(begin_ns: Ints, end_ns: Ints, min_deviation_ns: float) -> bool:
    """Return True if a stretch ends later on workers that begin it later than they usually do.

    Times are [step, worker]; begins that vary by less than `min_deviation_ns` tell nothing.
    """
    begin_delay_ns, end_delay_ns = (
        delay_ns - np.median(delay_ns, axis=0)
        for delay_ns in (ns - ns.mean(axis=1, keepdims=True) for ns in (begin_ns, end_ns))
    )
    variance = float(np.mean(begin_delay_ns**2))
    covariance = float(np.mean(begin_delay_ns * end_delay_ns))
    return variance > min_deviation_ns**2 and covariance > MIN_SLOPE_OF_ENDS_IF_WORKING * variance
