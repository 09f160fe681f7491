"""What devices did: busy, computing, communicating, and what of that lay beside what.

Busy, exposed and overlapped time are defined as by Holistic Trace Analysis (`get_temporal_breakdown`,
`get_comm_comp_overlap`): unions of intervals, from a device's first to its last work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.categories import COMPUTE_CATEGORIES
from tracelens.accounting.phases import job_ns
from tracelens.distil.outline import outlined

if TYPE_CHECKING:
    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Ints
    from tracelens.model.trace import Trace

__all__ = ["DeviceTime", "device_time", "measure_launching", "timed_spans", "undivided"]

PHASES_OF_DEVICES: Final = ("forward", "backprop", "update")
_MEMORY: Final = r"(?i)^(mem(cpy|set)|memory copy)"


@dataclass(frozen=True)
class DeviceTime:
    """What the devices of one rank did from their first to their last work; nanoseconds.

    `busy` is the time in which anything ran, `compute` that in which kernels ran that do not communicate
    or move memory, `exposed` communication that no such kernel ran beside.
    """

    rank: int
    whole_ns: int
    busy_ns: int
    compute_ns: int
    communication_ns: int
    exposed_ns: int

    @property
    def overlap(self) -> float | None:
        """The share of communication that ran beside computation; null without any."""
        if not self.communication_ns:
            return None
        return 1 - self.exposed_ns / self.communication_ns


def device_time(trace: Trace) -> list[DeviceTime]:
    """Return the time of devices by rank, of all ranks that have any."""
    timed = timed_spans(trace).with_columns(
        communicates=pl.col("kind") == "reduction",
        moves=pl.col("name").cast(pl.String).str.contains(_MEMORY).fill_null(value=False),
    )
    return [
        _of_rank(int(rank), part)
        for (rank,), part in timed.partition_by("rank", as_dict=True, maintain_order=True).items()
    ]


def timed_spans(trace: Trace) -> pl.DataFrame:
    """Return the spans that devices timed, with `start` and `end` there."""
    begin, length = pl.col("device_start_ns"), pl.col("device_duration_ns")
    timed = trace.spans.filter(begin.is_not_null() & length.is_not_null())
    known = ("process", "rank", "thread", "step", "kind", "name", "bucket")
    return timed.select(*known, start=begin, end=begin + length).collect()


def measure_launching(trace: Trace, phases: Phases) -> Ints:
    """Return for how long ranks were in a phase on the host and their devices did nothing of it, ns.

    By worker. Then the host queues work more slowly than the device does it. Where kernels are of no
    known phase, all of that time counts. Ranks of which no device was timed have none.
    """
    host_ns = phases.by_worker(phases.of(*PHASES_OF_DEVICES))
    if not any(outline.on_device for outline in outlined(trace).values()):
        return np.zeros_like(host_ns)
    timed = timed_spans(trace).select(
        "rank", "start", "end", is_phase=pl.col("kind").is_in(PHASES_OF_DEVICES)
    )
    by_rank = timed.partition_by("rank", as_dict=True)
    launching_ns = np.zeros_like(host_ns)
    for worker, rank in enumerate(phases.pieces.ranks):
        if (rank,) in by_rank:
            device_ns = _union_ns(by_rank[rank,].filter("is_phase"))
            launching_ns[worker] = max(int(host_ns[worker]) - device_ns, 0)
    return launching_ns


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


def _of_rank(rank: int, rows: pl.DataFrame) -> DeviceTime:
    communication = _union_ns(rows.filter("communicates"))
    compute = _union_ns(rows.filter(~pl.col("communicates"), ~pl.col("moves")))
    both = _union_ns(rows.filter(pl.col("communicates") | ~pl.col("moves")))
    busy = _union(rows)
    return DeviceTime(
        rank,
        whole_ns=int(busy[1][-1] - busy[0][0]),
        busy_ns=_union_ns(rows),
        compute_ns=compute,
        communication_ns=communication,
        exposed_ns=both - compute,
    )


def _shared_ns(some: pl.DataFrame, others: pl.DataFrame) -> int:
    """Return for how long rows of both last at once."""
    return _union_ns(some) + _union_ns(others) - _union_ns(pl.concat([some, others]))


def _union_ns(rows: pl.DataFrame) -> int:
    start, end = _union(rows)
    return int((end - start).sum())


def _union(rows: pl.DataFrame) -> tuple[Ints, Ints]:
    """Return the begins and ends of the time in which any of some rows lasts."""
    ordered = rows.sort("start")
    start, end = ordered["start"].to_numpy(), np.maximum.accumulate(ordered["end"].to_numpy())
    if not len(start):
        return start, end
    first = np.append(True, start[1:] > end[:-1])
    return start[first], end[np.append(np.flatnonzero(first)[1:] - 1, len(end) - 1)]
