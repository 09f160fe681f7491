"""What ends of messages between ranks follow: the begin of the other side, after the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from tracelens.replay.threads import Sides

if TYPE_CHECKING:
    from tracelens.arrays import Flags, Ints
    from tracelens.model.trace import Trace
    from tracelens.replay.threads import Threads
    from tracelens.replay.timeline import Timeline

__all__ = ["MessageEdges", "message_edges", "messages_of"]

MAX_GAP_OF_ONE_CALL_NS: Final = 10_000  # ns: messages that end within it end with one call [chosen]
# share of the wait before: messages that end within it end with one call [chosen]
MAX_GAP_OF_ONE_CALL: Final = 0.05
# ns: a message that is through so shortly before a call ends may be why it ends [chosen]
MAX_GAP_FROM_REASON_TO_END_NS: Final = 10_000
# messages: fewer for which a rank waits do not tell a pair's time [chosen]
MIN_AWAITED_MESSAGES_OF_PAIR: Final = 16


def messages_of(trace: Trace, timeline: Timeline, first: Ints, last: Ints) -> tuple[Sides, Sides]:
    """Return both sides of all messages that lie in the steps of both workers.

    Messages in flight end when the training thread noticed it.
    """
    place = trace.workers.select("process", worker=pl.int_range(pl.len(), dtype=pl.Int64))
    begin_ns, end_ns = int(first.min()), int(last.max())
    messages = trace.exchanged.filter(
        ~pl.col("hop"),
        ~pl.col("hop_there"),
        *(pl.col(name).is_between(begin_ns, end_ns) for name in ("start_ns", "end_ns")),
    )
    for suffix in ("", "_there"):
        named = place.rename({"process": f"process{suffix}", "worker": f"worker{suffix}"})
        messages = messages.join(named, on=f"process{suffix}", how="inner")
    names = ("worker", "start_ns", "end_ns", "stops")
    sent, received = (
        Sides(*(messages[f"{name}{suffix}"].to_numpy() for name in names))
        for suffix in ("", "_there")
    )
    kept = sent.within(first, last) & received.within(first, last)
    sent, received = _noted_at_once(sent.take(kept), received.take(kept), timeline)
    return sent.noticed(timeline), received.noticed(timeline)


def _noted_at_once(sent: Sides, received: Sides, timeline: Timeline) -> tuple[Sides, Sides]:
    """Return those in flight that a thread noted as over in one call with the end of the last one."""
    both = Sides.join((sent, received))
    end, position = both.end, timeline.locate(both.worker, both.end)
    in_flight = np.flatnonzero(~both.stops)
    order = in_flight[np.argsort(position[in_flight], kind="stable")]
    position = position[order]
    waited_ns = position - timeline.blocked_since(position)
    apart = np.diff(position) > np.maximum(
        MAX_GAP_OF_ONE_CALL_NS, MAX_GAP_OF_ONE_CALL * waited_ns[1:]
    )
    apart |= np.diff(both.worker[order]) != 0
    last = np.flatnonzero(np.append(apart, True))[: len(order)]
    end[order] = np.repeat(end[order][last], np.diff(last, prepend=-1))
    ends = np.split(end, [len(sent.end)])
    return sent._replace(end=ends[0]), received._replace(end=ends[1])


def _waits_since(side: Sides, timeline: Timeline) -> Ints:
    """Return since when threads waited for messages; those in flight were begun before."""
    since = timeline.blocked_since(timeline.locate(side.worker, side.end))
    return np.where(side.stops, side.begin, timeline.moments_at(since))


class MessageEdges(NamedTuple):
    """What ends of some messages follow, and after which lag, ns; `rows` are these messages."""

    source: Ints
    target: Ints
    lag: Ints
    rows: Ints


def message_edges(sent: Sides, received: Sides, threads: Threads) -> list[MessageEdges]:
    """Return what ends of sends and receives follow.

    A message that is there before one waits for it came sooner than the receive shows: as soon as those
    between the same workers for which one waited; so with sends. A buffered one for which one waits for
    longer than such messages take in all was not there. Those for which one call waits take no longer
    than the last begun.
    """
    send, sent_by = threads.find_both(sent)
    receive, got = threads.find_both(received)
    way = received.end - sent.begin
    ends_send, ends_receive = _find_reasons(sent, received)
    rest_of_send, rest = _since_last_of_call(sent, received)
    rest = np.minimum(rest, way)
    pair = sent.worker, received.worker
    since = _waits_since(received, threads.timeline)
    usual = _usual(*pair, rest, (sent.begin >= since) & ends_receive)
    is_late = (sent.end <= since) & (received.end - since > usual)
    awaited = (way > 0) & ((sent.begin + usual >= since) | is_late) & ends_receive
    takes = np.where(awaited | ~ends_receive, 0, received.end - received.begin)
    # What is sent and received in one call lasts as long as its receive, unless its send ended it.
    in_one_call = _in_one_call(sent, received, threads.timeline)
    once = in_one_call & ~ends_send
    blocked = (received.begin > sent.begin) & (sent.end > received.begin) & ~once
    lasts = np.where(in_one_call, rest_of_send, sent.end - sent.begin)
    lasts = np.where(blocked | once, 0, np.minimum(lasts, sent.end - sent.begin))
    rest_of_send = np.minimum(rest_of_send, sent.end - received.begin)
    since = _waits_since(sent, threads.timeline)
    usual_rest = _usual(*pair, rest_of_send, blocked & (received.begin >= since))
    before = received.begin + usual_rest < since
    rest_of_send = np.where(before, np.minimum(usual_rest, rest_of_send), rest_of_send)
    return [
        _known_edges(send, got, np.where(awaited, rest, np.minimum(usual, way)), way > 0),
        _known_edges(receive, got, takes, received.stops),
        _known_edges(receive, sent_by, rest_of_send, blocked),
        _known_edges(send, sent_by, lasts, sent.stops),
    ]


def _find_reasons(sent: Sides, received: Sides) -> list[Flags]:
    """Return which messages may be why the call ended, of the sender and of the receiver.

    Others were through before, by when their other side was over. If all were, senders did not wait for
    that, and what was received may be the reason.
    """
    both_on = np.minimum(sent.end, received.end)
    through = np.where(sent.end < received.begin, received.end, both_on)
    both = Sides.join((sent, received))
    table = pl.DataFrame({"worker": both.worker, "end": both.end, "through": np.tile(through, 2)})
    latest = pl.col("end") - MAX_GAP_FROM_REASON_TO_END_NS
    last_through = pl.col("through").max().over("worker", "end")
    flags = (pl.col("through") >= latest, last_through >= latest)
    is_late, is_explained = (table.select(flag).to_series().to_numpy() for flag in flags)
    ends_send, ends_receive = np.split(is_late, 2)
    return [ends_send, ends_receive | ~is_explained[len(ends_send) :]]


def _since_last_of_call(sent: Sides, received: Sides) -> list[Ints]:
    """Return how long before its end the last of the other sides was begun that one call waited for.

    Which of them were over before, and when, no recorder sees.
    """
    both, there = Sides.join((sent, received)), np.append(received.begin, sent.begin)
    table = pl.DataFrame({"worker": both.worker, "end": both.end, "there": there})
    began = pl.col("there").filter(pl.col("there") < pl.col("end"))
    last = began.max().over("worker", "end")
    rest = table.select((pl.col("end") - last).fill_null(0)).to_series().to_numpy()
    return np.split(rest, [len(sent.end)])


def _in_one_call(sent: Sides, received: Sides, timeline: Timeline) -> Flags:
    """Return which sends overlap a receive on their thread."""
    begins, ends = received.take(received.stops).locate(timeline)
    sent_from, sent_until = sent.locate(timeline)
    begun = np.searchsorted(np.sort(begins), sent_until)
    over = np.searchsorted(np.sort(ends), sent_from, side="right")
    return (begun > over) & sent.stops


def _usual(sender: Ints, receiver: Ints, way: Ints, awaited: Flags) -> Ints:
    """Return what a message between the same two takes for which one waits; else one of any two.

    So also where one hardly ever waited: that was when something else was late.
    """
    table = pl.DataFrame({"of": sender, "to": receiver, "way": way, "awaited": awaited})
    some = pl.col("way").filter("awaited").median()
    theirs = pl.when(pl.col("awaited").sum() >= MIN_AWAITED_MESSAGES_OF_PAIR).then(some)
    found = table.select(theirs.over("of", "to").fill_null(some).fill_null(0))
    return found.to_series().cast(pl.Int64).to_numpy()


def _known_edges(source: Ints, target: Ints, lag: Ints, there: Flags) -> MessageEdges:
    """Return the edges between known moments, of which one is not the other."""
    rows = np.flatnonzero(there & (source >= 0) & (target >= 0) & (source != target))
    return MessageEdges(source[rows], target[rows], lag[rows], rows)
