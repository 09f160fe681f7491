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
    """When a device computed, communicated, did either, or did anything at all, in `step_windows`."""

    step_windows: Intervals
    compute_intervals: Intervals
    communication_intervals: Intervals
    compute_or_communication_intervals: Intervals
    busy_intervals: Intervals


@dataclass(frozen=True)
class DeviceTime:
    """What the devices of one rank did while the job lasted (`job_ns`).

    `compute_ns` is the time in which kernels ran that do not communicate or move memory,
    `exposed_communication_ns` that of communication without such a kernel, `copies_ns` that of memory
    operations alone.
    """

    rank: int
    job_ns: int
    compute_ns: int
    exposed_communication_ns: int
    copies_ns: int
    communication_ns: int

    @property
    def busy_ns(self) -> int:
        """The time in which anything ran."""
        return self.compute_ns + self.exposed_communication_ns + self.copies_ns

    @property
    def device_shares(self) -> DeviceShares:
        """The same as shares of the job."""
        job_ns = max(self.job_ns, 1)
        exposed_share = self.exposed_communication_ns / job_ns
        return DeviceShares(
            compute=self.compute_ns / job_ns, exposed=exposed_share, copies=self.copies_ns / job_ns
        )

    @property
    def overlapped_communication_share(self) -> float | None:
        """The share of communication that computation overlaps; None without any."""
        if not self.communication_ns:
            return None
        return 1 - self.exposed_communication_ns / self.communication_ns


def measure_device_time(trace: Trace, timed_spans: pl.DataFrame | None = None) -> list[DeviceTime]:
    """Measure the time of devices by rank; `timed_spans` are the `select_timed_spans`, if at hand."""
    rank_by_process = dict(trace.processes.select("process", "rank").iter_rows())
    device_times = []
    for process, work in find_device_work(trace, timed_spans).items():
        windows = work.step_windows  # only time within them counts
        activities = (
            work.compute_intervals,
            work.compute_or_communication_intervals,
            work.busy_intervals,
            work.communication_intervals,
        )
        compute_ns, compute_or_communication_ns, busy_ns, communication_ns = (
            int(
                (
                    activity.covered_ns_before(windows.end_ns)
                    - activity.covered_ns_before(windows.start_ns)
                ).sum()
            )
            for activity in activities
        )
        device_times.append(
            DeviceTime(
                rank_by_process[process],
                job_ns=job_ns(trace) or windows.total_ns,
                compute_ns=compute_ns,
                exposed_communication_ns=compute_or_communication_ns - compute_ns,
                copies_ns=busy_ns - compute_or_communication_ns,
                communication_ns=communication_ns,
            )
        )
    return device_times


def find_device_work(
    trace: Trace, timed_spans: pl.DataFrame | None = None
) -> dict[int, DeviceWork]:
    """Find what devices did, by process: in its steps, or, where it has none, in all of its time.

    `timed_spans` are the `select_timed_spans`, if the caller has them.
    """
    communicates = pl.col("kind") == "reduction"
    moves_memory = pl.col("name").cast(pl.String).str.contains(_MEMORY).fill_null(value=False)
    timed_spans = select_timed_spans(trace) if timed_spans is None else timed_spans
    timed_spans = timed_spans.with_columns(
        communicates=communicates, computes=~communicates & ~moves_memory
    )
    steps = trace.steps.select("process", start="start_ns", end="end_ns")
    steps_by_process = steps.partition_by("process", as_dict=True)
    spans_by_process = timed_spans.partition_by("process", as_dict=True, maintain_order=True)
    work_by_process = {}
    for (process,), device_spans in spans_by_process.items():
        busy = _merge_spans(device_spans)
        whole_time = Intervals(busy.start_ns[:1], busy.end_ns[-1:])
        own_steps = steps_by_process.get((process,))
        work_by_process[int(process)] = DeviceWork(
            step_windows=whole_time if own_steps is None else _merge_spans(own_steps),
            compute_intervals=_merge_spans(device_spans.filter("computes")),
            communication_intervals=_merge_spans(device_spans.filter("communicates")),
            compute_or_communication_intervals=_merge_spans(
                device_spans.filter(pl.col("communicates") | pl.col("computes"))
            ),
            busy_intervals=busy,
        )
    return work_by_process


def _merge_spans(spans: pl.DataFrame) -> Intervals:
    """Return the time in which any of some rows lasts, by their `start` and `end`."""
    return Intervals.merge(spans["start"].to_numpy(), spans["end"].to_numpy())


def select_timed_spans(trace: Trace) -> pl.DataFrame:
    """Return a row per span that a device timed, with its `start` and `end` on the device, ns."""
    begin_ns, length_ns = pl.col("device_start_ns"), pl.col("device_duration_ns")
    timed_spans = trace.spans.filter(begin_ns.is_not_null() & length_ns.is_not_null())
    columns = ("process", "rank", "thread", "step", "kind", "name", "bucket")
    return timed_spans.select(*columns, start=begin_ns, end=begin_ns + length_ns).collect()


def measure_undivided_share(trace: Trace) -> float:
    """Return in what share of ranks x job time a device's phase may have waited for communication.

    A phase that a device timed from its first to its last work holds what its stream waited for.
    That is so where communication was in flight on the device that the phase may need: anything but
    a gradient bucket, for which nothing waits before backprop is over. Profiles time each kernel.
    """
    if trace.recognition is not None or trace.device_clocks.is_empty() or trace.steps.is_empty():
        return 0.0
    spans = select_timed_spans(trace).join(trace.steps, on=["process", "step"], how="semi")
    phases = spans.filter(pl.col("kind").is_in(COMPUTE_CATEGORIES))
    reductions = spans.filter(pl.col("kind") == "reduction", pl.col("bucket").is_null())
    reductions_by_process = reductions.partition_by("process", as_dict=True)
    overlap_ns = sum(
        _measure_overlap_ns(own_phases, reductions_by_process[process])
        for process, own_phases in phases.partition_by("process", as_dict=True).items()
        if process in reductions_by_process
    )
    return overlap_ns / (trace.steps["process"].n_unique() * max(job_ns(trace), 1))


def _measure_overlap_ns(spans: pl.DataFrame, other_spans: pl.DataFrame) -> int:
    """Return for how long a span of each table lasts at the same time, ns."""
    union_ns = _merge_spans(pl.concat([spans, other_spans])).total_ns
    return _merge_spans(spans).total_ns + _merge_spans(other_spans).total_ns - union_ns
