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

_UPDATE_KEY: Final = ("shard", "step", "key")
_REQUEST_KEY: Final = ("process", *_UPDATE_KEY)
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
    """Return when workers' requests were queued at a shard, as rows of `_QUEUE_COLUMNS`."""
    if trace.shards.is_empty() or trace.alignment.untied_clock_domains:
        return pl.DataFrame(schema=_QUEUE_COLUMNS)
    worker_requests, shard_work = (
        trace.select_requests(owners).filter(pl.col("kind") == "ps").collect()
        for owners in (trace.workers, trace.shards)
    )
    is_part = not trace.choice.is_whole_run
    requests = _join_requests(worker_requests, shard_work, is_part=is_part)
    pushes = requests.filter(pl.col("op") == "push", pl.col("got_ns").is_not_null())
    queued_times = pl.concat(
        [
            *_find_queues_of_requests(requests, is_part=is_part),
            _find_waits_for_updates(pushes, shard_work, worker_requests),
        ]
    )
    waits = _join_last_pushes(queued_times.filter(pl.col("start_ns") < pl.col("end_ns")), pushes)
    return _leave_out_transfer(waits, shard_work)


def _join_requests(
    worker_requests: pl.DataFrame, shard_work: pl.DataFrame, *, is_part: bool
) -> pl.DataFrame:
    """Return one row per push and pull, with the times at which its shard handled it.

    `received_ns`: it arrived; `begun_ns`: its service began; `added_ns`: a push was added up; `got_ns`:
    the earlier of arrival and that; `replied_ns`: the reply began; `until_ns`: the worker has it. Of a
    selected part of a run (`is_part`), also such as arrived before it. `worker_requests` are those that
    workers recorded, `shard_work` the operations of shards, a row each.
    """
    has_op = {op: pl.col("op") == op for op in ("receive", "aggregate", "reply")}
    service = (  # a row per request
        shard_work.drop_nulls("request")
        .group_by("request")
        .agg(
            received_ns=pl.col("end_ns").filter(has_op["receive"]).min(),
            begun_ns=pl.col("start_ns").filter(pl.col("op").is_in(SERVICE_OPS)).min(),
            added_ns=pl.col("end_ns").filter(has_op["aggregate"]).max(),
            got_ns=pl.col("end_ns").filter(has_op["receive"] | has_op["aggregate"]).min(),
            replied_ns=pl.col("start_ns").filter(has_op["reply"]).min(),
            holder=pl.coalesce("shard", "rank").first(),
        )
        .with_columns(is_arrival_unseen=pl.col("received_ns").is_null().all().over("holder"))
    )
    began_before = (
        pl.lit(is_part) & pl.col("received_ns").is_null() & pl.col("replied_ns").is_not_null()
    )
    is_served_unseen = pl.col("is_arrival_unseen") & pl.col("begun_ns").is_not_null()
    return (
        worker_requests.filter(pl.col("op").is_in(["push", "pull"]))
        .join(
            service.filter(pl.col("received_ns").is_not_null() | began_before | is_served_unseen),
            on="request",
        )
        .with_columns(
            pl.coalesce("shard", "holder").alias("shard"),
            pl.col("key").fill_null(-1),
            until_ns=pl.col("end_ns").fill_null(FOREVER),
        )
    )


def _find_queues_of_requests(requests: pl.DataFrame, *, is_part: bool) -> list[pl.DataFrame]:
    """Return when open requests were queued: one table before their service, one before the reply.

    A pull carries nothing until its reply: it is queued from its begin, also while its shard is too busy
    to receive it. `requests` has one row per request, as `_join_requests` returns it. In a selected part
    of a run (`is_part`) a push without a reply may be answered after it.
    """
    is_pull, is_replied = pl.col("op") == "pull", pl.col("replied_ns").is_not_null()
    arrival_ns = pl.max_horizontal("start_ns", "received_ns")  # one of them may be null
    begin_ns = pl.when(is_pull).then("start_ns").otherwise(arrival_ns)
    before_service = requests.select(
        *_REQUEST_KEY,
        for_update=pl.lit(value=False),
        for_pushes=is_pull,
        ready_ns=pl.when("is_arrival_unseen").then("begun_ns").when(is_pull).then("received_ns"),
        start_ns=begin_ns,
        end_ns=pl.min_horizontal("until_ns", "begun_ns"),
    )
    is_answered_later = (
        pl.lit(is_part)
        & ~is_pull
        & pl.col("added_ns").is_not_null()
        & (~is_pull & is_replied).any()
    )
    after_service = requests.filter(is_replied | is_answered_later).select(
        *_REQUEST_KEY,
        for_update=pl.lit(value=False),
        for_pushes=pl.lit(value=True),
        ready_ns=pl.lit(None, pl.Int64),
        start_ns="added_ns",
        end_ns=pl.min_horizontal("until_ns", "replied_ns"),
    )
    return [before_service, after_service]


def _find_waits_for_updates(
    pushes: pl.DataFrame, shard_work: pl.DataFrame, worker_requests: pl.DataFrame
) -> pl.DataFrame:
    """Return one row per time from a push's end to its update in which the worker has no open request.

    Only updates that join pushes count: where each push has its own, workers do not wait for others.
    `pushes`, `shard_work` (operations) and `worker_requests` have a row each.
    """
    key = pl.coalesce("shard", "rank").alias("shard"), "step", pl.col("key").fill_null(-1)
    updates = (
        shard_work.filter(pl.col("op") == "apply", pl.col("end_ns").is_not_null())
        .select(*key, applied_ns="end_ns")
        .group_by(_UPDATE_KEY)
        .agg(pl.col("applied_ns").max(), updates=pl.len())
    )
    joint_updates = pushes.group_by(_UPDATE_KEY).agg(pushes=pl.len()).join(updates, on=_UPDATE_KEY)
    if pushes["process"].n_unique() > 1:
        joint_updates = joint_updates.filter(pl.col("updates") < pl.col("pushes"))
    waits = pushes.join(joint_updates.select(*_UPDATE_KEY, "applied_ns"), on=_UPDATE_KEY).select(
        *_REQUEST_KEY,
        for_update=pl.lit(value=True),
        for_pushes=pl.lit(value=True),
        ready_ns=pl.lit(None, pl.Int64),
        start_ns="until_ns",
        end_ns="applied_ns",
    )
    waits = waits.filter(pl.col("start_ns") < pl.col("end_ns"))
    end_or_never = pl.col("end_ns").fill_null(FOREVER)
    return _cut_by_intervals(
        waits, worker_requests.select("process", "start_ns", end_or_never), "process", inside=False
    )


def _join_last_pushes(queued_times: pl.DataFrame, pushes: pl.DataFrame) -> pl.DataFrame:
    """Add to each queued time when the last push it waits for was sent, and when its shard had got all.

    These are `sent_ns` and `got_ns`, clipped to the queued time. `queued_times` has a row per time in
    which a request is queued, `pushes` one per push.
    """
    pushes_sent = pushes.sort("got_ns").select(
        *_UPDATE_KEY,
        "got_ns",
        got_key_ns="got_ns",
        sent_ns=pl.col("start_ns").cum_max().over(_UPDATE_KEY),
    )
    joined_times = queued_times.sort("end_ns").join_asof(
        pushes_sent,
        left_on="end_ns",
        right_on="got_key_ns",
        by=_UPDATE_KEY,
        strategy="backward",
        check_sortedness=False,
    )
    joined_times = joined_times.with_columns(
        pl.when("for_pushes").then(pl.col(name)).fill_null(0).alias(name)
        for name in ("sent_ns", "got_ns")
    )
    return joined_times.with_columns(
        pl.col("sent_ns").clip("start_ns", "end_ns"),
        pl.max_horizontal("got_ns", "ready_ns").clip("start_ns", "end_ns").alias("got_ns"),
    )


def _leave_out_transfer(queued_times: pl.DataFrame, shard_work: pl.DataFrame) -> pl.DataFrame:
    """Return queued times, a row each (`_QUEUE_COLUMNS`), without those of a transfer.

    That is when the last push was on its way to a shard that did nothing meanwhile. `shard_work` has a
    row per operation of a shard.
    """
    moves_bytes = (pl.col("op") != "receive") | (pl.col("bytes").fill_null(1) > 0)
    shard_busy_times = shard_work.filter(moves_bytes, pl.col("end_ns").is_not_null()).select(
        "start_ns", "end_ns", shard=pl.coalesce("shard", "rank")
    )
    queued_times = queued_times.with_columns(served_ns="end_ns", is_transfer=pl.lit(value=False))
    before_sent = queued_times.with_columns(end_ns="sent_ns")
    after_send = queued_times.with_columns(start_ns="sent_ns", end_ns="got_ns")
    after_arrival = queued_times.with_columns(start_ns="got_ns", sent_ns="got_ns")
    transfers = _cut_by_intervals(after_send, shard_busy_times, "shard", inside=False).with_columns(
        is_transfer=pl.lit(value=True)
    )
    pieces = [
        before_sent,
        _cut_by_intervals(after_send, shard_busy_times, "shard", inside=True),
        transfers,
        after_arrival,
    ]
    kept_times = _keep_last_served(
        pl.concat(piece for piece in pieces if piece.height)
        if queued_times.height
        else queued_times
    )
    return (
        kept_times.filter(~pl.col("is_transfer"))
        .select(pl.col(name).cast(kind) for name, kind in _QUEUE_COLUMNS.items())
        .sort("process", "start_ns")
    )


def _keep_last_served(queued_times: pl.DataFrame) -> pl.DataFrame:
    """Remove overlaps of queued times (rows) of a worker: the one that is served last keeps them."""
    ordered = queued_times.filter(pl.col("start_ns") < pl.col("end_ns")).sort(
        *("process", "served_ns", "shard", "key", "start_ns"),
        descending=[False, True, False, False, True],
    )
    begin_of_later_ns = pl.col("start_ns").cum_min().shift(1).over("process")
    return (
        ordered.with_columns(end_ns=pl.min_horizontal("end_ns", begin_of_later_ns))
        .filter(pl.col("start_ns") < pl.col("end_ns"))
        .with_columns(pl.col("sent_ns").clip("start_ns", "end_ns"))
    )


def _cut_by_intervals(
    rows: pl.DataFrame, intervals: pl.DataFrame, key: str, *, inside: bool
) -> pl.DataFrame:
    """Cut rows (`start_ns` to `end_ns`) to what lies inside, or outside, of intervals with the same key.

    `key` is the column that both tables share. A row may become several, or none.
    """
    pieces = [rows.clear()]
    edges_by_key = {
        value: _find_edges_of_union(own_intervals)
        for (value,), own_intervals in intervals.partition_by(key, as_dict=True).items()
    }
    for (value,), group_rows in rows.partition_by(key, as_dict=True).items():
        row_index, start_ns, end_ns = _cut_at_edges(
            group_rows, edges_by_key.get(value, np.zeros(0, np.int64)), inside=inside
        )
        times = {"start_ns": start_ns, "end_ns": end_ns}
        columns = [pl.Series(name, values, pl.Int64) for name, values in times.items()]
        pieces.append(group_rows[row_index].with_columns(columns))
    return pl.concat(pieces)


def _find_edges_of_union(intervals: pl.DataFrame) -> Ints:
    """Return the edges of the union of some intervals, a row each, ns: begins and ends in turn."""
    ordered = intervals.sort("start_ns")
    start_ns, latest_end_ns = ordered["start_ns"].to_numpy(), ordered["end_ns"].cum_max().to_numpy()
    is_first = np.append(True, start_ns[1:] > latest_end_ns[:-1])  # of those that overlap
    last_rows = np.append(np.flatnonzero(is_first)[1:] - 1, len(start_ns) - 1)
    return np.stack([start_ns[is_first], latest_end_ns[last_rows]], axis=1).ravel()


def _cut_at_edges(
    rows: pl.DataFrame, edges_ns: Ints, *, inside: bool
) -> tuple[Indices, Ints, Ints]:
    """Cut rows (`start_ns` to `end_ns`) at edges of intervals; keep what is inside of these, or outside.

    `edges_ns` are begins and ends in turn. Returns the index of each piece's row, and its begin and end,
    ns, all [piece].
    """
    start_ns, end_ns = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    first_edge = np.searchsorted(edges_ns, start_ns, "right")
    stop_edge = np.searchsorted(edges_ns, end_ns, "left")
    piece_count = np.maximum(stop_edge - first_edge, 0) + 1
    row_index = np.repeat(np.arange(len(start_ns)), piece_count)
    first_piece = np.repeat(np.cumsum(piece_count) - piece_count, piece_count)
    index_in_row = np.arange(len(row_index)) - first_piece
    edges_before = first_edge[row_index] + index_in_row  # count: odd inside of an interval
    bounds_ns = np.concatenate([edges_ns, [FOREVER]])
    is_last = index_in_row == piece_count[row_index] - 1
    begin_ns = np.where(index_in_row == 0, start_ns[row_index], bounds_ns[edges_before - 1])
    stop_ns = np.where(is_last, end_ns[row_index], bounds_ns[edges_before])
    is_kept: Flags = ((edges_before % 2 == 1) == inside) & (begin_ns < stop_ns)
    return row_index[is_kept], begin_ns[is_kept], stop_ns[is_kept]
