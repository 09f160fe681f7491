"""What devices did: compute, communicate with nothing beside it, move memory, or nothing.

Each of these is a union of intervals, as in Holistic Trace Analysis (`get_temporal_breakdown`,
`get_comm_comp_overlap`): what is exposed is communication that no computation ran beside, and copies
are what neither ran beside. Time is that of the job, which in a profile lasts from the first to the last
work of devices (`align/steps.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from tracelens.accounting.categories import COMPUTE_CATEGORIES
from tracelens.accounting.phases import job_ns
from tracelens.model.result import DeviceShares

if TYPE_CHECKING:
    from tracelens.arrays import Ints
    from tracelens.model.trace import Trace

__all__ = ["DeviceTime", "Union", "Work", "device_time", "device_work", "timed_spans", "undivided"]

_MEMORY: Final = r"(?i)^(mem(cpy|set)|memory copy)"


class Union(NamedTuple):
    """Intervals that do not touch, in order; nanoseconds."""

    start: Ints
    end: Ints

    @classmethod
    def of(cls, rows: pl.DataFrame) -> Union:
        """Return the time in which any of some rows lasts, by their `start` and `end`."""
        ordered = rows.sort("start")
        start, end = ordered["start"].to_numpy(), np.maximum.accumulate(ordered["end"].to_numpy())
        if not len(start):
            return cls(start, end)
        first = np.append(True, start[1:] > end[:-1])
        return cls(start[first], end[np.append(np.flatnonzero(first)[1:] - 1, len(end) - 1)])

    @property
    def whole_ns(self) -> int:
        """How long they last in all."""
        return int((self.end - self.start).sum())

    def passed(self, moments: Ints) -> Ints:
        """Return how much of them has passed at some moments."""
        if not len(self.start):
            return np.zeros(len(moments), np.int64)
        begun = np.searchsorted(self.start, moments, "right") - 1
        before = np.concatenate([[0], np.cumsum(self.end - self.start)])
        inside = np.minimum(moments, self.end[begun]) - self.start[begun]
        return np.where(begun < 0, 0, before[begun] + inside)

    def within(self, windows: Union) -> int:
        """Return how long they last in some windows."""
        return int((self.passed(windows.end) - self.passed(windows.start)).sum())


@dataclass(frozen=True)
class Work:
    """When a device computed, when it computed or communicated, when it did anything, in `windows`."""

    windows: Union
    compute: Union
    communication: Union
    both: Union
    busy: Union


@dataclass(frozen=True)
class DeviceTime:
    """What the devices of one rank did while the job lasted (`whole_ns`); nanoseconds.

    `compute` is the time in which kernels ran that do not communicate or move memory, `exposed`
    communication that no such kernel ran beside, `copies` the time in which memory alone was moved.
    """

    rank: int
    whole_ns: int
    compute_ns: int
    exposed_ns: int
    copies_ns: int
    communication_ns: int

    @property
    def busy_ns(self) -> int:
        """The time in which anything ran."""
        return self.compute_ns + self.exposed_ns + self.copies_ns

    @property
    def shares(self) -> DeviceShares:
        """The same as shares of the job."""
        whole = max(self.whole_ns, 1)
        return DeviceShares(
            self.compute_ns / whole, self.exposed_ns / whole, self.copies_ns / whole
        )

    @property
    def overlap(self) -> float | None:
        """The share of communication that ran beside computation; null without any."""
        if not self.communication_ns:
            return None
        return 1 - self.exposed_ns / self.communication_ns


def device_time(trace: Trace, timed: pl.DataFrame | None = None) -> list[DeviceTime]:
    """Return the time of devices by rank; `timed` are the `timed_spans`, if the caller has them."""
    ranks = dict(trace.processes.select("process", "rank").iter_rows())
    times = []
    for process, work in device_work(trace, timed).items():
        compute, both, busy = (
            part.within(work.windows) for part in (work.compute, work.both, work.busy)
        )
        times.append(
            DeviceTime(
                ranks[process],
                whole_ns=job_ns(trace) or work.windows.whole_ns,
                compute_ns=compute,
                exposed_ns=both - compute,
                copies_ns=busy - both,
                communication_ns=work.communication.within(work.windows),
            )
        )
    return times


def device_work(trace: Trace, timed: pl.DataFrame | None = None) -> dict[int, Work]:
    """Return what devices did in the steps of each process that has one, or in all of its time.

    `timed` are the `timed_spans`, if the caller has them.
    """
    communicates = pl.col("kind") == "reduction"
    moves = pl.col("name").cast(pl.String).str.contains(_MEMORY).fill_null(value=False)
    timed = (timed_spans(trace) if timed is None else timed).with_columns(
        communicates=communicates, computes=~communicates & ~moves
    )
    steps = trace.steps.select("process", start="start_ns", end="end_ns")
    windows = steps.partition_by("process", as_dict=True)
    found = {}
    for (process,), rows in timed.partition_by(
        "process", as_dict=True, maintain_order=True
    ).items():
        busy = Union.of(rows)
        found[int(process)] = Work(
            windows=Union.of(windows[process,])
            if (process,) in windows
            else Union(busy.start[:1], busy.end[-1:]),
            compute=Union.of(rows.filter("computes")),
            communication=Union.of(rows.filter("communicates")),
            both=Union.of(rows.filter(pl.col("communicates") | pl.col("computes"))),
            busy=busy,
        )
    return found


def timed_spans(trace: Trace) -> pl.DataFrame:
    """Return the spans that devices timed, with `start` and `end` there."""
    begin, length = pl.col("device_start_ns"), pl.col("device_duration_ns")
    timed = trace.spans.filter(begin.is_not_null() & length.is_not_null())
    known = ("process", "rank", "thread", "step", "kind", "name", "bucket")
    return timed.select(*known, start=begin, end=begin + length).collect()


def undivided(trace: Trace) -> float:
    """Return in what share of ranks x job time a device's phase may have waited for communication.

    A phase that a device timed from its first to its last work holds what its stream waited for.
    That is so where communication was in flight on the device that the phase may need: anything but
    a gradient bucket, for which nothing waits before backprop is over. Profiles time each kernel.
    """
    if trace.recognition is not None or trace.device_clocks.is_empty() or trace.steps.is_empty():
        return 0.0
    timed = timed_spans(trace).join(trace.steps, on=["process", "step"], how="semi")
    phases = timed.filter(pl.col("kind").is_in(COMPUTE_CATEGORIES))
    awaited = timed.filter(pl.col("kind") == "reduction", pl.col("bucket").is_null())
    between = awaited.partition_by("process", as_dict=True)
    both = sum(
        _shared_ns(part, between[process])
        for process, part in phases.partition_by("process", as_dict=True).items()
        if process in between
    )
    return both / (trace.steps["process"].n_unique() * max(job_ns(trace), 1))


def _shared_ns(some: pl.DataFrame, others: pl.DataFrame) -> int:
    """Return for how long rows of both last at once."""
    combined = Union.of(pl.concat([some, others]))
    return Union.of(some).whole_ns + Union.of(others).whole_ns - combined.whole_ns
