"""Time of devices: computing, exposed communication, copies, idle.

Each of these is a union of intervals, as in Holistic Trace Analysis (`get_temporal_breakdown`,
`get_comm_comp_overlap`): exposed is communication without computation at the same time, and copies
are memory operations without either. Time is that of the job. In a profile it lasts from the first to
the last work of devices (`align/steps.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.accounting.categories import COMPUTE_CATEGORIES
from tracelens.accounting.phases import job_ns
from tracelens.model.intervals import Intervals
from tracelens.model.result import DeviceShares

if TYPE_CHECKING:
    from tracelens.model.trace import Trace

_MEMORY: Final = r"(?i)^(mem(cpy|set)|memory copy)"


@dataclass(frozen=True)
class DeviceWork:
    """When a device computed, when it computed or communicated, when it did anything, in `windows`."""

    windows: Intervals
    compute: Intervals
    communication: Intervals
    both: Intervals
    busy: Intervals


@dataclass(frozen=True)
class DeviceTime:
    """What the devices of one rank did while the job lasted (`job_ns`); nanoseconds.

    `compute_ns` is the time in which kernels ran that do not communicate or move memory, `exposed_ns`
    communication without such a kernel, `copies_ns` the time of memory operations alone.
    """

    rank: int
    job_ns: int
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
        job = max(self.job_ns, 1)
        return DeviceShares(self.compute_ns / job, self.exposed_ns / job, self.copies_ns / job)

    @property
    def overlap(self) -> float | None:
        """The share of communication that computation overlaps; None without any."""
        if not self.communication_ns:
            return None
        return 1 - self.exposed_ns / self.communication_ns


def measure_device_time(trace: Trace, timed: pl.DataFrame | None = None) -> list[DeviceTime]:
    """Measure the time of devices by rank; `timed` are the `select_timed_spans`, if at hand."""
    ranks = dict(trace.processes.select("process", "rank").iter_rows())
    times = []
    for process, work in find_device_work(trace, timed).items():
        compute, compute_or_communication, busy, communication = (
            int(
                (
                    union.passed_before(work.windows.end) - union.passed_before(work.windows.start)
                ).sum()
            )
            for union in (work.compute, work.both, work.busy, work.communication)
        )
        times.append(
            DeviceTime(
                ranks[process],
                job_ns=job_ns(trace) or work.windows.total_ns,
                compute_ns=compute,
                exposed_ns=compute_or_communication - compute,
                copies_ns=busy - compute_or_communication,
                communication_ns=communication,
            )
        )
    return times


def find_device_work(trace: Trace, timed: pl.DataFrame | None = None) -> dict[int, DeviceWork]:
    """Find what devices did in the steps of each process that has one, or in all of its time.

    `timed` are the `select_timed_spans`, if the caller has them.
    """
    communicates = pl.col("kind") == "reduction"
    moves = pl.col("name").cast(pl.String).str.contains(_MEMORY).fill_null(value=False)
    timed = (select_timed_spans(trace) if timed is None else timed).with_columns(
        communicates=communicates, computes=~communicates & ~moves
    )
    steps = trace.steps.select("process", start="start_ns", end="end_ns")
    steps_of = steps.partition_by("process", as_dict=True)
    by_process = timed.partition_by("process", as_dict=True, maintain_order=True)
    work = {}
    for (process,), rows in by_process.items():
        busy = _merge(rows)
        work[int(process)] = DeviceWork(
            windows=_merge(steps_of[process,])
            if (process,) in steps_of
            else Intervals(busy.start[:1], busy.end[-1:]),
            compute=_merge(rows.filter("computes")),
            communication=_merge(rows.filter("communicates")),
            both=_merge(rows.filter(pl.col("communicates") | pl.col("computes"))),
            busy=busy,
        )
    return work


def _merge(rows: pl.DataFrame) -> Intervals:
    """Return the time in which any of some rows lasts, by their `start` and `end`."""
    return Intervals.merge(rows["start"].to_numpy(), rows["end"].to_numpy())


def select_timed_spans(trace: Trace) -> pl.DataFrame:
    """Return the spans that devices timed, with `start` and `end` there."""
    begin_ns, length_ns = pl.col("device_start_ns"), pl.col("device_duration_ns")
    timed = trace.spans.filter(begin_ns.is_not_null() & length_ns.is_not_null())
    columns = ("process", "rank", "thread", "step", "kind", "name", "bucket")
    return timed.select(*columns, start=begin_ns, end=begin_ns + length_ns).collect()


def measure_undivided_share(trace: Trace) -> float:
    """Return in what share of ranks x job time a device's phase may have waited for communication.

    A phase that a device timed from its first to its last work holds what its stream waited for.
    That is so where communication was in flight on the device that the phase may need: anything but
    a gradient bucket, for which nothing waits before backprop is over. Profiles time each kernel.
    """
    if trace.recognition is not None or trace.device_clocks.is_empty() or trace.steps.is_empty():
        return 0.0
    timed = select_timed_spans(trace).join(trace.steps, on=["process", "step"], how="semi")
    phases = timed.filter(pl.col("kind").is_in(COMPUTE_CATEGORIES))
    awaited = timed.filter(pl.col("kind") == "reduction", pl.col("bucket").is_null())
    awaited_of = awaited.partition_by("process", as_dict=True)
    overlap_ns = sum(
        _overlap_ns(part, awaited_of[process])
        for process, part in phases.partition_by("process", as_dict=True).items()
        if process in awaited_of
    )
    return overlap_ns / (trace.steps["process"].n_unique() * max(job_ns(trace), 1))


def _overlap_ns(first: pl.DataFrame, second: pl.DataFrame) -> int:
    """Return for how long rows of both last at the same time."""
    union_ns = _merge(pl.concat([first, second])).total_ns
    return _merge(first).total_ns + _merge(second).total_ns - union_ns
