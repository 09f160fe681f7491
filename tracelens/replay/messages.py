"""What ends of messages between ranks follow: the begin of the other side, after the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracelens.replay.threads import Sides, waits_since

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Flags, Ints
    from tracelens.model.trace import Trace
    from tracelens.replay.threads import Edges, Numbers, Thread

__all__ = ["all_waits_since", "known_edges", "message_edges", "messages_of"]


def messages_of(trace: Trace, first: Ints, last: Ints) -> tuple[Sides, Sides]:
    """Return both sides of all messages that lie in the steps of both workers."""
    place = trace.workers.select("process", worker=pl.int_range(pl.len(), dtype=pl.Int64))
    messages = trace.exchanged.filter(~pl.col("hop"), ~pl.col("hop_there"))
    for suffix in ("", "_there"):
        named = place.rename({"process": f"process{suffix}", "worker": f"worker{suffix}"})
        messages = messages.join(named, on=f"process{suffix}", how="inner")
    names = ("worker", "start_ns", "end_ns", "stops")
    sides = [
        Sides(*(messages[f"{name}{suffix}"].to_numpy() for name in names))
        for suffix in ("", "_there")
    ]
    kept = sides[0].within(first, last) & sides[1].within(first, last)
    return sides[0].taken(kept), sides[1].taken(kept)


def all_waits_since(received: Sides, threads: Sequence[Thread]) -> Ints:
    """Return since when threads waited for messages; receives in flight were begun before."""
    since = received.begin.copy()
    for worker, thread in enumerate(threads):
        rows = np.flatnonzero((received.worker == worker) & ~received.stops)
        since[rows] = waits_since(thread.pieces, received.end[rows])
    return since


def message_edges(sent: Sides, received: Sides, since: Ints, numbers: Numbers) -> list[Edges]:
    """Return what ends of sends and receives follow; `since` is when receivers began to wait.

    A message that is there before came sooner than the receive tells: as soon as those between the same
    workers for which one waited.
    """
    send, sent_by = numbers.of(sent.worker, sent.begin), numbers.of(sent.worker, sent.end)
    receive, got = (numbers.of(received.worker, at) for at in (received.begin, received.end))
    way = received.end - sent.begin
    usual = _usual(sent.worker, received.worker, way, sent.begin >= since)
    awaited = (way > 0) & (sent.begin + usual >= since)
    takes = np.where(awaited, 0, received.end - received.begin)
    # What is sent and received in one call lasts as long as its receive.
    once = _in_one_call(sent, received)
    blocked = (received.begin > sent.begin) & (sent.end > received.begin) & ~once
    lasts = np.where(blocked | once, 0, sent.end - sent.begin)
    edges = [
        (send, got, np.where(awaited, way, np.minimum(usual, way)), way > 0),
        (receive, got, takes, received.stops),
        (receive, sent_by, sent.end - received.begin, blocked),
        (send, sent_by, lasts, sent.stops),
    ]
    return [known_edges(source, target, lag, there) for source, target, lag, there in edges]


def _in_one_call(sent: Sides, received: Sides) -> Flags:
    """Return which sends overlap a receive on their thread."""
    found = np.zeros(len(sent.worker), np.bool_)
    for worker in np.unique(sent.worker):
        mine, others = sent.worker == worker, (received.worker == worker) & received.stops
        begins, ends = np.sort(received.begin[others]), np.sort(received.end[others])
        begun = np.searchsorted(begins, sent.end[mine])
        found[mine] = begun > np.searchsorted(ends, sent.begin[mine], side="right")
    return found & sent.stops


def _usual(sender: Ints, receiver: Ints, way: Ints, awaited: Flags) -> Ints:
    """Return what a message between the same two takes for which one waits; else one of any two."""
    table = pl.DataFrame({"of": sender, "to": receiver, "way": way, "awaited": awaited})
    some = pl.col("way").filter("awaited").median()
    found = table.select(some.over("of", "to").fill_null(some).fill_null(0))
    return found.to_series().cast(pl.Int64).to_numpy()


def known_edges(source: Ints, target: Ints, lag: Ints, there: Flags) -> Edges:
    """Return the edges between known moments, of which one is not the other."""
    rows = there & (source >= 0) & (target >= 0) & (source != target)
    return source[rows], target[rows], lag[rows]
