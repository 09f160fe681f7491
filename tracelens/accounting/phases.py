"""Phases: what every worker's training thread did in every nanosecond of every step.

The innermost recorded phase wins; a user's span within a phase belongs to that phase. Communication on
the thread, and unrecorded time while something of the rank is in flight, is split: ``wait`` while a
collective of the rank has not been entered by all, ``ps_queue`` while a shard holds a request of the
rank that it has not begun to serve, else ``transfer``. What is left is ``idle`` where another record
explains it, else ``unknown``; what lies between steps that were left out as asked is no step's time.

Where work was timed on a device, what the device did counts, for the thread only queued it. A trace is
taken apart by processes, so that rows for all events are never needed at once. Beside the phases stands
what they are shares of, the job's length (`job_ns`), and the transfer of each step that nothing hides.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting import thread_activity
from tracelens.accounting.partition import (
    CATEGORIES,
    COMPUTE_CATEGORIES,
    SEGMENT_COLUMNS,
    UNKNOWN,
    Intervals,
    Pieces,
    Segments,
    Spans,
    Surroundings,
    categories,
    partition,
)
from tracelens.accounting.thread_activity import device_spans, thread_spans
from tracelens.parallel import side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracelens.arrays import Floats, Indices, Ints
    from tracelens.model.findings import Finding
    from tracelens.model.trace import Trace

__all__ = [
    "CATEGORIES",
    "CHUNK_ROWS",
    "COMPUTE_CATEGORIES",
    "HIDDEN_COLUMNS",
    "SEGMENT_COLUMNS",
    "TIME_COLUMNS",
    "Phases",
    "Pieces",
    "Segments",
    "after_steps",
    "chunks",
    "exposed_transfer",
    "job_ns",
    "run",
]


TIME_COLUMNS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int32(),
    "rank": pl.Int32(),
    "step": pl.Int32(),
    "category": pl.Enum(CATEGORIES),
    "ns": pl.Int64(),
}
HIDDEN_COLUMNS: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "step": pl.Int32(),
    "ns": pl.Int64(),  # communication in flight under own work
}
_SPAN: Final = ("start_ns", "end_ns", "code", "name")
CHUNK_ROWS: Final = (
    1 << 20
)  # events at a time, or those of one process: what fits is worked on quickly


@dataclass(frozen=True)
class Phases:
    """The partition of every worker's time; per rank and step it sums to the step exactly.

    `pieces` are the touching pieces themselves. `times` sums them up, and holds only categories that
    occur; `hidden` has a row for every step.
    """

    pieces: Segments
    times: pl.DataFrame
    hidden: pl.DataFrame
    findings: tuple[Finding, ...] = ()

    @property
    def segments(self) -> pl.DataFrame:
        """The pieces as rows, in order of process and time, built at each access."""
        return self.pieces.frame()


def run(trace: Trace, progress: Callable[[int, int], None] | None = None) -> Phases:
    """Divide every worker's steps into categories; `progress` is called with (done, total) parts."""
    parts = chunks(trace)
    queues = _ByProcess(thread_activity.server_queues(trace))
    cut: list[Pieces] = []
    for done, found in enumerate(side_by_side(partial(_cut, queues=queues), parts), 1):
        cut += found
        if progress:
            progress(done, len(parts))
    words = trace.events.select(pl.col("name").unique()).collect().to_series().drop_nulls()
    return _gathered(cut, trace.steps.sort("process", "start_ns"), words)


def _cut(trace: Trace, queues: _ByProcess) -> list[Pieces]:
    """Cut the time of each process of a trace."""
    device = device_spans(trace)
    around = {
        "wait": thread_activity.collective_waits(trace),
        "flying": thread_activity.in_flight(trace),
        "cause": thread_activity.idle_causes(trace),
    }
    sets = {"queue": queues} | {name: _ByProcess(frame) for name, frame in around.items()}
    on_thread, on_device = _ByProcess(thread_spans(trace, device)), _ByProcess(device)
    return [
        partition(
            Spans(*on_thread.of(process, *_SPAN)),
            Surroundings(
                **{name: Intervals(*part.of(process, *_SPAN[:2])) for name, part in sets.items()},
                device=Spans(*on_device.of(process, *_SPAN)),
            ),
            windows,
        )
        for process, windows in _windows(trace.steps.sort("process", "start_ns"))
    ]


class _ByProcess:
    """A frame's columns as arrays, to be sliced by process."""

    def __init__(self, frame: pl.DataFrame) -> None:
        if not frame["process"].is_sorted():
            frame = frame.sort("process", maintain_order=True)
        process = frame["process"].to_numpy()
        self._bounds = np.searchsorted(process, np.arange(process.max(initial=-1) + 2))
        self._columns = {
            name: frame[name].cast(pl.Int64).to_numpy()
            for name in frame.columns
            if frame[name].dtype.is_integer()
        }

    def of(self, process: int, *names: str) -> list[Ints]:
        """Return some columns of one process."""
        beyond = len(self._bounds) - 1
        first, last = self._bounds[min(process, beyond)], self._bounds[min(process + 1, beyond)]
        return [self._columns[name][first:last] for name in names]


def _windows(steps: pl.DataFrame) -> Iterator[tuple[int, Ints]]:
    """Yield each process and the bounds of its steps."""
    for group in steps.partition_by("process", maintain_order=True):
        yield group["process"][0], np.append(group["start_ns"].to_numpy(), group["end_ns"][-1])


def _gathered(cut: list[Pieces], steps: pl.DataFrame, words: pl.Series) -> Phases:
    """Turn all processes' pieces into frames."""
    of_step = steps.select("process", "rank", "step")
    begins = np.cumsum([0, *(len(pieces.hidden) for pieces in cut)])
    segments = Segments(tuple(zip(cut, begins[:-1].tolist(), strict=True)), of_step, words)
    if not cut:
        empty = pl.DataFrame(schema=TIME_COLUMNS)
        return Phases(segments, times=empty, hidden=pl.DataFrame(schema=HIDDEN_COLUMNS))
    spent = np.concatenate([pieces.spent for pieces in cut])
    left_out = after_steps(steps).to_numpy()
    spent[:, UNKNOWN] -= np.minimum(left_out, spent[:, UNKNOWN])
    row, category = np.nonzero(spent)
    times = of_step[row].with_columns(category=categories(category), ns=spent[row, category])
    hidden = np.concatenate([pieces.hidden for pieces in cut])
    return Phases(
        segments,
        times=times.select(*TIME_COLUMNS),
        hidden=of_step.select("rank", "step").with_columns(ns=hidden),
    )


def chunks(trace: Trace) -> list[Trace]:
    """Return parts of a trace that hold the events and arrivals of some workers each, by process."""
    events = trace.events.collect()
    if not events["process"].is_sorted():
        events = events.sort("process", maintain_order=True)
    workers = trace.workers["process"].sort().to_numpy()
    owner = events["process"].to_numpy()
    first, last = np.searchsorted(owner, workers), np.searchsorted(owner, workers, side="right")
    return [
        _part(trace, events.slice(first[a], last[b] - first[a]), workers[a], workers[b])
        for a, b in _runs(last - first)
    ]


def _runs(sizes: Indices) -> Iterator[tuple[int, int]]:
    """Yield the first and last of neighbours that are about `CHUNK_ROWS` together."""
    begin, total = 0, 0
    for place, size in enumerate(sizes):
        if total and total + size > CHUNK_ROWS:
            yield begin, place - 1
            begin, total = place, 0
        total += int(size)
    if len(sizes):
        yield begin, len(sizes) - 1


def _part(trace: Trace, events: pl.DataFrame, first: int, last: int) -> Trace:
    mine = pl.col("process").is_between(first, last)
    return trace.with_(
        events=events.lazy(),
        processes=trace.processes.filter(mine),
        steps=trace.steps.filter(mine),
        arrivals=trace.arrivals.filter(mine),
    )


def job_ns(trace: Trace) -> int:
    """Return the time from the first rank's first step to the end of the last one; 0 without steps.

    What was left out as asked, between steps that were kept, does not count: on average of the ranks.
    """
    start, end = trace.steps["start_ns"].min(), trace.steps["end_ns"].max()
    if not isinstance(start, int) or not isinstance(end, int):
        return 0
    return end - start - int(after_steps(trace.steps).sum()) // trace.steps["process"].n_unique()


def after_steps(steps: pl.DataFrame) -> pl.Series:
    """Return how long after each step the next of its process begins: 0, but where steps were left out.

    `steps` is in order of process and time.
    """
    following = pl.col("start_ns").shift(-1).over("process")
    after = (following - pl.col("end_ns")).fill_null(0)
    return steps.select(ns=after)["ns"]


def exposed_transfer(phases: Phases, steps: Ints) -> Floats:
    """Return nanoseconds for each of `steps`: no step can become shorter by more without transfer."""
    transfer = pl.col("ns").filter(pl.col("category") == "transfer").sum()
    least = (
        phases.times.group_by("step", "process")
        .agg(transfer)
        .group_by("step")
        .agg(pl.col("ns").min())
        .sort("step")
    )
    known = least["step"].to_numpy()
    if not len(known):
        return np.zeros(len(steps))
    place = np.minimum(np.searchsorted(known, steps), len(known) - 1)
    return np.where(known[place] == steps, least["ns"].to_numpy()[place], 0).astype(np.float64)
