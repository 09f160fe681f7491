"""Leaves out and counts rows of spans that are not usable, and tells the processes of the others.

There is a process for each rank and role, with its host and its clock.
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

# Columns that every row has; the others are filled in afterwards.
_JUDGED: Final = ("start_ns", "duration_ns", "type", "status")
_REASON: Final = "why it is left out"
_PROCESS: Final = ("role", "rank")
_EPOCH_NS: Final = (946_684_800_000_000_000, 4_102_444_800_000_000_000)  # the years 2000 to 2100
_WINDOW_NS: Final = 1_000
_OPTIONAL: Final = ("host", "clock", "world", "shard", "pid", "file")
_ONE_CLOCK: Final = "table"


@dataclass(frozen=True, eq=False)
class Rejected:
    """Rows left out: `counts` by reason, `rows` by role and rank where these are known."""

    counts: dict[str, int]
    rows: pl.DataFrame
    notes: tuple[Note, ...] = ()


def fitted(frame: pl.DataFrame, columns: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Return exactly `columns`, in order and typed; what the frame does not have is null."""
    return frame.select(
        pl.col(name).cast(dtype) if name in frame.columns else pl.lit(None, dtype).alias(name)
        for name, dtype in columns.items()
    )


def usable_rows(
    frame: pl.DataFrame, unusable: Mapping[str, int], name: str
) -> tuple[pl.DataFrame, Rejected]:
    """Drop rows that break a rule; `unusable` were dropped before, by reason.

    Raises:
        UnusableInput: nothing is left.
    """
    frame = _with_types(_shift_times(frame)).with_columns(
        duration_ns=pl.col("end_ns") - pl.col("start_ns")
    )
    judged = frame.with_columns(reason_left_out(_JUDGED, _PROCESS).alias(_REASON))
    usable = judged.filter(pl.col(_REASON).is_null()).drop(_REASON, "duration_ns")
    usable = usable.with_columns(**held_to_range(usable.schema))
    if usable.is_empty():
        raise UnusableInput(f"In {name} no row is usable: not one has an end after its begin.")
    counts = add_counts(unusable, count_reasons(judged[_REASON]))
    counts = {reason: count for reason, count in counts.items() if count}
    rejected = judged.filter(pl.col(_REASON).is_not_null()).with_columns(
        pl.col("role").cast(pl.String)
    )
    lost = rejected.group_by(_PROCESS).agg(dropped=pl.len().cast(pl.Int64))
    return usable, Rejected(counts, lost, _rejection_notes(counts, name))


def without_repeats(frame: pl.DataFrame, *, once: bool) -> tuple[pl.DataFrame, list[Note]]:
    """Sort rows, and drop those that repeat another in every column; with `once` none does."""
    times = ("process", "start_ns", "end_ns")
    frame = frame.sort(times, descending=[False, False, True])
    if once:
        return frame, []
    is_same_time = pl.all_horizontal(
        pl.col(column).eq_missing(pl.col(column).shift(1)) for column in times
    )
    if not frame.select(is_same_time.any()).item():
        return frame, []
    distinct = frame.unique(maintain_order=True)
    repeat_count = frame.height - distinct.height
    if not repeat_count:
        return frame, []
    sentence = f"{repeat_count:,} rows repeat another in every column: they count once."
    return distinct, [Note(file="", sentence=sentence, kind="dropped")]


def _with_types(frame: pl.DataFrame) -> pl.DataFrame:
    """Fill `type` and `status`: a row without an end was still open when recording ended."""
    event_type, status = (
        pl.col(name).cast(pl.String) if name in frame.columns else pl.lit(None, pl.String)
        for name in ("type", "status")
    )
    event_type = pl.when(event_type.is_in(EVENT_TYPES)).then(event_type).otherwise(pl.lit("span"))
    is_closed = status.is_in([word for word in STATUSES if word != "open"])
    status = (
        pl.when(pl.col("end_ns").is_null())
        .then(pl.lit("open"))
        .when(is_closed)
        .then(status)
        .otherwise(pl.lit("closed"))
    )
    end = pl.when(event_type != "span").then("start_ns").otherwise("end_ns")
    frame = frame.with_columns(end_ns=end, type=event_type.cast(EVENT_COLUMNS["type"]))
    return frame.with_columns(status=status.cast(EVENT_COLUMNS["status"]))


def _shift_times(frame: pl.DataFrame) -> pl.DataFrame:
    """Move times that begin before zero, as where zero is some event in the run."""
    first_ns = frame["start_ns"].min()
    if not isinstance(first_ns, int) or not -LONGEST_NS < first_ns < 0:
        return frame
    times = [name for name in ("start_ns", "end_ns", "device_start_ns") if name in frame.columns]
    return frame.with_columns(pl.col(times) - first_ns)


def _rejection_notes(counts: dict[str, int], name: str) -> tuple[Note, ...]:
    if not counts:
        return ()
    listed = ", ".join(f"{count:,} for {reason}" for reason, count in counts.items())
    return (Note(file="", sentence=f"Of {name}, rows were left out: {listed}.", kind="dropped"),)


def number_processes(frame: pl.DataFrame) -> pl.DataFrame:
    """Number the processes: workers by rank, then servers."""
    processes = frame.select(_PROCESS).unique().sort(pl.col("role") == "ps", "rank")
    numbers = processes.with_row_index("process").cast({"process": pl.Int32})
    return frame.join(numbers, on=_PROCESS, how="left", maintain_order="left")


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
    in_flight = threads.filter("in_flight").select("process", "thread")
    open_rows = frame.filter(pl.col("status") == "open")
    unended = open_rows.join(in_flight, on=["process", "thread"], how="anti")["process"].unique()
    processes = _group_processes(frame)
    _refuse_local_ranks(processes, name)
    role = pl.when(pl.col("role") == "ps").then(pl.lit("ps")).otherwise(pl.lit("rank"))
    label = pl.format("{} {}", role, "rank")
    clock = pl.lit(_ONE_CLOCK) if one_clock else pl.coalesce("clock", "host", label)
    described = processes.join(
        lost.rows, on=_PROCESS, how="left", maintain_order="left"
    ).with_columns(
        clock_domain=clock,
        host=pl.coalesce("host", label),
        world=pl.coalesce(pl.col("world").max(), pl.len()),
        shard=pl.when(pl.col("role") == "ps").then("shard"),
        main=pl.lit(value=True),
        complete=~pl.col("process").is_in(unended.implode()),
        dropped=pl.col("dropped").fill_null(0),
        file=pl.coalesce("file", pl.lit(file)),
    )
    return fitted(described, PROCESS_COLUMNS)


def wall_clocks(processes: pl.DataFrame, *, dates: bool) -> pl.DataFrame:
    """Return clock readings that tie processes by their times, if these are moments since 1970."""
    first_ns = processes["first_ns"].min()
    is_date = isinstance(first_ns, int) and _EPOCH_NS[0] <= first_ns < _EPOCH_NS[1]
    if not (dates or is_date):
        return pl.DataFrame(schema=CLOCK_COLUMNS)
    moments = processes.select("process", pl.concat_list("first_ns", "last_ns").alias("wall_ns"))
    readings = moments.explode("wall_ns").with_columns(
        method=pl.lit("local"), monotonic_ns="wall_ns", window_ns=pl.lit(_WINDOW_NS)
    )
    return fitted(readings, CLOCK_COLUMNS)


def _group_processes(frame: pl.DataFrame) -> pl.DataFrame:
    """Return one row a process; what the table does not have is null."""
    absent = [column for column in _OPTIONAL if column not in frame.columns]
    return (
        frame.lazy()
        .with_columns(pl.lit(None, pl.Int32).alias(column) for column in absent)
        .with_columns(pl.col("role", "host", "clock", "file").cast(pl.String))
        .group_by("process", *_PROCESS)
        .agg(
            *(pl.col(column).drop_nulls().first() for column in _OPTIONAL),
            hosts=pl.col("host").drop_nulls().unique().sort(),
            events=pl.len(),
            first_ns=pl.col("start_ns").min(),
            last_ns=pl.max_horizontal("start_ns", "end_ns").max(),
        )
        .sort("process")
        .collect()
    )


def _refuse_local_ranks(processes: pl.DataFrame, name: str) -> None:
    of_several_hosts = processes.filter(pl.col("hosts").list.len() > 1)
    if of_several_hosts.is_empty():
        return
    row = of_several_hosts.row(0, named=True)
    first_host, second_host = row["hosts"][:2]
    raise UnusableInput(
        f"In {name} rank {row['rank']} has rows of the hosts {quoted(first_host)} and "
        f"{quoted(second_host)}: 'rank' must be the global rank, different for every process of the "
        "job."
    )
