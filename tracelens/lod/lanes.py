"""Spans as rows of arrays, and their codes: the input of every level of detail.

Codes are palette indexes: the small numbers that stand for a category, or for a range of residuals,
in a pixel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import polars as pl

from tracelens.accounting.phases import CATEGORIES
from tracelens.lod.packed import Blocks, first_from
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


def label_of(code: int) -> str:
    """Return the category, or the shard's operation, of a palette index."""
    return LABELS[code % SHADE - 1]


Role = Literal["worker", "device", "ps"]


@dataclass(frozen=True)
class Lane:
    """The process of a row; `part` distinguishes several rows of one process.

    `level` is how far a row of an opened process lies below the first one of its track.
    """

    process: int
    role: Role
    rank: int
    part: str = ""
    level: int = 0


@dataclass(frozen=True, eq=False)
class Lanes:
    """Rows of spans that do not overlap within their row.

    Lane i holds the items `offsets[i]` up to `offsets[i + 1]`, sorted by start; `words[names[j]]` is
    item j's name. Columns are arrays, or, of an index, blocks that are decoded where they are looked at.
    """

    lanes: tuple[Lane, ...]
    offsets: Ints
    starts: Ints | Blocks
    ends: Ints | Blocks
    codes: Bytes | Blocks
    steps: Int32s | Blocks
    names: Int32s | Blocks
    words: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.lanes)

    def between(self, lane: int, start_ns: int, end_ns: int) -> slice:
        """Return the items of a lane that touch [start, end)."""
        (first,), (last,) = self.bounds(start_ns, end_ns, [lane])
        return slice(int(first), int(last))

    def bounds(
        self, start_ns: int, end_ns: int, chosen: Sequence[int] | slice = slice(None)
    ) -> tuple[Ints, Ints]:
        """Return, for some lanes at once, where the items that touch [start, end) begin and end."""
        low, high = self.offsets[:-1][chosen], self.offsets[1:][chosen]
        first = _first_from(self.ends, low, high, start_ns + 1)
        last = _first_from(self.starts, low, high, end_ns)
        return first, np.maximum(first, last)

    def count(self, start_ns: int, end_ns: int) -> int:
        """Count the items of all lanes that touch [start, end)."""
        first, last = self.bounds(start_ns, end_ns)
        return int((last - first).sum())


def from_pieces(segments: Segments, workers: Sequence[tuple[int, int]]) -> Lanes:
    """Make one lane a worker from the partition of its training thread."""
    return joined(list(each_worker(segments, workers)))


def each_worker(
    segments: Segments, workers: Sequence[tuple[int, int]], ends: Ints | None = None
) -> Iterator[Lanes]:
    """Make the lane of each worker when it is asked for.

    `workers` lists (process, rank) in the order of the lanes; a worker without pieces gets an empty
    lane, so that its absence is seen. `ends` are those of the step windows, where some steps were
    selected: what follows them is not of any.
    """
    step = segments.steps["step"].to_numpy()
    place = {process: at for at, process in enumerate(segments.processes)}
    words = ("", *segments.words)
    for worker, rank in workers:
        owner = (Lane(worker, "worker", rank),)
        if worker not in place:
            yield empty_lanes(owner, words)
            continue
        pieces = segments.of_worker(place[worker])
        codes = pieces.category.astype(np.uint8) + np.uint8(CODES[CATEGORIES[0]])
        if ends is not None:
            codes[pieces.bounds[:-1] >= ends[pieces.step + pieces.offset]] = CODES[UNSELECTED]
        yield Lanes(
            lanes=owner,
            offsets=np.array([0, len(pieces.category)]),
            starts=pieces.bounds[:-1],
            ends=pieces.bounds[1:],
            codes=codes,
            steps=step[pieces.step + pieces.offset],
            names=(pieces.name + 1).astype(np.int32),
            words=words,
        )


def in_rows(table: pl.DataFrame, owners: Sequence[Lane]) -> Lanes:
    """Put spans, each with the `part` and `code` of its row, into lanes; what overlaps is cut."""
    return _build(_without_overlap(table), owners)


def empty_lanes(owners: Sequence[Lane], words: tuple[str, ...] = ("",)) -> Lanes:
    """Return lanes without items."""
    times, numbers = np.zeros(0, np.int64), np.zeros(0, np.int32)
    offsets, codes = np.zeros(len(owners) + 1, np.int64), np.zeros(0, np.uint8)
    return Lanes(tuple(owners), offsets, times, times, codes, numbers, numbers, words)


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


def from_streams(process: int, rank: int, columns: Columns, names: Mapping[int, str]) -> Lanes:
    """Make one lane a stream of a process's devices, of the spans that were timed there.

    `names` are those of its threads and streams. What overlaps (a bucket that is ready while the one
    before it is reduced) is drawn one after another.
    """
    begun, length = (columns.number(name) for name in TIMED_ON_DEVICE)
    stream = columns.number("stream")
    timed = np.flatnonzero(columns.is_span & (length >= 0) & (stream >= 0))
    numbers: dict[str, list[int]] = {}
    for number in np.flatnonzero(np.bincount(stream[timed])).tolist():
        if number in names:
            numbers.setdefault(names[number], []).append(number)
    word, words = _used_words(columns.word("name"), timed)
    codes = columns.word("kind").translated(_CODE_OF_KIND, CODES["transfer"])
    step, parts = columns.number("step"), []
    for name, alike in sorted(numbers.items()):
        rows = timed[np.isin(stream[timed], alike)]
        rows = rows[np.argsort(begun[rows], kind="stable")]
        over = np.maximum.accumulate(begun[rows] + length[rows])
        start = np.maximum(begun[rows], np.append(begun[rows[:1]], over[:-1]))
        left = over > start
        rows = rows[left]
        parts.append(
            Lanes(
                lanes=(Lane(process, "device", rank, name),),
                offsets=np.array([0, len(rows)]),
                starts=start[left],
                ends=over[left],
                codes=codes[rows].astype(np.uint8),
                steps=step[rows].astype(np.int32),
                names=word[rows],
                words=words,
            )
        )
    return joined(parts)


def _used_words(column: Words, rows: Indices) -> tuple[Int32s, tuple[str, ...]]:
    """Return the place of each row's word among those of some rows, in order, the first being none."""
    used = np.flatnonzero(np.bincount(column.codes[rows] + 1, minlength=len(column.known) + 1)[1:])
    words = sorted((column.known[code], code) for code in used.tolist())
    places = np.zeros(len(column.known) + 1, np.int32)  # the last one is for -1
    places[[code for _, code in words]] = np.arange(1, len(words) + 1, dtype=np.int32)
    return places[column.codes], ("", *(name for name, _ in words))


def joined(parts: Sequence[Lanes]) -> Lanes:
    """Stack lanes, the first part's on top."""
    if not parts:
        return empty_lanes(())
    words: dict[tuple[str, ...], int] = {}
    names = [part.names[:] + base_of(words, part.words) for part in parts]
    return Lanes(
        lanes=tuple(lane for part in parts for lane in part.lanes),
        offsets=np.cumsum([0, *(count for part in parts for count in np.diff(part.offsets))]),
        starts=np.concatenate([part.starts[:] for part in parts]),
        ends=np.concatenate([part.ends[:] for part in parts]),
        codes=np.concatenate([part.codes[:] for part in parts]),
        steps=np.concatenate([part.steps[:] for part in parts]),
        names=np.concatenate(names),
        words=tuple(word for group in words for word in group),
    )


def base_of(known: dict[tuple[str, ...], int], words: tuple[str, ...]) -> np.int32:
    """Return the offset of a part's words among those of all parts so far, to which they are added."""
    return np.int32(known.setdefault(words, sum(map(len, known))))


def _first_from(times: Ints | Blocks, low: Ints, high: Ints, at_ns: int) -> Ints:
    """Return, in each range of items, the first whose time is not before `at_ns`."""
    if isinstance(times, Blocks):
        return times.first_from(low, high, at_ns)
    return first_from(times, low, high, at_ns)


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
        steps=rows["step"].to_numpy().astype(np.int32),
        names=numbers.to_numpy().astype(np.int32),
        words=tuple(words),
    )
