"""What a trace that something else recorded was taken for, and what cannot be concluded from a trace.

Counted from the trace itself, so that it says what analyses will see: ranks, groups, steps, collectives
with their bytes, phases, and what devices did on their streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelens.accounting.device_time import (
    DeviceTime,
    measure_device_time,
    measure_undivided_share,
    select_timed_spans,
)
from tracelens.model import fmt
from tracelens.model.recognition import Gap
from tracelens.model.verdict import MOST_UNEXPLAINED
from tracelens.schema.vocabulary import COLLECTIVES, OWN_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.model.trace import Trace


def list_facts(trace: Trace) -> list[tuple[str, str]]:
    """List the facts of a trace as pairs of a subject and its description."""
    recognised = trace.recognition.found if trace.recognition else ()
    counts, timed = _count_spans(trace), select_timed_spans(trace)
    return [
        *recognised,
        ("ranks", _ranks(trace)),
        ("groups", _groups(trace)),
        ("steps", _steps(trace)),
        ("collectives", _collectives(trace, counts)),
        ("phases", _phases(counts)),
        ("streams", _streams(trace, timed)),
        *(("device", text) for text in _devices(trace, timed)),
    ]


def find_gaps(trace: Trace) -> tuple[Gap, ...]:
    """Find the gaps that the reader and the trace itself show."""
    if not trace.recognition:
        return tuple(_undivided_phases(trace))
    return (*_missing_ranks(trace), *trace.recognition.gaps)


def _missing_ranks(trace: Trace) -> Iterator[Gap]:
    present = trace.workers["rank"].to_list()
    if trace.choice.ranks is None and len(present) < trace.expected_ranks:
        verb = "is" if len(present) == 1 else "are"
        yield Gap(
            f"only {fmt.listing('rank', present)} of {trace.expected_ranks:,} {verb} here",
            "which rank others wait for",
            "Give the files of all ranks, in one folder.",
            decisive=len(present) > 1,  # one rank shows where its own time goes
        )


def _undivided_phases(trace: Trace) -> Iterator[Gap]:
    share = measure_undivided_share(trace)
    if share >= MOST_UNEXPLAINED:
        yield Gap(
            f"within phases of devices, communication is in flight {fmt.percent(share)} of the time",
            "how long phases waited for it (FSDP gathers weights in forward and backprop)",
            "Record some steps with torch.profiler, which times each kernel, and analyze its files.",
            hides_waits=True,
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


def _count_spans(trace: Trace) -> pl.DataFrame:
    """Count how many spans of each `kind` and `op` there are, and how large those are that say it.

    Sums of sizes are fractions: those of a run may exceed 64 bits.
    """
    spans = trace.spans.select(
        pl.col("kind", "op").cast(pl.String), pl.col("bytes").cast(pl.Float64)
    )
    counts = spans.group_by("kind", "op").agg(
        pl.len().alias("spans"), sized=pl.col("bytes").count(), size=pl.col("bytes").sum()
    )
    return counts.sort(["spans", "op"], descending=[True, False]).collect()


def _collectives(trace: Trace, counts: pl.DataFrame) -> str:
    calls = counts.filter(pl.col("kind") == "reduction")
    if calls.is_empty():
        return "none"
    op = pl.col("op").fill_null("of unknown operation")
    listed = ", ".join(f"{count:,} {name}" for name, count in calls.select(op, "spans").rows())
    sized = calls["sized"].sum()
    known = fmt.size(float(calls["size"].sum())) if sized else "no sizes"
    if 0 < sized < calls["spans"].sum():
        known += f" in the {sized:,} whose size is known"
    matched = sum(grid.start_ns.shape[0] for grid in trace.calls)
    several = trace.workers.height > 1 and calls["op"].is_in(list(COLLECTIVES)).any()
    ties = f"; {fmt.count(matched, 'call')} matched between ranks" if several else ""
    return f"{listed}; {known}{ties}"


def _phases(counts: pl.DataFrame) -> str:
    kinds = set(counts["kind"])
    return ", ".join(fmt.phase(kind) for kind in OWN_KINDS if kind in kinds) or "none"


def _streams(trace: Trace, timed: pl.DataFrame) -> str:
    there = timed.group_by("process", "thread").agg(reduces=(pl.col("kind") == "reduction").mean())
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


def _devices(trace: Trace, timed: pl.DataFrame) -> list[str]:
    """Measure how busy devices were: of each rank, or of the least and the most busy one."""
    times = sorted(
        measure_device_time(trace, timed), key=lambda one: one.busy_ns / max(one.job_ns, 1)
    )
    chosen = times if len(times) < 3 else [times[0], times[-1]]
    return [_device(one) for one in chosen]


def _device(one: DeviceTime) -> str:
    text = f"rank {one.rank}: {one.shares.text} of {fmt.duration(one.job_ns)}"
    if one.overlap is None:
        return text
    return f"{text}; {fmt.percent(one.overlap)} of communication beside computation"
