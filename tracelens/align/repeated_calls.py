"""Steps that nothing marks: a training loop makes the same collectives again and again.

A step begins where the call returns that is followed by the work of the next step: before a call that
comes after a long stretch without calls, and that comes back regularly. A call is known by what it is,
or by that and by what the call before it was, which tells the first of many equal calls in a row. Of
several such calls the one counts that comes often and after long stretches: a machine that disturbs
a call at regular intervals makes short ones, and rare evaluation makes few. What was done before its
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

MIN_REPEATS: Final = 4  # that a call comes back: less is no loop
MIN_SHARE_OF_EQUAL_DISTANCES: Final = 0.9  # of the times, equally many calls lie between
MIN_SHARE_OF_CALLS_IN_ROUNDS: Final = 0.6  # with fewer of all calls, one is of a part of the run
MAX_RANKS_COMPARED: Final = 32  # all make the same calls


@dataclass(frozen=True, eq=False)
class Loop:
    """Where the steps of each process begin, and the last one ends, and by what that is known."""

    begins_ns_by_process: Mapping[int, Ints]
    last_end_ns_by_process: Mapping[int, int]
    description: str

    @property
    def step_count(self) -> int:
        """How many steps every process has."""
        return min(map(len, self.begins_ns_by_process.values()), default=0)


def find_in_calls(calls: Sequence[CallGrid], processes: Collection[int]) -> Loop | None:
    """Find the loop in the longest series of calls that all of some processes make; None without one."""
    common_grids = [grid for grid in calls if set(processes) <= set(grid.processes.tolist())]
    if not common_grids:
        return None
    longest = max(common_grids, key=lambda grid: grid.call_count)
    is_whole = (longest.is_made & (longest.end_ns < FOREVER)).all(axis=1)  # made and left by all
    grid = longest.take_calls(np.flatnonzero(is_whole))
    first_calls = _find_first_calls(grid)
    if first_calls is None:
        return None
    calls_per_step = int(np.median(np.diff(first_calls)))
    last_call = min(int(first_calls[-1]) + calls_per_step, grid.call_count) - 1
    begins_ns: dict[int, Ints] = {}
    last_ends_ns: dict[int, int] = {}
    for process, _, end_ns in grid.times_by_process():
        if process in processes:
            latest_end_ns = np.maximum.accumulate(end_ns)
            begins_ns[process] = latest_end_ns[first_calls[1:] - 1]
            last_ends_ns[process] = int(latest_end_ns[last_call])
    name = _name_call(grid, int(first_calls[0]))
    return Loop(
        begins_ns_by_process=begins_ns,
        last_end_ns_by_process=last_ends_ns,
        description=f"the collectives that they repeat ({name})",
    )


def list_group_calls(calls: Sequence[CallGrid], processes: Collection[int]) -> pl.DataFrame:
    """List what each process calls as if these were messages, as `repeated_messages` reads them.

    `key` is the operation and the communicator, by the order in which a process first calls them:
    ranks of one program do so alike, though their groups differ. In place of a peer stands the size of
    the group, and `op` is empty, as both only tell messages apart.

    Args:
        calls: The calls of each communicator.
        processes: The processes to list; empty if all of them take part in every communicator.
    """
    if all(set(processes) <= set(grid.processes.tolist()) for grid in calls):
        return pl.DataFrame()
    first_begin_ns = [int(grid.start_ns[grid.is_made].min(initial=FOREVER)) for grid in calls]
    tables: list[pl.DataFrame] = []
    group_count_by_process = Counter[int]()
    for index in np.argsort(first_begin_ns, kind="stable").tolist():
        grid = calls[index]
        op_codes, nbytes = (
            grid.first_value_of_calls(name).astype(np.int64) for name in ("op", "nbytes")
        )
        for column, process in enumerate(grid.processes.tolist()):
            call_rows = np.flatnonzero(grid.is_made[:, column])  # rows are calls, columns processes
            if process in processes and len(call_rows):
                columns = {
                    "start_ns": grid.start_ns[call_rows, column],
                    "end_ns": grid.end_ns[call_rows, column],
                    "key": op_codes[call_rows] + len(COLLECTIVES) * group_count_by_process[process],
                    "bytes": nbytes[call_rows],
                }
                group_count_by_process[process] += 1
                tables.append(
                    pl.DataFrame(columns).with_columns(
                        process=pl.lit(process, pl.Int32), peer=len(grid.processes), op=pl.lit("")
                    )
                )
    return pl.concat(tables) if tables else pl.DataFrame()


def _find_first_calls(grid: CallGrid) -> Indices | None:
    """Return the indices of the first call of each step; None if there is no loop."""
    if grid.call_count < MIN_REPEATS:
        return None
    start_ns, end_ns = grid.start_ns[:, :MAX_RANKS_COMPARED], grid.end_ns[:, :MAX_RANKS_COMPARED]
    facts = np.stack(
        [grid.first_value_of_calls("op").astype(np.int64), grid.first_value_of_calls("nbytes")]
    )
    # Numbers of equal calls, and of calls that are equal and follow equal ones, [call].
    kinds = np.unique(facts, axis=1, return_inverse=True)[1].ravel()
    kinds_with_previous = kinds * (int(kinds.max()) + 1) + np.roll(kinds, 1)
    gaps_ns = np.median(start_ns[1:] - end_ns[:-1], axis=1)
    # The work before the first call is not known.
    work_ns = np.maximum(np.append(np.median(gaps_ns), gaps_ns), 1.0)
    for is_candidate in (follows_long_gap(gaps_ns), np.True_):
        repeated_calls = (
            np.flatnonzero((numbering == number) & is_candidate)
            for numbering in (kinds, kinds_with_previous)
            for number in np.unique(numbering)
        )
        regular_calls = [calls for calls in repeated_calls if _is_regular(calls, len(kinds))]
        if regular_calls:
            return max(
                regular_calls,
                key=lambda calls: len(calls) * float(np.sqrt(np.median(work_ns[calls]))),
            )
    return None


def follows_long_gap(gaps_ns: Floats) -> Flags:
    """Find the calls that come after a long time without one, [call], if times are of two sorts.

    `gaps_ns` lie between neighbouring calls. They are divided where their logarithms are best divided
    in two (N. Otsu, A threshold selection method from gray-level histograms, 1979): buckets of one pass
    follow each other sooner than the next pass. A single gap is of one sort.
    """
    if len(gaps_ns) < 2:
        return np.array([True, *(False for _ in gaps_ns)])
    log_gaps = np.log(np.maximum(gaps_ns, 1.0))
    ordered_logs = np.sort(log_gaps)
    short_count = np.arange(1, len(ordered_logs))
    sum_of_short = np.cumsum(ordered_logs)[:-1]
    sum_of_long = ordered_logs.sum() - sum_of_short
    long_count = short_count[::-1]
    distance = sum_of_short / short_count - sum_of_long / long_count
    contrast = short_count * long_count * distance**2
    return np.append(True, log_gaps > ordered_logs[int(contrast.argmax())])


def _is_regular(call_indices: Indices, call_count: int) -> bool:
    """Return True if calls (indices) nearly always come back with equally many others between.

    Of all `call_count` calls, nearly all must lie in such rounds: in a stretch of slow steps every call
    comes after a long time, and is no loop of its own.
    """
    if len(call_indices) < MIN_REPEATS:
        return False
    distances, counts = np.unique(np.diff(call_indices), return_counts=True)
    round_size = int(distances[counts.argmax()])
    covers_run = len(call_indices) * round_size >= MIN_SHARE_OF_CALLS_IN_ROUNDS * call_count
    return bool(
        covers_run and counts.max() >= MIN_SHARE_OF_EQUAL_DISTANCES * (len(call_indices) - 1)
    )


def _name_call(grid: CallGrid, call: int) -> str:
    nbytes = int(grid.first_value_of_calls("nbytes")[call])
    op = COLLECTIVES[int(grid.first_value_of_calls("op")[call])]
    return f"{op} of {fmt.size(nbytes)}" if nbytes >= 0 else op
