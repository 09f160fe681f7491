"""Spans as rows of arrays, and their codes: the input of every level of detail.

Codes are palette indexes: small numbers that mean a category, or a range of residuals, in a pixel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import polars as pl

from tracelens.accounting.categories import CATEGORIES
from tracelens.lod.block_columns import BlockColumn, first_at_least
from tracelens.schema.vocabulary import OWN_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracelens.accounting.pieces import Segments
    from tracelens.arrays import Bytes, Indices, Int32s, Ints
    from tracelens.model.columns import Columns, Words


BLANK: Final = 0  # nothing there: the page shows through
SHARD_OPS: Final = ("receive", "aggregate", "apply", "reply")
STACKS: Final = ("stack", "next_stack")  # sampled code; another one than before it
UNSELECTED: Final = "unselected"  # between steps of which others were asked for
STEPS: Final = ("step", "next_step")  # whole steps, in turn
LABELS: Final = (*CATEGORIES, *SHARD_OPS, *STACKS, UNSELECTED, *STEPS)
CODES: Final = {label: 1 + index for index, label in enumerate(LABELS)}
_CODE_OF_KIND: Final = {kind: CODES[kind] for kind in OWN_KINDS}
TIMED_ON_DEVICE: Final = ("device_start_ns", "device_duration_ns")

# A pixel that is a category for a part of its time only is fainter: code + shade * SHADE.
SHADE: Final = 32
SHADES: Final = 4

# Residual: a ramp of levels; a higher index is a later rank, so the worst of many is the maximum.
FIRST_LEVEL: Final = SHADE * SHADES
LEVELS: Final = 24  # the eye distinguishes no more, and noise packs well


def get_label(code: int) -> str:
    """Return the category, or the shard's operation, of a palette index."""
    return LABELS[code % SHADE - 1]


Role = Literal["worker", "device", "ps"]


@dataclass(frozen=True)
class Lane:
    """The process of a row; `track_name` distinguishes several rows of one process.

    `depth_in_track` is how far a row of an opened process lies below the first one of its track.
    """

    process: int
    role: Role
    rank: int
    track_name: str = ""
    depth_in_track: int = 0


@dataclass(frozen=True, eq=False)
class Lanes:
    """Rows of spans that do not overlap within their row.

    Lane i, of `owners[i]`, holds the items `item_offsets[i]` up to `item_offsets[i + 1]`, sorted by
    start; the other columns are [item]. The name of item j is `item_names[name_indices[j]]`. Columns are
    arrays, or, of an index, blocks that are decoded where they are looked at.
    """

    owners: tuple[Lane, ...]
    item_offsets: Ints
    starts_ns: Ints | BlockColumn
    ends_ns: Ints | BlockColumn
    palette_codes: Bytes | BlockColumn
    step_numbers: Int32s | BlockColumn
    name_indices: Int32s | BlockColumn
    item_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.owners)

    def find_lane_items(self, lane: int, start_ns: int, end_ns: int) -> slice:
        """Return the items of a lane that touch [start, end)."""
        (first,), (last,) = self.find_item_ranges(start_ns, end_ns, [lane])
        return slice(int(first), int(last))

    def find_item_at(self, lane: int, at_ns: int) -> int | None:
        """Return the first item of a lane at a moment; None without one, or without such a lane."""
        items = self.find_lane_items(lane, at_ns, at_ns + 1) if lane < len(self) else slice(0, 0)
        return items.start if items.start < items.stop else None

    def find_extent_ns(self, item: int) -> tuple[int, int]:
        """Return the start and the end of an item."""
        return int(self.starts_ns[item]), int(self.ends_ns[item])

    def find_item_ranges(
        self, start_ns: int, end_ns: int, chosen: Sequence[int] | slice = slice(None)
    ) -> tuple[Ints, Ints]:
        """Return, for each chosen lane, the first item that touches [start, end), and the one after."""
        lane_begins, lane_ends = self.item_offsets[:-1][chosen], self.item_offsets[1:][chosen]
        first_items = first_at_least(self.ends_ns, lane_begins, lane_ends, start_ns + 1)
        end_items = first_at_least(self.starts_ns, lane_begins, lane_ends, end_ns)
        return first_items, np.maximum(first_items, end_items)

    def count_items(self, start_ns: int, end_ns: int) -> int:
        """Count the items of all lanes that touch [start, end)."""
        first, last = self.find_item_ranges(start_ns, end_ns)
        return int((last - first).sum())


def make_worker_lanes(
    segments: Segments, workers: Sequence[tuple[int, int]], ends_ns: Ints | None = None
) -> Iterator[Lanes]:
    """Make the lane of each worker when it is asked for.

    `workers` lists (process, rank) in the order of the lanes; a worker without pieces gets an empty
    lane, so that its absence is seen. `ends_ns`, [step window], ns, are given where some steps were
    selected: time after the end of its window belongs to no step.
    """
    step_of_window = segments.step_windows["step"].to_numpy()
    index_by_process = {process: index for index, process in enumerate(segments.processes)}
    all_words = ("", *segments.span_names)
    for process, rank in workers:
        owner = (Lane(process, "worker", rank),)
        if process not in index_by_process:
            yield make_empty_lanes(owner, all_words)
            continue
        pieces = segments.unpack_worker(index_by_process[process])
        windows = pieces.window_indices + pieces.first_window
        codes = pieces.category_codes.astype(np.uint8) + np.uint8(CODES[CATEGORIES[0]])
        if ends_ns is not None:
            codes[pieces.bounds_ns[:-1] >= ends_ns[windows]] = CODES[UNSELECTED]
        yield Lanes(
            owners=owner,
            item_offsets=np.array([0, len(pieces.category_codes)]),
            starts_ns=pieces.bounds_ns[:-1],
            ends_ns=pieces.bounds_ns[1:],
            palette_codes=codes,
            step_numbers=step_of_window[windows],
            name_indices=(pieces.name_codes + 1).astype(np.int32),
            item_names=all_words,
        )


def make_empty_lanes(owners: Sequence[Lane], words: tuple[str, ...] = ("",)) -> Lanes:
    """Return lanes without items."""
    times, numbers = np.zeros(0, np.int64), np.zeros(0, np.int32)
    offsets, codes = np.zeros(len(owners) + 1, np.int64), np.zeros(0, np.uint8)
    return Lanes(tuple(owners), offsets, times, times, codes, numbers, numbers, words)


def make_shard_lanes(spans: pl.DataFrame, shards: Sequence[tuple[int, int]]) -> Lanes:
    """Make two lanes a shard of its spans (one a row): what it received, and what it served.

    Receptions of several workers overlap; they are merged, as the row only says that bytes came in.
    """
    ops = spans.with_columns(pl.col("op").cast(pl.String)).filter(pl.col("op").is_in(SHARD_OPS))
    lane_part = (
        pl.when(pl.col("op") == "receive").then(pl.lit("receive")).otherwise(pl.lit("serve"))
    )
    table = ops.drop_nulls("end_ns").filter(pl.col("end_ns") > pl.col("start_ns"))
    table = _without_overlap(table.with_columns(part=lane_part))
    codes = pl.col("op").replace_strict(CODES, return_dtype=pl.UInt8)
    owners = [
        Lane(process, "ps", rank, part) for process, rank in shards for part in ("serve", "receive")
    ]
    return _build_lanes(table.with_columns(code=codes), owners)


def make_stream_lanes(process: int, rank: int, columns: Columns, names: Mapping[int, str]) -> Lanes:
    """Make one lane a stream of a process's devices, of the spans that were timed there.

    `names` are those of its threads and streams. What overlaps (a bucket that is ready while the one
    before it is reduced) is drawn one after another.
    """
    begins_ns, lengths_ns = (columns.number_column(name) for name in TIMED_ON_DEVICE)
    stream = columns.number_column("stream")
    timed_rows = np.flatnonzero(columns.is_span & (lengths_ns >= 0) & (stream >= 0))
    streams_by_name: dict[str, list[int]] = {}
    for number in np.flatnonzero(np.bincount(stream[timed_rows])).tolist():
        if number in names:
            streams_by_name.setdefault(names[number], []).append(number)
    word_indices, used_words = _number_used_words(columns.word_column("name"), timed_rows)
    codes = columns.word_column("kind").translate(_CODE_OF_KIND, CODES["transfer"])
    step, lanes_of_streams = columns.number_column("step"), []
    for name, stream_numbers in sorted(streams_by_name.items()):
        rows = timed_rows[np.isin(stream[timed_rows], stream_numbers)]
        rows = rows[np.argsort(begins_ns[rows], kind="stable")]
        latest_ends = np.maximum.accumulate(begins_ns[rows] + lengths_ns[rows])
        starts = np.maximum(begins_ns[rows], np.append(begins_ns[rows[:1]], latest_ends[:-1]))
        is_drawn = latest_ends > starts
        rows = rows[is_drawn]
        lanes_of_streams.append(
            Lanes(
                owners=(Lane(process, "device", rank, name),),
                item_offsets=np.array([0, len(rows)]),
                starts_ns=starts[is_drawn],
                ends_ns=latest_ends[is_drawn],
                palette_codes=codes[rows].astype(np.uint8),
                step_numbers=step[rows].astype(np.int32),
                name_indices=word_indices[rows],
                item_names=used_words,
            )
        )
    return join_lanes(lanes_of_streams)


def _number_used_words(column: Words, rows: Indices) -> tuple[Int32s, tuple[str, ...]]:
    """Return the index of each word of `column`, [row], among the words of `rows`, and these.

    The first word is empty, for rows without a word.
    """
    codes = np.flatnonzero(
        np.bincount(column.codes[rows] + 1, minlength=len(column.vocabulary) + 1)[1:]
    )
    used_words = sorted((column.vocabulary[code], code) for code in codes.tolist())
    indices = np.zeros(len(column.vocabulary) + 1, np.int32)  # the last one is for -1
    indices[[code for _, code in used_words]] = np.arange(1, len(used_words) + 1, dtype=np.int32)
    return indices[column.codes], ("", *(name for name, _ in used_words))


def join_lanes(lane_parts: Sequence[Lanes]) -> Lanes:
    """Stack lanes, the first part's on top."""
    if not lane_parts:
        return make_empty_lanes(())
    word_offsets: dict[tuple[str, ...], int] = {}
    name_indices = [
        lanes.name_indices[:] + add_words(word_offsets, lanes.item_names) for lanes in lane_parts
    ]
    return Lanes(
        owners=tuple(lane for lanes in lane_parts for lane in lanes.owners),
        item_offsets=np.cumsum(
            [0, *(count for lanes in lane_parts for count in np.diff(lanes.item_offsets))]
        ),
        starts_ns=np.concatenate([lanes.starts_ns[:] for lanes in lane_parts]),
        ends_ns=np.concatenate([lanes.ends_ns[:] for lanes in lane_parts]),
        palette_codes=np.concatenate([lanes.palette_codes[:] for lanes in lane_parts]),
        step_numbers=np.concatenate([lanes.step_numbers[:] for lanes in lane_parts]),
        name_indices=np.concatenate(name_indices),
        item_names=tuple(word for group in word_offsets for word in group),
    )


def add_words(word_offsets: dict[tuple[str, ...], int], words: tuple[str, ...]) -> np.int32:
    """Return the index of a part's first word among those of all parts; adds them if they are new."""
    return np.int32(word_offsets.setdefault(words, sum(map(len, word_offsets))))


def _without_overlap(spans: pl.DataFrame) -> pl.DataFrame:
    """Cut each span (one a row) where an earlier one of its lane still runs; drop empty ones."""
    lane_columns = ["process", "part"]
    latest_end_ns = pl.col("end_ns").cum_max().shift(1).over(lane_columns)
    start_ns = pl.max_horizontal("start_ns", latest_end_ns.fill_null(pl.col("start_ns")))
    trimmed = spans.sort(*lane_columns, "start_ns").with_columns(start_ns=start_ns)
    return trimmed.filter(pl.col("end_ns") > pl.col("start_ns"))


def _build_lanes(spans: pl.DataFrame, owners: Sequence[Lane]) -> Lanes:
    """Make lanes of spans, one a row with `process` and `part`, that do not overlap in a lane."""
    lane_rows = pl.DataFrame(
        {
            "process": [lane.process for lane in owners],
            "part": [lane.track_name for lane in owners],
            "lane": range(len(owners)),
        },
        schema={"process": pl.Int32, "part": pl.String, "lane": pl.Int64},
    )
    rows = spans.join(lane_rows, on=["process", "part"]).sort("lane", "start_ns")
    names = rows["name"].cast(pl.String).fill_null("")
    sorted_words = names.unique().sort()
    indices = names.replace_strict(sorted_words, range(len(sorted_words)), return_dtype=pl.Int64)
    return Lanes(
        owners=tuple(owners),
        item_offsets=np.searchsorted(rows["lane"].to_numpy(), np.arange(len(owners) + 1)),
        starts_ns=rows["start_ns"].to_numpy().astype(np.int64),
        ends_ns=rows["end_ns"].to_numpy().astype(np.int64),
        palette_codes=rows["code"].to_numpy().astype(np.uint8),
        step_numbers=rows["step"].to_numpy().astype(np.int32),
        name_indices=indices.to_numpy().astype(np.int32),
        item_names=tuple(sorted_words),
    )
