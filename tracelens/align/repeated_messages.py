"""Steps that nothing marks, of programs whose ranks send each other the same messages again and again.

Of a rank the messages repeat with the shortest period after which most of them are equal (other rank,
tag, bytes, and whether a long time without messages was before). A step begins where the message before
the first one of a period ends. All ranks must repeat equally often. One whose messages are in no order,
as a server takes them in order of arrival, or in an order of its own, as of a server whose workers
differ, repeats one of its messages as often; if it exists, the others may repeat at their own pace.
What was done before the second time is start-up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.align.repeated_calls import (
    MIN_REPEATS,
    MIN_SHARE_OF_EQUAL_DISTANCES,
    Loop,
    follows_long_gap,
)
from tracelens.model.columns import FOREVER

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tracelens.arrays import Array, Indices, Ints

MAX_MESSAGES_COMPARED: Final = 1 << 14  # of a rank, to see how they repeat
MAX_MESSAGES_OF_STEP: Final = 1 << 10
# What equal messages have in common beside peer, tag and direction; the first set that fits is taken.
_FACTS: Final = (("bytes", "long"), ("long",), ("bytes",), ())


@dataclass(frozen=True, eq=False)
class _Sent:
    """The messages of a process in order of their begins, [message]; `kind` numbers equal ones.

    `plain_kind` ignores the time before them; `peers` is the number of ranks that they are with.
    """

    start_ns: Ints
    end_ns: Ints
    kind: Ints
    plain_kind: Ints
    peers: int


def find_in_messages(messages: pl.DataFrame, processes: Collection[int]) -> Loop | None:
    """Look for a loop in the messages of all of some processes; None without one."""
    return _find(messages, processes, _FACTS, "the messages that they repeat")


def find_in_group_calls(calls: pl.DataFrame, processes: Collection[int]) -> Loop | None:
    """Look for a loop in collectives, given as messages; those of other sizes are other ones."""
    sized = [facts for facts in _FACTS if "bytes" in facts]
    return _find(calls, processes, sized, "the collectives of groups that they repeat")


def _find(
    messages: pl.DataFrame,
    processes: Collection[int],
    fact_sets: Sequence[tuple[str, ...]],
    description: str,
) -> Loop | None:
    if messages.is_empty():
        return None
    closed = messages.filter(
        pl.col("end_ns").is_not_null() & (pl.col("end_ns") < FOREVER), pl.col("peer") >= 0
    ).sort("process", "start_ns")
    by_process = {
        int(process): rows for (process,), rows in closed.group_by("process", maintain_order=True)
    }
    if set(by_process) != set(processes):
        return None
    for facts in fact_sets:
        sent = {process: _read_sent(rows, facts) for process, rows in by_process.items()}
        first_messages = _find_first_messages(sent)
        if first_messages:
            return _to_loop(sent, first_messages, description)
    return None


def _read_sent(rows: pl.DataFrame, facts: tuple[str, ...]) -> _Sent:
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    columns: list[Array] = [
        rows[name].cast(pl.Int64).fill_null(-1).to_numpy()
        for name in ("peer", "key", *(["bytes"] if "bytes" in facts else []))
    ]
    columns.append(rows["op"].cast(pl.String).eq("send").to_numpy())
    kind = plain_kind = _number_rows(columns)
    if "long" in facts:
        gaps_ns = start[1:] - np.maximum.accumulate(end)[:-1]
        kind = _number_rows([*columns, follows_long_gap(gaps_ns)])
    return _Sent(start, end, kind, plain_kind, rows["peer"].n_unique())


def _number_rows(columns: list[Array]) -> Ints:
    """Number the rows of some columns; equal ones have the same number."""
    _, number = np.unique(np.stack(columns).astype(np.int64), axis=1, return_inverse=True)
    return np.asarray(number.ravel(), np.int64)


def _find_first_messages(sent: dict[int, _Sent]) -> dict[int, Indices] | None:
    """Return the first messages of each process's steps; None if processes repeat unequally often."""
    first_rows = {process: _find_periods(one) for process, one in sent.items()}
    counts = {len(rows) for rows in first_rows.values() if len(rows)}
    if not counts or min(counts) < MIN_REPEATS:
        return None
    unordered = [process for process, rows in first_rows.items() if not len(rows)]
    differ = max(counts) - min(counts) > 1
    if differ and not unordered:
        unordered = _find_centre(sent)
        counts = {len(rows) for process, rows in first_rows.items() if process not in unordered}
        if not unordered:
            return None
    for process, rows in first_rows.items():
        if process in unordered:
            count = max(counts) if differ else min(counts)
            first_rows[process] = _find_repeated_message(sent[process].kind, count)
        elif not differ:
            first_rows[process] = rows[: min(counts)]
    return first_rows if all(map(len, first_rows.values())) else None


def _find_centre(sent: dict[int, _Sent]) -> list[int]:
    """Return the one process with which alone all others exchange messages; nothing if none is it."""
    central = [process for process, one in sent.items() if one.peers > 1]
    return central if len(central) == 1 else []


def _find_periods(sent: _Sent) -> Indices:
    """Find the begin of each period; nothing without periods.

    Where it is the same without times, these do not count: at first all takes longer.
    """
    period = _find_period(sent.kind)
    if not period:
        return np.zeros(0, np.intp)
    kind = sent.plain_kind if _find_period(sent.plain_kind) == period else sent.kind
    compared = kind[:MAX_MESSAGES_COMPARED]
    is_equal = compared[period:] == compared[:-period]
    is_equal[0] = True  # what was before the first message is not known
    first_message = _find_first_run(np.flatnonzero(~is_equal), len(is_equal), period)
    second_period = compared[first_message + period : first_message + 2 * period]
    equal_count = np.count_nonzero(second_period == second_period[0])  # they begin no other periods
    rows = np.flatnonzero(kind == second_period[0])
    second = int(np.searchsorted(rows, first_message + period))
    return np.concatenate([[first_message], rows[second::equal_count]])


def _find_period(kind: Ints) -> int:
    """Return the shortest period, in messages, with which they repeat; 0 without one."""
    compared = kind[:MAX_MESSAGES_COMPARED]
    for period in range(1, min(len(compared) // MIN_REPEATS, MAX_MESSAGES_OF_STEP) + 1):
        is_equal = compared[period:] == compared[:-period]
        if np.count_nonzero(is_equal) >= MIN_SHARE_OF_EQUAL_DISTANCES * len(is_equal):
            return period
    return 0


def _find_first_run(different: Indices, count: int, period: int) -> int:
    """Return the message from which on a whole period is repeated."""
    edges = np.concatenate([[-1], different, [count]])
    long = np.flatnonzero(np.diff(edges) > period)
    return int(edges[long[0]] + 1) if len(long) else 0


def _find_repeated_message(kind: Ints, times: int) -> Indices:
    """Return the rows of the first message that comes `count` times; nothing if none does."""
    number, first, count = np.unique(kind, return_index=True, return_counts=True)
    fitting = np.flatnonzero(count == times)
    if not len(fitting):
        return np.zeros(0, np.intp)
    return np.flatnonzero(kind == number[fitting[np.argmin(first[fitting])]])


def _to_loop(sent: dict[int, _Sent], first_messages: dict[int, Indices], description: str) -> Loop:
    """Find where steps begin; the last one ends with its last message."""
    begins_ns: dict[int, Ints] = {}
    last_ends_ns: dict[int, int] = {}
    for process, rows in first_messages.items():
        messages = sent[process]
        reached_ns = np.maximum.accumulate(messages.end_ns)
        begins_ns[process] = np.minimum(reached_ns[rows[1:] - 1], messages.start_ns[rows[1:]])
        last_message = min(int(rows[-1] + np.median(np.diff(rows))), len(reached_ns)) - 1
        last_ends_ns[process] = max(int(reached_ns[last_message]), int(begins_ns[process][-1]))
    return Loop(begins_ns, last_ends_ns, description)
