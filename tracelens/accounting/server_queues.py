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
        trace.requests_of(owners).filter(pl.col("kind") == "ps").collect()
        for owners in (trace.workers, trace.shards)
    )
    is_part = not trace.choice.is_all
    requests = _join_requests(asked, served, is_part=is_part)
    pushes = requests.filter(pl.col("op") == "push", pl.col("got").is_not_null())
    queued = pl.concat(
        [*_find_open(requests, is_part=is_part), _find_barriers(pushes, served, asked)]
    )
    waiting = _join_last_pushes(queued.filter(pl.col("start_ns") < pl.col("end_ns")), pushes)
    return _leave_out_transfer(waiting, served)


def _join_requests(asked: pl.DataFrame, served: pl.DataFrame, *, is_part: bool) -> pl.DataFrame:
    """Return pushes and pulls with when their shards got, began, added and answered them.

    Of a part of a run, also such whose arrival was before it.
    """
    has_op = {op: pl.col("op") == op for op in ("receive", "aggregate", "reply")}
    service = (
        served.drop_nulls("request")
        .group_by("request")
        .agg(
            received=pl.col("end_ns").filter(has_op["receive"]).min(),
            begun=pl.col("start_ns").filter(pl.col("op").is_in(SERVICE_OPS)).min(),
            added=pl.col("end_ns").filter(has_op["aggregate"]).max(),
            got=pl.col("end_ns").filter(has_op["receive"] | has_op["aggregate"]).min(),
            replied=pl.col("start_ns").filter(has_op["reply"]).min(),
            held=pl.coalesce("shard", "rank").first(),
        )
        .with_columns(unseen=pl.col("received").is_null().all().over("held"))
    )
    began_before = pl.lit(is_part) & pl.col("received").is_null() & pl.col("replied").is_not_null()
    is_served_unseen = pl.col("unseen") & pl.col("begun").is_not_null()
    return (
        asked.filter(pl.col("op").is_in(["push", "pull"]))
        .join(
            service.filter(pl.col("received").is_not_null() | began_before | is_served_unseen),
            on="request",
        )
        .with_columns(
            pl.coalesce("shard", "held").alias("shard"),
            pl.col("key").fill_null(-1),
            until=pl.col("end_ns").fill_null(FOREVER),
        )
    )


def _find_open(requests: pl.DataFrame, *, is_part: bool) -> list[pl.DataFrame]:
    """Return when open requests were queued: before they are served, and before they are answered.

    A pull carries nothing until its reply: before that it is in the queue, also unseen by a shard that
    is too busy to take it in.
    """
    asks, replied = pl.col("op") == "pull", pl.col("replied").is_not_null()
    got = pl.max_horizontal("start_ns", "received")  # of one that nobody saw arrive: when it begins
    begin_ns = pl.when(asks).then("start_ns").otherwise(got)
    before_service = requests.select(
        *_ABOUT,
        for_update=pl.lit(value=False),
        for_pushes=asks,
        there_ns=pl.when("unseen").then("begun").when(asks).then("received"),
        start_ns=begin_ns,
        end_ns=pl.min_horizontal("until", "begun"),
    )
    is_answered_later = (
        pl.lit(is_part) & ~asks & pl.col("added").is_not_null() & (~asks & replied).any()
    )
    after_service = requests.filter(replied | is_answered_later).select(
        *_ABOUT,
        for_update=pl.lit(value=False),
        for_pushes=pl.lit(value=True),
        there_ns=pl.lit(None, pl.Int64),
        start_ns="added",
        end_ns=pl.min_horizontal("until", "replied"),
    )
    return [before_service, after_service]


def _find_barriers(pushes: pl.DataFrame, served: pl.DataFrame, asked: pl.DataFrame) -> pl.DataFrame:
    """Return when a push was over, its update was not, and its worker had no request open.

    Only of updates that join pushes: where each makes one of its own, workers do not wait for others.
    """
    key = pl.coalesce("shard", "rank").alias("shard"), "step", pl.col("key").fill_null(-1)
    updates = (
        served.filter(pl.col("op") == "apply", pl.col("end_ns").is_not_null())
        .select(*key, applied="end_ns")
        .group_by(_SAME)
        .agg(pl.col("applied").max(), updates=pl.len())
    )
    joint = pushes.group_by(_SAME).agg(pushes=pl.len()).join(updates, on=_SAME)
    if pushes["process"].n_unique() > 1:
        joint = joint.filter(pl.col("updates") < pl.col("pushes"))
    waiting = pushes.join(joint.select(*_SAME, "applied"), on=_SAME).select(
        *_ABOUT,
        for_update=pl.lit(value=True),
        for_pushes=pl.lit(value=True),
        there_ns=pl.lit(None, pl.Int64),
        start_ns="until",
        end_ns="applied",
    )
    waiting = waiting.filter(pl.col("start_ns") < pl.col("end_ns"))
    end_or_never = pl.col("end_ns").fill_null(FOREVER)
    return _cut_by_intervals(
        waiting, asked.select("process", "start_ns", end_or_never), "process", inside=False
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
    moves_bytes = (pl.col("op") != "receive") | (pl.col("bytes").fill_null(1) > 0)
    working = served.filter(moves_bytes, pl.col("end_ns").is_not_null()).select(
        "start_ns", "end_ns", shard=pl.coalesce("shard", "rank")
    )
    queued = queued.with_columns(served_ns="end_ns", moves=pl.lit(value=False))
    before_sent = queued.with_columns(end_ns="sent_ns")
    on_way = queued.with_columns(start_ns="sent_ns", end_ns="got")
    after_arrival = queued.with_columns(start_ns="got", sent_ns="got")
    idle = _cut_by_intervals(on_way, working, "shard", inside=False).with_columns(
        moves=pl.lit(value=True)
    )
    pieces = [
        before_sent,
        _cut_by_intervals(on_way, working, "shard", inside=True),
        idle,
        after_arrival,
    ]
    stretches = _keep_last_served(
        pl.concat(part for part in pieces if part.height) if queued.height else queued
    )
    return (
        stretches.filter(~pl.col("moves"))
        .select(pl.col(name).cast(kind) for name, kind in _QUEUE_COLUMNS.items())
        .sort("process", "start_ns")
    )


def _keep_last_served(stretches: pl.DataFrame) -> pl.DataFrame:
    """Leave every moment of a worker to the request that is served last of those queued in it."""
    ordered = stretches.filter(pl.col("start_ns") < pl.col("end_ns")).sort(
        *("process", "served_ns", "shard", "key", "start_ns"),
        descending=[False, True, False, False, True],
    )
    next_start = pl.col("start_ns").cum_min().shift(1).over("process")
    return (
        ordered.with_columns(end_ns=pl.min_horizontal("end_ns", next_start))
        .filter(pl.col("start_ns") < pl.col("end_ns"))
        .with_columns(pl.col("sent_ns").clip("start_ns", "end_ns"))
    )


def _cut_by_intervals(
    rows: pl.DataFrame, others: pl.DataFrame, by: str, *, inside: bool
) -> pl.DataFrame:
    """Cut rows to what lies inside, or outside, all intervals of `others` with the same `by`."""
    pieces = [rows.clear()]
    edges_of = {
        key: _union(rows_of_key)
        for (key,), rows_of_key in others.partition_by(by, as_dict=True).items()
    }
    for (key,), rows_of_key in rows.partition_by(by, as_dict=True).items():
        row, start, end = _cut_at_edges(
            rows_of_key, edges_of.get(key, np.zeros(0, np.int64)), inside=inside
        )
        times = pl.Series(start, dtype=pl.Int64), pl.Series(end, dtype=pl.Int64)
        pieces.append(rows_of_key[row].with_columns(start_ns=times[0], end_ns=times[1]))
    return pl.concat(pieces)


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
    first_edge, stop_edge = (
        np.searchsorted(edges, start, "right"),
        np.searchsorted(edges, end, "left"),
    )
    count = np.maximum(stop_edge - first_edge, 0) + 1
    row = np.repeat(np.arange(len(start)), count)
    piece = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    edge_index = first_edge[row] + piece  # of edges before it
    bounds = np.concatenate([edges, [FOREVER]])
    begin_ns = np.where(piece == 0, start[row], bounds[edge_index - 1])
    end_ns = np.where(piece == count[row] - 1, end[row], bounds[edge_index])
    is_kept: Flags = (edge_index % 2 == 1) == inside
    is_kept &= begin_ns < end_ns
    return row[is_kept], begin_ns[is_kept], end_ns[is_kept]
