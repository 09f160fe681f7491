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
from tracelens.accounting.thread_activity import training_threads
from tracelens.model.calls import NEVER
from tracelens.model.messages import IS_COMPLETED, with_waits
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
    """Return by what payload / time is multiplied for the bandwidth that the slowest link must carry.

    Payload is what a rank puts in. Source: nccl-tests, PERFORMANCE.md, which counts all_gather by what a
    rank gets out.
    """
    share = (ranks - 1) / max(ranks, 1)
    factors = {"allreduce": 2 * share, "reduce_scatter": share, "all_to_all": share}
    if op == "all_gather":
        return float(ranks - 1)
    return factors.get(op, 1.0)


def list_collective_calls(trace: Trace) -> pl.DataFrame:
    """Return every collective that all its ranks made and completed, by communicator and number."""
    training = training_threads(trace)
    parts = [_list_calls_of(grid, training) for grid in trace.calls]
    return pl.concat([pl.DataFrame(schema=CALL_COLUMNS), *parts])


def join_algorithms(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """Add how each call was carried out (`algorithm`), as one of its ranks recorded it; else null."""
    algorithms = read_algorithms(trace)
    keys = [pl.col(name).cast(algorithms.schema[name]) for name in ("communicator", "seq")]
    return (
        calls.with_columns(keys)
        .join(algorithms, on=["communicator", "seq"], how="left", maintain_order="left")
        .with_columns(pl.col("communicator").cast(CALL_COLUMNS["communicator"]))
    )


def measure_wire_time(calls: pl.DataFrame, steps: Ints) -> Floats:
    """Measure how long the calls of each of some steps held the wire, ns, [step]."""
    wire = calls.group_by("step").agg(pl.col("wire_ns").sum())
    wire_of = dict(wire.iter_rows())
    return np.array([wire_of.get(step, 0) for step in steps.tolist()], np.float64)


def _list_calls_of(all_calls: CallGrid, training: Ints) -> pl.DataFrame:
    """Measure the calls of one communicator."""
    is_complete = all_calls.completed.sum(axis=1) == all_calls.expected
    grid = all_calls.take(
        np.flatnonzero(is_complete & ~all_calls.follows_mismatch)
    ).of_same_members()
    if not grid.height:
        return pl.DataFrame(schema=CALL_COLUMNS)
    sizes = pl.DataFrame({"bytes": grid.first_value("nbytes")})
    columns = {
        "communicator": pl.Series([grid.uid], dtype=pl.Categorical).new_from_index(0, grid.height),
        "seq": grid.seq,
        "op": [COLLECTIVES[op] for op in grid.first_value("op").tolist()],
        "ranks": pl.Series([len(grid.ranks)]).new_from_index(0, grid.height),
        "step": grid.first_value("step"),
        "bytes": sizes.select(pl.when(pl.col("bytes") >= 0).then("bytes")).to_series(),
        "ready_ns": grid.start_ns.max(axis=1),
        "wire_ns": _measure_wire(grid),
        "blocking": (grid.thread == training[grid.processes]).any(axis=1),
    }
    return pl.DataFrame(
        [pl.Series(name, columns[name]).cast(kind) for name, kind in CALL_COLUMNS.items()]
    )


def _measure_wire(grid: CallGrid) -> Ints:
    """Measure how long each call held the wire, [call]."""
    wire_ns = np.empty(grid.height, np.int64)
    previous_end = grid.start_ns[:1]
    for calls, block in grid.blocks():
        start_ns, end_ns = block.start_ns, block.end_ns
        previous_end = np.concatenate([previous_end, end_ns[:-1]])
        begin_ns = np.where(previous_end < end_ns, np.maximum(start_ns, previous_end), start_ns)
        wire_ns[calls] = (end_ns - begin_ns).min(axis=1)
        rooted = np.flatnonzero(~block.is_full)
        if len(rooted):
            transfer = np.where(
                block.last_ns[:, None] == NEVER, 0, end_ns - start_ns - block.wait_ns()
            )
            wire_ns[calls][rooted] = np.median(transfer[rooted], axis=1)
        previous_end = end_ns[-1:]
    return wire_ns


MESSAGE_COLUMNS: Final[dict[str, pl.DataType]] = {
    "step": pl.Int32(),
    "sender": pl.Int32(),
    "receiver": pl.Int32(),
    "bytes": pl.Int64(),
    "hop": pl.Boolean(),  # of a collective
    "ns": pl.Int64(),
}


def list_messages(trace: Trace) -> pl.DataFrame:
    """Return every message of the workers whose time on the link is known."""
    is_over = IS_COMPLETED & (pl.col("peer") >= 0) & (pl.col("step") >= 0)
    workers = trace.workers.lazy().select("process")
    messages = trace.messages.lazy().filter(is_over).join(workers, on="process", how="semi")
    sends, received = (messages.filter(pl.col("op") == op) for op in ("send", "recv"))
    if received.head(1).collect().is_empty():
        hops = sends.select(
            "step",
            "bytes",
            sender="rank",
            receiver="peer",
            hop=pl.lit(value=False),
            ns=pl.col("end_ns") - pl.col("start_ns"),
        ).collect()
    else:
        exchanges = trace.exchanged.filter(pl.col("step") >= 0, pl.col("step_there") >= 0)
        uncertain_ns = max(
            MIN_UNCERTAINTY_OF_ENDS_NS, CLOCK_UNCERTAINTIES_OF_ENDS * trace.uncertainty_ns
        )
        hops = _measure_messages(with_waits(exchanges, trace.request_waits, "_there"), uncertain_ns)
    return hops.select(pl.col(name).cast(kind) for name, kind in MESSAGE_COLUMNS.items())


_SIZE: Final = pl.col("bytes").fill_null(-1)


def _measure_messages(messages: pl.DataFrame, uncertain_ns: int) -> pl.DataFrame:
    """Return the matched messages that show their time on the link, with that time.

    Args:
        messages: Both sides of each, with the wait in which the receive ended (`messages.with_waits`).
        uncertain_ns: Ends that are closer may be at the same time.
    """
    begun_ns = pl.max_horizontal("start_ns", "start_ns_there")
    passed_ns = pl.min_horizontal("end_ns", "end_ns_there")
    messages = messages.with_row_index("message").with_columns(
        is_buffered=pl.col("end_ns") < pl.col("start_ns_there"),
        blocked_since=pl.max_horizontal("start_ns_there", "wait_ns"),
    )
    messages = messages.with_columns(
        through=pl.when("is_buffered").then("end_ns_there").otherwise(passed_ns)
    )
    ends = _find_calls(messages)
    is_buffered = pl.col("is_buffered") | _are_sends_buffered(ends, messages, uncertain_ns)
    previous_end = (
        pl.col("end_ns_there").shift(1).over("sender", "receiver", order_by="end_ns_there")
    )
    link_free = pl.max_horizontal("start_ns", previous_end)
    messages = messages.with_columns(is_buffered=is_buffered).with_columns(
        ready=pl.when("is_buffered").then(link_free).otherwise(begun_ns),
        through=pl.when("is_buffered").then("end_ns_there").otherwise("through"),
    )
    reasons = _find_reasons(ends, messages, uncertain_ns)
    return _leave_out_early(messages.join(reasons, on="message", how="semi"))


def _find_calls(messages: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each end of a message, with the `call` of its rank that ended with it."""
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
    follows = pl.col("start_ns") >= pl.col("end_ns").shift(1)
    return ends.with_columns(call=(is_new | follows).fill_null(value=True).cum_sum())


def _are_sends_buffered(ends: pl.DataFrame, messages: pl.DataFrame, uncertain_ns: int) -> pl.Expr:
    """Return True if messages are of a size whose sends are over before the message is through.

    Receivers of such messages are blocked until long after all sends were over that they wait for. Hops
    of collectives are taken to be none: each rank sends on what it received.
    """
    blocks = (pl.col("stops_there") | pl.col("wait_ns").is_not_null()) & ~pl.col("hop")
    begun = pl.max_horizontal("start_ns", "start_ns_there")
    known = messages.select("message", "through", "bytes", begun=begun, blocks=blocks)
    bounds = ends.join(known, on="message")
    left_ns = pl.col("end_ns") - pl.col("through").max().over("call")
    least_ns = MIN_SHARE_UNEXPLAINED_IF_BUFFERED * (pl.col("end_ns") - pl.col("begun"))
    is_unexplained = left_ns > pl.max_horizontal(least_ns, uncertain_ns)
    bounds = bounds.with_columns(is_unexplained=is_unexplained).filter("receives", "blocks")
    shares = bounds.group_by(_SIZE).agg(pl.col("is_unexplained").mean())
    sizes = shares.filter(pl.col("is_unexplained") > MIN_SHARE_OF_CALLS_IF_BUFFERED)["bytes"]
    return _SIZE.is_in(sizes.implode())


def _find_reasons(ends: pl.DataFrame, messages: pl.DataFrame, uncertain_ns: int) -> pl.DataFrame:
    """Return the messages for which a call ended when it did.

    Of those that were through then it is the ones with the rank that was ready last. No call ends for a
    buffered send.
    """
    bounds = ends.join(messages.select("message", "ready", "through", "is_buffered"), on="message")
    is_through_last = pl.col("through") >= pl.col("end_ns") - uncertain_ns
    through_last = bounds.filter(is_through_last & (pl.col("receives") | ~pl.col("is_buffered")))
    last_peer = pl.col("peer").sort_by("ready").last().over("call")
    return through_last.filter(pl.col("peer") == last_peer)


def _leave_out_early(messages: pl.DataFrame) -> pl.DataFrame:
    """Add the time on the link, `ns`; leave out messages that may have been there before the receiver.

    A receiver that was blocked before the message could go shows how long it took. One that comes later
    shows it only if it is then blocked for longer than messages of that size take in all.
    """
    ns, blocked_ns = (pl.col("through") - pl.col(name) for name in ("ready", "blocked_since"))
    is_exact = pl.col("blocked_since") <= pl.col("ready")
    typical_ns = ns.filter(is_exact).median().over(_SIZE)
    timed = messages.with_columns(
        ns=pl.when(is_exact | (blocked_ns > typical_ns))
        .then(ns)
        .when(typical_ns.is_null())
        .then(blocked_ns)
    )
    return timed.filter(pl.col("ns") >= 0)
