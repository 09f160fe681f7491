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
    reader_facts = trace.recognition.facts if trace.recognition else ()
    span_counts, device_spans = _count_spans(trace), select_timed_spans(trace)
    return [
        *reader_facts,
        ("ranks", _describe_ranks(trace)),
        ("groups", _describe_groups(trace)),
        ("steps", _describe_steps(trace)),
        ("collectives", _describe_collectives(trace, span_counts)),
        ("phases", _describe_phases(span_counts)),
        ("streams", _describe_streams(trace, device_spans)),
        *(("device", text) for text in _describe_devices(trace, device_spans)),
    ]


def find_gaps(trace: Trace) -> tuple[Gap, ...]:
    """Find the gaps that the reader and the trace itself show."""
    if not trace.recognition:
        return tuple(_find_undivided_phases(trace))
    return (*_find_missing_ranks(trace), *trace.recognition.gaps)


def _find_missing_ranks(trace: Trace) -> Iterator[Gap]:
    """Yield a gap if fewer ranks are here than are expected."""
    present_ranks = trace.workers["rank"].to_list()
    if trace.choice.rank_ranges is None and len(present_ranks) < trace.expected_ranks:
        verb = "is" if len(present_ranks) == 1 else "are"
        yield Gap(
            f"only {fmt.listing('rank', present_ranks)} of {trace.expected_ranks:,} {verb} here",
            "which rank others wait for",
            "Give the files of all ranks, in one folder.",
            is_decisive=len(present_ranks) > 1,  # one rank shows where its own time goes
        )


def _find_undivided_phases(trace: Trace) -> Iterator[Gap]:
    share = measure_undivided_share(trace)
    if share >= MOST_UNEXPLAINED:
        yield Gap(
            f"within phases of devices, communication is in flight {fmt.percent(share)} of the time",
            "how long phases waited for it (FSDP gathers weights in forward and backprop)",
            "Record some steps with torch.profiler, which times each kernel, and analyze its files.",
            hides_waits=True,
        )


def _describe_ranks(trace: Trace) -> str:
    workers = trace.workers
    hosts = fmt.count(workers["host"].n_unique(), "host")
    seen, expected = workers.height, trace.expected_ranks
    return f"{seen:,} of {expected:,} ({fmt.listing('rank', workers['rank'].to_list())}), {hosts}"


def _describe_groups(trace: Trace) -> str:
    groups = trace.communicators.select("name", pl.col("ranks").list.len().alias("size")).rows()
    listed = [f"{name}: {fmt.count(size or 0, 'rank')}" for name, size in groups[: fmt.MOST_LISTED]]
    return "; ".join([*listed, *_count_more(len(groups))]) or "none"


def _describe_steps(trace: Trace) -> str:
    """Return the number of steps ranks recorded, such as "10 to 12 a rank (steps 0-11)"."""
    if trace.steps.is_empty():
        return "none"
    step_counts = trace.steps.group_by("process").len()["len"]
    first_step, last_step = trace.steps["step"].min(), trace.steps["step"].max()
    assert isinstance(first_step, int)
    assert isinstance(last_step, int)
    fewest, most = step_counts.min(), step_counts.max()
    steps_per_rank = f"{most!s}" if fewest == most else f"{fewest!s} to {most!s}"
    return f"{steps_per_rank} a rank ({fmt.steps(first_step, last_step)})"


def _count_spans(trace: Trace) -> pl.DataFrame:
    """Count spans, one row per `kind` and `op`: all, those with a size, and all bytes.

    Sums are floating-point numbers: those of a run may exceed 64 bits.
    """
    spans = trace.spans.select(
        pl.col("kind", "op").cast(pl.String), pl.col("bytes").cast(pl.Float64)
    )
    counts = spans.group_by("kind", "op").agg(
        pl.len().alias("spans"), sized=pl.col("bytes").count(), size=pl.col("bytes").sum()
    )
    return counts.sort(["spans", "op"], descending=[True, False]).collect()


def _describe_collectives(trace: Trace, span_counts: pl.DataFrame) -> str:
    """List calls by operation, their bytes, and how many were matched between ranks.

    `span_counts` has one row per kind and operation.
    """
    calls = span_counts.filter(pl.col("kind") == "reduction")
    if calls.is_empty():
        return "none"
    op = pl.col("op").fill_null("of unknown operation")
    calls_text = ", ".join(f"{count:,} {name}" for name, count in calls.select(op, "spans").rows())
    sized_count = calls["sized"].sum()
    size_text = fmt.size(float(calls["size"].sum())) if sized_count else "no sizes"
    if 0 < sized_count < calls["spans"].sum():
        size_text += f" in the {sized_count:,} whose size is known"
    matched_count = sum(grid.start_ns.shape[0] for grid in trace.calls)
    is_matchable = trace.workers.height > 1 and calls["op"].is_in(list(COLLECTIVES)).any()
    matched = f"; {fmt.count(matched_count, 'call')} matched between ranks" if is_matchable else ""
    return f"{calls_text}; {size_text}{matched}"


def _describe_phases(span_counts: pl.DataFrame) -> str:
    kinds = set(span_counts["kind"])
    return ", ".join(fmt.phase(kind) for kind in OWN_KINDS if kind in kinds) or "none"


def _describe_streams(trace: Trace, device_spans: pl.DataFrame) -> str:
    """List streams by name, and what most of their spans are; `device_spans` has a row per span."""
    communication_share = (pl.col("kind") == "reduction").mean()
    streams = device_spans.group_by("process", "thread").agg(share=communication_share)
    if streams.is_empty():
        return "none: no device is recorded"
    named_streams = streams.join(trace.threads, on=["process", "thread"]).group_by("name")
    shares = named_streams.agg(pl.col("share").mean()).sort("name")
    listed = [
        f"{name} ({'communication' if share > 0.5 else 'computation'})"
        for name, share in shares.head(fmt.MOST_LISTED).rows()
    ]
    return ", ".join([*listed, *_count_more(shares.height)])


def _count_more(count: int) -> list[str]:
    return [f"{count - fmt.MOST_LISTED} more"] if count > fmt.MOST_LISTED else []


def _describe_devices(trace: Trace, device_spans: pl.DataFrame) -> list[str]:
    """Describe how busy devices were: of each rank, or of the least and the most busy one."""
    devices = measure_device_time(trace, device_spans)
    ordered = sorted(devices, key=lambda device: device.busy_ns / max(device.job_ns, 1))
    shown = ordered if len(ordered) < 3 else [ordered[0], ordered[-1]]
    return [_describe_device(device) for device in shown]


def _describe_device(device: DeviceTime) -> str:
    text = (
        f"rank {device.rank}: {device.device_shares.description} of {fmt.duration(device.job_ns)}"
    )
    overlapped_share = device.overlapped_communication_share
    if overlapped_share is None:
        return text
    return f"{text}; {fmt.percent(overlapped_share)} of communication beside computation"
