"""When requests of workers were queued at parameter servers, and what they waited for in that time.

A push is queued from when its shard has it until the shard begins to serve it. A pull, or the reply to a
push, waits until the last push of its step (and variable) is sent, as ranks wait in a collective for the
last one; while that, or the pull itself, is on its way to a shard with nothing to do, it is transfer;
then it is queued again. Where a shard did not record when it received requests, they are queued while
it is at work, and on their way while it is not. Where one update joins what several workers pushed, a
worker without any open request still waits for it while it is blocked: a barrier (a token, a lock) lets
all go on after the update. Each moment of a worker counts for the request that is served last of those
queued in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.service import SERVICE_OPS
from tracelens.model.columns import FOREVER

if TYPE_CHECKING:
    from tracelens.arrays import Flags, Indices, Ints
    from tracelens.model.trace import Trace

_SAME: Final = ("shard", "step", "key")
_ABOUT: Final = ("process", *_SAME)
# One row a stretch of a request's queue.
_QUEUE_COLUMNS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int32(),
    "shard": pl.Int32(),
    "step": pl.Int32(),
    "key": pl.Int32(),  # -1 = none
    "for_update": pl.Boolean(),  # no request is open: at a barrier that follows the update
    "start_ns": pl.Int64(),
    "sent_ns": pl.Int64(),  # until then for pushes that were not sent yet, from then on for the shard
    "end_ns": pl.Int64(),
}


def find_server_queues(trace: Trace) -> pl.DataFrame:
    """Return when a request of each worker was with a shard that did not serve it."""
    if trace.shards.is_empty() or trace.alignment.unaligned:
        return pl.DataFrame(schema=_QUEUE_COLUMNS)
    asked, served = (
        trace.requests_of(part).filter(pl.col("kind") == "ps").collect()
        for part in (trace.workers, trace.shards)
    )
    parted = not trace.choice.is_all
    known = _join_requests(asked, served, parted=parted)
    pushes = known.filter(pl.col("op") == "push", pl.col("got").is_not_null())
    queued = pl.concat([*_find_open(known, parted=parted), _find_barriers(pushes, served, asked)])
    waiting = _join_last_pushes(queued.filter(pl.col("start_ns") < pl.col("end_ns")), pushes)
    return _leave_out_transfer(waiting, served)


def _join_requests(asked: pl.DataFrame, served: pl.DataFrame, *, parted: bool) -> pl.DataFrame:
    """Return pushes and pulls with when their shards got, began, added and answered them.

    Of a part of a run, also such whose arrival was before it.
    """
    of_op = {op: pl.col("op") == op for op in ("receive", "aggregate", "reply")}
    times = (
        served.drop_nulls("request")
        .group_by("request")
        .agg(
            received=pl.col("end_ns").filter(of_op["receive"]).min(),
            begun=pl.col("start_ns").filter(pl.col("op").is_in(SERVICE_OPS)).min(),
            added=pl.col("end_ns").filter(of_op["aggregate"]).max(),
            got=pl.col("end_ns").filter(of_op["receive"] | of_op["aggregate"]).min(),
            replied=pl.col("start_ns").filter(of_op["reply"]).min(),
            held=pl.coalesce("shard", "rank").first(),
        )
        .with_columns(unseen=pl.col("received").is_null().all().over("held"))
    )
    earlier = pl.lit(parted) & pl.col("received").is_null() & pl.col("replied").is_not_null()
    served_unseen = pl.col("unseen") & pl.col("begun").is_not_null()
    return (
        asked.filter(pl.col("op").is_in(["push", "pull"]))
        .join(
            times.filter(pl.col("received").is_not_null() | earlier | served_unseen), on="request"
        )
        .with_columns(
            pl.coalesce("shard", "held").alias("shard"),
            pl.col("key").fill_null(-1),
            until=pl.col("end_ns").fill_null(FOREVER),
        )
    )


def _find_open(known: pl.DataFrame, *, parted: bool) -> list[pl.DataFrame]:
    """Return when open requests were queued: before they are served, and before they are answered.

    A pull carries nothing until its reply: before that it is in the queue, also unseen by a shard that
    is too busy to take it in.
    """
    asking, replied = pl.col("op") == "pull", pl.col("replied").is_not_null()
    got = pl.max_horizontal("start_ns", "received")  # of one that nobody saw arrive: when it begins
    begin = pl.when(asking).then("start_ns").otherwise(got)
    before = known.select(
        *_ABOUT,
        for_update=pl.lit(value=False),
        for_pushes=asking,
        there_ns=pl.when("unseen").then("begun").when(asking).then("received"),
        start_ns=begin,
        end_ns=pl.min_horizontal("until", "begun"),
    )
    later = pl.lit(parted) & ~asking & pl.col("added").is_not_null() & (~asking & replied).any()
    after = known.filter(replied | later).select(
        *_ABOUT,
        for_update=pl.lit(value=False),
        for_pushes=pl.lit(value=True),
        there_ns=pl.lit(None, pl.Int64),
        start_ns="added",
        end_ns=pl.min_horizontal("until", "replied"),
    )
    return [before, after]


def _find_barriers(pushes: pl.DataFrame, served: pl.DataFrame, asked: pl.DataFrame) -> pl.DataFrame:
    """Return when a push was over, its update was not, and its worker had no request open.

    Only of updates that join pushes: where each makes one of its own, workers do not wait for others.
    """
    about = pl.coalesce("shard", "rank").alias("shard"), "step", pl.col("key").fill_null(-1)
    updates = (
        served.filter(pl.col("op") == "apply", pl.col("end_ns").is_not_null())
        .select(*about, applied="end_ns")
        .group_by(_SAME)
        .agg(pl.col("applied").max(), updates=pl.len())
    )
    joined = pushes.group_by(_SAME).agg(pushes=pl.len()).join(updates, on=_SAME)
    if pushes["process"].n_unique() > 1:
        joined = joined.filter(pl.col("updates") < pl.col("pushes"))
    pending = pushes.join(joined.select(*_SAME, "applied"), on=_SAME).select(
        *_ABOUT,
        for_update=pl.lit(value=True),
        for_pushes=pl.lit(value=True),
        there_ns=pl.lit(None, pl.Int64),
        start_ns="until",
        end_ns="applied",
    )
    pending = pending.filter(pl.col("start_ns") < pl.col("end_ns"))
    ends = pl.col("end_ns").fill_null(FOREVER)
    return _cut_by_intervals(
        pending, asked.select("process", "start_ns", ends), "process", inside=False
    )


def _join_last_pushes(queued: pl.DataFrame, pushes: pl.DataFrame) -> pl.DataFrame:
    """Add when the last push was sent that a stretch waits for, and when its shard had got all."""
    sent = pushes.sort("got").select(
        *_SAME, "got", at="got", sent_ns=pl.col("start_ns").cum_max().over(_SAME)
    )
    joined = queued.sort("end_ns").join_asof(
        sent,
        left_on="end_ns",
        right_on="at",
        by=_SAME,
        strategy="backward",
        check_sortedness=False,
    )
    joined = joined.with_columns(
        pl.when("for_pushes").then(pl.col(name)).fill_null(0).alias(name)
        for name in ("sent_ns", "got")
    )
    return joined.with_columns(
        pl.col("sent_ns").clip("start_ns", "end_ns"),
        pl.max_horizontal("got", "there_ns").clip("start_ns", "end_ns").alias("got"),
    )


def _leave_out_transfer(queued: pl.DataFrame, served: pl.DataFrame) -> pl.DataFrame:
    """Leave out when the last push was on its way to a shard that did nothing meanwhile."""
    moved = (pl.col("op") != "receive") | (pl.col("bytes").fill_null(1) > 0)
    working = served.filter(moved, pl.col("end_ns").is_not_null()).select(
        "start_ns", "end_ns", shard=pl.coalesce("shard", "rank")
    )
    queued = queued.with_columns(served_ns="end_ns", moves=pl.lit(value=False))
    first = queued.with_columns(end_ns="sent_ns")
    on_way = queued.with_columns(start_ns="sent_ns", end_ns="got")
    last = queued.with_columns(start_ns="got", sent_ns="got")
    idle = _cut_by_intervals(on_way, working, "shard", inside=False).with_columns(
        moves=pl.lit(value=True)
    )
    parts = [first, _cut_by_intervals(on_way, working, "shard", inside=True), idle, last]
    each = _keep_last_served(
        pl.concat(part for part in parts if part.height) if queued.height else queued
    )
    return (
        each.filter(~pl.col("moves"))
        .select(pl.col(name).cast(kind) for name, kind in _QUEUE_COLUMNS.items())
        .sort("process", "start_ns")
    )


def _keep_last_served(stretches: pl.DataFrame) -> pl.DataFrame:
    """Leave every moment of a worker to the request that is served last of those queued in it."""
    ordered = stretches.filter(pl.col("start_ns") < pl.col("end_ns")).sort(
        *("process", "served_ns", "shard", "key", "start_ns"),
        descending=[False, True, False, False, True],
    )
    later = pl.col("start_ns").cum_min().shift(1).over("process")
    return (
        ordered.with_columns(end_ns=pl.min_horizontal("end_ns", later))
        .filter(pl.col("start_ns") < pl.col("end_ns"))
        .with_columns(pl.col("sent_ns").clip("start_ns", "end_ns"))
    )


def _cut_by_intervals(
    rows: pl.DataFrame, others: pl.DataFrame, of: str, *, inside: bool
) -> pl.DataFrame:
    """Cut rows to what lies inside, or outside, all intervals of `others` with the same `of`."""
    found = [rows.clear()]
    cuts = {key: _union(part) for (key,), part in others.partition_by(of, as_dict=True).items()}
    for (key,), part in rows.partition_by(of, as_dict=True).items():
        row, start, end = _cut_at_edges(part, cuts.get(key, np.zeros(0, np.int64)), inside=inside)
        times = pl.Series(start, dtype=pl.Int64), pl.Series(end, dtype=pl.Int64)
        found.append(part[row].with_columns(start_ns=times[0], end_ns=times[1]))
    return pl.concat(found)


def _union(intervals: pl.DataFrame) -> Ints:
    """Return begins and ends of the union of some intervals, in turns."""
    ordered = intervals.sort("start_ns")
    start, reached = ordered["start_ns"].to_numpy(), ordered["end_ns"].cum_max().to_numpy()
    new = np.append(True, start[1:] > reached[:-1])
    last = np.append(np.flatnonzero(new)[1:] - 1, len(start) - 1)
    return np.stack([start[new], reached[last]], axis=1).ravel()


def _cut_at_edges(rows: pl.DataFrame, edges: Ints, *, inside: bool) -> tuple[Indices, Ints, Ints]:
    """Return stretches of rows between some edges, of those after an even or odd number of them."""
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    first, after = np.searchsorted(edges, start, "right"), np.searchsorted(edges, end, "left")
    count = np.maximum(after - first, 0) + 1
    row = np.repeat(np.arange(len(start)), count)
    piece = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    number = first[row] + piece  # of edges before it
    bounds = np.concatenate([edges, [FOREVER]])
    begin = np.where(piece == 0, start[row], bounds[number - 1])
    over = np.where(piece == count[row] - 1, end[row], bounds[number])
    kept: Flags = (number % 2 == 1) == inside
    kept &= begin < over
    return row[kept], begin[kept], over[kept]
