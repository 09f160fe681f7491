"""Step sampling: the detail of some steps, and of all the others what tells how long each phase took.

Of a step without detail these stay: its own span, the work done in it, on each thread the outermost
spans of each phase, and of what is in flight the last of each kind. So every nanosecond of a thread
keeps its phase, and a wait at the end of a step still finds the collective that it was for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tracelens.schema.depth import by_thread

if TYPE_CHECKING:
    from tracelens.schema.meanings import Column

__all__ = ["Sampled", "Sampling", "Thinned", "groups", "phases", "thin"]

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]

_STEP: Final = -1  # a step is no phase: what is right within it is outermost
_USER: Final = -2  # and a user's span within a phase belongs to the phase
_DEEPEST: Final = 32  # what is nested deeper is surely not outermost


class Sampling(NamedTuple):
    """The detail of `burst` consecutive steps out of every `every`."""

    every: int
    burst: int

    def summarised(self, step: npt.NDArray[Any]) -> Flags:
        """Say of which steps only the summary stays."""
        return np.asarray((step >= 0) & (step % self.every >= self.burst))


@dataclass(frozen=True)
class Sampled:
    """Events to choose from, as columns; `phase` and `group` are numbers for them, see below.

    `over` says that a span has ended well, `waited` that it stood over from an earlier choice.
    """

    thread: npt.NDArray[Any]
    start: Numbers
    end: Numbers
    step: npt.NDArray[Any]
    depth: Numbers
    phase: npt.NDArray[Any]
    group: npt.NDArray[Any]
    span: Flags
    over: Flags
    waited: Flags


class Thinned(NamedTuple):
    """Which events stay, and of which a later choice will tell."""

    kept: Flags
    undecided: Flags


def phases(kind: Column, op: Column) -> npt.NDArray[np.int64]:
    """Number what a span of each kind means for its thread's time; elastic operations differ in it."""
    meanings = {"step": _STEP, "user": _USER}
    words = [*map(str, kind.words.to_pylist()), ""]  # the last stands for none, -1
    meaning = np.array([meanings.get(word, number) for number, word in enumerate(words)])
    elastic = np.array([word == "elastic" for word in words])[kind.codes]
    apart: Numbers = elastic * len(words) * (1 + op.codes.astype(np.int64))
    found: Numbers = meaning[kind.codes] + apart
    return found


def groups(*columns: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Number the different rows of some columns."""
    number = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        different, codes = np.unique(column, return_inverse=True)
        _, number = np.unique(number * len(different) + codes, return_inverse=True)
    return number


def thin(
    events: Sampled,
    sampling: Sampling,
    in_flight: Flags,
    *,
    goes_on: bool = False,
    last: bool = True,
) -> Thinned:
    """Choose what stays of the events; `in_flight` says so of each thread.

    Unless these are the `last` events, more may come of the steps that are in them; the recording may
    be over all the same, or it still `goes_on`.
    """
    summarised = sampling.summarised(events.step)
    if not goes_on:  # a step that never ended may be where things went wrong
        broken_off = events.span & (events.phase == _STEP) & ~events.over
        summarised &= ~np.isin(events.step, events.step[broken_off])
    flies = in_flight[np.minimum(events.thread, len(in_flight) - 1)]
    open_for_choice = summarised & (events.phase != _STEP) & (events.over | ~events.span)
    kept = ~open_for_choice
    on_thread = open_for_choice & events.span & ~flies
    if on_thread.any():
        kept |= on_thread & _outermost(events, flies)
    chosen, undecided = _last_in_flight(
        events, np.flatnonzero(open_for_choice & events.span & flies)
    )
    if last:
        chosen, undecided = np.append(chosen, undecided), undecided[:0]
    kept[chosen] = True
    waits = np.zeros_like(kept)
    waits[undecided] = True
    return Thinned(kept, waits)


def _outermost(events: Sampled, flies: Flags) -> Flags:
    """Say which spans on threads are in no other span of the same phase, but for phases in between."""
    found = np.zeros(len(events.start), np.bool_)
    for chosen in by_thread(events.thread, events.start, events.end):
        nests = chosen[events.span[chosen] & ~flies[chosen]]
        if len(nests):
            found[nests] = _outermost_of_thread(events, nests)
    return found


def _outermost_of_thread(events: Sampled, chosen: npt.NDArray[np.intp]) -> Flags:
    start, end = events.start[chosen], events.end[chosen]
    depth, phase = events.depth[chosen], events.phase[chosen].copy()
    outermost = depth <= _DEEPEST
    row = np.arange(len(chosen))
    above = np.full(len(chosen), -1)  # the latest span of the level above
    for level in range(int(min(depth.max(), _DEEPEST)) + 1):
        at = np.flatnonzero(depth == level)
        parent = above[at]
        within = (parent >= 0) & (end[parent] > start[at])
        around = np.where(within, phase[parent], _STEP)
        own = phase[at]
        phase[at] = np.where((own == _USER) & (around != _STEP), around, own)
        outermost[at] = phase[at] != around
        holds = np.full(len(chosen), -1)
        longer = at[end[at] > start[at]]
        holds[longer] = row[longer]
        above = np.maximum.accumulate(holds)
    return outermost


def _last_in_flight(
    events: Sampled, among: npt.NDArray[np.intp]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the last event of each thread, group and step; apart those that may not be the last yet."""
    keys = (events.step[among], events.group[among], events.thread[among])
    order = among[np.lexsort((events.start[among], *keys))]
    same = [values[order][1:] == values[order][:-1] for values in (events.thread, events.group)]
    in_line = np.append(same[0] & same[1], False)  # the next is of the same thread and group
    step = events.step[order]
    in_step = in_line & (np.append(step[1:], step[-1:]) == step)
    newest = ~in_line & ~events.waited[order]
    return order[~in_step & ~newest], order[~in_step & newest]
