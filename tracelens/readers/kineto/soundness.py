"""Checks the records of a file: what cannot be is left out, what is missing is said, with its share.

A stream does one kernel after the other, so none outlasts several of its successors. A launch has a
kernel, unless the profiler lost it. Events lie near each other in time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.model import fmt
from tracelens.readers.kineto.columns import LostKernels
from tracelens.readers.kineto.words import RANGES, step_number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelens.arrays import Flags
    from tracelens.readers.kineto.columns import EventTable

__all__ = ["drop_impossible", "find_lost_kernels"]

MIN_SUCCESSORS_OUTLASTED: Final = (
    3  # kernels: no kernel of a stream outlasts as many later ones [chosen]
)
# share of a stream's kernels: if more (and more than one) outlast others, these do run at once [chosen]
MAX_SHARE_OUTLASTING: Final = 0.05
# times the span of nearly all begins: no event begins or ends farther away [chosen]
MAX_DISTANCE_IN_SPANS: Final = 100
MIN_EVENTS_OUTLASTED: Final = 100  # events: a kernel may go on for long after fewer [chosen]
MIN_SPAN_OF_EVENTS_NS: Final = (
    1_000_000_000  # ns: the span of nearly all begins is at least this [chosen]
)
SHARE_OF_EVENTS_ASIDE: Final = (
    0.01  # share of events: as many at each end are not nearly all [chosen]
)
# share of a step's launches: with more of them without a kernel, a step is not judged [policy]
MIN_SHARE_LOST_IF_STEP_IS_LEFT_OUT: Final = 0.5
# share of launches: if more of the steps that are left have no kernel, nothing is judged [policy]
MAX_LAUNCHES_WITHOUT_KERNEL: Final = 0.05

_LAUNCH: Final = r"LaunchKernel"


def drop_impossible(table: EventTable) -> list[str]:
    """Leave out rows that cannot be, and return what they are, with their share."""
    sentences = []
    if table.negative:
        share = fmt.percent(table.negative / max(table.events, 1), 1)
        sentences.append(
            f"events that end before they begin, {table.negative:,} of {table.events:,} ({share})"
        )
    is_far = _far(table.rows)
    if is_far.any():
        share = fmt.percent(is_far.mean(), 1)
        sentences.append(
            f"events that begin or end far from all others, {int(is_far.sum()):,} of "
            f"{len(is_far):,} ({share})"
        )
    table.rows = table.rows.filter(~is_far)
    kernels = table.rows["category"].cast(pl.String) == "kernel"
    is_too_long = _outlasting(table.rows, kernels.to_numpy())
    if is_too_long.any():
        lasted = table.rows["duration_ns"].to_numpy()
        share = fmt.percent(lasted[is_too_long].sum() / lasted[kernels.to_numpy()].sum())
        sentences.append(
            f"kernels that outlast later ones of their stream, or all else, "
            f"{int(is_too_long.sum()):,} of {int(kernels.sum()):,} ({share} of the time of kernels)"
        )
    table.rows = table.rows.filter(~is_too_long)
    return sentences


def find_lost_kernels(table: EventTable, tables: Iterable[EventTable]) -> LostKernels:
    """Compare launches of a file with the kernels of all `tables` of its rank.

    A rank without any kernel has lost none: devices were not recorded.
    """
    of_devices = pl.col("category").is_in(["kernel", "copy"])
    kernels = pl.concat([one.rows.filter(of_devices)["correlation"] for one in tables]).drop_nulls()
    word = pl.col("name").cast(pl.String)
    launches = table.rows.filter(pl.col("category") == "runtime").filter(word.str.contains(_LAUNCH))
    launches = launches.drop_nulls("correlation")
    if kernels.is_empty() or launches.is_empty():
        return LostKernels(0, launches.height)
    lost = ~launches["correlation"].is_in(kernels.unique().implode())
    marks = table.rows.filter(word.str.contains(RANGES)).sort("start_ns")
    steps = [
        (begin_ns, step)
        for begin_ns, name in marks.select("start_ns", word).rows()
        if (step := step_number(name)) is not None
    ]
    begins = np.array([begin_ns for begin_ns, _ in steps], np.int64)
    window = np.searchsorted(begins, launches["start_ns"].to_numpy(), "right")
    launches_of_step, lost_of_step = (
        np.bincount(window, weights, len(steps) + 1)[1:] for weights in (None, lost.to_numpy())
    )
    is_lossy = lost_of_step > MIN_SHARE_LOST_IF_STEP_IS_LEFT_OUT * launches_of_step
    launches_left, lost_of_rest = (
        launches.height - launches_of_step[is_lossy].sum(),
        lost.sum() - lost_of_step[is_lossy].sum(),
    )
    return LostKernels(
        int(lost.sum()),
        launches.height,
        tuple(step for (_, step), lossy in zip(steps, is_lossy.tolist(), strict=True) if lossy),
        everywhere=bool(lost_of_rest > MAX_LAUNCHES_WITHOUT_KERNEL * launches_left)
        or launches_left == 0,
    )


def _far(rows: pl.DataFrame) -> Flags:
    """Return which rows begin or end far from nearly all others."""
    start = rows["start_ns"].to_numpy()
    end = start + rows["duration_ns"].to_numpy()
    if not len(start):
        return np.zeros(0, np.bool_)
    aside = SHARE_OF_EVENTS_ASIDE
    first, last = np.quantile(start, [aside, 1 - aside], method="nearest")
    distance = MAX_DISTANCE_IN_SPANS * max(int(last - first), MIN_SPAN_OF_EVENTS_NS)
    return np.asarray((first - start > distance) | (end - last > distance))


def _outlasting(rows: pl.DataFrame, kernels: Flags) -> Flags:
    """Return which kernels last beyond the begins of several later ones of their stream."""
    is_outlasting = np.zeros(rows.height, np.bool_)
    kernel_rows = rows.with_row_index("at").filter(kernels).sort("start_ns")
    for stream_rows in kernel_rows.partition_by("device", "stream", "tid"):
        start, end = (
            stream_rows.select("start_ns", end=pl.col("start_ns") + pl.col("duration_ns"))[
                name
            ].to_numpy()
            for name in ("start_ns", "end")
        )
        later = np.searchsorted(start, end) - np.arange(len(start)) - 1
        longer = later >= MIN_SUCCESSORS_OUTLASTED
        if longer.sum() <= max(MAX_SHARE_OUTLASTING * len(start), 1):
            is_outlasting[stream_rows["at"].to_numpy()[longer]] = True
    return is_outlasting | (kernels & _outlasts_file(rows))


def _outlasts_file(rows: pl.DataFrame) -> Flags:
    """Return which row, if any, goes on after all others for longer than these lasted."""
    start = rows["start_ns"].to_numpy()
    end = start + rows["duration_ns"].to_numpy()
    if len(end) < MIN_EVENTS_OUTLASTED:
        return np.zeros(len(end), np.bool_)
    before, last = np.partition(end, -2)[-2:]
    return np.asarray((end == last) & (last - before > before - start.min()))
