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

__all__ = ["AWAITED_COLUMNS", "find_waits", "match_sides", "select_side", "with_hops", "with_waits"]

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


def select_side(
    messages: pl.DataFrame, workers: pl.DataFrame, unaligned: Sequence[str], op: str
) -> pl.DataFrame:
    """Return one side (`op`) of completed messages of workers, one row per message.

    `stops_training`: it is on the training thread. `clock` is null unless the process has one of the
    `unaligned` clocks, which nothing ties to other clocks.
    """
    threads_and_clocks = workers.select("process", "training_thread", clock="clock_domain")
    sender, receiver = ("rank", "peer") if op == "send" else ("peer", "rank")
    return (
        messages.lazy()
        .filter(pl.col("op") == op, IS_COMPLETED, pl.col("seq").is_not_null())
        .join(threads_and_clocks.lazy(), on="process", how="inner")
        .select(
            *_MESSAGE[:3], "step", "bytes", "start_ns", "end_ns", "process",
            "hop", sender=sender, receiver=receiver,
            stops_training=pl.col("thread") == pl.col("training_thread"),
            clock=pl.when(pl.col("clock").is_in(list(unaligned))).then("clock"),
        )
        .collect()
    )  # fmt: skip


def match_sides(sends: pl.DataFrame, receives: pl.DataFrame) -> pl.DataFrame:
    """Return one row per message with its send and its receive; the receive's columns end in `_there`.

    A pair on clocks that nothing ties together is left out.
    """
    pairs = sends.unique(_MESSAGE).join(
        receives.unique(_MESSAGE), on=_MESSAGE, how="inner", nulls_equal=True, suffix="_there"
    )
    return pairs.filter(pl.col("clock").eq_missing(pl.col("clock_there")))


def with_hops(messages: pl.DataFrame, calls: Sequence[CallGrid]) -> pl.DataFrame:
    """Return the sends and receives whose peer is known; `hop` marks those within a collective.

    `messages` has one row per send or receive, by process.
    """
    messages = messages.filter(pl.col("peer") >= 0)
    is_hop = np.zeros(messages.height, np.bool_)
    process, start_ns, end_ns = (
        messages[name].fill_null(FOREVER).to_numpy() for name in ("process", "start_ns", "end_ns")
    )
    process_bounds = np.flatnonzero(np.diff(process, prepend=-1, append=-1))
    for first_row, end_row in pairwise(process_bounds.tolist()):
        call_begins_ns, call_ends_ns = _list_calls(calls, int(process[first_row]))
        is_hop[first_row:end_row] = _is_within(
            call_begins_ns, call_ends_ns, start_ns[first_row:end_row], end_ns[first_row:end_row]
        )
    return messages.with_columns(hop=pl.Series(is_hop, dtype=pl.Boolean))


def _list_calls(calls: Sequence[CallGrid], process: int) -> tuple[Ints, Ints]:
    """Return begins and ends of the collectives of a process, by begin, [call], ns."""
    starts_ns, ends_ns = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for grid in calls:
        for column in np.flatnonzero(grid.processes == process).tolist():
            has_made_call = grid.start_ns[:, column] != NEVER
            starts_ns.append(grid.start_ns[has_made_call, column])
            ends_ns.append(grid.end_ns[has_made_call, column])
    start_ns, end_ns = np.concatenate(starts_ns), np.concatenate(ends_ns)
    order = np.argsort(start_ns, kind="stable")
    return start_ns[order], end_ns[order]


def _is_within(call_begins_ns: Ints, call_ends_ns: Ints, start_ns: Ints, end_ns: Ints) -> Flags:
    """Return True for each interval within one of the calls, which are in order of begin."""
    begun_calls = np.searchsorted(call_begins_ns, start_ns, side="right")
    latest_end_ns = np.concatenate([[NEVER], np.maximum.accumulate(call_ends_ns)])
    return np.asarray(latest_end_ns[begun_calls] >= end_ns)


def find_waits(messages: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """Return all waits for the other side of matched messages, in `AWAITED_COLUMNS`.

    A receive waits until the message is sent. A send waits for its receive only where it stops the
    training thread until that has begun; a shorter one was buffered. A message in flight is awaited from
    the begin of the wait for requests in which it ends; in a process without such waits, a receive is
    awaited from its own begin.

    Args:
        messages: One row per message, its send and its receive (`_there`).
        waits: One row per wait for requests: `process`, begin (`wait_begin_ns`) and end (`wait_end_ns`).
    """
    pairs = messages.filter(~pl.col("hop"), ~pl.col("hop_there"))
    receives = with_waits(
        _select_own_side(pairs, suffix="_there", other_suffix="", rank_column="sender"), waits
    )
    sends = with_waits(
        _select_own_side(pairs, suffix="", other_suffix="_there", rank_column="receiver"), waits
    )
    # A wait in which messages came as well may have been for these.
    sends_without_receives = sends.join(
        receives, on=("process", "wait_begin_ns"), how="anti"
    ).filter(~pl.col("stops_training"))
    blocked_sends = pl.concat(
        [sends.filter("stops_training"), sends_without_receives.drop_nulls("wait_begin_ns")]
    )
    is_unknown = ~pl.col("process").is_in(waits["process"].unique().implode())
    is_awaited = pl.col("stops_training") | is_unknown | pl.col("wait_begin_ns").is_not_null()
    awaited_receives = receives.filter(is_awaited)
    awaited_sends = blocked_sends.filter(pl.col("end_ns") > pl.col("other_begin_ns"))
    return (
        pl.concat([awaited_receives, awaited_sends])
        .with_columns(
            start_ns=pl.max_horizontal("start_ns", "wait_begin_ns"),
            end_ns=pl.min_horizontal("end_ns", "other_begin_ns"),
        )
        .filter(pl.col("end_ns") > pl.col("start_ns"))
        .select(pl.col(name).cast(kind) for name, kind in AWAITED_COLUMNS.items())
        .sort("process", "start_ns")
    )


def _select_own_side(
    messages: pl.DataFrame, suffix: str, other_suffix: str, rank_column: str
) -> pl.DataFrame:
    """Return one side of messages, one row per message; `other_begin_ns` is when the other side began.

    Args:
        messages: One row per message with both sides.
        suffix: The suffix of this side's columns.
        other_suffix: The suffix of the other side's.
        rank_column: The column with the other side's rank.
    """
    columns = ("process", "start_ns", "end_ns", "step", "stops_training")
    return messages.select(
        *(pl.col(f"{name}{suffix}").alias(name) for name in columns),
        to=f"process{other_suffix}",
        rank=rank_column,
        other_begin_ns=f"start_ns{other_suffix}",
    )


def with_waits(messages: pl.DataFrame, waits: pl.DataFrame, suffix: str = "") -> pl.DataFrame:
    """Add `wait_begin_ns`: when the wait began in which each message ended; null if it stops its thread.

    Args:
        messages: One row per message.
        waits: One row per wait for requests: `process`, begin (`wait_begin_ns`) and end (`wait_end_ns`).
        suffix: Of the columns of the side whose end counts.
    """
    joined_messages = messages.sort(f"end_ns{suffix}").join_asof(
        waits.sort("wait_begin_ns"),
        left_on=f"end_ns{suffix}",
        right_on="wait_begin_ns",
        by_left=f"process{suffix}",
        by_right="process",
        coalesce=False,
        check_sortedness=False,
    )
    is_in_wait = ~pl.col(f"stops_training{suffix}") & (
        pl.col(f"end_ns{suffix}") <= pl.col("wait_end_ns")
    )
    begin_ns = pl.when(is_in_wait).then("wait_begin_ns")
    return joined_messages.with_columns(wait_begin_ns=begin_ns).select(
        *messages.columns, "wait_begin_ns"
    )
