"""Finds the rows of a table that ran on a device: kernels and copies, each on a stream.

A row of kind ``device`` says that a device worked, or that a thread waited for one. Rows on streams get
their own times as device times, and each stream a track in addition to the threads. Rows that have
device times are left alone: their own times say when a thread queued the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.model.trace import EVENT_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

_DEVICE: Final = "device"
_KINDS_ON_DEVICES: Final = (_DEVICE, "forward", "backprop", "update", "reduction")
_KINDS_OF_THREADS: Final = ("step", "data", "forward", "backprop", "update")
_NAME_OF_STREAM: Final = r"(?i)\bstream\b|stream[ _#]*\d"
# share of a thread's rows: with fewer of a device it is no stream; annotations stand there, too [chosen]
MIN_SHARE_OF_DEVICE: Final = 0.5
_OPTIONAL: Final[dict[str, pl.DataType]] = {
    "thread": pl.Categorical(),
    **{name: EVENT_COLUMNS[name] for name in ("stream", "device_start_ns", "device_duration_ns")},
}
_FLAG: Final = "on_device"


def find_streams(spans: pl.DataFrame) -> pl.DataFrame:
    """Flag the spans that ran on a device; give them device times and a thread named after their stream.

    Args:
        spans: With their `process`; `thread`, `stream` and device times may be missing.

    Returns:
        The spans with the flag `on_device`, and otherwise unchanged where it is nowhere set.
    """
    present_columns = {*_OPTIONAL} & {*spans.columns}
    absent_names = [name for name in _OPTIONAL if name not in present_columns]
    absent_columns = [pl.lit(None, _OPTIONAL[name]).alias(name) for name in absent_names]
    flag = _ran_on_device(present_columns).alias(_FLAG)
    flagged_spans = spans.with_columns(absent_columns).with_columns(flag)
    if not flagged_spans[_FLAG].any():
        return spans.with_columns(pl.lit(value=False).alias(_FLAG))
    when_on_device, duration_ns = pl.when(_FLAG), pl.col("end_ns") - pl.col("start_ns")
    start_ns = pl.when(duration_ns.is_not_null()).then("start_ns")
    thread_label = pl.col("thread").cast(pl.String)
    stream_name = pl.coalesce(
        pl.format("stream {}", "stream"), pl.format("stream {}", thread_label), pl.lit(_DEVICE)
    )
    return flagged_spans.with_columns(
        thread=when_on_device.then(stream_name).otherwise(thread_label).cast(_OPTIONAL["thread"]),
        stream=when_on_device.then(None).otherwise("stream"),
        device_start_ns=when_on_device.then(start_ns).otherwise("device_start_ns"),
        device_duration_ns=when_on_device.then(duration_ns).otherwise("device_duration_ns"),
    )


def _ran_on_device(present_columns: AbstractSet[str]) -> pl.Expr:
    """Return True for spans that ran on a device; `present_columns` are those of `_OPTIONAL`."""
    kind = pl.col("kind").cast(pl.String)
    on_stream = pl.col("stream").is_not_null()
    if "thread" in present_columns:
        on_stream |= _is_on_stream(kind)
    elif "stream" not in present_columns:
        on_stream = kind == _DEVICE
    return (
        on_stream
        & kind.is_in(_KINDS_ON_DEVICES)
        & pl.col("device_start_ns").is_null()
        & (pl.col("role") == "worker")
        & (pl.col("type") == "span")
    )


def _is_on_stream(kind: pl.Expr) -> pl.Expr:
    """Return True for rows whose thread is a device's stream."""
    thread_columns = ("process", "thread")
    is_mostly_device = (kind == _DEVICE).mean().over(thread_columns) >= MIN_SHARE_OF_DEVICE
    has_phases = kind.is_in(_KINDS_OF_THREADS).any().over(thread_columns)
    thread_label = pl.col("thread").cast(pl.String)
    is_called_stream = thread_label.str.contains(_NAME_OF_STREAM).fill_null(value=False)
    return is_called_stream | (is_mostly_device & ~has_phases)


def find_level_of_thread(communicates: pl.Expr) -> pl.Expr:
    """Return for each thread 0, but 1 for a device's stream, and 2 where it only communicates.

    Threads above the lowest level of their process are in flight relative to those at that level.

    Args:
        communicates: True for rows that are a worker's communication.
    """
    is_stream = (communicates | pl.col(_FLAG)).all()
    return pl.when(communicates.all()).then(2).when(is_stream).then(1).otherwise(0)
