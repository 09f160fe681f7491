"""Communication as rows: a collective each, or a message between two ranks, and how long the wire took.

The rank that arrives last at a collective waits for no other, so its duration is the transfer, and no
two clocks are compared: ``wire_ns`` is the shortest duration among the ranks, counted from the end of
the call before where that one still held the wire. Where ranks need not all wait for each other
(broadcast, reduce and the like) it is the median rank's transfer.

A message starts when both ends have begun and is over before either end goes on, so it takes from the
later of the two begins to the earlier of the two ends at most, for any other reason to wait: a
late rank makes its partners wait, not its links slow. A send that ends before its receive begins was
buffered: its message goes as soon as the one before is through, and may be there before it is waited
for. So are sends of a size for which receivers wait until long after the sends are over. A call that
sends and receives together (Sendrecv in a ring) ends with the last of its messages: that with the rank
that was ready last. Others tell nothing and are left out. Where only sends were recorded it is the
send's duration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.algorithms import read_algorithms
from tracelens.accounting.thread_activity import list_training_threads
from tracelens.model.calls import NEVER
from tracelens.model.messages import IS_COMPLETED, with_hops, with_waits
from tracelens.schema.vocabulary import COLLECTIVES

if TYPE_CHECKING:
    from tracelens.arrays import Floats, Ints
    from tracelens.model.calls import CallGrid
    from tracelens.model.trace import Trace

# ns: a call that goes on so soon after a message may have waited for it [chosen]
MIN_UNCERTAINTY_OF_ENDS_NS: Final = 10_000
# times the uncertainty of clocks: ends that are closer may be at the same time [chosen]
CLOCK_UNCERTAINTIES_OF_ENDS: Final = 3
# ns: messages of a rank that end within it end with one call [chosen]
MAX_GAP_OF_ONE_CALL_NS: Final = 10_000
# share of calls: sends are buffered if as many end after all sends they wait for [chosen]
MIN_SHARE_OF_CALLS_IF_BUFFERED: Final = 0.1
# share of the time since both sides began: a call that ends as much later
# than its sends did not wait for these [chosen]
MIN_SHARE_UNEXPLAINED_IF_BUFFERED: Final = 0.5

CALL_COLUMNS: Final[dict[str, pl.DataType]] = {
    "communicator": pl.Categorical(),
    "seq": pl.UInt32(),
    "op": pl.String(),
    "ranks": pl.Int32(),
    "step": pl.Int32(),
    "bytes": pl.Int64(),
    "ready_ns": pl.Int64(),  # the last arrival
    "wire_ns": pl.Int64(),
    "blocking": pl.Boolean(),  # on the training thread, which does nothing else meanwhile
}


def bus_factor(op: str, ranks: int) -> float:
    """Return the bytes that the slowest link carries, as a ratio of the bytes that a rank puts in.

    Source: nccl-tests, PERFORMANCE.md, which counts all_gather by what a rank gets out.
    """
    share = (ranks - 1) / max(ranks, 1)
    factors = {"allreduce": 2 * share, "reduce_scatter": share, "all_to_all": share}
    if op == "all_gather":
        return float(ranks - 1)
    return factors.get(op, 1.0)


def list_collective_calls(trace: Trace) -> pl.DataFrame:
    """Return every collective that all its ranks made and completed, by communicator and number."""
    thread_of_process = list_training_threads(trace)
    tables = [_list_calls(grid, thread_of_process) for grid in trace.calls]
    return pl.concat([pl.DataFrame(schema=CALL_COLUMNS), *tables])


def join_algorithms(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """Add how each call was carried out (`algorithm`), as one of its ranks recorded it; else null.

    `calls` has one row per call.
    """
    algorithms = read_algorithms(trace)
    keys = [pl.col(name).cast(algorithms.schema[name]) for name in ("communicator", "seq")]
    return (
        calls.with_columns(keys)
        .join(algorithms, on=["communicator", "seq"], how="left", maintain_order="left")
        .with_columns(pl.col("communicator").cast(CALL_COLUMNS["communicator"]))
    )


def measure_wire_ns(calls: pl.DataFrame, step_numbers: Ints) -> Floats:
    """Measure how long the calls, a row each, of each of some steps held the wire, ns, [step]."""
    sums = calls.group_by("step").agg(pl.col("wire_ns").sum())
    wire_ns_by_step = dict(sums.iter_rows())
    return np.array([wire_ns_by_step.get(step, 0) for step in step_numbers.tolist()], np.float64)


def _list_calls(calls: CallGrid, thread_of_process: Ints) -> pl.DataFrame:
    """Return a row (`CALL_COLUMNS`) for each complete call of one communicator.

    Calls after ranks made different operations are left out, and calls of other ranks than the first.
    `thread_of_process` is the thread that trains in each process, [process].
    """
    is_complete = calls.is_completed.sum(axis=1) == calls.expected_rank_count
    grid = calls.take_calls(
        np.flatnonzero(is_complete & ~calls.follows_mismatch)
    ).select_same_members()
    if not grid.call_count:
        return pl.DataFrame(schema=CALL_COLUMNS)
    sizes = pl.DataFrame({"bytes": grid.first_value_of_calls("nbytes")})
    columns = {
        "communicator": pl.Series([grid.communicator_uid], dtype=pl.Categorical).new_from_index(
            0, grid.call_count
        ),
        "seq": grid.seq,
        "op": [COLLECTIVES[op] for op in grid.first_value_of_calls("op").tolist()],
        "ranks": pl.Series([len(grid.ranks)]).new_from_index(0, grid.call_count),
        "step": grid.first_value_of_calls("step"),
        "bytes": sizes.select(pl.when(pl.col("bytes") >= 0).then("bytes")).to_series(),
        "ready_ns": grid.start_ns.max(axis=1),
        "wire_ns": _measure_wire_ns(grid),
        "blocking": (grid.thread == thread_of_process[grid.processes]).any(axis=1),
    }
    return pl.DataFrame(
        [pl.Series(name, columns[name]).cast(kind) for name, kind in CALL_COLUMNS.items()]
    )


def _measure_wire_ns(grid: CallGrid) -> Ints:
    """Measure how long each call held the wire, [call], ns.

    A call holds it from its last arrival or the end of the call before, whichever is later. Ranks of a
    call with a root do not all wait for each other: there it is the median rank's time without waits.
    """
    wire_ns = np.empty(grid.call_count, np.int64)
    previous_end_ns = grid.start_ns[:1]  # of the call before, [call, process]
    for call_range, block in grid.split_into_blocks():
        start_ns, end_ns = block.start_ns, block.end_ns
        previous_end_ns = np.concatenate([previous_end_ns, end_ns[:-1]])
        is_after = previous_end_ns < end_ns  # else calls overlap
        begin_ns = np.where(is_after, np.maximum(start_ns, previous_end_ns), start_ns)
        wire_ns[call_range] = (end_ns - begin_ns).min(axis=1)
        rooted_calls = np.flatnonzero(~block.is_synchronised)
        if len(rooted_calls):
            transfer_ns = np.where(
                block.last_arrival_ns[:, None] == NEVER, 0, end_ns - start_ns - block.wait_ns()
            )
            wire_ns[call_range][rooted_calls] = np.median(transfer_ns[rooted_calls], axis=1)
        previous_end_ns = end_ns[-1:]
    return wire_ns


MESSAGE_COLUMNS: Final[dict[str, pl.DataType]] = {
    "step": pl.Int32(),
    "sender": pl.Int32(),
    "receiver": pl.Int32(),
    "bytes": pl.Int64(),
    "hop": pl.Boolean(),  # of a collective
    "link_ns": pl.Int64(),  # its time on the link
}


def list_messages(trace: Trace) -> pl.DataFrame:
    """Return a row (`MESSAGE_COLUMNS`) per message of the workers whose time on the link is known."""
    is_complete = IS_COMPLETED & (pl.col("peer") >= 0) & (pl.col("step") >= 0)
    workers = trace.workers.lazy().select("process")
    messages = trace.messages.lazy().filter(is_complete)
    messages = messages.join(workers, on="process", how="semi", maintain_order="left")
    sends, receives = (messages.filter(pl.col("op") == op) for op in ("send", "recv"))
    if receives.head(1).collect().is_empty():
        timed_messages = with_hops(sends.collect(), trace.calls).select(
            "step",
            "bytes",
            "hop",
            sender="rank",
            receiver="peer",
            link_ns=pl.col("end_ns") - pl.col("start_ns"),
        )
    else:
        exchanges = trace.matched_messages.filter(pl.col("step") >= 0, pl.col("step_there") >= 0)
        uncertain_ns = max(
            MIN_UNCERTAINTY_OF_ENDS_NS, CLOCK_UNCERTAINTIES_OF_ENDS * trace.uncertainty_ns
        )
        timed_messages = _measure_messages(
            with_waits(exchanges, trace.request_waits, "_there"), uncertain_ns
        )
    return timed_messages.select(pl.col(name).cast(kind) for name, kind in MESSAGE_COLUMNS.items())


_SIZE: Final = pl.col("bytes").fill_null(-1)


def _measure_messages(messages: pl.DataFrame, uncertain_ns: int) -> pl.DataFrame:
    """Return one row per message that shows its time on the link, with that time (`link_ns`).

    `messages` has one row per message: its send, its receive (columns that end in `_there`), and when
    the wait began in which that ended (`wait_begin_ns`). Ends closer than `uncertain_ns` may be equal.
    """
    both_begun_ns = pl.max_horizontal("start_ns", "start_ns_there")
    first_end_ns = pl.min_horizontal("end_ns", "end_ns_there")
    messages = messages.with_row_index("message").with_columns(
        is_buffered=pl.col("end_ns") < pl.col("start_ns_there"),
        blocked_since_ns=pl.max_horizontal("start_ns_there", "wait_begin_ns"),
    )
    messages = messages.with_columns(
        through_ns=pl.when("is_buffered").then("end_ns_there").otherwise(first_end_ns)
    )
    ends = _number_calls(messages)
    is_buffered = pl.col("is_buffered") | _are_sends_buffered(ends, messages, uncertain_ns)
    previous_end_ns = (
        pl.col("end_ns_there").shift(1).over("sender", "receiver", order_by="end_ns_there")
    )
    link_free_ns = pl.max_horizontal("start_ns", previous_end_ns)
    messages = messages.with_columns(is_buffered=is_buffered).with_columns(
        ready_ns=pl.when("is_buffered").then(link_free_ns).otherwise(both_begun_ns),
        through_ns=pl.when("is_buffered").then("end_ns_there").otherwise("through_ns"),
    )
    decisive_ends = _find_decisive_ends(ends, messages, uncertain_ns)
    return _leave_out_early(messages.join(decisive_ends, on="message", how="semi"))


def _number_calls(messages: pl.DataFrame) -> pl.DataFrame:
    """Return two rows per message, its send and its receive, with the number of the `call` they end in.

    Sends and receives of a rank that overlap, and end together, are one call, such as a Sendrecv.
    `messages` has the columns of both: of the receive they end in `_there`.
    """
    ends = pl.concat(
        messages.select(
            "message",
            pl.lit(receives).alias("receives"),
            pl.col(rank).alias("rank"),
            pl.col(peer).alias("peer"),
            pl.col(f"start_ns{suffix}").alias("start_ns"),
            pl.col(f"end_ns{suffix}").alias("end_ns"),
        )
        for receives, rank, peer, suffix in (
            (False, "sender", "receiver", ""),
            (True, "receiver", "sender", "_there"),
        )
    ).sort("rank", "end_ns")
    is_apart = pl.col("end_ns").diff() > MAX_GAP_OF_ONE_CALL_NS
    is_new = is_apart | (pl.col("rank").diff() != 0)
    begins_after_previous = pl.col("start_ns") >= pl.col("end_ns").shift(1)
    return ends.with_columns(call=(is_new | begins_after_previous).fill_null(value=True).cum_sum())


def _are_sends_buffered(ends: pl.DataFrame, messages: pl.DataFrame, uncertain_ns: int) -> pl.Expr:
    """Return the expression that is true for messages of a size that the library buffers.

    Receivers of such messages are blocked until long after all sends that they wait for were over. Hops
    of collectives do not count: each rank sends on what it received.

    `ends` has two rows per message, its send and its receive, `messages` one, with when it is through
    (`through_ns`). Ends closer than `uncertain_ns` may be at the same time.
    """
    is_waiting = pl.col("stops_training_there") | pl.col("wait_begin_ns").is_not_null()
    is_blocking = is_waiting & ~pl.col("hop")
    begun_ns = pl.max_horizontal("start_ns", "start_ns_there")
    facts = messages.select("message", "through_ns", "bytes", begun_ns=begun_ns, blocks=is_blocking)
    rows = ends.join(facts, on="message")
    unexplained_ns = pl.col("end_ns") - pl.col("through_ns").max().over("call")
    least_ns = MIN_SHARE_UNEXPLAINED_IF_BUFFERED * (pl.col("end_ns") - pl.col("begun_ns"))
    is_unexplained = unexplained_ns > pl.max_horizontal(least_ns, uncertain_ns)
    rows = rows.with_columns(is_unexplained=is_unexplained).filter("receives", "blocks")
    shares = rows.group_by(_SIZE).agg(unexplained_share=pl.col("is_unexplained").mean())
    is_buffered = pl.col("unexplained_share") > MIN_SHARE_OF_CALLS_IF_BUFFERED
    return _SIZE.is_in(shares.filter(is_buffered)["bytes"].implode())


def _find_decisive_ends(
    ends: pl.DataFrame, messages: pl.DataFrame, uncertain_ns: int
) -> pl.DataFrame:
    """Return the rows of `ends` whose messages made their call end when it did.

    Of the messages that were through then, these are the ones with the peer that was ready last. No call
    ends for a buffered send.

    `ends` has two rows per message, its send and its receive, with the number of the `call`, `messages`
    one: when it could go (`ready_ns`) and was through. Ends closer than `uncertain_ns` may be the same.
    """
    rows = ends.join(
        messages.select("message", "ready_ns", "through_ns", "is_buffered"), on="message"
    )
    is_through_last = pl.col("through_ns") >= pl.col("end_ns") - uncertain_ns
    last_ends = rows.filter(is_through_last & (pl.col("receives") | ~pl.col("is_buffered")))
    last_peer = pl.col("peer").sort_by("ready_ns").last().over("call")
    return last_ends.filter(pl.col("peer") == last_peer)


def _leave_out_early(messages: pl.DataFrame) -> pl.DataFrame:
    """Add the time on the link (`link_ns`); drop messages that may have come before their receiver.

    `messages` has a row each. A receiver that was blocked before the message could go shows how long it
    took. One that comes later shows it only if it is then blocked for longer than a typical message of
    that size takes.
    """
    link_ns, blocked_ns = (
        pl.col("through_ns") - pl.col(begin) for begin in ("ready_ns", "blocked_since_ns")
    )
    is_exact = pl.col("blocked_since_ns") <= pl.col("ready_ns")
    typical_ns = link_ns.filter(is_exact).median().over(_SIZE)
    timed_messages = messages.with_columns(
        link_ns=pl.when(is_exact | (blocked_ns > typical_ns))
        .then(link_ns)
        .when(typical_ns.is_null())
        .then(blocked_ns)
    )
    return timed_messages.filter(pl.col("link_ns") >= 0)
