"""What of a table ran on a device: kernels and copies, each on a stream.

A row of kind ``device`` says that a device worked, or that a thread waited for one. It is the first,
if it has a `stream`; if its thread is a stream, which is called so, or where at least every second row
is of that kind and none is a phase of training; or if the table names neither threads nor streams. Such
rows, and phases of training and communication on the same streams, get their own times as device times:
in the partition of time they are work of the rank, of a phase that is not known where the row does not
tell it, or communication in flight. Each stream is a track beside the threads.

Rows that have device times are left alone: their own times say when a thread queued the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.model.trace import EVENT_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

__all__ = ["find_streams", "level_of_thread"]


_DEVICE: Final = "device"
_MAY_RUN_THERE: Final = (_DEVICE, "forward", "backprop", "update", "reduction")
_CALLED_SO: Final = r"(?i)\bstream\b|stream[ _#]*\d"
_OF_THREADS: Final = ("step", "data", "forward", "backprop", "update")
_LEAST_SHARE: Final = 0.5  # of a thread's rows; a profiler's annotations stand on streams, too
_OPTIONAL: Final[dict[str, pl.DataType]] = {
    "thread": pl.Categorical(),
    **{name: EVENT_COLUMNS[name] for name in ("stream", "device_start_ns", "device_duration_ns")},
}
_FLAG: Final = "on_device"


def find_streams(frame: pl.DataFrame) -> pl.DataFrame:
    """Flag the rows that ran on a device; give them device times and a thread named after their stream.

    Args:
        frame: The usable rows with their `process`; `thread`, `stream` and device times may be missing.

    Returns:
        The rows with the flag `on_device`, and otherwise unchanged where it is nowhere set.
    """
    given = {*_OPTIONAL} & {*frame.columns}
    absent = [
        pl.lit(None, kind).alias(name) for name, kind in _OPTIONAL.items() if name not in given
    ]
    flagged = frame.with_columns(absent).with_columns(_ran_there(given).alias(_FLAG))
    if not flagged[_FLAG].any():
        return frame.with_columns(pl.lit(value=False).alias(_FLAG))
    there, length = pl.when(_FLAG), pl.col("end_ns") - pl.col("start_ns")
    begun = pl.when(length.is_not_null()).then("start_ns")
    thread = pl.col("thread").cast(pl.String)
    named = pl.coalesce(
        pl.format("stream {}", "stream"), pl.format("stream {}", thread), pl.lit(_DEVICE)
    )
    return flagged.with_columns(
        thread=there.then(named).otherwise(thread).cast(_OPTIONAL["thread"]),
        stream=there.then(None).otherwise("stream"),
        device_start_ns=there.then(begun).otherwise("device_start_ns"),
        device_duration_ns=there.then(length).otherwise("device_duration_ns"),
    )


def _ran_there(given: AbstractSet[str]) -> pl.Expr:
    """Return whether a row ran on a device; `given` are the optional columns that the table has."""
    kind = pl.col("kind").cast(pl.String)
    there = pl.col("stream").is_not_null()
    if "thread" in given:
        there |= _is_stream(kind)
    elif "stream" not in given:
        there = kind == _DEVICE
    return (
        there
        & kind.is_in(_MAY_RUN_THERE)
        & pl.col("device_start_ns").is_null()
        & (pl.col("role") == "worker")
        & (pl.col("type") == "span")
    )


def _is_stream(kind: pl.Expr) -> pl.Expr:
    """Return whether the thread of a row is a device's stream."""
    place = ("process", "thread")
    works = (kind == _DEVICE).mean().over(place) >= _LEAST_SHARE
    named = pl.col("thread").cast(pl.String).str.contains(_CALLED_SO).fill_null(value=False)
    return named | (works & ~kind.is_in(_OF_THREADS).any().over(place))


def level_of_thread(communicates: pl.Expr) -> pl.Expr:
    """Return for each thread 0, but 1 for a device's stream, and 2 where it only communicates.

    What is above the lowest level of its process runs beside the threads at that level.

    Args:
        communicates: Whether a row is a worker's communication.
    """
    there = (communicates | pl.col(_FLAG)).all()
    return pl.when(communicates.all()).then(2).when(there).then(1).otherwise(0)
