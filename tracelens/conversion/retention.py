"""What is kept of a recording of which not all was to be kept: sampled steps, or the last ones.

Step sampling keeps the detail of some steps, and of all the others what tells how long each phase
took: their own span, the work done in it, on each thread the outermost spans of each phase, and of
what is in flight the last of each kind. So every nanosecond of a thread keeps its phase, and a wait
at the end of a step still finds the collective that it was for.

Of a recording of the last steps, full segments with nothing of them are removed while it records,
so that what is left begins somewhere in a step, and a gap in the numbers of the segments is a gap
in time. Whoever reads it cuts that to the last steps before each moment at which they were to be
kept, and before the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tracelens.conversion.columns import by_thread, join, pick

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracelens.arrays import Array, Flags, Indices, Ints, UInt32s
    from tracelens.conversion.columns import Records
    from tracelens.conversion.definitions import Column
    from tracelens.schema.side import Definition, Kept

__all__ = [
    "Sampled",
    "Sampling",
    "Stretch",
    "Thinned",
    "cut_to_last",
    "groups",
    "phases",
    "steps_cut_off",
    "stretches",
    "thin",
]


_STEP: Final = -1  # a step is no phase: what is right within it is outermost
_USER: Final = -2  # and a user's span within a phase belongs to the phase
_DEEPEST: Final = 32  # what is nested deeper is surely not outermost
_STEP_DEFINITION: Final = ("step", "step", "span")
_FIRST: Final = np.iinfo(np.int64).min
_FOREVER: Final = np.iinfo(np.int64).max


class Sampling(NamedTuple):
    """The detail of `burst` consecutive steps out of every `every`."""

    every: int
    burst: int

    def summarised(self, step: Array) -> Flags:
        """Return the steps of which only the summary is kept."""
        return np.asarray((step >= 0) & (step % self.every >= self.burst))


@dataclass(frozen=True, eq=False)
class Sampled:
    """Events to choose from, as columns; `phase` and `group` are numbers for them, see below.

    `over` says that a span has ended well, `waited` that it stood over from an earlier choice.
    """

    thread: Array
    start: Ints
    end: Ints
    step: Array
    depth: Ints
    phase: Array
    group: Array
    span: Flags
    over: Flags
    waited: Flags


class Thinned(NamedTuple):
    """Which events are kept, and which a later choice decides."""

    kept: Flags
    undecided: Flags


def phases(kind: Column, op: Column) -> Ints:
    """Number what a span of each kind means for its thread's time; elastic operations differ in it."""
    meanings = {"step": _STEP, "user": _USER}
    words = [*map(str, kind.words.to_pylist()), ""]  # the last stands for none, -1
    meaning = np.array([meanings.get(word, number) for number, word in enumerate(words)])
    elastic = np.array([word == "elastic" for word in words])[kind.codes]
    apart: Ints = elastic * len(words) * (1 + op.codes.astype(np.int64))
    found: Ints = meaning[kind.codes] + apart
    return found


def groups(*columns: Array) -> Ints:
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
    continues: bool = False,
    last: bool = True,
) -> Thinned:
    """Choose the events to keep; `in_flight` is a flag for each thread.

    Unless these are the `last` events, more may come of the steps that are in them; the recording may
    be over all the same, or it still `continues`.
    """
    summarised = sampling.summarised(events.step)
    if not continues:  # a step that never ended may be where things went wrong
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
    """Return which spans of threads are in no span of the same phase, but for phases in between."""
    found = np.zeros(len(events.start), np.bool_)
    for chosen in by_thread(events.thread, events.start, events.end):
        nests = chosen[events.span[chosen] & ~flies[chosen]]
        if len(nests):
            found[nests] = _outermost_of_thread(events, nests)
    return found


def _outermost_of_thread(events: Sampled, chosen: Indices) -> Flags:
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


def _last_in_flight(events: Sampled, among: Indices) -> tuple[Indices, Indices]:
    """Return the last event of each thread, group and step; apart those that may not be the last yet."""
    keys = (events.step[among], events.group[among], events.thread[among])
    order = among[np.lexsort((events.start[among], *keys))]
    same = [values[order][1:] == values[order][:-1] for values in (events.thread, events.group)]
    in_line = np.append(same[0] & same[1], False)  # the next is of the same thread and group
    step = events.step[order]
    in_step = in_line & (np.append(step[1:], step[-1:]) == step)
    newest = ~in_line & ~events.waited[order]
    return order[~in_step & ~newest], order[~in_step & newest]


class Stretch(NamedTuple):
    """Records of the segments from `first` to `last`, without a gap; whether there is one after them."""

    records: Records
    first: int
    last: int
    gap_after: bool


def stretches(segments: Sequence[tuple[int, Records]]) -> list[Stretch]:
    """Put segments together that follow each other, by their numbers."""
    numbers = [number for number, _ in segments]
    begins = [at for at, number in enumerate(numbers) if at == 0 or number != numbers[at - 1] + 1]
    ends = [*begins, len(segments)][1:]
    return [
        Stretch(
            join([records for _, records in segments[begin:end]]),
            numbers[begin],
            numbers[end - 1],
            end < len(segments),
        )
        for begin, end in zip(begins, ends, strict=True)
    ]


def cut_to_last(
    found: Sequence[Stretch], last: int, kept: Sequence[Kept], definitions: Sequence[Definition]
) -> list[Records]:
    """Cut each stretch to its last whole steps before each moment of `kept` and before its end.

    Where there are not more steps than that, and no gap, all is left. A gap cuts off the step that it
    is in.
    """
    steps = _step_ids(definitions)
    return [_cut(stretch, last, _moments(stretch, kept), steps) for stretch in found]


def steps_cut_off(
    found: Sequence[Records], kept: Records, definitions: Sequence[Definition]
) -> list[tuple[int, int, int]]:
    """Return step, begin and end of the steps that are over and were cut off."""
    ids = _step_ids(definitions)
    kept_starts = kept["start_ns"][np.isin(kept["definition"], ids)]
    rows = [records[np.isin(records["definition"], ids)] for records in found]
    return [
        (int(row["step"]), int(row["start_ns"]), abs(int(row["end_ns"])))
        for part in rows
        for row in part[~np.isin(part["start_ns"], kept_starts) & (part["end_ns"] != 0)]
    ]


def _step_ids(definitions: Sequence[Definition]) -> UInt32s:
    named = [row.id for row in definitions if (row.name, row.kind, row.type) == _STEP_DEFINITION]
    return np.array(named, np.uint32)


def _cut(stretch: Stretch, last: int, moments: Sequence[int], step_ids: UInt32s) -> Records:
    records = stretch.records
    rows = records[np.isin(records["definition"], step_ids)]
    rows = rows[np.argsort(rows["start_ns"], kind="stable")]
    if not len(rows):
        return records
    until = _whole_until(records, rows) if stretch.gap_after else _FOREVER
    since = int(rows["start_ns"][0]) if stretch.first > 0 else _FIRST
    rows = rows[rows["start_ns"] < until]
    wanted = np.zeros(len(records), bool)
    for begin, end in _windows(rows, last, moments, since):
        wanted |= (records["start_ns"] >= begin) & (records["start_ns"] < min(end, until))
    return pick(records, np.flatnonzero(wanted))


def _moments(stretch: Stretch, kept: Sequence[Kept]) -> list[int]:
    """Return the moments before which steps of this stretch were to be kept."""
    inside = [row.at_ns for row in kept if stretch.first <= row.segment <= stretch.last]
    return inside if stretch.gap_after and inside else [*inside, _FOREVER]


def _whole_until(records: Records, rows: Records) -> int:
    """When the step begins that the gap is in: the last, unless something began after it."""
    begin, end = int(rows["start_ns"][-1]), abs(int(rows["end_ns"][-1]))
    over = end != 0 and int(records["start_ns"].max()) > end
    return _FOREVER if over else begin


def _windows(
    rows: Records, last: int, moments: Sequence[int], since: int
) -> Iterator[tuple[int, int]]:
    """Return begins and ends: the last steps that were over at each moment."""
    ends = np.abs(rows["end_ns"])
    for moment in moments:
        over = rows["start_ns"][(ends != 0) & (ends <= moment)]
        yield (int(over[-last]) if len(over) > last else since), moment
