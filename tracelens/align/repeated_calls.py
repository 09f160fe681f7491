"""Steps that nothing marks: a training loop makes the same collectives again and again.

A step begins where the call returns that is followed by the work of the next step: before a call that
comes after a long stretch without calls, and that comes back regularly. A call is known by what it is,
or by that and by what the call before it was, which tells the first of many equal calls in a row. Of
several such calls the one counts that comes often and after long stretches: a machine that disturbs
every so many calls makes short ones, and evaluation now and then makes few. What was done before its
second time is start-up. Where no call is of all processes, those of their groups are looked through as
messages are (`repeated_messages.py`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.model import fmt
from tracelens.model.columns import FOREVER
from tracelens.schema.vocabulary import COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tracelens.arrays import Flags, Floats, Indices, Ints
    from tracelens.model.calls import CallGrid

__all__ = ["FEWEST_TIMES", "REGULAR", "Repeated", "after_long", "calls_of_groups", "find"]

FEWEST_TIMES: Final = 4  # that a call comes back: less is no loop
REGULAR: Final = 0.9  # of the times, equally many calls lie between
SHARE_OF_CALLS_IN_ROUNDS: Final = 0.6  # of all calls: with fewer a call is of a part of the run
MOST_LOOKED_AT: Final = 32  # ranks, which all make the same calls


@dataclass(frozen=True, eq=False)
class Repeated:
    """Where the steps of each process begin, the end of the last one, and what says so."""

    begins_ns: Mapping[int, Ints]
    last_ns: Mapping[int, int]
    what: str

    @property
    def often(self) -> int:
        """How many steps there are."""
        return min(map(len, self.begins_ns.values()), default=0)


def find(calls: Sequence[CallGrid], processes: Collection[int]) -> Repeated | None:
    """Look for a loop in the calls that all of some processes make; None without one."""
    joint = [grid for grid in calls if set(processes) <= set(grid.processes.tolist())]
    if not joint:
        return None
    grid = max(joint, key=lambda one: one.height)
    rows = np.flatnonzero((grid.there & (grid.end_ns < FOREVER)).all(axis=1))
    whole = grid.taken(rows)
    begins = _begins(whole)
    if begins is None:
        return None
    again = int(np.median(np.diff(begins)))
    last = min(int(begins[-1]) + again, whole.height) - 1
    found: dict[int, Ints] = {}
    ends: dict[int, int] = {}
    for process, _, end in whole.by_process():
        if process in processes:
            until = np.maximum.accumulate(end)
            found[process], ends[process] = until[begins[1:] - 1], int(until[last])
    return Repeated(
        found, ends, f"the collectives that they repeat ({_named(whole, int(begins[0]))})"
    )


def calls_of_groups(calls: Sequence[CallGrid], processes: Collection[int]) -> pl.DataFrame:
    """Return what each process calls as if they were messages, which `repeated_messages` looks through.

    `key` is the operation and the communicator, by the order in which a process first calls them:
    ranks of one program do so alike, though their groups differ. Nothing where all calls are of all.
    """
    if all(set(processes) <= set(grid.processes.tolist()) for grid in calls):
        return pl.DataFrame()
    first_call = [int(grid.start_ns[grid.there].min(initial=FOREVER)) for grid in calls]
    parts: list[pl.DataFrame] = []
    known = Counter[int]()
    for place in np.argsort(first_call, kind="stable").tolist():
        grid = calls[place]
        facts = {"key": grid.first("op").astype(np.int64), "bytes": grid.first("nbytes")}
        for column, process in enumerate(grid.processes.tolist()):
            rows = np.flatnonzero(grid.there[:, column])
            if process not in processes or not len(rows):
                continue
            times = {name: getattr(grid, name)[rows, column] for name in ("start_ns", "end_ns")}
            values = times | {name: fact[rows].astype(np.int64) for name, fact in facts.items()}
            values["key"] += len(COLLECTIVES) * known[process]
            known[process] += 1
            parts.append(
                pl.DataFrame(values).with_columns(
                    process=pl.lit(process, pl.Int32), peer=len(grid.processes), op=pl.lit("")
                )
            )
    return pl.concat(parts) if parts else pl.DataFrame()


def _begins(grid: CallGrid) -> Indices | None:
    """Return which calls are the first ones of a step."""
    if grid.height < FEWEST_TIMES:
        return None
    start, end = (times[:, :MOST_LOOKED_AT] for times in (grid.start_ns, grid.end_ns))
    kinds = np.stack([grid.first("op").astype(np.int64), grid.first("nbytes")])
    _, kind = np.unique(kinds, axis=1, return_inverse=True)
    kind = kind.ravel()
    context = kind * (int(kind.max()) + 1) + np.roll(kind, 1)
    apart = np.median(start[1:] - end[:-1], axis=1)
    work = np.maximum(
        np.append(np.median(apart), apart), 1.0
    )  # before the first call it is not known
    for long in (after_long(apart), np.True_):
        every = (
            np.flatnonzero((calls == one) & long)
            for calls in (kind, context)
            for one in np.unique(calls)
        )
        regular = [places for places in every if _is_regular(places, len(kind))]
        if regular:
            return max(
                regular, key=lambda places: len(places) * float(np.sqrt(np.median(work[places])))
            )
    return None


def after_long(apart: Floats) -> Flags:
    """Return which calls come after a long time without one, if times are of two sorts.

    That is where their logarithms are best divided in two (N. Otsu, A threshold selection method from
    gray-level histograms, 1979): buckets of one pass follow each other sooner than the next pass.
    A single time is of one sort.
    """
    if len(apart) < 2:
        return np.array([True, *(False for _ in apart)])
    length = np.log(np.maximum(apart, 1.0))
    ordered = np.sort(length)
    count = np.arange(1, len(ordered))
    below = np.cumsum(ordered)[:-1]
    above = ordered.sum() - below
    contrast = count * count[::-1] * (below / count - above / count[::-1]) ** 2
    return np.append(True, length > ordered[int(contrast.argmax())])


def _is_regular(places: Indices, count: int) -> bool:
    """Return whether a call comes back with equally many calls between, nearly always.

    Of all `count` calls, nearly all must lie in such rounds: in a stretch of slow steps every call comes
    after a long time, and is no loop of its own.
    """
    if len(places) < FEWEST_TIMES:
        return False
    between, often = np.unique(np.diff(places), return_counts=True)
    round_size = int(between[often.argmax()])
    is_whole = len(places) * round_size >= SHARE_OF_CALLS_IN_ROUNDS * count
    return bool(is_whole and often.max() >= REGULAR * (len(places) - 1))


def _named(grid: CallGrid, call: int) -> str:
    nbytes = int(grid.first("nbytes")[call])
    op = COLLECTIVES[int(grid.first("op")[call])]
    return f"{op} of {fmt.size(nbytes)}" if nbytes >= 0 else op
