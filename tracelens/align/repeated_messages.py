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
# What equal messages have in common beside peer, tag and direction (`long`: whether a long time without
# messages was before); the first set that fits is taken.
_CRITERIA_SETS: Final = (("bytes", "long"), ("long",), ("bytes",), ())


@dataclass(frozen=True, eq=False)
class _Messages:
    """The messages of a process in order of begin, [message]; equal ones have equal `kind_codes`.

    `plain_kinds` ignore the time before them; `peer_count` is the number of ranks that they are with.
    """

    start_ns: Ints
    end_ns: Ints
    kind_codes: Ints
    plain_kinds: Ints
    peer_count: int


def find_in_messages(messages: pl.DataFrame, processes: Collection[int]) -> Loop | None:
    """Look for a loop in the messages of all of some processes; None without one."""
    return _find_loop(messages, processes, _CRITERIA_SETS, "the messages that they repeat")


def find_in_group_calls(calls: pl.DataFrame, processes: Collection[int]) -> Loop | None:
    """Look for a loop in collectives, given as messages; those of other sizes are other ones."""
    sized = [criteria for criteria in _CRITERIA_SETS if "bytes" in criteria]
    return _find_loop(calls, processes, sized, "the collectives of groups that they repeat")


def _find_loop(
    messages: pl.DataFrame,
    processes: Collection[int],
    criteria_sets: Sequence[tuple[str, ...]],
    description: str,
) -> Loop | None:
    """Find a loop in the messages of all processes; None without one.

    Args:
        messages: One row per message of a process.
        processes: All of these must have a loop.
        criteria_sets: What equal messages have in common. The first set by which every process repeats
            its messages is taken.
        description: What repeats, for people.
    """
    if messages.is_empty():
        return None
    closed_messages = messages.filter(
        pl.col("end_ns").is_not_null() & (pl.col("end_ns") < FOREVER), pl.col("peer") >= 0
    ).sort("process", "start_ns")
    rows_by_process = {
        int(process): rows
        for (process,), rows in closed_messages.group_by("process", maintain_order=True)
    }
    if set(rows_by_process) != set(processes):
        return None
    for criteria in criteria_sets:
        all_messages = {
            process: _read_messages(rows, criteria) for process, rows in rows_by_process.items()
        }
        first_messages = _find_first_messages(all_messages)  # of each step, by process
        if first_messages:
            return _to_loop(all_messages, first_messages, description)
    return None


def _read_messages(rows: pl.DataFrame, criteria: tuple[str, ...]) -> _Messages:
    """Number the messages of a process (rows) by kind: equal in peer, key, direction, `criteria`."""
    start_ns, end_ns = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    columns: list[Array] = [
        rows[name].cast(pl.Int64).fill_null(-1).to_numpy()
        for name in ("peer", "key", *(["bytes"] if "bytes" in criteria else []))
    ]
    columns.append(rows["op"].cast(pl.String).eq("send").to_numpy())
    kinds = plain_kinds = _number_rows(columns)
    if "long" in criteria:
        gaps_ns = start_ns[1:] - np.maximum.accumulate(end_ns)[:-1]
        kinds = _number_rows([*columns, follows_long_gap(gaps_ns)])
    return _Messages(
        start_ns,
        end_ns,
        kind_codes=kinds,
        plain_kinds=plain_kinds,
        peer_count=rows["peer"].n_unique(),
    )


def _number_rows(columns: list[Array]) -> Ints:
    """Number the rows of some columns; equal ones have the same number."""
    _, number = np.unique(np.stack(columns).astype(np.int64), axis=1, return_inverse=True)
    return np.asarray(number.ravel(), np.int64)


def _find_first_messages(all_messages: dict[int, _Messages]) -> dict[int, Indices] | None:
    """Return the first message (index) of each step, by process; None if no step is found.

    Processes may differ by one step, which is cut off. For a process without a period, such as the one
    that all others talk to, a message is taken that it repeats as often as the others have steps; then
    the others may differ by more.
    """
    first_messages = {
        process: _find_periods(messages) for process, messages in all_messages.items()
    }
    step_counts = {len(indices) for indices in first_messages.values() if len(indices)}
    if not step_counts or min(step_counts) < MIN_REPEATS:
        return None
    irregular = [process for process, indices in first_messages.items() if not len(indices)]
    is_unequal = max(step_counts) - min(step_counts) > 1
    if is_unequal and not irregular:
        irregular = _find_centre(all_messages)
        step_counts = {
            len(indices) for process, indices in first_messages.items() if process not in irregular
        }
        if not irregular:
            return None
    for process, indices in first_messages.items():
        if process in irregular:
            step_count = max(step_counts) if is_unequal else min(step_counts)
            first_messages[process] = _find_repeated_message(
                all_messages[process].kind_codes, step_count
            )
        elif not is_unequal:
            first_messages[process] = indices[: min(step_counts)]
    return first_messages if all(map(len, first_messages.values())) else None


def _find_centre(all_messages: dict[int, _Messages]) -> list[int]:
    """Return the one process with which alone all others exchange messages; nothing if none is it."""
    central = [process for process, messages in all_messages.items() if messages.peer_count > 1]
    return central if len(central) == 1 else []


def _find_periods(messages: _Messages) -> Indices:
    """Return the index of the first message of each period; nothing without periods.

    If the period is the same without times, these do not count: at first all takes longer.
    """
    period = _find_period(messages.kind_codes)
    if not period:
        return np.zeros(0, np.intp)
    kinds = (
        messages.plain_kinds
        if _find_period(messages.plain_kinds) == period
        else messages.kind_codes
    )
    compared_kinds = kinds[:MAX_MESSAGES_COMPARED]
    is_equal = compared_kinds[period:] == compared_kinds[:-period]
    is_equal[0] = True  # what was before the first message is not known
    first_message = _find_first_run(np.flatnonzero(~is_equal), len(is_equal), period)
    second_period = compared_kinds[first_message + period : first_message + 2 * period]
    # Within a period, other messages may equal its first one; they begin no period.
    equal_count = np.count_nonzero(second_period == second_period[0])
    first_of_periods = np.flatnonzero(kinds == second_period[0])
    second_index = int(np.searchsorted(first_of_periods, first_message + period))
    return np.concatenate([[first_message], first_of_periods[second_index::equal_count]])


def _find_period(kind_codes: Ints) -> int:
    """Return the shortest period, in messages, with which kinds, [message], repeat; 0 without one."""
    compared_kinds = kind_codes[:MAX_MESSAGES_COMPARED]
    for period in range(1, min(len(compared_kinds) // MIN_REPEATS, MAX_MESSAGES_OF_STEP) + 1):
        is_equal = compared_kinds[period:] == compared_kinds[:-period]
        if np.count_nonzero(is_equal) >= MIN_SHARE_OF_EQUAL_DISTANCES * len(is_equal):
            return period
    return 0


def _find_first_run(different: Indices, count: int, period: int) -> int:
    """Return the index of the message from which on a whole period is repeated.

    `different` are the indices of messages (of `count`) that differ from the one a period later.
    """
    bounds = np.concatenate([[-1], different, [count]])
    long_runs = np.flatnonzero(np.diff(bounds) > period)
    return int(bounds[long_runs[0]] + 1) if len(long_runs) else 0


def _find_repeated_message(kind_codes: Ints, wanted_count: int) -> Indices:
    """Return the indices of the first of `kind_codes`, [message], that occurs so many times; or none."""
    distinct, first_indices, counts = np.unique(kind_codes, return_index=True, return_counts=True)
    fitting_kinds = np.flatnonzero(counts == wanted_count)
    if not len(fitting_kinds):
        return np.zeros(0, np.intp)
    return np.flatnonzero(
        kind_codes == distinct[fitting_kinds[np.argmin(first_indices[fitting_kinds])]]
    )


def _to_loop(
    all_messages: dict[int, _Messages], first_messages: dict[int, Indices], description: str
) -> Loop:
    """Find the begins of steps: at their first message, or earlier, when the one before it ended.

    The last step ends with its last message. Messages are given by process.
    """
    begins_ns: dict[int, Ints] = {}
    last_ends_ns: dict[int, int] = {}
    for process, firsts in first_messages.items():
        messages = all_messages[process]
        latest_end_ns, later = np.maximum.accumulate(messages.end_ns), firsts[1:]
        begins_ns[process] = np.minimum(latest_end_ns[later - 1], messages.start_ns[later])
        last_message = min(int(firsts[-1] + np.median(np.diff(firsts))), len(latest_end_ns)) - 1
        last_ends_ns[process] = max(int(latest_end_ns[last_message]), int(begins_ns[process][-1]))
    return Loop(
        begins_ns_by_process=begins_ns, last_end_ns_by_process=last_ends_ns, description=description
    )
