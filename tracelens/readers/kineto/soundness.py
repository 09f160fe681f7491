"""Takes from a file's events what `tracelens.readers.soundness` checks: kernels, launches and steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelens.readers import soundness
from tracelens.readers.kineto.words import RANGES, parse_step_number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelens.readers.kineto.columns import EventTable
    from tracelens.readers.soundness import LostKernels


def drop_impossible_rows(table: EventTable) -> list[str]:
    """Leave out rows that cannot be, and return phrases on what they are, with their share."""
    rows, phrases = soundness.drop_impossible_events(
        table.rows.with_columns(is_kernel=pl.col("category") == "kernel"),
        stream_columns=("device", "stream", "tid"),
        negative_count=table.negative_count,
        event_count=table.event_count,
    )
    table.rows = rows.drop("is_kernel")
    return phrases


def find_lost_kernels(table: EventTable, tables_of_rank: Iterable[EventTable]) -> LostKernels:
    """Compare launches of a file with the kernels in all files of its rank."""
    is_on_device = pl.col("category").is_in(["kernel", "copy"])
    device_events = [other.rows.filter(is_on_device) for other in tables_of_rank]
    kernel_correlations = pl.concat([events["correlation"] for events in device_events])
    name = pl.col("name").cast(pl.String)
    is_launch = (pl.col("category") == "runtime") & name.str.contains(soundness.KERNEL_LAUNCHES)
    ranges = table.rows.filter(name.str.contains(RANGES)).sort("start_ns")
    steps = [
        (begin_ns, step)
        for begin_ns, range_name in ranges.select("start_ns", name).rows()
        if (step := parse_step_number(range_name)) is not None
    ]
    launches = table.rows.filter(is_launch).drop_nulls("correlation")
    return soundness.find_lost_kernels(launches, kernel_correlations.drop_nulls(), steps)
