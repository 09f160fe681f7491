"""Takes from a file's events what `tracelens.readers.soundness` checks: kernels, launches and steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelens.readers import soundness
from tracelens.readers.kineto.words import RANGES, step_number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelens.readers.kineto.columns import EventTable
    from tracelens.readers.soundness import LostKernels

__all__ = ["drop_impossible", "find_lost_kernels"]


def drop_impossible(table: EventTable) -> list[str]:
    """Leave out rows that cannot be, and return what they are, with their share."""
    rows, sentences = soundness.drop_impossible(
        table.rows.with_columns(is_kernel=pl.col("category") == "kernel"),
        ("device", "stream", "tid"),
        negative_count=table.negative,
        event_count=table.events,
    )
    table.rows = rows.drop("is_kernel")
    return sentences


def find_lost_kernels(table: EventTable, tables: Iterable[EventTable]) -> LostKernels:
    """Compare launches of a file with the kernels of all `tables` of its rank."""
    is_on_device = pl.col("category").is_in(["kernel", "copy"])
    kernels = pl.concat([sibling.rows.filter(is_on_device)["correlation"] for sibling in tables])
    name = pl.col("name").cast(pl.String)
    is_launch = (pl.col("category") == "runtime") & name.str.contains(soundness.KERNEL_LAUNCHES)
    marks = table.rows.filter(name.str.contains(RANGES)).sort("start_ns")
    step_begins = [
        (begin_ns, step)
        for begin_ns, mark in marks.select("start_ns", name).rows()
        if (step := step_number(mark)) is not None
    ]
    launches = table.rows.filter(is_launch).drop_nulls("correlation")
    return soundness.find_lost_kernels(launches, kernels.drop_nulls(), step_begins)
