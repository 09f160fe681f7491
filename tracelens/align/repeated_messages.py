"""Steps that nothing marks, of programs whose ranks send each other the same messages again and again.

Of a rank the messages repeat with the shortest period after which most of them are equal (other rank,
tag, bytes, and whether a long time without messages was before). A step begins where the message before
the first one of a period ends. All ranks must repeat equally often. One whose messages are in no order,
as a server takes them from whoever is first, or in an order of its own, as of a server whose workers
differ, repeats one of its messages as often; if there is one, the others may repeat at their own pace.
What was done before the second time is start-up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.align.repeated_calls import FEWEST_TIMES, REGULAR, Repeated, after_long
from tracelens.model.columns import FOREVER

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tracelens.arrays import Array, Indices, Ints

__all__ = ["find", "find_calls"]

MOST_LOOKED_AT: Final = 1 << 14  # messages of a rank, to see how they repeat
LONGEST: Final = 1 << 10  # messages of a step
_SORTS: Final = (("bytes", "long"), ("long",), ("bytes",), ())  # the first that fits is taken


@dataclass(frozen=True, eq=False)
class _Sent:
    """The messages of a process in order of their begins; `sort` numbers those that are equal.

    `plain` does so whatever time was before them; `peers` is with how many ranks they are.
    """

    start_ns: Ints
    end_ns: Ints
    sort: Ints
    plain: Ints
    peers: int


def find(messages: pl.DataFrame, processes: Collection[int]) -> Repeated | None:
    """Look for a loop in the messages of all of some processes; None without one."""
    return _found(messages, processes, _SORTS, "the messages that they repeat")


def find_calls(calls: pl.DataFrame, processes: Collection[int]) -> Repeated | None:
    """Look for a loop in collectives, given as messages; those of other sizes are other ones."""
    sized = [sort for sort in _SORTS if "bytes" in sort]
    return _found(calls, processes, sized, "the collectives of groups that they repeat")


def _found(
    messages: pl.DataFrame, processes: Collection[int], sorts: Sequence[tuple[str, ...]], what: str
) -> Repeated | None:
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
    for sort in sorts:
        sent = {process: _sent(rows, sort) for process, rows in by_process.items()}
        begins = _begins(sent)
        if begins:
            return _repeated(sent, begins, what)
    return None


def _sent(rows: pl.DataFrame, sort: tuple[str, ...]) -> _Sent:
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    facts = [
        rows[name].cast(pl.Int64).fill_null(-1).to_numpy()
        for name in ("peer", "key", *(["bytes"] if "bytes" in sort else []))
    ]
    facts.append(rows["op"].cast(pl.String).eq("send").to_numpy())
    plain = number = _numbered(facts)
    if "long" in sort:
        until = np.maximum.accumulate(end)
        number = _numbered([*facts, after_long(start[1:] - until[:-1])])
    return _Sent(start, end, number, plain, rows["peer"].n_unique())


def _numbered(facts: list[Array]) -> Ints:
    """Return the number of each row of facts among all that are different."""
    _, number = np.unique(np.stack(facts).astype(np.int64), axis=1, return_inverse=True)
    return np.asarray(number.ravel(), np.int64)


def _begins(sent: dict[int, _Sent]) -> dict[int, Indices] | None:
    """Return the first messages of each process's steps; None if processes repeat unequally often."""
    found = {process: _of_period(one) for process, one in sent.items()}
    often = {len(places) for places in found.values() if len(places)}
    if not often or min(often) < FEWEST_TIMES:
        return None
    unordered = [process for process, places in found.items() if not len(places)]
    own_pace = max(often) - min(often) > 1
    if own_pace and not unordered:
        unordered = _centre(sent)
        often = {len(places) for process, places in found.items() if process not in unordered}
    if own_pace and not unordered:
        return None
    for process in found:
        if process in unordered:
            found[process] = _so_often(sent[process].sort, max(often) if own_pace else min(often))
        elif not own_pace:
            found[process] = found[process][: min(often)]
    return found if all(map(len, found.values())) else None


def _centre(sent: dict[int, _Sent]) -> list[int]:
    """Return the one process with which alone all others exchange messages; nothing if none is it."""
    several = [process for process, one in sent.items() if one.peers > 1]
    return several if len(several) == 1 else []


def _of_period(sent: _Sent) -> Indices:
    """Return where each period begins; nothing if there is none.

    Where it is the same without times, these do not count: at first all takes longer.
    """
    period = _period(sent.sort)
    if not period:
        return np.zeros(0, np.intp)
    sort = sent.plain if _period(sent.plain) == period else sent.sort
    looked_at = sort[:MOST_LOOKED_AT]
    equal = looked_at[period:] == looked_at[:-period]
    equal[0] = True  # what was before the first message is not known
    first = _first_run(np.flatnonzero(~equal), len(equal), period)
    again = looked_at[first + period : first + 2 * period]
    alike = np.count_nonzero(again == again[0])  # of a period; they are no begins of others
    places = np.flatnonzero(sort == again[0])
    second = int(np.searchsorted(places, first + period))
    return np.concatenate([[first], places[second::alike]])


def _period(sort: Ints) -> int:
    """Return the shortest period with which messages repeat; 0 without one."""
    looked_at = sort[:MOST_LOOKED_AT]
    for period in range(1, min(len(looked_at) // FEWEST_TIMES, LONGEST) + 1):
        equal = looked_at[period:] == looked_at[:-period]
        if np.count_nonzero(equal) >= REGULAR * len(equal):
            return period
    return 0


def _first_run(apart: Indices, count: int, period: int) -> int:
    """Return from where on a whole period is repeated."""
    edges = np.concatenate([[-1], apart, [count]])
    long = np.flatnonzero(np.diff(edges) > period)
    return int(edges[long[0]] + 1) if len(long) else 0


def _so_often(sort: Ints, times: int) -> Indices:
    """Return where the first message is that comes so often; nothing if none does."""
    number, first, count = np.unique(sort, return_index=True, return_counts=True)
    fitting = np.flatnonzero(count == times)
    if not len(fitting):
        return np.zeros(0, np.intp)
    return np.flatnonzero(sort == number[fitting[np.argmin(first[fitting])]])


def _repeated(sent: dict[int, _Sent], begins: dict[int, Indices], what: str) -> Repeated:
    """Return where steps begin; the last one ends with its last message."""
    found: dict[int, Ints] = {}
    ends: dict[int, int] = {}
    for process, places in begins.items():
        one = sent[process]
        until = np.maximum.accumulate(one.end_ns)
        found[process] = np.minimum(until[places[1:] - 1], one.start_ns[places[1:]])
        last = min(int(places[-1] + np.median(np.diff(places))), len(until)) - 1
        ends[process] = max(int(until[last]), int(found[process][-1]))
    return Repeated(found, ends, what)
