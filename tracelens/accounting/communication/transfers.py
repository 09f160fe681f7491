"""Communication as rows: a collective each, or a message between two ranks, and how long the wire took.

The rank that arrives last at a collective waits for no other, so its duration is the transfer, and no
two clocks are compared: ``wire_ns`` is the shortest duration among the ranks, counted from the end of
the call before where that one still held the wire. Where ranks need not all wait for each other
(broadcast, reduce and the like) it is the median rank's transfer.

A message can go when both ends are there and is through before either end goes on, so it takes from the
later of the two begins to the earlier of the two ends at most, whatever else the calls waited for: a
late rank makes its partners wait, not its links slow. A send that ends before its receiver is there was
buffered, and says nothing of when the message was through. A call that sends and receives at once
(Sendrecv in a ring) ends with the later of its two messages, so a long one is believed only if, at one
of its ends, no other message of the same call can be what took so long; other long ones tell nothing
and are left out. Where only sends were recorded it is the send's duration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.algorithms import recorded_algorithms
from tracelens.accounting.thread_activity import training_threads
from tracelens.model.calls import NEVER
from tracelens.model.messages import IS_COMPLETED
from tracelens.schema.vocabulary import COLLECTIVES

if TYPE_CHECKING:
    from tracelens.arrays import Flags, Floats, Int32s, Ints
    from tracelens.model.calls import CallGrid
    from tracelens.model.trace import Trace

__all__ = [
    "CALL_COLUMNS",
    "MESSAGE_COLUMNS",
    "bus_factor",
    "collective_calls",
    "point_to_point_messages",
    "wire_of_steps",
    "with_algorithms",
]

# ns: a call that goes on so soon after a message may have waited for it [chosen]
MIN_UNCERTAINTY_OF_ENDS_NS: Final = 10_000
# times the uncertainty of clocks: ends that are closer may be at the same time [chosen]
CLOCK_UNCERTAINTIES_OF_ENDS: Final = 3
# ns: messages of a rank that end within it end with one call [chosen]
MAX_GAP_OF_ONE_CALL_NS: Final = 10_000

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


def collective_calls(trace: Trace) -> pl.DataFrame:
    """Return every collective that all its ranks made and completed, by communicator and number."""
    training = training_threads(trace)
    parts = [_of_communicator(grid, training) for grid in trace.calls]
    return pl.concat([pl.DataFrame(schema=CALL_COLUMNS), *parts])


def with_algorithms(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """Add how each call was carried out (`algorithm`), as one of its ranks recorded it; else null."""
    known = recorded_algorithms(trace)
    keys = [pl.col(name).cast(known.schema[name]) for name in ("communicator", "seq")]
    return (
        calls.with_columns(keys)
        .join(known, on=["communicator", "seq"], how="left", maintain_order="left")
        .with_columns(pl.col("communicator").cast(CALL_COLUMNS["communicator"]))
    )


def wire_of_steps(calls: pl.DataFrame, steps: Ints) -> Floats:
    """Return how long the calls of each of some steps held the wire, ns, [step]."""
    wire = calls.group_by("step").agg(pl.col("wire_ns").sum())
    known = dict(wire.iter_rows())
    return np.array([known.get(step, 0) for step in steps.tolist()], np.float64)


def _of_communicator(whole: CallGrid, training: Ints) -> pl.DataFrame:
    """Measure the calls of one communicator."""
    is_complete = whole.completed.sum(axis=1) == whole.expected
    grid = whole.taken(np.flatnonzero(is_complete & ~whole.follows_mismatch)).of_same_members()
    if not grid.height:
        return pl.DataFrame(schema=CALL_COLUMNS)
    sizes = pl.DataFrame({"bytes": grid.first("nbytes")})
    columns = {
        "communicator": pl.Series([grid.uid], dtype=pl.Categorical).new_from_index(0, grid.height),
        "seq": grid.seq,
        "op": [COLLECTIVES[op] for op in grid.first("op").tolist()],
        "ranks": pl.Series([len(grid.ranks)]).new_from_index(0, grid.height),
        "step": grid.first("step"),
        "bytes": sizes.select(pl.when(pl.col("bytes") >= 0).then("bytes")).to_series(),
        "ready_ns": grid.start_ns.max(axis=1),
        "wire_ns": _wire(grid),
        "blocking": (grid.thread == training[grid.processes]).any(axis=1),
    }
    return pl.DataFrame(
        [pl.Series(name, columns[name]).cast(kind) for name, kind in CALL_COLUMNS.items()]
    )


def _wire(grid: CallGrid) -> Ints:
    """Return how long each call held the wire, [call]."""
    wire = np.empty(grid.height, np.int64)
    before = grid.start_ns[:1]
    for calls, some in grid.blocks():
        start, end = some.start_ns, some.end_ns
        before = np.concatenate([before, end[:-1]])
        since = np.where(before < end, np.maximum(start, before), start)
        wire[calls] = (end - since).min(axis=1)
        rooted = np.flatnonzero(~some.is_full)
        if len(rooted):
            transfer = np.where(some.last_ns[:, None] == NEVER, 0, end - start - some.wait_ns())
            wire[calls][rooted] = np.median(transfer[rooted], axis=1)
        before = end[-1:]
    return wire


MESSAGE_COLUMNS: Final[dict[str, pl.DataType]] = {
    "step": pl.Int32(),
    "sender": pl.Int32(),
    "receiver": pl.Int32(),
    "bytes": pl.Int64(),
    "ns": pl.Int64(),
}


def point_to_point_messages(trace: Trace) -> pl.DataFrame:
    """Return every message of the workers whose time on the link is known."""
    over = IS_COMPLETED & (pl.col("peer") >= 0) & (pl.col("step") >= 0)
    mine = trace.workers.lazy().select("process")
    messages = trace.messages.lazy().filter(over).join(mine, on="process", how="semi")
    sends, received = (messages.filter(pl.col("op") == op) for op in ("send", "recv"))
    if received.head(1).collect().is_empty():
        hops = sends.select(
            "step",
            "bytes",
            sender="rank",
            receiver="peer",
            ns=pl.col("end_ns") - pl.col("start_ns"),
        ).collect()
    else:
        both = trace.exchanged.filter(pl.col("step") >= 0, pl.col("step_there") >= 0)
        hops = _plausible(_timed(both), trace.uncertainty_ns)
    return hops.select(pl.col(name).cast(kind) for name, kind in MESSAGE_COLUMNS.items())


def _timed(messages: pl.DataFrame) -> pl.DataFrame:
    """Return matched messages with their time on the link."""
    buffered = pl.col("end_ns") < pl.col("start_ns_there")
    both_on = pl.min_horizontal("end_ns", "end_ns_there")
    through = pl.when(buffered).then("end_ns_there").otherwise(both_on)
    begun = pl.max_horizontal("start_ns", "start_ns_there")
    timed = messages.with_columns(through=through, ns=through - begun)
    return timed.filter(pl.col("ns") >= 0)


def _plausible(hops: pl.DataFrame, uncertainty_ns: int) -> pl.DataFrame:
    """Leave out long messages that another one of the same call may have kept from ending."""
    if hops.is_empty():  # sends and receives were recorded, but no two of one message
        return hops
    uncertain = max(MIN_UNCERTAINTY_OF_ENDS_NS, CLOCK_UNCERTAINTIES_OF_ENDS * uncertainty_ns)
    sure = np.zeros(hops.height, np.bool_)
    ranks = hops["sender"].to_numpy(), hops["receiver"].to_numpy()
    ends = hops["end_ns"].to_numpy(), hops["end_ns_there"].to_numpy()
    rank, end = np.concatenate(ranks), np.concatenate(ends)
    through = np.tile(hops["through"].to_numpy(), 2)
    message = np.tile(np.arange(hops.height), 2)
    sure[message[_only_reason(rank, end, through, uncertain)]] = True
    size = pl.col("bytes").fill_null(-1)
    short = pl.col("ns") <= pl.col("ns").median().over(size)
    return hops.filter(short | pl.Series(sure))


def _only_reason(
    rank: Int32s,
    end: Ints,
    through: Ints,
    uncertain: int,
) -> Flags:
    """Return of each end of a message whether the call there can have ended so late for it only.

    What is less than `uncertain` apart, ns, may be at the same time.
    """
    order = np.lexsort((end, rank))
    apart = (np.diff(end[order]) > MAX_GAP_OF_ONE_CALL_NS) | (np.diff(rank[order]) != 0)
    call = np.concatenate([[0], np.cumsum(apart)])
    by_call = np.lexsort((through[order], call))  # within a call the latest last
    last = np.flatnonzero(np.append(np.diff(call[by_call]), 1))
    first = np.concatenate([[0], last[:-1] + 1])
    latest = order[by_call[last]]
    second = np.where(last > first, through[order[by_call[np.maximum(last - 1, 0)]]], -1)
    reason = (through[latest] >= end[latest] - uncertain) & (second < end[latest] - uncertain)
    found = np.zeros(len(end), np.bool_)
    found[latest] = reason
    return found
