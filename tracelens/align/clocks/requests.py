"""Ties clocks together by requests to parameter servers: no message arrives before it was sent.

What a server records of a request is between its begin and its end at the worker, so every request
leaves a window for the difference of the two clocks (Cristian 1989, *Probabilistic clock
synchronization*; Duda et al. 1987, *Estimating global time in distributed systems*). All windows
are combined.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.align.clocks.maps import BLOCKS, PLAUSIBLE_DRIFT
from tracelens.align.clocks.readings import Readings, map_if_consistent
from tracelens.model.trace import Note

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tracelens.align.clocks.maps import ClockMap
    from tracelens.arrays import Ints
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
PEERS: Final = 4  # as many of the other clocks as speak for one
RARE: Final = 0.01  # requests may be matched wrongly
_PAIR: Final = ("clock", "peer", "replied")


def exchanges(trace: Trace, clocks: pl.DataFrame) -> pl.DataFrame:
    """Return the tightest requests between clocks; `clocks` holds the clock of each process."""
    of = clocks.lazy().select("process", "clock")
    spans = (
        trace.requests.lazy()
        .filter(
            pl.col("kind") == "ps", pl.col("request").is_not_null(), pl.col("status") == "closed"
        )
        .select(
            "process", "request", "shard", "start_ns", "end_ns", op=pl.col("op").cast(pl.String)
        )
    )
    asked = (
        spans.filter(pl.col("op").is_in(("push", "pull")))
        .join(trace.workers.lazy().select("process"), on="process", how="semi")
        .join(of, on="process")
        .select("request", "clock", "shard", sent="start_ns", answered="end_ns")
    )
    joined = asked.join(_served(spans, trace.shards.lazy(), of), on="request").filter(
        pl.col("shard").is_null() | (pl.col("shard") == pl.col("held")),
        pl.col("clock") != pl.col("peer"),
    )
    return select_tightest(joined.select(*EXCHANGE_COLUMNS)).collect()


def _served(spans: pl.LazyFrame, shards: pl.LazyFrame, of: pl.LazyFrame) -> pl.LazyFrame:
    """Return when each request had surely arrived at a server, and was surely not yet answered."""
    reply, receive = pl.col("op") == "reply", pl.col("op") == "receive"
    held = shards.select("process", held=pl.coalesce("shard", "rank"))
    there = spans.join(held, on="process").join(of.rename({"clock": "peer"}), on="process")
    return (
        there.filter(receive | reply)
        .group_by("request", "held", "peer")
        .agg(
            arrived=pl.when(receive).then("end_ns").otherwise("start_ns").min(),
            returned=pl.when(receive).then("end_ns").otherwise("start_ns").max(),
            replied=reply.any(),
        )
    )


def select_tightest(found: pl.LazyFrame) -> pl.LazyFrame:
    """Keep, of each stretch of time of two clocks, the requests that leave the least."""
    there, back = pl.col("arrived") - pl.col("sent"), pl.col("answered") - pl.col("returned")
    since = pl.col("sent") - pl.col("sent").min().over(_PAIR)
    part = since * BLOCKS // (since.max().over(_PAIR) + 1)
    # Joined rows come in any order; of several that leave as little the first is taken.
    ordered = found.with_columns(part=part).sort(*EXCHANGE_COLUMNS)
    parts = ordered.group_by(*_PAIR, "part")
    values = pl.col("sent", "answered", "arrived", "returned")
    # The difference of the clocks adds to the way there what it takes off the way back.
    best = (there + back, there, back)
    kept = pl.concat([parts.agg(values.get(amount.arg_min())) for amount in best])
    return kept.select(*EXCHANGE_COLUMNS).unique().sort(*EXCHANGE_COLUMNS)


def from_requests(
    found: pl.DataFrame, clock: int, maps: Mapping[int, ClockMap], wall: Readings | None
) -> ClockMap | None:
    """Tie a clock to those that are mapped; None without requests, or if no clock fits them.

    `wall` is what wall clocks say of it, and left out if that cannot be. So are pushes without a
    reply: a worker may not have waited until they were there.
    """
    every = [*_with_mapped(found, clock, maps)]
    for chosen in (every, [one for one in every if one.replied]):
        if chosen:
            readings = _combined(chosen)
            with_wall = [_concatenated([readings, wall])] if wall else []
            for candidate in (*with_wall, readings):
                if mapped := map_if_consistent(candidate):
                    return mapped
    return None


@dataclass(frozen=True, eq=False)
class _Windows:
    """Windows by requests to one mapped clock: our times, and the bounds of its lead."""

    replied: bool
    ours: Ints
    low: Ints
    high: Ints

    @property
    def narrowest(self) -> int:
        return int((self.high - self.low).min())


def _with_mapped(
    found: pl.DataFrame, clock: int, maps: Mapping[int, ClockMap]
) -> Iterator[_Windows]:
    ours = found.filter((pl.col("clock") == clock) | (pl.col("peer") == clock))
    for (worker, server, replied), rows in ours.partition_by(*_PAIR, as_dict=True).items():
        other = server if worker == clock else worker
        if other in maps:
            times = {
                name: rows[name].to_numpy() for name in ("sent", "answered", "arrived", "returned")
            }
            yield _windows(times, maps[other], replied=replied, asks=worker == clock)


def _windows(times: dict[str, Ints], other: ClockMap, *, replied: bool, asks: bool) -> _Windows:
    sent, answered, arrived, returned = times.values()
    # Both bounds hold at times of their own, between which the clocks drift.
    apart = np.abs(returned - arrived)
    uncertainty = other.uncertainty_ns + np.rint(apart * PLAUSIBLE_DRIFT).astype(np.int64)
    if asks:
        low, high = other.apply(returned) - answered, other.apply(arrived) - sent
    else:
        low, high = other.apply(sent) - arrived, other.apply(answered) - returned
    return _Windows(replied, sent if asks else arrived, low - uncertainty, high + uncertainty)


def _combined(windows: Iterable[_Windows]) -> Readings:
    """Combine the clocks with the narrowest windows."""
    best = sorted(windows, key=lambda one: one.narrowest)[:PEERS]
    ours, low, high = (
        np.concatenate([getattr(one, name) for one in best]) for name in ("ours", "low", "high")
    )
    offset = low + (high - low) // 2
    return Readings(ours + offset, high - low, offset)


def _concatenated(readings: Iterable[Readings]) -> Readings:
    names = ("known", "window", "offset")
    return Readings(*(np.concatenate([getattr(one, name) for one in readings]) for name in names))


def causality_violations(found: pl.DataFrame, maps: Mapping[int, ClockMap]) -> list[Note]:
    """Note messages that arrived before they were sent, on the common clock: clocks are wrong then."""
    early = [
        amount
        for (worker, server, replied), rows in found.partition_by(*_PAIR, as_dict=True).items()
        if worker in maps and server in maps
        for amount in _early(rows, maps[worker], maps[server], replied=replied)
    ]
    amounts = np.concatenate([*early, np.zeros(0, np.int64)])
    wrong = amounts[amounts > 0]
    if len(wrong) <= RARE * len(amounts):
        return []
    sentence = (
        f"{len(wrong)} of {len(amounts)} messages between hosts that were looked at arrived before they "
        f"were sent, by up to {wrong.max()} ns more than the clocks' uncertainty, "
        "which cannot be: the clocks are aligned worse than believed; do not trust times between hosts."
    )
    return [Note(file="", sentence=sentence, kind="clock")]


def _early(
    rows: pl.DataFrame, worker: ClockMap, server: ClockMap, *, replied: bool
) -> Iterator[Ints]:
    """Yield by how much messages arrived too early, beyond the clocks' uncertainty."""
    uncertainty = 3 * max(worker.uncertainty_ns, server.uncertainty_ns)
    ways = [("sent", worker, "arrived", server)]
    if replied:
        ways.append(("returned", server, "answered", worker))
    for begun, at_begin, over, at_end in ways:
        sent, arrived = at_begin.apply(rows[begun].to_numpy()), at_end.apply(rows[over].to_numpy())
        yield sent - arrived - uncertainty
