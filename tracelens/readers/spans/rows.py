"""Which rows of spans are usable, and of which processes they are.

Other rows are left out and counted. There is a process for each rank and role, with its host and
its clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.errors import UnusableInput
from tracelens.model.trace import CLOCK_COLUMNS, EVENT_COLUMNS, PROCESS_COLUMNS, Note
from tracelens.readers.base import quoted
from tracelens.readers.rules import count_reasons, held_to_range, reason_left_out
from tracelens.schema.rules import LONGEST_NS, add_counts
from tracelens.schema.vocabulary import EVENT_TYPES, STATUSES

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Rejected",
    "fitted",
    "number_processes",
    "process_table",
    "usable_rows",
    "wall_clocks",
    "without_repeats",
]


# What every row has: the other columns are filled in afterwards.
_JUDGED: Final = ("start_ns", "duration_ns", "type", "status")
_REASON: Final = "why it is left out"
_WORKER: Final = ("role", "rank")
_EPOCH_NS: Final = (946_684_800_000_000_000, 4_102_444_800_000_000_000)  # the years 2000 to 2100
_WINDOW_NS: Final = 1_000
_PER_PROCESS: Final = ("role", "rank")
_MAYBE: Final = ("host", "clock", "world", "shard", "pid", "file")
_ONE: Final = "table"


@dataclass(frozen=True, eq=False)
class Rejected:
    """Rows left out: `counts` by reason, `rows` by role and rank where these are known."""

    counts: dict[str, int]
    rows: pl.DataFrame
    notes: tuple[Note, ...] = ()


def fitted(frame: pl.DataFrame, columns: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Return exactly `columns`, in order and typed; what the frame does not have is null."""
    return frame.select(
        pl.col(name).cast(kind) if name in frame.columns else pl.lit(None, kind).alias(name)
        for name, kind in columns.items()
    )


def usable_rows(
    frame: pl.DataFrame, unusable: Mapping[str, int], name: str
) -> tuple[pl.DataFrame, Rejected]:
    """Drop rows that break a rule; `unusable` were dropped before, by reason.

    Raises:
        UnusableInput: nothing is left.
    """
    frame = _typed(_shifted(frame)).with_columns(duration_ns=pl.col("end_ns") - pl.col("start_ns"))
    judged = frame.with_columns(reason_left_out(_JUDGED, _WORKER).alias(_REASON))
    kept = judged.filter(pl.col(_REASON).is_null()).drop(_REASON, "duration_ns")
    kept = kept.with_columns(**held_to_range(kept.schema))
    if kept.is_empty():
        raise UnusableInput(f"In {name} no row is usable: not one has an end after its begin.")
    counts = add_counts(unusable, count_reasons(judged[_REASON]))
    counts = {why: count for why, count in counts.items() if count}
    lost = (
        judged.filter(pl.col(_REASON).is_not_null())
        .with_columns(pl.col("role").cast(pl.String))
        .group_by(_WORKER)
        .agg(dropped=pl.len().cast(pl.Int64))
    )
    return kept, Rejected(counts, lost, _rejection_notes(counts, name))


def without_repeats(frame: pl.DataFrame, *, once: bool) -> tuple[pl.DataFrame, list[Note]]:
    """Sort rows, and drop those that repeat another in every column; with `once` none does."""
    place = ("process", "start_ns", "end_ns")
    frame = frame.sort("process", "start_ns", "end_ns", descending=[False, False, True])
    if once:
        return frame, []
    again = pl.all_horizontal(
        pl.col(column).eq_missing(pl.col(column).shift(1)) for column in place
    )
    if not frame.select(again.any()).item():
        return frame, []
    kept = frame.unique(maintain_order=True)
    repeated = frame.height - kept.height
    if not repeated:
        return frame, []
    sentence = f"{repeated:,} rows repeat another in every column: they count once."
    return kept, [Note(file="", sentence=sentence, kind="dropped")]


def _typed(frame: pl.DataFrame) -> pl.DataFrame:
    """Fill `type` and `status`: a row without an end was still open when recording ended."""
    given = {name: pl.lit(None, pl.String) for name in ("type", "status")}
    given |= {name: pl.col(name).cast(pl.String) for name in given if name in frame.columns}
    event = pl.when(given["type"].is_in(EVENT_TYPES)).then(given["type"]).otherwise(pl.lit("span"))
    closed = given["status"].is_in([status for status in STATUSES if status != "open"])
    status = (
        pl.when(pl.col("end_ns").is_null())
        .then(pl.lit("open"))
        .when(closed)
        .then(given["status"])
        .otherwise(pl.lit("closed"))
    )
    end = pl.when(event != "span").then("start_ns").otherwise("end_ns")
    frame = frame.with_columns(end_ns=end, type=event.cast(EVENT_COLUMNS["type"]))
    return frame.with_columns(status=status.cast(EVENT_COLUMNS["status"]))


def _shifted(frame: pl.DataFrame) -> pl.DataFrame:
    """Move times that begin before zero, as where zero is some event in the run."""
    first = frame["start_ns"].min()
    if not isinstance(first, int) or not -LONGEST_NS < first < 0:
        return frame
    times = [name for name in ("start_ns", "end_ns", "device_start_ns") if name in frame.columns]
    return frame.with_columns(pl.col(times) - first)


def _rejection_notes(counts: dict[str, int], name: str) -> tuple[Note, ...]:
    if not counts:
        return ()
    listed = ", ".join(f"{count:,} for {reason}" for reason, count in counts.items())
    return (Note(file="", sentence=f"Of {name}, rows were left out: {listed}.", kind="dropped"),)


def number_processes(frame: pl.DataFrame) -> pl.DataFrame:
    """Number the processes: workers by rank, then servers."""
    order = (
        frame.select(_PER_PROCESS)
        .unique()
        .sort(pl.col("role") == "ps", "rank")
        .with_row_index("process")
        .with_columns(pl.col("process").cast(pl.Int32))
    )
    return frame.join(order, on=_PER_PROCESS, how="left", maintain_order="left")


def process_table(
    frame: pl.DataFrame,
    threads: pl.DataFrame,
    lost: Rejected,
    name: str,
    file: str,
    *,
    one_clock: bool,
) -> pl.DataFrame:
    """Return the process table; processes share a clock by column, by option, or by host.

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
    described = found.join(
        lost.rows, on=_PER_PROCESS, how="left", maintain_order="left"
    ).with_columns(
        clock_domain=clock,
        host=pl.coalesce("host", alone),
        world=pl.coalesce(pl.col("world").max(), pl.len()),
        shard=pl.when(pl.col("role") == "ps").then("shard"),
        main=pl.lit(value=True),
        complete=~pl.col("process").is_in(broken["process"].unique().implode()),
        dropped=pl.col("dropped").fill_null(0),
        file=pl.coalesce("file", pl.lit(file)),
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
    words = [pl.col(column).cast(pl.String) for column in ("role", "host", "clock", "file")]
    return (
        frame.lazy()
        .with_columns(pl.lit(None, pl.Int32).alias(column) for column in absent)
        .with_columns(words)
        .group_by("process", *_PER_PROCESS)
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
