"""How much later each rank could be without making the job longer: backwards from call to call.

A collective may end later by the least that any of its ranks can spare afterwards, or, in flight, by
what the next one of the step could begin later. A rank may come later to it by that, and by what it
waits there for the last one; to one in flight also by no more than to those that follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.thread_activity import training_threads
from tracelens.caching import cached_property
from tracelens.model.calls import NEVER, distinct, stretch
from tracelens.model.columns import FOREVER

if TYPE_CHECKING:
    from tracelens.arrays import Flags, Floats, Indices, Ints
    from tracelens.model.calls import CallGrid
    from tracelens.model.trace import Trace

__all__ = ["SLACK_COLUMNS", "measure_slack"]

SLACK_COLUMNS: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "slack_ns": pl.Int64(),  # median over steps
    "least_slack_ns": pl.Int64(),
    "critical_steps": pl.Float64(),  # share of steps in which it can spare less than 1 % of a step
}
CRITICAL: Final = 0.01
_BLOCK: Final = 256  # calls whose waits are kept
NO_LIMIT: Final = np.iinfo(np.int64).max


def measure_slack(trace: Trace) -> pl.DataFrame:
    """Return each rank's slack; empty without steps or collectives in them."""
    steps = trace.steps["step"].unique().sort().to_numpy().astype(np.int64)
    calls = _calls(trace, steps)
    if not calls:
        return pl.DataFrame(schema=SLACK_COLUMNS)
    slack = _backwards(trace, calls, len(steps))
    known = np.where(np.isfinite(slack), slack, np.nan)
    length = (trace.steps["end_ns"] - trace.steps["start_ns"]).median()
    near = CRITICAL * (length if isinstance(length, float) else 0.0)
    ranks = trace.workers["rank"]
    met = ~np.isnan(known).all(axis=0)
    known = known[:, met]
    rows = {
        "rank": ranks.to_numpy()[met],
        "slack_ns": np.nanmedian(known, axis=0).astype(np.int64),
        "least_slack_ns": np.nanmin(known, axis=0).astype(np.int64),
        "critical_steps": np.nanmean(np.where(np.isnan(known), np.nan, known <= near), axis=0),
    }
    return pl.DataFrame(rows, schema=SLACK_COLUMNS).sort("rank")


def _backwards(trace: Trace, calls: list[_Calls], steps: int) -> Floats:
    """Return how much later each rank may begin to meet others in a step; inf where it meets nobody."""
    ranks = trace.workers["rank"]
    ends = trace.steps.group_by("rank").agg(pl.col("end_ns").max())
    last = dict(ends.iter_rows())
    whole = max(last.values())
    spare = np.array([whole - last.get(rank, whole) for rank in ranks.to_list()], np.int64)
    slack = np.full((steps, len(ranks)), np.inf)
    arrive = np.concatenate([one.arrive for one in calls])
    place = [(one, row) for one in calls for row in range(len(one.arrive))]
    following = _Following()
    for number in np.argsort(arrive, kind="stable")[::-1].tolist():
        one, row = place[number]
        members, wait, step = one.everyone, one.wait(row), int(one.step[row])
        if not one.whole[row]:
            members, wait = one.members[one.there[row]], wait[one.there[row]]
        if one.flying[row]:
            if following.step != step:
                following = _Following(step, int(spare[members].min()))
            else:
                gap = following.arrive - int(one.over[row])
                following = _Following(step, following.spare + max(gap, 0))
            following.arrive = int(one.arrive[row])
            most = _before(spare, members, slack[step])
            spare[members] = np.minimum(wait + following.spare, most)
        else:
            spare[members] = wait + spare[members].min()
        slack[step, members] = spare[members]
    return slack


@dataclass(eq=False)
class _Calls:
    """The full calls of a communicator in steps: when the last came and left, and who had to wait.

    `step` is a row of the result, `members` columns of it; `there` is [call, member], and `whole` says
    whether all are. Waits are kept of the calls around the one that was asked for last.
    """

    grid: CallGrid
    step: Ints
    arrive: Ints
    over: Ints
    flying: Flags
    members: Indices
    there: Flags
    whole: Flags
    _waits: Ints
    _first: int = -_BLOCK

    @cached_property
    def everyone(self) -> Indices | slice:
        """All members; where they follow each other a slice, by which numbers are not copied."""
        return stretch(self.members) if np.all(np.diff(self.members) > 0) else self.members

    def wait(self, row: int) -> Ints:
        """Return how long each rank waited in a call, [member]."""
        if not 0 <= row - self._first < _BLOCK:
            self._first = row - row % _BLOCK
            some = self.grid.taken(slice(self._first, self._first + _BLOCK))
            self._waits = np.ascontiguousarray(some.wait_ns())
        return np.asarray(self._waits[row - self._first])


@dataclass
class _Following:
    """The call in flight that follows in the same step: by how much it may end later, and its begin."""

    step: int = -1
    spare: int = 0
    arrive: int = 0


def _before(spare: Ints, members: Indices | slice, known: Floats) -> Ints:
    """Return what each rank may be later at most for the calls that follow in the step."""
    met = np.isfinite(known[members])
    return np.where(met, spare[members], NO_LIMIT)


def _calls(trace: Trace, steps: Ints) -> list[_Calls]:
    """Return the calls to which all came, and that are over."""
    training, ranks, found = training_threads(trace), trace.workers["rank"], []
    for grid in trace.calls:
        ended = grid.there & (grid.end_ns != FOREVER) & np.isin(distinct(grid.step), steps)
        chosen = np.flatnonzero(grid.is_full & (grid.last_ns != NEVER) & ended.any(axis=1))
        if not len(chosen):
            continue
        some, ended = grid.taken(chosen), ended[chosen]
        head = ended.argmax(axis=1)
        row, over = np.arange(len(chosen)), np.empty(len(chosen), np.int64)
        for part, block in some.blocks():
            over[part] = np.where(ended[part], block.end_ns, NEVER).max(axis=1)
        thread, process = some.thread[row, head], some.processes[head]
        found.append(
            _Calls(
                grid=some,
                step=np.searchsorted(steps, some.step[row, head]),
                arrive=some.last_ns,
                over=over,
                flying=np.asarray(thread != training[process]),
                members=np.searchsorted(ranks.to_numpy(), some.ranks),
                there=ended,
                whole=ended.all(axis=1),
                _waits=over[:0],
            )
        )
    return found
