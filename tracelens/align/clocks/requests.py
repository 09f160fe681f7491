"""Ties clocks together by requests to parameter servers: no message arrives before it was sent.

What a server records of a request is between its begin and its end at the worker, so every request
leaves a window for the difference of the two clocks (Cristian 1989, *Probabilistic clock
synchronization*; Duda et al. 1987, *Estimating global time in distributed systems*). All windows
are combined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from tracelens.align.clocks.lines import BLOCK_COUNT, PLAUSIBLE_DRIFT
from tracelens.align.clocks.readings import Readings, map_if_consistent
from tracelens.model.trace import Note

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tracelens.arrays import Ints
    from tracelens.model.clock_map import ClockMap
    from tracelens.model.trace import Trace

EXCHANGE_COLUMNS: Final[dict[str, pl.DataType]] = {
    "clock": pl.Int32(),  # the worker's
    "peer": pl.Int32(),  # the server's
    "replied": pl.Boolean(),  # surely there before the worker went on; else a push may not have been
    "sent": pl.Int64(),  # at the worker
    "answered": pl.Int64(),
    "arrived": pl.Int64(),  # at the server
    "returned": pl.Int64(),
}
MAX_PEERS_COMBINED: Final = 4  # clocks with the narrowest windows speak for one
MAX_SHARE_OF_VIOLATIONS: Final = 0.01  # requests may be matched wrongly
_PAIR: Final = ("clock", "peer", "replied")
_TIMES: Final = ("sent", "answered", "arrived", "returned")


def find_exchanges(trace: Trace, processes: pl.DataFrame) -> pl.DataFrame:
    """Return the requests that bound clocks best, in `EXCHANGE_COLUMNS`.

    `processes` has one row per `process`, with its `clock`.
    """
    clock_of = processes.lazy().select("process", "clock")
    is_closed = pl.col("request").is_not_null() & (pl.col("status") == "closed")
    spans = trace.requests.lazy().filter((pl.col("kind") == "ps") & is_closed)
    spans = spans.select(
        "process", "request", "shard", "start_ns", "end_ns", op=pl.col("op").cast(pl.String)
    )
    worker_requests = (
        spans.filter(pl.col("op").is_in(("push", "pull")))
        .join(trace.workers.lazy().select("process"), on="process", how="semi")
        .join(clock_of, on="process")
        .select("request", "clock", "shard", sent="start_ns", answered="end_ns")
    )
    service = _list_server_times(spans, trace.shards.lazy(), clock_of)
    exchanges = worker_requests.join(service, on="request").filter(
        pl.col("shard").is_null() | (pl.col("shard") == pl.col("held")),
        pl.col("clock") != pl.col("peer"),
    )
    return select_tightest(exchanges.select(*EXCHANGE_COLUMNS)).collect()


def _list_server_times(
    spans: pl.LazyFrame, shards: pl.LazyFrame, clock_of: pl.LazyFrame
) -> pl.LazyFrame:
    """Return one row per request and server: when it had surely arrived, and surely no answer had left.

    `spans` has one row per operation of a request, `clock_of` one per process.
    """
    is_reply, is_receive = pl.col("op") == "reply", pl.col("op") == "receive"
    shard_numbers = shards.select("process", held=pl.coalesce("shard", "rank"))
    server_spans = spans.join(shard_numbers, on="process").join(
        clock_of.rename({"clock": "peer"}), on="process"
    )
    time_ns = pl.when(is_receive).then("end_ns").otherwise("start_ns")
    requests = server_spans.filter(is_receive | is_reply).group_by("request", "held", "peer")
    return requests.agg(arrived=time_ns.min(), returned=time_ns.max(), replied=is_reply.any())


def select_tightest(exchanges: pl.LazyFrame) -> pl.LazyFrame:
    """Keep, of each block of time of two clocks, the exchanges that leave the narrowest windows.

    That are those with the shortest way there, way back, and both.
    """
    forward_ns = pl.col("arrived") - pl.col("sent")
    return_ns = pl.col("answered") - pl.col("returned")
    since_first_ns = pl.col("sent") - pl.col("sent").min().over(_PAIR)
    block = since_first_ns * BLOCK_COUNT // (since_first_ns.max().over(_PAIR) + 1)
    # Joined rows come in any order; of several that leave as little the first is taken.
    ordered_exchanges = exchanges.with_columns(stretch=block).sort(*EXCHANGE_COLUMNS)
    blocks = ordered_exchanges.group_by(*_PAIR, "stretch")
    # The difference of the clocks adds to the way there what it takes off the way back.
    tightest_exchanges = [
        blocks.agg(pl.col(*_TIMES).get(window_ns.arg_min()))
        for window_ns in (forward_ns + return_ns, forward_ns, return_ns)
    ]
    return pl.concat(tightest_exchanges).select(*EXCHANGE_COLUMNS).unique().sort(*EXCHANGE_COLUMNS)


def map_by_requests(
    exchanges: pl.DataFrame,
    clock: int,
    maps: Mapping[int, ClockMap],
    by_wall: Readings | None,
) -> ClockMap | None:
    """Map a clock by its requests with mapped clocks; None without any, or if no clock fits them.

    Readings of wall clocks are left out if they contradict the requests. So are pushes without a reply:
    a worker may not have waited until they arrived. `exchanges` has one row per request, with the times
    of both sides.
    """
    windows = [*_find_windows(exchanges, clock, maps)]
    for candidates in (windows, [peer for peer in windows if peer.is_replied]):
        if not candidates:
            continue
        readings = _combine(candidates)
        if by_wall and (clock_map := map_if_consistent(_concatenate(readings, by_wall))):
            return clock_map
        if clock_map := map_if_consistent(readings):
            return clock_map
    return None


class _Windows(NamedTuple):
    """Windows by requests to one mapped clock, all [request], ns.

    `times_ns` are times of the clock to be mapped; the others bound the common clock's lead over it.
    """

    is_replied: bool
    times_ns: Ints
    low_ns: Ints
    high_ns: Ints


def _find_windows(
    exchanges: pl.DataFrame, clock: int, maps: Mapping[int, ClockMap]
) -> Iterator[_Windows]:
    """Yield the windows that requests with each mapped clock leave for the common clock's lead.

    `exchanges` has one row per request: sent and returned at the worker, arrived and answered at the
    server.
    """
    own_exchanges = exchanges.filter((pl.col("clock") == clock) | (pl.col("peer") == clock))
    for (worker, server, replied), rows in own_exchanges.partition_by(*_PAIR, as_dict=True).items():
        peer_map = maps.get(server if worker == clock else worker)
        if peer_map is None:
            continue
        sent_ns, answered_ns, arrived_ns, returned_ns = (rows[name].to_numpy() for name in _TIMES)
        # Both bounds hold at times of their own, between which the clocks drift.
        drift_ns = np.rint(np.abs(returned_ns - arrived_ns) * PLAUSIBLE_DRIFT).astype(np.int64)
        if worker == clock:
            times_ns = sent_ns
            low_ns = peer_map.to_common_ns(returned_ns) - answered_ns
            high_ns = peer_map.to_common_ns(arrived_ns) - sent_ns
        else:
            times_ns = arrived_ns
            low_ns = peer_map.to_common_ns(sent_ns) - arrived_ns
            high_ns = peer_map.to_common_ns(answered_ns) - returned_ns
        uncertainty_ns = peer_map.uncertainty_ns + drift_ns
        yield _Windows(
            is_replied=replied,
            times_ns=times_ns,
            low_ns=low_ns - uncertainty_ns,
            high_ns=high_ns + uncertainty_ns,
        )


def _combine(windows: Iterable[_Windows]) -> Readings:
    """Return readings with the windows of those clocks that leave the narrowest ones."""
    narrowest_first = sorted(windows, key=lambda peer: int((peer.high_ns - peer.low_ns).min()))
    _, *columns = zip(*narrowest_first[:MAX_PEERS_COMBINED], strict=True)
    times_ns, low_ns, high_ns = map(np.concatenate, columns)
    lead_ns = low_ns + (high_ns - low_ns) // 2
    return Readings(common_ns=times_ns + lead_ns, window_ns=high_ns - low_ns, lead_ns=lead_ns)


def _concatenate(*readings: Readings) -> Readings:
    return Readings(
        common_ns=np.concatenate([part.common_ns for part in readings]),
        window_ns=np.concatenate([part.window_ns for part in readings]),
        lead_ns=np.concatenate([part.lead_ns for part in readings]),
    )


def note_causality_violations(exchanges: pl.DataFrame, maps: Mapping[int, ClockMap]) -> list[Note]:
    """Note messages that arrived before they were sent, on the common clock: clocks are wrong then."""
    early_ns = [
        early_by_ns
        for (worker, server, replied), rows in exchanges.partition_by(*_PAIR, as_dict=True).items()
        if worker in maps and server in maps
        for early_by_ns in _measure_early(rows, maps[worker], maps[server], replied=replied)
    ]
    too_early_ns = np.concatenate([*early_ns, np.zeros(0, np.int64)])
    wrong_ns = too_early_ns[too_early_ns > 0]
    if len(wrong_ns) <= MAX_SHARE_OF_VIOLATIONS * len(too_early_ns):
        return []
    sentence = (
        f"{len(wrong_ns)} of {len(too_early_ns)} messages between hosts that were looked at arrived "
        f"before they were sent, by up to {wrong_ns.max()} ns more than the clocks' uncertainty, "
        "which cannot be: the clocks are aligned worse than believed; do not trust times between hosts."
    )
    return [Note(file="", sentence=sentence, kind="clock")]


def _measure_early(
    rows: pl.DataFrame, worker_map: ClockMap, server_map: ClockMap, *, replied: bool
) -> Iterator[Ints]:
    """Yield by how much messages arrived too early, beyond the clocks' uncertainty, [exchange], ns.

    `rows` are exchanges between a worker's and a server's clock. Answers count if `replied`.
    """
    uncertainty_ns = 3 * max(worker_map.uncertainty_ns, server_map.uncertainty_ns)
    directions = [("sent", worker_map, "arrived", server_map)]
    if replied:
        directions.append(("returned", server_map, "answered", worker_map))
    for begin_column, sender_map, end_column, receiver_map in directions:
        sent_ns = sender_map.to_common_ns(rows[begin_column].to_numpy())
        arrived_ns = receiver_map.to_common_ns(rows[end_column].to_numpy())
        yield sent_ns - arrived_ns - uncertainty_ns
