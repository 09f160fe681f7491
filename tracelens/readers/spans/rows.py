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
from tracelens.readers.rules import count_reasons, find_reason_left_out, hold_to_range
from tracelens.schema.rules import LONGEST_NS, add_counts
from tracelens.schema.vocabulary import EVENT_TYPES, STATUSES

if TYPE_CHECKING:
    from collections.abc import Mapping

# Columns that every row has; the others are filled in afterwards.
_JUDGED_COLUMNS: Final = ("start_ns", "duration_ns", "type", "status")
_REASON: Final = "why it is left out"
_PROCESS_KEY: Final = ("role", "rank")
_DATES_NS: Final = range(946_684_800 * 10**9, 4_102_444_800 * 10**9)  # the years 2000 to 2100
_WINDOW_NS: Final = 1_000
_OPTIONAL: Final = ("host", "clock", "world", "shard", "pid", "file")
_ONE_CLOCK: Final = "table"


@dataclass(frozen=True, eq=False)
class Rejected:
    """Rows that were left out."""

    count_by_reason: dict[str, int]
    dropped_by_process: pl.DataFrame  # their number (`dropped`) by role and rank, where known
    notes: tuple[Note, ...] = ()


def fit_columns(table: pl.DataFrame, columns: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Return exactly `columns`, in order and typed; what the frame does not have is null."""
    return table.select(
        pl.col(name).cast(dtype) if name in table.columns else pl.lit(None, dtype).alias(name)
        for name, dtype in columns.items()
    )


def drop_unusable_spans(
    spans: pl.DataFrame, earlier_counts: Mapping[str, int], source_name: str
) -> tuple[pl.DataFrame, Rejected]:
    """Drop spans that break a rule; return the others, and what was dropped.

    `earlier_counts` are spans that the reader of `source_name` dropped before, by reason.

    Raises:
        UnusableInput: nothing is left.
    """
    spans = _fill_types_and_status(_shift_times(spans)).with_columns(
        duration_ns=pl.col("end_ns") - pl.col("start_ns")
    )
    reason = find_reason_left_out(_JUDGED_COLUMNS, process_columns=_PROCESS_KEY)
    judged_spans = spans.with_columns(reason.alias(_REASON))
    usable_spans = judged_spans.filter(pl.col(_REASON).is_null()).drop(_REASON, "duration_ns")
    usable_spans = usable_spans.with_columns(**hold_to_range(usable_spans.schema))
    if usable_spans.is_empty():
        raise UnusableInput(
            f"In {source_name} no row is usable: not one has an end after its begin."
        )
    count_by_reason = add_counts(earlier_counts, count_reasons(judged_spans[_REASON]))
    count_by_reason = {reason: count for reason, count in count_by_reason.items() if count}
    role = pl.col("role").cast(pl.String)
    rejected_spans = judged_spans.filter(pl.col(_REASON).is_not_null()).with_columns(role)
    dropped_by_process = rejected_spans.group_by(_PROCESS_KEY).agg(dropped=pl.len().cast(pl.Int64))
    notes = _note_rejections(count_by_reason, source_name)
    return usable_spans, Rejected(count_by_reason, dropped_by_process, notes)


def drop_repeated_spans(
    spans: pl.DataFrame, *, has_no_repeats: bool
) -> tuple[pl.DataFrame, list[Note]]:
    """Sort spans by process and time, and drop those that repeat another in every column.

    `has_no_repeats`: none does, so they are only sorted. Returns the spans, and a note on those dropped.
    """
    order_columns = ("process", "start_ns", "end_ns")
    spans = spans.sort(order_columns, descending=[False, False, True])
    if has_no_repeats:
        return spans, []
    cells = [pl.col(name) for name in order_columns]
    is_same_time = pl.all_horizontal(cell.eq_missing(cell.shift(1)) for cell in cells)
    if not spans.select(is_same_time.any()).item():
        return spans, []
    distinct_spans = spans.unique(maintain_order=True)
    repeat_count = spans.height - distinct_spans.height
    if not repeat_count:
        return spans, []
    sentence = f"{repeat_count:,} rows repeat another in every column: they count once."
    return distinct_spans, [Note(file="", sentence=sentence, kind="dropped")]


def _fill_types_and_status(spans: pl.DataFrame) -> pl.DataFrame:
    """Fill `type` and `status`; a span without an end was still open when recording ended.

    Events of another type than `span` are instants: they end where they start.
    """
    event_type, status = (
        pl.col(name).cast(pl.String) if name in spans.columns else pl.lit(None, pl.String)
        for name in ("type", "status")
    )
    event_type = pl.when(event_type.is_in(EVENT_TYPES)).then(event_type).otherwise(pl.lit("span"))
    has_closing_status = status.is_in([word for word in STATUSES if word != "open"])
    status = (
        pl.when(pl.col("end_ns").is_null())
        .then(pl.lit("open"))
        .when(has_closing_status)
        .then(status)
        .otherwise(pl.lit("closed"))
    )
    end_ns = pl.when(event_type != "span").then("start_ns").otherwise("end_ns")
    spans = spans.with_columns(end_ns=end_ns, type=event_type.cast(EVENT_COLUMNS["type"]))
    return spans.with_columns(status=status.cast(EVENT_COLUMNS["status"]))


def _shift_times(spans: pl.DataFrame) -> pl.DataFrame:
    """Shift all times so that the first is 0 if it is negative: zero was some event of the run."""
    first_ns = spans["start_ns"].min()
    if not isinstance(first_ns, int) or not -LONGEST_NS < first_ns < 0:
        return spans
    columns = ("start_ns", "end_ns", "device_start_ns")
    time_columns = [name for name in columns if name in spans.columns]
    return spans.with_columns(pl.col(time_columns) - first_ns)


def _note_rejections(count_by_reason: dict[str, int], source_name: str) -> tuple[Note, ...]:
    if not count_by_reason:
        return ()
    listed = ", ".join(f"{count:,} for {reason}" for reason, count in count_by_reason.items())
    sentence = f"Of {source_name}, rows were left out: {listed}."
    return (Note(file="", sentence=sentence, kind="dropped"),)


def number_processes(spans: pl.DataFrame) -> pl.DataFrame:
    """Number the processes: workers by rank, then servers."""
    processes = spans.select(_PROCESS_KEY).unique().sort(pl.col("role") == "ps", "rank")
    numbered_processes = processes.with_row_index("process").cast({"process": pl.Int32})
    return spans.join(numbered_processes, on=_PROCESS_KEY, how="left", maintain_order="left")


def describe_processes(
    spans: pl.DataFrame,
    threads: pl.DataFrame,
    rejected: Rejected,
    source_name: str,
    file_name: str,
    *,
    has_one_clock: bool,
) -> pl.DataFrame:
    """Return the process table; processes share a clock by column, by `has_one_clock`, or by host.

    `threads` is the thread table. A process with an open span on a thread that is not in flight did not
    end by itself.

    Raises:
        UnusableInput: spans of one rank come from several hosts.
    """
    in_flight_threads = threads.filter("in_flight").select("process", "thread")
    open_spans = spans.filter(pl.col("status") == "open")
    open_spans = open_spans.join(in_flight_threads, on=["process", "thread"], how="anti")
    unended_processes = open_spans["process"].unique()
    processes = _group_processes(spans)
    _refuse_local_ranks(processes, source_name)
    role_word = pl.when(pl.col("role") == "ps").then(pl.lit("ps")).otherwise(pl.lit("rank"))
    process_label = pl.format("{} {}", role_word, "rank")
    clock_domain = (
        pl.lit(_ONE_CLOCK) if has_one_clock else pl.coalesce("clock", "host", process_label)
    )
    processes = processes.join(
        rejected.dropped_by_process, on=_PROCESS_KEY, how="left", maintain_order="left"
    )
    processes = processes.with_columns(
        clock_domain=clock_domain,
        host=pl.coalesce("host", process_label),
        world=pl.coalesce(pl.col("world").max(), pl.len()),
        shard=pl.when(pl.col("role") == "ps").then("shard"),
        main=pl.lit(value=True),
        complete=~pl.col("process").is_in(unended_processes.implode()),
        dropped=pl.col("dropped").fill_null(0),
        file=pl.coalesce("file", pl.lit(file_name)),
    )
    return fit_columns(processes, PROCESS_COLUMNS)


def build_wall_clocks(processes: pl.DataFrame, *, has_dates: bool) -> pl.DataFrame:
    """Return clock readings at the first and last event of each process, if times are ns since 1970.

    The reader knows that they are (`has_dates`), or they look so; else the table is empty. A reading
    says that the process's clock showed `monotonic_ns` at the date `wall_ns`, to within `window_ns`.
    """
    first_ns = processes["first_ns"].min()
    looks_like_date = isinstance(first_ns, int) and first_ns in _DATES_NS
    if not (has_dates or looks_like_date):
        return pl.DataFrame(schema=CLOCK_COLUMNS)
    wall_ns = pl.concat_list("first_ns", "last_ns").alias("wall_ns")
    readings = processes.select("process", wall_ns).explode("wall_ns")
    method, window_ns = pl.lit("local"), pl.lit(_WINDOW_NS)
    readings = readings.with_columns(method=method, monotonic_ns="wall_ns", window_ns=window_ns)
    return fit_columns(readings, CLOCK_COLUMNS)


def _group_processes(spans: pl.DataFrame) -> pl.DataFrame:
    """Return one row per process; `events` counts its spans, columns of `_OPTIONAL` may be null."""
    absent_columns = [column for column in _OPTIONAL if column not in spans.columns]
    return (
        spans.lazy()
        .with_columns(pl.lit(None, pl.Int32).alias(column) for column in absent_columns)
        .with_columns(pl.col("role", "host", "clock", "file").cast(pl.String))
        .group_by("process", *_PROCESS_KEY)
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


def _refuse_local_ranks(processes: pl.DataFrame, source_name: str) -> None:
    """Raise UnusableInput if the spans of one process come from several `hosts`."""
    spread_processes = processes.filter(pl.col("hosts").list.len() > 1)
    if spread_processes.is_empty():
        return
    spread_process = spread_processes.row(0, named=True)
    first_host, second_host = spread_process["hosts"][:2]
    raise UnusableInput(
        f"In {source_name} rank {spread_process['rank']} has rows of the hosts {quoted(first_host)} and "
        f"{quoted(second_host)}: 'rank' must be the global rank, different for every process of the "
        "job."
    )
