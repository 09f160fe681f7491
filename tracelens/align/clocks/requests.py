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


def find_exchanges(trace: Trace, clocks: pl.DataFrame) -> pl.DataFrame:
    """Return the tightest requests between clocks, in `EXCHANGE_COLUMNS`.

    `clocks` holds the `clock` of each `process`.
    """
    clock_of = clocks.lazy().select("process", "clock")
    is_closed = pl.col("request").is_not_null() & (pl.col("status") == "closed")
    spans = trace.requests.lazy().filter((pl.col("kind") == "ps") & is_closed)
    spans = spans.select(
        "process", "request", "shard", "start_ns", "end_ns", op=pl.col("op").cast(pl.String)
    )
    asked = (
        spans.filter(pl.col("op").is_in(("push", "pull")))
        .join(trace.workers.lazy().select("process"), on="process", how="semi")
        .join(clock_of, on="process")
        .select("request", "clock", "shard", sent="start_ns", answered="end_ns")
    )
    served = _find_service(spans, trace.shards.lazy(), clock_of)
    exchanges = asked.join(served, on="request").filter(
        pl.col("shard").is_null() | (pl.col("shard") == pl.col("held")),
        pl.col("clock") != pl.col("peer"),
    )
    return select_tightest(exchanges.select(*EXCHANGE_COLUMNS)).collect()


def _find_service(
    spans: pl.LazyFrame, shards: pl.LazyFrame, clock_of: pl.LazyFrame
) -> pl.LazyFrame:
    """Return when each request had surely arrived at a server, and was surely not yet answered."""
    is_reply, is_receive = pl.col("op") == "reply", pl.col("op") == "receive"
    held = shards.select("process", held=pl.coalesce("shard", "rank"))
    at_server = spans.join(held, on="process").join(
        clock_of.rename({"clock": "peer"}), on="process"
    )
    moment = pl.when(is_receive).then("end_ns").otherwise("start_ns")
    requests = at_server.filter(is_receive | is_reply).group_by("request", "held", "peer")
    return requests.agg(arrived=moment.min(), returned=moment.max(), replied=is_reply.any())


def select_tightest(exchanges: pl.LazyFrame) -> pl.LazyFrame:
    """Keep, of each stretch of time of two clocks, the requests that leave the least."""
    there, back = pl.col("arrived") - pl.col("sent"), pl.col("answered") - pl.col("returned")
    since = pl.col("sent") - pl.col("sent").min().over(_PAIR)
    stretch = since * BLOCK_COUNT // (since.max().over(_PAIR) + 1)
    # Joined rows come in any order; of several that leave as little the first is taken.
    ordered = exchanges.with_columns(stretch=stretch).sort(*EXCHANGE_COLUMNS)
    stretches = ordered.group_by(*_PAIR, "stretch")
    # The difference of the clocks adds to the way there what it takes off the way back.
    tightest = [
        stretches.agg(pl.col(*_TIMES).get(amount.arg_min()))
        for amount in (there + back, there, back)
    ]
    return pl.concat(tightest).select(*EXCHANGE_COLUMNS).unique().sort(*EXCHANGE_COLUMNS)


def map_by_requests(
    exchanges: pl.DataFrame, clock: int, maps: Mapping[int, ClockMap], by_wall: Readings | None
) -> ClockMap | None:
    """Tie a clock to those that are mapped; None without requests, or if no clock fits them.

    `by_wall` is what wall clocks say of it, and left out if that cannot be. So are pushes without a
    reply: a worker may not have waited until they were there.
    """
    windows = [*_find_windows(exchanges, clock, maps)]
    for candidates in (windows, [one for one in windows if one.is_replied]):
        if not candidates:
            continue
        readings = _combine(candidates)
        if by_wall and (clock_map := map_if_consistent(_concatenate(readings, by_wall))):
            return clock_map
        if clock_map := map_if_consistent(readings):
            return clock_map
    return None


class _Windows(NamedTuple):
    """Windows by requests to one mapped clock: our times, and bounds of its lead, [request], ns."""

    is_replied: bool
    times_ns: Ints
    low_ns: Ints
    high_ns: Ints


def _find_windows(
    exchanges: pl.DataFrame, clock: int, maps: Mapping[int, ClockMap]
) -> Iterator[_Windows]:
    concerned = exchanges.filter((pl.col("clock") == clock) | (pl.col("peer") == clock))
    for (worker, server, replied), rows in concerned.partition_by(*_PAIR, as_dict=True).items():
        other = maps.get(server if worker == clock else worker)
        if other is None:
            continue
        sent, answered, arrived, returned = (rows[name].to_numpy() for name in _TIMES)
        # Both bounds hold at times of their own, between which the clocks drift.
        drift_ns = np.rint(np.abs(returned - arrived) * PLAUSIBLE_DRIFT).astype(np.int64)
        if worker == clock:
            times = sent
            low, high = other.apply(returned) - answered, other.apply(arrived) - sent
        else:
            times = arrived
            low, high = other.apply(sent) - arrived, other.apply(answered) - returned
        uncertainty_ns = other.uncertainty_ns + drift_ns
        yield _Windows(replied, times, low - uncertainty_ns, high + uncertainty_ns)


def _combine(windows: Iterable[_Windows]) -> Readings:
    """Combine the clocks with the narrowest windows."""
    ordered = sorted(windows, key=lambda one: int((one.high_ns - one.low_ns).min()))
    _, *columns = zip(*ordered[:MAX_PEERS_COMBINED], strict=True)
    times_ns, low_ns, high_ns = map(np.concatenate, columns)
    offset_ns = low_ns + (high_ns - low_ns) // 2
    return Readings(times_ns + offset_ns, high_ns - low_ns, offset_ns)


def _concatenate(*readings: Readings) -> Readings:
    names = ("common", "window", "offset")
    return Readings(*(np.concatenate([getattr(one, name) for one in readings]) for name in names))


def note_causality_violations(exchanges: pl.DataFrame, maps: Mapping[int, ClockMap]) -> list[Note]:
    """Note messages that arrived before they were sent, on the common clock: clocks are wrong then."""
    early_ns = [
        early
        for (worker, server, replied), rows in exchanges.partition_by(*_PAIR, as_dict=True).items()
        if worker in maps and server in maps
        for early in _measure_early(rows, maps[worker], maps[server], replied=replied)
    ]
    amounts_ns = np.concatenate([*early_ns, np.zeros(0, np.int64)])
    wrong_ns = amounts_ns[amounts_ns > 0]
    if len(wrong_ns) <= MAX_SHARE_OF_VIOLATIONS * len(amounts_ns):
        return []
    sentence = (
        f"{len(wrong_ns)} of {len(amounts_ns)} messages between hosts that were looked at arrived "
        f"before they were sent, by up to {wrong_ns.max()} ns more than the clocks' uncertainty, "
        "which cannot be: the clocks are aligned worse than believed; do not trust times between hosts."
    )
    return [Note(file="", sentence=sentence, kind="clock")]


def _measure_early(
    rows: pl.DataFrame, worker: ClockMap, server: ClockMap, *, replied: bool
) -> Iterator[Ints]:
    """Yield by how much messages arrived too early, beyond the clocks' uncertainty, ns."""
    uncertainty_ns = 3 * max(worker.uncertainty_ns, server.uncertainty_ns)
    ways = [("sent", worker, "arrived", server)]
    if replied:
        ways.append(("returned", server, "answered", worker))
    for begin_column, sender, end_column, receiver in ways:
        sent, arrived = (
            sender.apply(rows[begin_column].to_numpy()),
            receiver.apply(rows[end_column].to_numpy()),
        )
        yield sent - arrived - uncertainty_ns
