"""Spans as rows of arrays: what every level of detail is drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import polars as pl

from tracelens.lod.codes import CODES, SHARD_OPS
from tracelens.schema.vocabulary import OWN_KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Role = Literal["worker", "device", "ps"]


@dataclass(frozen=True)
class Lane:
    """Whose row it is; `part` tells several rows of one process apart."""

    process: int
    role: Role
    rank: int
    part: str = ""


@dataclass(frozen=True)
class Lanes:
    """Rows of spans that do not overlap within their row.

    Lane i holds the items `offsets[i]` up to `offsets[i + 1]`, sorted by start; `words[names[j]]` is
    item j's name.
    """

    lanes: tuple[Lane, ...]
    offsets: Integers
    starts: Integers
    ends: Integers
    codes: Bytes
    steps: Integers
    names: Integers
    words: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.lanes)

    def between(self, lane: int, start_ns: int, end_ns: int) -> slice:
        """Return the items of a lane that touch [start, end)."""
        low, high = int(self.offsets[lane]), int(self.offsets[lane + 1])
        first = low + int(np.searchsorted(self.ends[low:high], start_ns, side="right"))
        last = low + int(np.searchsorted(self.starts[low:high], end_ns, side="left"))
        return slice(first, max(first, last))

    def count(self, start_ns: int, end_ns: int) -> int:
        """Count the items of all lanes that touch [start, end)."""
        found = (self.between(lane, start_ns, end_ns) for lane in range(len(self)))
        return sum(part.stop - part.start for part in found)


def from_segments(segments: pl.DataFrame, workers: Sequence[tuple[int, int]]) -> Lanes:
    """Make one lane a worker from the partition of its training thread.

    `workers` lists (process, rank) in the order of the lanes; a worker without segments keeps an
    empty lane, so that its absence is seen.
    """
    owners = [Lane(process, "worker", rank) for process, rank in workers]
    codes = pl.col("category").cast(pl.String).replace_strict(CODES, return_dtype=pl.UInt8)
    return _build(segments.with_columns(code=codes, part=pl.lit("")), owners)


def from_shards(spans: pl.DataFrame, shards: Sequence[tuple[int, int]]) -> Lanes:
    """Make two lanes a shard: what it received, and what it served (aggregate, apply, reply).

    Receptions of several workers overlap; they are merged, as the row only says that bytes came in.
    """
    ops = spans.with_columns(pl.col("op").cast(pl.String)).filter(pl.col("op").is_in(SHARD_OPS))
    served = pl.when(pl.col("op") == "receive").then(pl.lit("receive")).otherwise(pl.lit("serve"))
    table = ops.drop_nulls("end_ns").filter(pl.col("end_ns") > pl.col("start_ns"))
    table = _without_overlap(table.with_columns(part=served))
    codes = pl.col("op").replace_strict(CODES, return_dtype=pl.UInt8)
    owners = [
        Lane(process, "ps", rank, part) for process, rank in shards for part in ("serve", "receive")
    ]
    return _build(table.with_columns(code=codes), owners)


def from_streams(spans: pl.DataFrame, streams: Sequence[tuple[int, int, str]]) -> Lanes:
    """Make one lane a stream of a device, of the spans that were timed there.

    `spans` have the device's times and their stream's name; `streams` lists (process, rank, name).
    What overlaps (a bucket that is ready while the one before it is reduced) is drawn one after another.
    """
    kind = pl.col("kind").cast(pl.String)
    category = pl.when(kind.is_in(OWN_KINDS)).then(kind).otherwise(pl.lit("transfer"))
    codes = category.replace_strict(CODES, return_dtype=pl.UInt8)
    table = _without_overlap(spans.with_columns(part="stream_name", code=codes))
    return _build(table, [Lane(process, "device", rank, name) for process, rank, name in streams])


def join(first: Lanes, second: Lanes) -> Lanes:
    """Stack the lanes of `second` under those of `first`."""
    return Lanes(
        lanes=first.lanes + second.lanes,
        offsets=np.concatenate([first.offsets, second.offsets[1:] + first.offsets[-1]]),
        starts=np.concatenate([first.starts, second.starts]),
        ends=np.concatenate([first.ends, second.ends]),
        codes=np.concatenate([first.codes, second.codes]),
        steps=np.concatenate([first.steps, second.steps]),
        names=np.concatenate([first.names, second.names + len(first.words)]),
        words=first.words + second.words,
    )


def _without_overlap(spans: pl.DataFrame) -> pl.DataFrame:
    """Cut each span where an earlier one of its row still runs; drop what is left empty."""
    row = ["process", "part"]
    latest = pl.col("end_ns").cum_max().shift(1).over(row)
    cut = pl.max_horizontal("start_ns", latest.fill_null(pl.col("start_ns")))
    trimmed = spans.sort(*row, "start_ns").with_columns(start_ns=cut)
    return trimmed.filter(pl.col("end_ns") > pl.col("start_ns"))


def _build(table: pl.DataFrame, owners: Sequence[Lane]) -> Lanes:
    order = pl.DataFrame(
        {
            "process": [lane.process for lane in owners],
            "part": [lane.part for lane in owners],
            "lane": range(len(owners)),
        },
        schema={"process": pl.Int32, "part": pl.String, "lane": pl.Int64},
    )
    rows = table.join(order, on=["process", "part"]).sort("lane", "start_ns")
    names = rows["name"].cast(pl.String).fill_null("")
    words = names.unique().sort()
    numbers = names.replace_strict(words, range(len(words)), return_dtype=pl.Int64)
    return Lanes(
        lanes=tuple(owners),
        offsets=np.searchsorted(rows["lane"].to_numpy(), np.arange(len(owners) + 1)),
        starts=rows["start_ns"].to_numpy().astype(np.int64),
        ends=rows["end_ns"].to_numpy().astype(np.int64),
        codes=rows["code"].to_numpy().astype(np.uint8),
        steps=rows["step"].cast(pl.Int64).to_numpy(),
        names=numbers.to_numpy(),
        words=tuple(words),
    )
