"""Which rows of a table make sense; the others are left out and counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from tracelens.errors import UnusableInput
from tracelens.readers._checked import LONGEST_NS, sane, timed_on_device
from tracelens.schema.vocabulary import EVENT_TYPES, STATUSES
from tracelens.trace import EVENT_COLUMNS, Note

__all__ = ["Lost", "once", "sound"]

_NEGATIVE: Final = "negative duration"
_UNUSABLE: Final = "unusable values"
_WHOSE: Final = ("role", "rank")


@dataclass(frozen=True)
class Lost:
    """Rows left out: `counts` by reason, `rows` by role and rank where these are known."""

    counts: dict[str, int]
    rows: pl.DataFrame
    notes: tuple[Note, ...] = ()


def sound(frame: pl.DataFrame, unusable: int, name: str) -> tuple[pl.DataFrame, Lost]:
    """Leave out rows that end before they begin or are centuries away; `unusable` already are.

    Raises:
        UnusableInput: nothing is left.
    """
    frame = _typed(_shifted(frame)).with_columns(duration_ns=pl.col("end_ns") - pl.col("start_ns"))
    middle = pl.when(sane()).then("start_ns").median().over(_WHOSE)
    near = (pl.col("start_ns") - middle).abs() < LONGEST_NS
    backward = (pl.col("duration_ns") < 0).fill_null(value=False)
    judged = frame.with_columns(backward=backward, good=sane() & near)
    kept = judged.filter("good").drop("backward", "good", "duration_ns")
    kept = kept.with_columns(**timed_on_device(kept.columns))
    if kept.is_empty():
        raise UnusableInput(f"In {name} no row is usable: not one has an end after its begin.")
    counts = {
        _UNUSABLE: unusable + judged.filter(~pl.col("good") & ~pl.col("backward")).height,
        _NEGATIVE: judged.filter("backward").height,
    }
    counts = {reason: count for reason, count in counts.items() if count}
    lost = (
        judged.filter(~pl.col("good"))
        .with_columns(pl.col("role").cast(pl.String))
        .group_by(_WHOSE)
        .agg(dropped=pl.len().cast(pl.Int64))
    )
    return kept, Lost(counts, lost, _told(counts, name))


def once(frame: pl.DataFrame) -> tuple[pl.DataFrame, list[Note]]:
    """Leave out rows that repeat another in every column."""
    place = ("process", "start_ns", "end_ns")
    frame = frame.sort("process", "start_ns", "end_ns", descending=[False, False, True])
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
    said = {name: pl.lit(None, pl.String) for name in ("type", "status")}
    said |= {name: pl.col(name).cast(pl.String) for name in said if name in frame.columns}
    event = pl.when(said["type"].is_in(EVENT_TYPES)).then(said["type"]).otherwise(pl.lit("span"))
    closed = said["status"].is_in([status for status in STATUSES if status != "open"])
    status = (
        pl.when(pl.col("end_ns").is_null())
        .then(pl.lit("open"))
        .when(closed)
        .then(said["status"])
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


def _told(counts: dict[str, int], name: str) -> tuple[Note, ...]:
    if not counts:
        return ()
    listed = ", ".join(f"{count:,} for {reason}" for reason, count in counts.items())
    return (Note(file="", sentence=f"Of {name}, rows were left out: {listed}.", kind="dropped"),)
