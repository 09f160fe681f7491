"""Messages between two ranks, both sides of each, and how long one rank waited in them for the other.

Sides belong together if communicator, tag and number are equal. Messages within a collective are hops of
its algorithm, and no calls of the program: waits there are waits in the collective.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.model.calls import NEVER
from tracelens.model.columns import FOREVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Flags, Ints
    from tracelens.model.calls import CallGrid

__all__ = ["AWAITED_COLUMNS", "ends", "find_waits", "match_sides", "with_hops", "with_waits"]

# One row a wait in a message, by begin.
AWAITED_COLUMNS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int32(),  # who waited
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "step": pl.Int32(),
    "to": pl.Int32(),  # the process, and its rank, for whom it waited
    "rank": pl.Int32(),
}
# Of a message that ended with an error, as of one still open, it is not known when it was through.
IS_COMPLETED: Final = pl.col("end_ns").is_not_null() & pl.col("status").ne_missing("exception")
_MESSAGE: Final = ("communicator", "key", "seq", "sender", "receiver")


def ends(
    messages: pl.DataFrame, workers: pl.DataFrame, unaligned: Sequence[str], op: str
) -> pl.DataFrame:
    """Return one side of some messages; `clock` is set where nothing ties it to other clocks."""
    clocks = workers.select("process", "training_thread", clock="clock_domain")
    loose = list(unaligned)
    sender, receiver = ("rank", "peer") if op == "send" else ("peer", "rank")
    return (
        messages.lazy()
        .filter(pl.col("op") == op, IS_COMPLETED, pl.col("seq").is_not_null())
        .join(clocks.lazy(), on="process", how="inner")
        .select(
            *_MESSAGE[:3], "step", "bytes", "start_ns", "end_ns", "process",
            "hop", sender=sender, receiver=receiver,
            stops=pl.col("thread") == pl.col("training_thread"),
            clock=pl.when(pl.col("clock").is_in(loose)).then("clock"),
        )
        .collect()
    )  # fmt: skip


def match_sides(sends: pl.DataFrame, received: pl.DataFrame) -> pl.DataFrame:
    """Match both sides; a pair on clocks that nothing ties together shows nothing."""
    pairs = sends.unique(_MESSAGE).join(
        received.unique(_MESSAGE), on=_MESSAGE, how="inner", nulls_equal=True, suffix="_there"
    )
    return pairs.filter(pl.col("clock").eq_missing(pl.col("clock_there")))


def with_hops(messages: pl.DataFrame, calls: Sequence[CallGrid]) -> pl.DataFrame:
    """Return the sides of messages whose peer is known; `hop` marks those within a collective."""
    messages = messages.filter(pl.col("peer") >= 0)
    hops = np.zeros(messages.height, np.bool_)
    process, start, end = (
        messages[name].fill_null(FOREVER).to_numpy() for name in ("process", "start_ns", "end_ns")
    )
    bounds = np.flatnonzero(np.diff(process, prepend=-1, append=-1))
    for first_row, end_row in pairwise(bounds.tolist()):
        call_begins, call_ends = _calls_of(calls, int(process[first_row]))
        hops[first_row:end_row] = _is_within(
            call_begins, call_ends, start[first_row:end_row], end[first_row:end_row]
        )
    return messages.with_columns(hop=pl.Series(hops, dtype=pl.Boolean))


def _calls_of(calls: Sequence[CallGrid], process: int) -> tuple[Ints, Ints]:
    """Return begins and ends of the collectives of a process, by begin."""
    start_parts, end_parts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for grid in calls:
        for column in np.flatnonzero(grid.processes == process).tolist():
            made_call = grid.start_ns[:, column] != NEVER
            start_parts.append(grid.start_ns[made_call, column])
            end_parts.append(grid.end_ns[made_call, column])
    start, end = np.concatenate(start_parts), np.concatenate(end_parts)
    order = np.argsort(start, kind="stable")
    return start[order], end[order]


def _is_within(call_begins: Ints, call_ends: Ints, start: Ints, end: Ints) -> Flags:
    """Return True for each interval within one of the calls, which are in order of begin."""
    index = np.searchsorted(call_begins, start, side="right")
    latest = np.concatenate([[NEVER], np.maximum.accumulate(call_ends)])
    return np.asarray(latest[index] >= end)


def find_waits(exchanged: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """Return all waits for the other side of matched messages, in `AWAITED_COLUMNS`.

    A receive waits until the message is sent. A send waits for its receive only where it stops the
    training thread until that has begun; a shorter one was buffered. What is in flight is waited for
    from the begin of that one of the `waits` (for requests: `process`, `wait_ns`, `over_ns`) on in which
    it ends. Of a process without any, it is not known from when: receives count since they were begun.
    """
    pairs = exchanged.filter(~pl.col("hop"), ~pl.col("hop_there"))
    received = with_waits(_side(pairs, "_there", "", "sender"), waits)
    sent = with_waits(_side(pairs, "", "_there", "receiver"), waits)
    # A wait in which messages came as well may have been for these.
    sends_without_receives = sent.join(received, on=("process", "wait_ns"), how="anti").filter(
        ~pl.col("stops")
    )
    blocking = pl.concat([sent.filter("stops"), sends_without_receives.drop_nulls("wait_ns")])
    unknown = ~pl.col("process").is_in(waits["process"].unique().implode())
    awaited_receives = received.filter(pl.col("stops") | unknown | pl.col("wait_ns").is_not_null())
    awaited_sends = blocking.filter(pl.col("end_ns") > pl.col("other_ns"))
    return (
        pl.concat([awaited_receives, awaited_sends])
        .with_columns(
            start_ns=pl.max_horizontal("start_ns", "wait_ns"),
            end_ns=pl.min_horizontal("end_ns", "other_ns"),
        )
        .filter(pl.col("end_ns") > pl.col("start_ns"))
        .select(pl.col(name).cast(kind) for name, kind in AWAITED_COLUMNS.items())
        .sort("process", "start_ns")
    )


def _side(both: pl.DataFrame, mine: str, other: str, rank: str) -> pl.DataFrame:
    """Return one side of messages; `other_ns` is when the other one, of a `rank`, began."""
    own = ("process", "start_ns", "end_ns", "step", "stops")
    return both.select(
        *(pl.col(f"{name}{mine}").alias(name) for name in own),
        to=f"process{other}",
        rank=rank,
        other_ns=f"start_ns{other}",
    )


def with_waits(messages: pl.DataFrame, waits: pl.DataFrame, suffix: str = "") -> pl.DataFrame:
    """Add `wait_ns`: when the wait began in which each of them ended; null for what stops its thread.

    `suffix` is that of the columns of the side whose ends are looked up.
    """
    joined = messages.sort(f"end_ns{suffix}").join_asof(
        waits.sort("wait_ns"),
        left_on=f"end_ns{suffix}",
        right_on="wait_ns",
        by_left=f"process{suffix}",
        by_right="process",
        coalesce=False,
        check_sortedness=False,
    )
    inside = ~pl.col(f"stops{suffix}") & (pl.col(f"end_ns{suffix}") <= pl.col("over_ns"))
    wait_ns = pl.when(inside).then("wait_ns")
    return joined.with_columns(wait_ns=wait_ns).select(*messages.columns, "wait_ns")
