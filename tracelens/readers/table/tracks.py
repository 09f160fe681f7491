"""Threads: which rows of a table are code, and which are operations that ran beside it.

Communication on a thread of its own is in flight. So is communication that crosses other work of its
thread, since no thread does two things at once, and where a table names no threads also what lies within
other work, as gradient buckets do: it is moved to a track of its own.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
import polars as pl

from tracelens.readers.table.frames import fitted
from tracelens.schema.depth import depths
from tracelens.trace import THREAD_COLUMNS, Note

__all__ = ["lay_out"]

_FLYING: Final = ("reduction", "ps", "elastic")
_WORK: Final = ("data", "forward", "backprop", "update")
_MOST: Final = 2**16 - 1
_OVERLAP: Final = 0.05  # of an operation: less is the rounding of times
_RARE: Final = 0.01  # of all operations: fewer are slips of a clock
_PLACE: Final = ("process", "thread")
_FOREVER: Final = 2**62


def lay_out(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, list[Note]]:
    """Number threads, find those in flight, and add `depth`; return rows, threads and notes."""
    told = "thread" in frame.columns
    frame, names = _numbered(frame)
    there = frame["kind"].unique().cast(pl.String)
    crossing = [kind for kind in _FLYING if kind in there and _crosses(frame, kind, told=told)]
    moved = pl.col("kind").cast(pl.String).is_in(crossing) & (pl.col("role") == "worker")
    track = pl.col("thread").max().over("process") + 1
    frame = frame.with_columns(thread=pl.when(moved).then(track).otherwise("thread"))
    threads = _threads(frame, names)
    frame = frame.with_columns(pl.col("thread").cast(pl.UInt16))
    return frame.with_columns(depth=_depths(frame)), threads, _said(crossing, told=told)


def _numbered(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Turn threads into small numbers: their own where they are such, else in order of time."""
    if "thread" not in frame.columns:
        named = frame.with_columns(thread=pl.lit(0, pl.Int64))
        return named, pl.DataFrame(
            schema={"process": pl.Int32, "thread": pl.Int64, "said": pl.String}
        )
    said = frame.group_by("process", said=pl.col("thread"), maintain_order=True).agg(
        first=pl.col("start_ns").min()
    )
    number = pl.col("said").cast(pl.String).cast(pl.Int64, strict=False)
    plain = number.is_between(0, _MOST - 1).fill_null(value=False).all()
    said = said.sort("process", "first").with_columns(
        number=pl.when(plain).then(number).otherwise(pl.int_range(pl.len()).over("process"))
    )
    rows = frame.rename({"thread": "said"}).join(
        said.select("process", "said", thread="number"),
        on=["process", "said"],
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    names = said.select("process", thread="number", said=pl.col("said").cast(pl.String))
    return rows.drop("said"), names


def _crosses(frame: pl.DataFrame, kind: str, *, told: bool) -> bool:
    """Say whether operations of a kind cross other work of their worker's thread.

    Where threads are not told, to lie within other work is enough.
    """
    place, flies = list(_PLACE), pl.col("flies")
    start, end = pl.col("start_ns"), pl.col("end_ns")
    work_ends = pl.when(~flies).then(end).cum_max().forward_fill().over(place)
    work_begins = pl.when(~flies).then(start).shift(-1).backward_fill().over(place)
    within = pl.min_horizontal(work_ends, end) - start
    before = pl.when(work_ends < end).then(within) if told else within
    cut = pl.max_horizontal(before, end - work_begins) / (end - start).clip(lower_bound=1)
    crossed = (
        frame.lazy()
        .filter(pl.col("role") == "worker", pl.col("kind").cast(pl.String).is_in([kind, *_WORK]))
        .select(*place, start, end.fill_null(_FOREVER), flies=pl.col("kind") == kind)
        .sort(*place, "start_ns", "end_ns", descending=[False, False, False, True])
        .with_columns(crossed=cut.fill_null(0) > _OVERLAP)
        .filter("flies")
        .select(pl.col("crossed").mean())
    )
    share = crossed.collect().item()
    return bool(share is not None and share > _RARE)


def _threads(frame: pl.DataFrame, names: pl.DataFrame) -> pl.DataFrame:
    """Describe all threads; in flight are a worker's threads that only communicate, beside another."""
    flies = pl.col("kind").cast(pl.String).is_in(_FLYING).all() & (pl.col("role") == "worker").all()
    found = frame.group_by(_PLACE).agg(flies=flies).sort(_PLACE)
    beside = ~pl.col("flies").all().over("process")
    named = found.join(names, on=_PLACE, how="left", maintain_order="left").with_columns(
        in_flight=pl.col("flies") & beside,
        name=pl.coalesce("said", pl.format("thread {}", "thread")),
    )
    return fitted(named, THREAD_COLUMNS)


def _depths(frame: pl.DataFrame) -> pl.Series:
    """Count nesting process by process: sorting many short arrays is quicker than one long one."""
    thread = frame["thread"].cast(pl.Int64).to_numpy()
    start, end = frame["start_ns"].to_numpy(), frame["end_ns"].fill_null(_FOREVER).to_numpy()
    found = np.zeros(frame.height, np.int64)
    bounds = np.flatnonzero(np.diff(frame["process"].to_numpy(), prepend=-1, append=-1))
    for first, last in pairwise(bounds):
        part = slice(first, last)
        found[part] = depths(thread[part], start[part], end[part])
    return pl.Series("depth", np.minimum(found, _MOST).astype(np.uint16))


def _said(crossing: list[str], *, told: bool) -> list[Note]:
    if not crossing:
        return []
    whose, advice = ("thread", "give it a thread of its own") if told else ("rank", "add 'thread'")
    sentence = (
        f"Communication ({', '.join(crossing)}) overlaps other work of its {whose}, so it is taken to "
        f"run beside the code; {advice} to say where it ran."
    )
    return [Note(file="", sentence=sentence, kind="table")]
