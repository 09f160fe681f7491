"""The tracks of one process: its threads by depth, what was in flight, streams, counters, samples.

A track has a lane for each depth of nesting. Where calls overlap without nesting (reductions in
flight, requests to shards), it has as many lanes as calls overlap.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from tracelens.lod import pyramid
from tracelens.lod.lanes import (
    BLANK,
    CODES,
    SHARD_OPS,
    STACKS,
    STEPS,
    Lane,
    Lanes,
    make_empty_lanes,
)
from tracelens.lod.query import Scene
from tracelens.schema.vocabulary import COMMUNICATION_KINDS, OWN_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracelens.arrays import Floats, Ints
    from tracelens.lod.lanes import Role
    from tracelens.lod.viewport import Window

__all__ = ["Counter", "Group", "label_spans", "make_tracks"]

MOST_LEVELS: Final = 40  # lanes of one track
MOST_LANES: Final = 160  # of one process
FOLDERS: Final = r" \(.*[/\\]"  # of the file that a frame names
REQUEST_BITS: Final = 40  # of a request's number; the worker stands above them
# What spans that are no work of the rank's own look like.
_LOOKS: Final = {kind: kind for kind in OWN_KINDS} | {
    "wait": "wait", "reduction": "transfer", "ps": "transfer", "elastic": "transfer", "step": STEPS[0],
}  # fmt: skip
_QUEUE: Final = -1  # in place of a thread: requests that a shard has and does not serve yet


class Counter(NamedTuple):
    """Readings of a counter by time."""

    name: str
    times_ns: Ints
    values: Floats


@dataclass(frozen=True)
class Group:
    """The tracks of a process.

    `event_row_by_item`, [item of the lanes], is its row in the events of the process, -1 = none;
    counters are drawn as lines; `hidden_count` counts spans for which there was no lane.
    """

    scene: Scene
    event_row_by_item: Ints
    counter_by_lane: Mapping[int, Counter]
    hidden_count: int


class _Track(NamedTuple):
    """The spans of one track; `levels` are their lanes within it."""

    name: str
    role: Role
    spans: pl.DataFrame
    levels: Ints


def label_spans(*, numbered: bool = True) -> pl.Expr:
    """Return a span's label: its name, with its bucket and shard where the name lacks them.

    `numbered` steps have their number, too.
    """
    name = pl.col("name").cast(pl.String).fill_null("")
    name_parts = [name]
    if numbered:
        is_step = (pl.col("kind") == "step") & (pl.col("step") >= 0)
        name_parts += [pl.when(is_step).then(pl.format(" {}", "step")).otherwise(pl.lit(""))]
    bucket = pl.when(name.str.contains("bucket")).then(pl.lit(" ")).otherwise(pl.lit(" bucket "))
    for column, prefix in (("bucket", bucket), ("shard", pl.lit(" to PS "))):
        number = pl.col(column).cast(pl.String)
        is_clear = pl.lit(column == "shard") & pl.col("op").cast(pl.String).is_in(SHARD_OPS)
        is_in_name = name.str.contains(number, literal=True) | is_clear
        name_parts.append(
            pl.when(number.is_not_null() & ~is_in_name.fill_null(value=False))
            .then(prefix + number)
            .otherwise(pl.lit(""))
        )
    return pl.concat_str(name_parts)


def make_tracks(
    events: pl.DataFrame,
    owner: Lane,
    name_by_thread: Mapping[int, str],
    training: int | None,
    *,
    run_window: Window,
    samples: pl.DataFrame | None = None,
) -> Group:
    """Make the tracks of a process.

    Args:
        events: Its events, in `EVENT_COLUMNS`; a span that is still open lasts until the run's end.
        owner: The summary lane of the process.
        name_by_thread: The names of its threads and streams.
        training: Its training thread, which comes first.
        run_window: The run.
        samples: Its sampled stacks, as in `Trace.samples`.
    """
    spans = _select_spans(events.with_row_index("row"), run_window)
    tracks = list(_list_tracks(spans, owner, name_by_thread, training))
    if samples is not None and samples.height:
        sampled_stacks = _list_stacks(samples, events)
        tracks += [
            _Track(name, "worker", stack_rows, np.zeros(stack_rows.height, np.int64))
            for (name,), stack_rows in sampled_stacks.partition_by("part", as_dict=True).items()
        ]
    lanes, rows, hidden_count = _put_into_lanes(tracks, owner)
    counters = _read_counters(events)
    counter_lanes = [
        Lane(owner.process, owner.role, owner.rank, counter.name) for counter in counters
    ]
    first_counter_lane = len(lanes)
    lanes = replace(
        lanes,
        owners=(*lanes.owners, *counter_lanes),
        item_offsets=np.pad(lanes.item_offsets, (0, len(counter_lanes)), mode="edge"),
    )
    scene = Scene(
        span_lanes=lanes,
        step_lanes=_make_run_items(lanes, run_window),
        run_window=run_window,
        median_step_ns=max(run_window.width_ns, 1),
        colour_pyramid=pyramid.build_colours(lanes, run_window),
    )
    return Group(
        scene,
        rows,
        {first_counter_lane + index: counter for index, counter in enumerate(counters)},
        hidden_count,
    )


def _select_spans(events: pl.DataFrame, run_window: Window) -> pl.DataFrame:
    """Return one row per span to draw: those of threads, and again those that devices timed."""
    kind, op = pl.col("kind").cast(pl.String), pl.col("op").cast(pl.String)
    look = (
        pl.when(op.is_in(SHARD_OPS))
        .then(op)
        .otherwise(kind.replace_strict(_LOOKS, default="uninstrumented"))
    )
    is_odd_step = (pl.col("kind") == "step") & (pl.col("step") % 2 != 0)
    look = pl.when(is_odd_step).then(pl.lit(STEPS[1])).otherwise(look)
    spans = events.filter(pl.col("type") == "span").with_columns(
        end_ns=pl.col("end_ns").fill_null(run_window.end_ns),
        name=label_spans(),
        code=look.replace_strict(CODES, return_dtype=pl.UInt8),
        kind=kind,
        op=op,
        device=pl.lit(value=False),
    )
    timed = spans.filter(pl.col("device_duration_ns").is_not_null(), pl.col("stream").is_not_null())
    device_spans = timed.with_columns(
        thread="stream",
        start_ns="device_start_ns",
        end_ns=pl.col("device_start_ns") + pl.col("device_duration_ns"),
        depth=pl.lit(0, spans.schema["depth"]),
        device=pl.lit(value=True),
    )
    all_spans = pl.concat([spans, device_spans]) if timed.height else spans
    return all_spans.select(
        "row", "thread", "depth", "start_ns",
        pl.max_horizontal("end_ns", pl.col("start_ns") + 1).alias("end_ns"),
        "code", "step", "name", "kind", "op", "request", "device",
    )  # fmt: skip


def _list_tracks(
    spans: pl.DataFrame, owner: Lane, name_by_thread: Mapping[int, str], training: int | None
) -> Iterator[_Track]:
    """Yield the tracks: the training thread, then what was in flight, other threads, and streams."""
    spans_of_tracks = spans.partition_by("device", "thread", as_dict=True)
    if owner.role == "ps":
        queue = _list_queue_times(spans)
        spans_of_tracks |= {(False, _QUEUE): queue} if queue.height else {}
    tracks = {}
    for (is_device, thread), rows in spans_of_tracks.items():
        role: Role = "device" if is_device else owner.role
        name = _name_thread(name_by_thread, int(thread))
        tracks[bool(is_device), int(thread)] = _Track(name, role, rows, _assign_levels(rows))

    def sort_key(key: tuple[bool, int]) -> tuple[bool, int, int]:
        """Order tracks: streams last, and among threads as above; of a server what it received first."""
        is_device, thread = key
        kinds, ops = (set(tracks[key].spans[name].unique()) for name in ("kind", "op"))
        if thread == training:
            order = 0
        elif owner.role == "ps":
            order = 1 if ops == {"receive"} else 2 if thread == _QUEUE else 3
        else:
            order = 1 if kinds <= set(COMMUNICATION_KINDS) else 2
        return is_device, order, thread

    for key in sorted(tracks, key=sort_key):
        yield tracks[key]


def _name_thread(names: Mapping[int, str], thread: int) -> str:
    return "queue" if thread == _QUEUE else names.get(thread, f"thread {thread}")


def _list_queue_times(spans: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each request that waited in a shard: from received to first served.

    A request's number has the worker's rank above `REQUEST_BITS` bits of a counter.
    """
    is_service = pl.col("op").is_in([op for op in SHARD_OPS if op != "receive"])
    is_receive = pl.col("op") == "receive"
    worker = (pl.col("request").cast(pl.UInt64) // (1 << REQUEST_BITS)).cast(pl.String)
    arrivals = (
        spans.filter(pl.col("request").is_not_null(), ~pl.col("device"))
        .group_by("request")
        .agg(
            start_ns=pl.col("end_ns").filter(is_receive).min(),
            end_ns=pl.col("start_ns").filter(is_service).min(),
            step=pl.col("step").first(),
        )
        .filter(pl.col("start_ns") < pl.col("end_ns"))
    )
    rows = arrivals.with_columns(
        row=pl.lit(None, spans.schema["row"]),
        thread=pl.lit(_QUEUE),
        depth=pl.lit(0, spans.schema["depth"]),
        code=pl.lit(CODES["ps_queue"], pl.UInt8),
        name=pl.lit("request of worker ") + worker,
        kind=pl.lit("ps"),
        op=pl.lit(None, pl.String),
        device=pl.lit(value=False),
    )
    return rows.select(spans.columns).sort("start_ns", "end_ns")


def _assign_levels(spans: pl.DataFrame) -> Ints:
    """Return the lane of each span in its track, [span]: its depth; the first free if calls overlap."""
    starts_ns, ends_ns = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    depth = spans["depth"].to_numpy().astype(np.int64)
    order = np.lexsort((starts_ns, depth))
    overlaps = (starts_ns[order][1:] < ends_ns[order][:-1]) & (np.diff(depth[order]) == 0)
    if overlaps.any():
        return np.minimum(_find_free_lanes(starts_ns, ends_ns), MOST_LEVELS - 1)
    levels: Ints = np.unique(depth, return_inverse=True)[1]
    return np.minimum(levels, MOST_LEVELS - 1)


def _find_free_lanes(starts_ns: Ints, ends_ns: Ints) -> Ints:
    """Put each span into the first lane in which nothing is under way, outer spans first; [span]."""
    lane_of_span = np.zeros(len(starts_ns), np.int64)
    order = np.lexsort((-ends_ns, starts_ns))
    busy_lanes: list[tuple[int, int]] = []  # a heap of the end of a lane's span, and the lane
    free_lanes: list[int] = []
    times_ns = (starts_ns[order].tolist(), ends_ns[order].tolist())
    for span_index, begin_ns, end_ns in zip(order.tolist(), *times_ns, strict=True):
        while busy_lanes and busy_lanes[0][0] <= begin_ns:
            heapq.heappush(free_lanes, heapq.heappop(busy_lanes)[1])
        lane = heapq.heappop(free_lanes) if free_lanes else len(busy_lanes)
        lane_of_span[span_index] = lane
        heapq.heappush(busy_lanes, (end_ns, lane))
    return lane_of_span


def _put_into_lanes(tracks: Sequence[_Track], owner: Lane) -> tuple[Lanes, Ints, int]:
    """Put the spans of all tracks into lanes, `MOST_LANES` at most.

    Also return the row of each item in the events, [item], -1 = none, and how many spans have no room.
    """
    owners: list[Lane] = []
    lane_of_span: list[Ints] = []
    for track in tracks:
        level_count = int(track.levels.max(initial=-1)) + 1
        lane_of_span.append(track.levels + len(owners))
        owners += [
            Lane(owner.process, track.role, owner.rank, track.name, level)
            for level in range(level_count)
        ]
    if not owners:
        return make_empty_lanes(()), np.zeros(0, np.int64), 0
    columns = ["row", "start_ns", "end_ns", "code", "step", "name"]
    spans = pl.concat([track.spans.select(columns) for track in tracks])
    lane = np.concatenate(lane_of_span)
    start_ns, end_ns = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    drawn = np.lexsort((start_ns, lane))  # indices of spans, by lane and begin
    drawn = drawn[lane[drawn] < MOST_LANES]
    cut_start_ns = np.maximum(start_ns[drawn], _find_latest_end_before(lane[drawn], end_ns[drawn]))
    has_length = end_ns[drawn] > cut_start_ns
    drawn, cut_start_ns = drawn[has_length], cut_start_ns[has_length]
    owners = owners[:MOST_LANES]
    sorted_words = spans["name"].unique().sort()
    name_indices = spans["name"].replace_strict(
        sorted_words, range(len(sorted_words)), return_dtype=pl.Int32
    )
    lanes = Lanes(
        owners=tuple(owners),
        item_offsets=np.searchsorted(lane[drawn], np.arange(len(owners) + 1)),
        starts_ns=cut_start_ns,
        ends_ns=end_ns[drawn],
        palette_codes=spans["code"].to_numpy()[drawn],
        step_numbers=spans["step"].to_numpy()[drawn].astype(np.int32),
        name_indices=name_indices.to_numpy()[drawn],
        item_names=tuple(sorted_words),
    )
    rows = spans["row"].cast(pl.Int64).fill_null(-1).to_numpy()[drawn]
    return lanes, rows, len(lane) - len(drawn)


def _find_latest_end_before(lane: Ints, end_ns: Ints) -> Ints:
    """Return when the latest of the earlier spans in the same lane ends, [span], ns.

    Spans are in order of lane and begin. The first of a lane gets the least time there is.
    """
    if not len(end_ns):
        return end_ns
    origin_ns = int(end_ns.min()) - 1
    lane_shift = (lane - lane[0]) * (int(end_ns.max()) - origin_ns + 1)
    latest_ends_ns = np.maximum.accumulate(end_ns - origin_ns + lane_shift)
    earlier_ends_ns = np.append(0, latest_ends_ns[:-1]) - lane_shift
    return np.where(earlier_ends_ns > 0, earlier_ends_ns + origin_ns, np.iinfo(np.int64).min)


def _list_stacks(samples: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Return sampled stacks by innermost call, neighbours distinguished by their code."""
    innermost = pl.col("frames").list.last().str.replace(FOLDERS, " (")
    steps = events.filter(pl.col("kind") == "step", pl.col("type") == "span")
    steps = steps.select("start_ns", "step").sort("start_ns")
    sampled_rows = samples.filter(pl.col("frames").list.len() > 0).sort("start_ns")
    thread_label = pl.format("code of {}", "thread_name")
    samples_in_steps = sampled_rows.with_columns(name=innermost, part=thread_label).join_asof(
        steps, on="start_ns"
    )
    stack_run = pl.col("name").rle_id().over("part")
    code, alternate_code = (pl.lit(CODES[label], pl.UInt8) for label in STACKS)
    return samples_in_steps.with_columns(
        row=pl.lit(None, pl.UInt32),
        code=pl.when(stack_run % 2 == 0).then(code).otherwise(alternate_code),
        step=pl.col("step").fill_null(-1),
    )


def _read_counters(events: pl.DataFrame) -> list[Counter]:
    """Return the counters that a process read, each by time."""
    readings = events.filter(pl.col("type") == "counter", pl.col("value").is_finite())
    named_readings = readings.with_columns(
        pl.col("name").cast(pl.String).fill_null("counter")
    ).sort("start_ns")
    readings_by_name = named_readings.partition_by("name", as_dict=True, maintain_order=True)
    return [
        Counter(str(name), rows["start_ns"].to_numpy(), rows["value"].to_numpy())
        for (name,), rows in sorted(readings_by_name.items())
    ]


def _make_run_items(lanes: Lanes, run_window: Window) -> Lanes:
    """Return one item, the run, for each lane: steps are not drawn."""
    lane_count = len(lanes)
    numbers = np.zeros(lane_count, np.int32)
    return Lanes(
        owners=lanes.owners,
        item_offsets=np.arange(lane_count + 1),
        starts_ns=np.full(lane_count, run_window.start_ns),
        ends_ns=np.full(lane_count, run_window.end_ns),
        palette_codes=np.full(lane_count, BLANK, np.uint8),
        step_numbers=numbers,
        name_indices=numbers,
        item_names=("",),
    )
