"""Which processes a table tells of: one for each rank and role, with its host and its clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.errors import UnusableInput
from tracelens.readers.table.frames import fitted
from tracelens.readers.table.sentences import quoted
from tracelens.trace import CLOCK_COLUMNS, PROCESS_COLUMNS

if TYPE_CHECKING:
    from tracelens.readers.table.rows import Lost

__all__ = ["describe", "number", "wall_clocks"]

_EPOCH_NS: Final = (946_684_800_000_000_000, 4_102_444_800_000_000_000)  # the years 2000 to 2100
_WINDOW_NS: Final = 1_000
_WHOSE: Final = ("role", "rank")
_MAYBE: Final = ("host", "clock", "world", "shard")
_ONE: Final = "table"


def number(frame: pl.DataFrame) -> pl.DataFrame:
    """Number the processes: workers by rank, then servers."""
    order = (
        frame.select(_WHOSE)
        .unique()
        .sort(pl.col("role") == "ps", "rank")
        .with_row_index("process")
        .with_columns(pl.col("process").cast(pl.Int32))
    )
    return frame.join(order, on=_WHOSE, how="left", maintain_order="left")


def describe(
    frame: pl.DataFrame, threads: pl.DataFrame, lost: Lost, name: str, file: str, *, one_clock: bool
) -> pl.DataFrame:
    """Return the process table; processes share a clock if a column or the user says so, or the host.

    A process with an open row, unless that is an operation in flight, did not end by itself.

    Raises:
        UnusableInput: rows of one rank come from several hosts.
    """
    flying = threads.filter("in_flight").select("process", "thread")
    broken = frame.filter(pl.col("status") == "open").join(
        flying, on=["process", "thread"], how="anti"
    )
    found = _gathered(frame)
    _refuse_local_ranks(found, name)
    alone = pl.format("{} {}", _called(), "rank")
    clock = pl.lit(_ONE) if one_clock else pl.coalesce("clock", "host", alone)
    described = found.join(lost.rows, on=_WHOSE, how="left", maintain_order="left").with_columns(
        clock_domain=clock,
        host=pl.coalesce("host", alone),
        world=pl.coalesce(pl.col("world").max(), pl.len()),
        shard=pl.when(pl.col("role") == "ps").then("shard"),
        main=pl.lit(value=True),
        complete=~pl.col("process").is_in(broken["process"].unique().implode()),
        dropped=pl.col("dropped").fill_null(0),
        file=pl.lit(file),
    )
    return fitted(described, PROCESS_COLUMNS)


def wall_clocks(processes: pl.DataFrame, *, dates: bool) -> pl.DataFrame:
    """Return clock readings that tie processes by their times, if these are moments since 1970."""
    first = processes["first_ns"].min()
    epoch = isinstance(first, int) and _EPOCH_NS[0] <= first < _EPOCH_NS[1]
    if not (dates or epoch):
        return pl.DataFrame(schema=CLOCK_COLUMNS)
    moments = processes.select("process", pl.concat_list("first_ns", "last_ns").alias("wall_ns"))
    read = moments.explode("wall_ns").with_columns(
        method=pl.lit("local"), monotonic_ns="wall_ns", window_ns=pl.lit(_WINDOW_NS)
    )
    return fitted(read, CLOCK_COLUMNS)


def _gathered(frame: pl.DataFrame) -> pl.DataFrame:
    """Return one row a process; what the table does not have is null."""
    absent = [column for column in _MAYBE if column not in frame.columns]
    words = [pl.col(column).cast(pl.String) for column in ("role", "host", "clock")]
    return (
        frame.lazy()
        .with_columns(pl.lit(None, pl.Int32).alias(column) for column in absent)
        .with_columns(words)
        .group_by("process", *_WHOSE)
        .agg(
            *(pl.col(column).drop_nulls().first() for column in _MAYBE),
            hosts=pl.col("host").drop_nulls().unique().sort(),
            events=pl.len(),
            first_ns=pl.col("start_ns").min(),
            last_ns=pl.max_horizontal("start_ns", "end_ns").max(),
        )
        .sort("process")
        .collect()
    )


def _called() -> pl.Expr:
    return pl.when(pl.col("role") == "ps").then(pl.lit("ps")).otherwise(pl.lit("rank"))


def _refuse_local_ranks(found: pl.DataFrame, name: str) -> None:
    several = found.filter(pl.col("hosts").list.len() > 1)
    if several.is_empty():
        return
    row = several.row(0, named=True)
    first, second = row["hosts"][:2]
    raise UnusableInput(
        f"In {name} rank {row['rank']} has rows of the hosts {quoted(first)} and {quoted(second)}: "
        "'rank' must be the global rank, different for every process of the job."
    )
