"""Turns one recording's table into rows of a `Trace`, leaving out and counting what makes no sense."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import polars as pl

from tracelens.schema.vocabulary import EVENT_TYPES, STATUSES
from tracelens.trace import EVENT_COLUMNS

if TYPE_CHECKING:
    from tracelens.readers._arrow_file import Recording

LATEST_NS: Final = 9_214_646_400_000_000_000  # the year 2262, near the end of 64 bits
LONGEST_NS: Final = 366 * 86_400 * 1_000_000_000  # nothing lasts a year from a run's median


def checked(recording: Recording, process: int) -> tuple[pl.DataFrame, int]:
    """Return the usable events of one process, and how many were left out."""
    table = cast("pl.DataFrame", pl.from_arrow(recording.table))
    usable = table.filter(sane())
    near = (pl.col("start_ns") - pl.col("start_ns").median()).abs() < LONGEST_NS
    usable = usable.filter(near)
    events = usable.with_columns(
        process=pl.lit(process, pl.Int32),
        rank=pl.lit(recording.side.process.rank, pl.Int32),
        role=pl.lit(recording.side.process.role),
        end_ns=pl.col("start_ns") + pl.col("duration_ns"),
        communicator=_communicator(recording),
        step=pl.max_horizontal("step", pl.lit(-1, pl.Int32)),
        bytes=pl.when(pl.col("bytes") >= 0).then("bytes"),
        value=pl.when(pl.col("value").is_finite()).then("value"),
    )
    columns = [pl.col(name).cast(kind) for name, kind in EVENT_COLUMNS.items()]
    return events.select(columns).sort("start_ns", "depth"), table.height - usable.height


def sane() -> pl.Expr:
    """Times in order and in range, known words."""
    start, duration = pl.col("start_ns"), pl.col("duration_ns").fill_null(0)
    return (
        start.is_between(0, LATEST_NS)
        & duration.is_between(0, LONGEST_NS)
        & pl.col("type").cast(pl.String).is_in(EVENT_TYPES)
        & pl.col("status").cast(pl.String).is_in(STATUSES)
    )


def _communicator(recording: Recording) -> Any:
    """Replace this process's communicator numbers by the identifiers that all members share."""
    known = {group.index: group.uid for group in recording.side.communicators}
    number = pl.col("communicator")
    return number.replace_strict(known, default=None, return_dtype=pl.String)
