"""Messages between ranks: what their ends follow, after which lag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.replay.threads import Sides

if TYPE_CHECKING:
    from tracelens.arrays import Flags, Ints
    from tracelens.model.trace import Trace
    from tracelens.replay.edges import EdgeList
    from tracelens.replay.threads import Threads
    from tracelens.replay.timeline import Timeline

__all__ = ["add_message_edges", "select_messages"]

MAX_GAP_OF_ONE_CALL_NS: Final = 10_000  # ns: messages that end within it end with one call [chosen]
# share of the wait before: messages that end within it end with one call [chosen]
MAX_GAP_OF_ONE_CALL: Final = 0.05
# ns: a message that is through so shortly before a call ends may be why it ends [chosen]
MAX_GAP_FROM_REASON_TO_END_NS: Final = 10_000
# messages: fewer for which a rank waits do not tell a pair's time [chosen]
MIN_AWAITED_MESSAGES_OF_PAIR: Final = 16
# messages: fewer of a pair do not tell whether they are late or their receives slow [chosen]
MIN_MESSAGES_OF_SLOW_RECEIVES: Final = 16
# ratio: receives are slow if their ends vary by more of what their begins vary by [chosen]
MIN_SLOPE_OF_ENDS_IF_RECEIVES_ARE_SLOW: Final = 0.5


def select_messages(
    trace: Trace, timeline: Timeline, begins_ns: Ints, ends_ns: Ints
) -> tuple[Sides, Sides]:
    """Return the senders' and the receivers' sides of messages between each worker's begin and end.

    These are ns, [worker]; both sides are [message], in the same order. Messages in flight end when the
    training thread noticed it.
    """
    columns = ("worker", "start_ns", "end_ns", "stops_training")
    workers = trace.workers.select("process", worker=pl.int_range(pl.len(), dtype=pl.Int64))
    workers = workers.with_columns(begin=pl.Series(begins_ns), end=pl.Series(ends_ns))
    # Hops are the messages that make up a collective.
    messages = trace.matched_messages.filter(~pl.col("hop"), ~pl.col("hop_there"))
    for suffix in ("", "_there"):  # of the sender, and of the receiver
        start_ns, end_ns = (pl.col(f"{name}{suffix}") for name in ("start_ns", "end_ns"))
        messages = messages.join(
            workers.select(pl.all().name.suffix(suffix)), on=f"process{suffix}", how="inner"
        ).filter(start_ns >= pl.col(f"begin{suffix}"), end_ns <= pl.col(f"end{suffix}"))
    sent, received = (
        Sides(*(messages[f"{name}{suffix}"].to_numpy() for name in columns))
        for suffix in ("", "_there")
    )
    sent, received = _end_with_call(sent, received, timeline)
    return sent.end_when_noticed(timeline), received.end_when_noticed(timeline)


def _end_with_call(sent: Sides, received: Sides, timeline: Timeline) -> tuple[Sides, Sides]:
    """Return both sides, [message]; those in flight that one call noted as over end together."""
    sides = Sides.join((sent, received))
    end_ns, end_position = sides.end_ns, timeline.to_positions(sides.workers, sides.end_ns)
    rows_in_flight = np.flatnonzero(~sides.is_blocking)
    order = rows_in_flight[np.argsort(end_position[rows_in_flight], kind="stable")]
    end_position = end_position[order]
    waited_ns = end_position - timeline.find_blocked_begins(end_position)
    max_gap_ns = np.maximum(MAX_GAP_OF_ONE_CALL_NS, MAX_GAP_OF_ONE_CALL * waited_ns[1:])
    ends_call = (np.diff(end_position) > max_gap_ns) | (np.diff(sides.workers[order]) != 0)
    last_of_call = np.flatnonzero(np.append(ends_call, True))[: len(order)]
    end_ns[order] = np.repeat(end_ns[order][last_of_call], np.diff(last_of_call, prepend=-1))
    sent_end_ns, received_end_ns = np.split(end_ns, [len(sent.end_ns)])
    return sent._replace(end_ns=sent_end_ns), received._replace(end_ns=received_end_ns)


def add_message_edges(
    edges: EdgeList, sent: Sides, received: Sides, threads: Threads, event_times_ns: Ints
) -> Ints:
    """Add what ends of sends and receives follow; return the events that messages held up.

    A message that was there before its receiver waited for it came sooner than the receive shows: as
    soon as those between the same workers that were awaited; so with sends. If a receiver waits for a
    buffered message for longer than such messages take in all, it was not there, or the receive itself
    is slow: then it ends the later, the later it begins. Messages that one call awaits take no longer
    than the last begun.
    """
    send, send_end = threads.find_side_events(sent)
    receive, receive_end = threads.find_side_events(received)
    may_end_send, may_end_receive = _find_reasons_of_ends(sent, received)
    rest_of_send_ns, rest_ns = _measure_since_last_peer(sent, received)
    way_ns = received.end_ns - sent.begin_ns
    rest_ns = np.minimum(rest_ns, way_ns)
    pair = sent.workers, received.workers
    wait_ns = _find_wait_begins(received, threads.timeline)
    usual_ns = _find_usual_times_ns(*pair, rest_ns, (sent.begin_ns >= wait_ns) & may_end_receive)
    is_late = (sent.end_ns <= wait_ns) & (received.end_ns - wait_ns > usual_ns)
    is_late &= ~_find_slow_receives(*pair, wait_ns - sent.begin_ns, way_ns, is_late)
    is_awaited = (sent.begin_ns + usual_ns >= wait_ns) | is_late
    is_awaited &= (way_ns > 0) & may_end_receive
    receiving_ns = received.end_ns - received.begin_ns
    # What is sent and received in one call lasts as long as its receive, unless its send ended it.
    in_one_call = _overlaps_receive(sent, received, threads.timeline)
    lasts_with_receive = in_one_call & ~may_end_send
    is_blocked = (received.begin_ns > sent.begin_ns) & (sent.end_ns > received.begin_ns)
    is_blocked &= ~lasts_with_receive
    sending_ns = sent.end_ns - sent.begin_ns
    own_ns = np.where(in_one_call, np.minimum(rest_of_send_ns, sending_ns), sending_ns)
    rest_of_send_ns = np.minimum(rest_of_send_ns, sent.end_ns - received.begin_ns)
    wait_ns = _find_wait_begins(sent, threads.timeline)
    is_awaited_send = is_blocked & (received.begin_ns >= wait_ns)
    usual_rest_ns = _find_usual_times_ns(*pair, rest_of_send_ns, is_awaited_send)
    rest_of_send_ns = np.where(
        received.begin_ns + usual_rest_ns < wait_ns,
        np.minimum(usual_rest_ns, rest_of_send_ns),
        rest_of_send_ns,
    )
    message_lag_ns = np.where(is_awaited, rest_ns, np.minimum(usual_ns, way_ns))
    receive_lag_ns = np.where(is_awaited | ~may_end_receive, 0, receiving_ns)
    send_lag_ns = np.where(is_blocked | lasts_with_receive, 0, own_ns)
    pairs = sent.workers * threads.worker_count + received.workers
    steps = threads.find_step_numbers(sent.workers, sent.begin_ns)
    held_up = []
    for source, target, lag_ns, is_present in (
        (send, receive_end, message_lag_ns, way_ns > 0),
        (receive, receive_end, receive_lag_ns, received.is_blocking),
        (receive, send_end, rest_of_send_ns, is_blocked),
        (send, send_end, send_lag_ns, sent.is_blocking),
    ):
        edges.add(source, target, lag_ns, is_present, step=steps, pair_number=pairs)
        # A message that had come earlier did not end the wait.
        is_last = event_times_ns[source] + lag_ns >= event_times_ns[target]
        is_edge = is_present & (source >= 0) & (target >= 0) & (source != target)
        held_up.append(target[is_edge & is_last])
    return np.concatenate(held_up)


def _find_wait_begins(sides: Sides, timeline: Timeline) -> Ints:
    """Return since when threads waited for messages, ns, [side]; those in flight were begun before."""
    since = timeline.find_blocked_begins(timeline.to_positions(sides.workers, sides.end_ns))
    return np.where(sides.is_blocking, sides.begin_ns, timeline.to_times_ns(since))


def _find_reasons_of_ends(sent: Sides, received: Sides) -> tuple[Flags, Flags]:
    """Return flags, [message]: may it be why the sender's call ended, and why the receiver's did?

    Other messages had arrived before. If all that end with a receiver's call had, the sender did not
    wait for that, and what was received may be the reason.
    """
    first_end_ns = np.minimum(sent.end_ns, received.end_ns)
    arrival_ns = np.where(sent.end_ns < received.begin_ns, received.end_ns, first_end_ns)
    both = Sides.join((sent, received))
    table = pl.DataFrame(
        {"worker": both.workers, "end": both.end_ns, "arrival": np.tile(arrival_ns, 2)}
    )
    earliest = pl.col("end") - MAX_GAP_FROM_REASON_TO_END_NS
    last_arrival = pl.col("arrival").max().over("worker", "end")
    flags = table.select(
        is_reason=pl.col("arrival") >= earliest, call_has_reason=last_arrival >= earliest
    )
    may_end_send, may_end_receive = np.split(flags["is_reason"].to_numpy(), 2)
    _, receive_has_reason = np.split(flags["call_has_reason"].to_numpy(), 2)
    return may_end_send, may_end_receive | ~receive_has_reason


def _find_slow_receives(
    sender: Ints, receiver: Ints, until_wait_ns: Ints, way_ns: Ints, may_be_late: Flags
) -> Flags:
    """Return True, [message], where receives of a pair of workers end the later, the later they begin.

    `until_wait_ns` and `way_ns` are the times from each send to the begin of the wait for it, and to the
    receive's end. Only messages that may be late are examined.
    """
    columns = {"from": sender, "to": receiver, "begin": until_wait_ns, "end": way_ns}
    begin, end = (pl.col(name).filter("may_be_late").cast(pl.Float64) for name in ("begin", "end"))
    is_slow = pl.cov(begin, end) > MIN_SLOPE_OF_ENDS_IF_RECEIVES_ARE_SLOW * begin.var()
    has_enough = pl.col("may_be_late").sum() >= MIN_MESSAGES_OF_SLOW_RECEIVES
    messages = pl.DataFrame(columns | {"may_be_late": may_be_late})
    flags = messages.select((is_slow & has_enough).over("from", "to").fill_null(False))
    return flags.to_series().to_numpy()


def _measure_since_last_peer(sent: Sides, received: Sides) -> list[Ints]:
    """Return the time from the last peer's begin to the end, ns, of sends and receives, [message]."""
    both = Sides.join((sent, received))
    peer_begin_ns = np.append(received.begin_ns, sent.begin_ns)
    sides = pl.DataFrame({"worker": both.workers, "end": both.end_ns, "peer": peer_begin_ns})
    last_peer = pl.col("peer").filter(pl.col("peer") < pl.col("end")).max().over("worker", "end")
    since_peer_ns = sides.select((pl.col("end") - last_peer).fill_null(0)).to_series().to_numpy()
    return np.split(since_peer_ns, 2)


def _overlaps_receive(sent: Sides, received: Sides, timeline: Timeline) -> Flags:
    """Return True for blocking sends that overlap a blocking receive on their thread."""
    receive_begins, receive_ends = received.take(received.is_blocking).to_positions(timeline)
    send_begins, send_ends = sent.to_positions(timeline)
    begun = np.searchsorted(np.sort(receive_begins), send_ends)
    over = np.searchsorted(np.sort(receive_ends), send_begins, side="right")
    return (begun > over) & sent.is_blocking


def _find_usual_times_ns(sender: Ints, receiver: Ints, travel_ns: Ints, is_awaited: Flags) -> Ints:
    """Return the median `travel_ns` of awaited messages of the same pair of workers, [message], ns.

    It is that of all pairs where a pair has few: then something else was late.
    """
    columns = {"from": sender, "to": receiver, "travel": travel_ns, "is_awaited": is_awaited}
    median = pl.col("travel").filter("is_awaited").median()
    has_enough = pl.col("is_awaited").sum() >= MIN_AWAITED_MESSAGES_OF_PAIR
    pair_median = pl.when(has_enough).then(median).over("from", "to")
    usual_ns = pl.DataFrame(columns).select(pair_median.fill_null(median).fill_null(0))
    return usual_ns.to_series().cast(pl.Int64).to_numpy()
