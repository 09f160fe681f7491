"""Phases: what every worker's training thread did in every nanosecond of every step.

The innermost recorded phase wins; a user's span within a phase belongs to that phase. Communication
on the thread, and unrecorded time while something of the rank is in flight, is split: ``wait`` while a
collective of the rank has not been entered by all, ``ps_queue`` while a shard holds a request of the
rank that it has not begun to serve, else ``transfer``. What is left is ``idle`` where another record
explains it, else ``unknown``; what lies between steps that were left out as asked is no step's time.

Where work was timed on a device, what the device did counts, for the thread only queued it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.analyses import _surroundings
from tracelens.analyses._chunks import chunks
from tracelens.analyses._job import after_steps
from tracelens.analyses._partition import (
    CATEGORIES,
    OWN_CATEGORIES,
    UNKNOWN,
    Intervals,
    Pieces,
    Spans,
    Surroundings,
    partition,
)
from tracelens.analyses._segments import SEGMENT_COLUMNS, Segments, categories
from tracelens.analyses._thread_spans import device_spans, thread_spans
from tracelens.parallel import side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from tracelens.analyses.result import Finding
    from tracelens.trace import Trace

__all__ = [
    "CATEGORIES",
    "OWN_CATEGORIES",
    "SEGMENT_COLUMNS",
    "Phases",
    "Pieces",
    "Segments",
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
        """The pieces as rows, in order of process and time, made anew each time."""
        return self.pieces.frame()


def run(trace: Trace, progress: Callable[[int, int], None] | None = None) -> Phases:
    """Divide every worker's steps into categories; `progress` hears of (done, total) parts."""
    parts = chunks(trace)
    queues = _ByProcess(_surroundings.queues(trace))
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
        "wait": _surroundings.waits(trace),
        "flying": _surroundings.flying(trace),
        "cause": _surroundings.causes(trace),
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

    def of(self, process: int, *names: str) -> list[npt.NDArray[np.int64]]:
        """Return some columns of one process."""
        beyond = len(self._bounds) - 1
        first, last = self._bounds[min(process, beyond)], self._bounds[min(process + 1, beyond)]
        return [self._columns[name][first:last] for name in names]


def _windows(steps: pl.DataFrame) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
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
