"""Messages between two ranks as one row each: from whom to whom, and how long the link took.

A message can go when both ends are there and is through before either end goes on, so it takes from
the later of the two begins to the earlier of the two ends at most, whatever else the calls waited for:
a late rank makes its partners wait, not its links slow. A send that ends before its receiver is there
was buffered, and says nothing of when the message was through. A call that sends and receives at once
(Sendrecv in a ring) ends with the later of its two messages, so a long one is believed only if, at one
of its ends, no other message of the same call can be what took so long; other long ones tell nothing and
are left out. Where only sends were recorded it is the send's duration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

if TYPE_CHECKING:
    from tracelens.trace import Trace

__all__ = ["HOP_COLUMNS", "measure"]

HOP_COLUMNS: Final[dict[str, pl.DataType]] = {
    "step": pl.Int32(),
    "sender": pl.Int32(),
    "receiver": pl.Int32(),
    "bytes": pl.Int64(),
    "ns": pl.Int64(),
}
SIGMAS: Final = 3  # of the clocks' uncertainty
CLEARLY_EARLIER: Final = (
    0.5  # of a message's time: by so much others of its call must be through before
)
ONE_CALL_NS: Final = 10_000  # messages of a rank that end within this end with one call
_SAME: Final = ("communicator", "key", "seq", "sender", "receiver")


def measure(trace: Trace) -> pl.DataFrame:
    """Return every message of the workers whose time on the link is known."""
    sends = _ends(trace, "send", "rank", "peer")
    if sends.is_empty():
        return pl.DataFrame(schema=HOP_COLUMNS)
    received = _ends(trace, "recv", "peer", "rank")
    if received.is_empty():
        hops = sends.with_columns(ns=pl.col("end_ns") - pl.col("start_ns"))
    else:
        hops = _believed(_joined(sends, received), trace.uncertainty_ns)
    return hops.select(pl.col(name).cast(kind) for name, kind in HOP_COLUMNS.items())


def _ends(trace: Trace, op: str, sender: str, receiver: str) -> pl.DataFrame:
    """Return one side of the messages."""
    clocks = trace.workers.select("process", clock="clock_domain")
    loose = list(trace.alignment.unaligned)
    spans = trace.spans.filter(
        pl.col("kind") == "reduction",
        pl.col("op") == op,
        pl.col("end_ns").is_not_null(),
        pl.col("peer") >= 0,
        pl.col("step") >= 0,
    )
    return (
        spans.join(clocks.lazy(), on="process", how="inner")
        .select(
            *_SAME[:3], "step", "bytes", "start_ns", "end_ns",
            sender=sender, receiver=receiver,
            clock=pl.when(pl.col("clock").is_in(loose)).then("clock"),
        )
        .collect()
    )  # fmt: skip


def _joined(sends: pl.DataFrame, received: pl.DataFrame) -> pl.DataFrame:
    """Match both sides; a pair on clocks that nothing ties together tells nothing."""
    both = sends.unique(_SAME).join(
        received.unique(_SAME), on=_SAME, how="inner", nulls_equal=True, suffix="_there"
    )
    tied = pl.col("clock").eq_missing(pl.col("clock_there"))
    buffered = pl.col("end_ns") < pl.col("start_ns_there")
    both_on = pl.min_horizontal("end_ns", "end_ns_there")
    through = pl.when(buffered).then("end_ns_there").otherwise(both_on)
    begun = pl.max_horizontal("start_ns", "start_ns_there")
    return (
        both.filter(tied)
        .with_columns(through=through, ns=through - begun)
        .filter(pl.col("ns") >= 0)
    )


def _believed(hops: pl.DataFrame, uncertainty_ns: int) -> pl.DataFrame:
    """Leave out long messages that another one of the same call may have kept from ending."""
    if hops.is_empty():  # sends and receives were recorded, but no two of one message
        return hops
    unsure = max(ONE_CALL_NS, SIGMAS * uncertainty_ns)
    sure = np.zeros(hops.height, np.bool_)
    ranks = hops["sender"].to_numpy(), hops["receiver"].to_numpy()
    ends = hops["end_ns"].to_numpy(), hops["end_ns_there"].to_numpy()
    rank, end = np.concatenate(ranks), np.concatenate(ends)
    through = np.tile(hops["through"].to_numpy(), 2)
    message = np.tile(np.arange(hops.height), 2)
    sure[message[_only_reason(rank, end, through, unsure)]] = True
    size = pl.col("bytes").fill_null(-1)
    short = pl.col("ns") <= pl.col("ns").median().over(size)
    return hops.filter(short | pl.Series(sure))


def _only_reason(
    rank: npt.NDArray[np.int32],
    end: npt.NDArray[np.int64],
    through: npt.NDArray[np.int64],
    unsure: int,
) -> npt.NDArray[np.bool_]:
    """Say of each end of a message whether the call there can have ended so late for it only.

    What is less than `unsure` apart, ns, may be at the same time.
    """
    order = np.lexsort((end, rank))
    apart = (np.diff(end[order]) > ONE_CALL_NS) | (np.diff(rank[order]) != 0)
    call = np.concatenate([[0], np.cumsum(apart)])
    by_call = np.lexsort((through[order], call))  # within a call the latest last
    last = np.flatnonzero(np.append(np.diff(call[by_call]), 1))
    first = np.concatenate([[0], last[:-1] + 1])
    latest = order[by_call[last]]
    second = np.where(last > first, through[order[by_call[np.maximum(last - 1, 0)]]], -1)
    reason = (through[latest] >= end[latest] - unsure) & (second < end[latest] - unsure)
    found = np.zeros(len(end), np.bool_)
    found[latest] = reason
    return found
