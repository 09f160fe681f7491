"""What a trace that something else recorded was taken for, and what cannot be concluded from it.

Counted from the trace itself, so that it says what analyses will see: ranks, groups, steps, collectives
with their bytes, phases, and what devices did on their streams. Busy, exposed and overlapped time of
a device are defined as by Holistic Trace Analysis (`get_temporal_breakdown`, `get_comm_comp_overlap`):
unions of intervals, from its first to its last work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.model import fmt
from tracelens.model.recognition import Gap
from tracelens.schema.vocabulary import COLLECTIVES, OWN_KINDS
from tracelens.stats.constants import BOUND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.arrays import Ints
    from tracelens.model.trace import Trace

__all__ = ["DeviceTime", "device_time", "facts_of", "gaps_of"]

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
    timed = _on_device(trace).select(
        "rank",
        start="device_start_ns",
        end=pl.col("device_start_ns") + pl.col("device_duration_ns"),
        communicates=pl.col("kind") == "reduction",
        moves=pl.col("name").cast(pl.String).str.contains(_MEMORY).fill_null(value=False),
    )
    return [
        _of_rank(int(rank), part)
        for (rank,), part in timed.partition_by("rank", as_dict=True, maintain_order=True).items()
    ]


def _on_device(trace: Trace) -> pl.DataFrame:
    """Return the spans of what devices did, which they timed."""
    times = ("device_start_ns", "device_duration_ns")
    timed = pl.all_horizontal(pl.col(time).is_not_null() for time in times)
    chosen = trace.spans.filter(timed).select("process", "rank", "thread", "kind", "name", *times)
    return chosen.collect()


def _of_rank(rank: int, rows: pl.DataFrame) -> DeviceTime:
    communication = _union(rows.filter("communicates"))
    compute = _union(rows.filter(~pl.col("communicates"), ~pl.col("moves")))
    both = _union(rows.filter(pl.col("communicates") | ~pl.col("moves")))
    busy = _union(rows)
    return DeviceTime(
        rank,
        whole_ns=int(busy[1][-1] - busy[0][0]),
        busy_ns=_length(busy),
        compute_ns=_length(compute),
        communication_ns=_length(communication),
        exposed_ns=_length(both) - _length(compute),
    )


def _union(rows: pl.DataFrame) -> tuple[Ints, Ints]:
    """Return the begins and ends of the time in which any of some rows lasts."""
    ordered = rows.sort("start")
    start, end = ordered["start"].to_numpy(), np.maximum.accumulate(ordered["end"].to_numpy())
    if not len(start):
        return start, end
    first = np.append(True, start[1:] > end[:-1])
    return start[first], end[np.append(np.flatnonzero(first)[1:] - 1, len(end) - 1)]


def _length(part: tuple[Ints, Ints]) -> int:
    return int((part[1] - part[0]).sum())


def facts_of(trace: Trace) -> list[tuple[str, str]]:
    """Return what was recognised, as pairs of a subject and what there is of it."""
    found = trace.recognition.found if trace.recognition else ()
    return [
        *found,
        ("ranks", _ranks(trace)),
        ("groups", _groups(trace)),
        ("steps", _steps(trace)),
        ("collectives", _collectives(trace)),
        ("phases", _phases(trace)),
        ("streams", _streams(trace)),
        *(("device", text) for text in _devices(trace)),
    ]


def gaps_of(trace: Trace) -> tuple[Gap, ...]:
    """Return what is missing, as the reader and the trace itself say; nothing of our own recordings."""
    if not trace.recognition:
        return ()
    return (*_missing_ranks(trace), *trace.recognition.gaps, *_idle_devices(trace))


def _missing_ranks(trace: Trace) -> Iterator[Gap]:
    present = trace.workers["rank"].to_list()
    if trace.choice.ranks is None and len(present) < trace.expected_ranks:
        verb = "is" if len(present) == 1 else "are"
        yield Gap(
            f"only {fmt.listing('rank', present)} of {trace.expected_ranks:,} {verb} here",
            "which rank others wait for",
            "Give the files of all ranks, in one folder.",
        )


def _idle_devices(trace: Trace) -> Iterator[Gap]:
    """Where devices are idle, what the host does meanwhile need not be work: it may launch, or wait."""
    times = device_time(trace)
    whole = sum(one.whole_ns for one in times)
    idle = 1 - sum(one.busy_ns for one in times) / whole if whole else 0.0
    if idle > BOUND:
        yield Gap(
            f"devices are idle for {fmt.percent(idle)} of the time",
            "what devices wait for",
            "Look at what the host does meanwhile: launches of small kernels, input, synchronization.",
        )


def _ranks(trace: Trace) -> str:
    workers = trace.workers
    hosts = fmt.count(workers["host"].n_unique(), "host")
    seen, expected = workers.height, trace.expected_ranks
    return f"{seen:,} of {expected:,} ({fmt.listing('rank', workers['rank'].to_list())}), {hosts}"


def _groups(trace: Trace) -> str:
    named = trace.communicators.select("name", pl.col("ranks").list.len().alias("size")).rows()
    shown = [f"{name}: {fmt.count(size or 0, 'rank')}" for name, size in named[: fmt.MOST_LISTED]]
    more = [f"{len(named) - fmt.MOST_LISTED} more"] if len(named) > fmt.MOST_LISTED else []
    return "; ".join([*shown, *more]) or "none"


def _steps(trace: Trace) -> str:
    if trace.steps.is_empty():
        return "none"
    counts = trace.steps.group_by("process").len()["len"]
    first, last = trace.steps["step"].min(), trace.steps["step"].max()
    assert isinstance(first, int)
    assert isinstance(last, int)
    least, most = counts.min(), counts.max()
    a_rank = f"{most!s}" if least == most else f"{least!s} to {most!s}"
    return f"{a_rank} a rank ({fmt.steps(first, last)})"


def _collectives(trace: Trace) -> str:
    op = pl.col("op").cast(pl.String)
    calls = trace.spans.filter(pl.col("kind") == "reduction").select(op, "bytes").collect()
    if calls.is_empty():
        return "none"
    counts = calls.with_columns(op.fill_null("of unknown operation"))["op"].value_counts(sort=True)
    listed = ", ".join(f"{count:,} {name}" for name, count in counts.rows())
    sizes = calls["bytes"]
    known = "no sizes" if not sizes.count() else fmt.size(float(sizes.sum()))
    if 0 < sizes.count() < len(sizes):
        known += f" in the {sizes.count():,} whose size is known"
    matched = sum(grid.start_ns.shape[0] for grid in trace.calls)
    several = trace.workers.height > 1 and calls["op"].is_in(list(COLLECTIVES)).any()
    ties = f"; {fmt.count(matched, 'call')} matched between ranks" if several else ""
    return f"{listed}; {known}{ties}"


def _phases(trace: Trace) -> str:
    kinds = trace.spans.select(pl.col("kind").cast(pl.String)).collect()["kind"]
    counts = dict(kinds.value_counts().rows())
    return ", ".join(fmt.phase(kind) for kind in OWN_KINDS if counts.get(kind)) or "none"


def _streams(trace: Trace) -> str:
    there = (
        _on_device(trace)
        .group_by("process", "thread")
        .agg(reduces=(pl.col("kind") == "reduction").mean())
    )
    if there.is_empty():
        return "none: no device is recorded"
    named = there.join(trace.threads, on=["process", "thread"]).group_by("name").agg(
        pl.col("reduces").mean()
    ).sort("name")  # fmt: skip
    shown = [
        f"{name} ({'communication' if share > 0.5 else 'computation'})"
        for name, share in named.head(fmt.MOST_LISTED).rows()
    ]
    more = [f"{named.height - fmt.MOST_LISTED} more"] if named.height > fmt.MOST_LISTED else []
    return ", ".join([*shown, *more])


def _devices(trace: Trace) -> list[str]:
    """Return how busy devices were: of each rank, or of the least and the most busy one."""
    every = sorted(device_time(trace), key=lambda one: one.busy_ns / max(one.whole_ns, 1))
    chosen = every if len(every) < 3 else [every[0], every[-1]]
    return [_device(one) for one in chosen]


def _device(one: DeviceTime) -> str:
    def share(part: int) -> str:
        return fmt.percent(part / max(one.whole_ns, 1))

    text = f"rank {one.rank}: busy {share(one.busy_ns)} of {fmt.duration(one.whole_ns)}, computing "
    text += share(one.compute_ns)
    if one.overlap is None:
        return text
    return (
        f"{text}, communicating {share(one.communication_ns)} ({fmt.percent(one.overlap)} of it beside "
        f"computation, {share(one.exposed_ns)} exposed)"
    )
