"""Selects the events to keep where the user keeps sampled steps, or the last ones.

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
    "SampledEvents",
    "Sampling",
    "Stretch",
    "ThinnedEvents",
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
        """Return True for each step that keeps only its summary."""
        return np.asarray((step >= 0) & (step % self.every >= self.burst))


@dataclass(frozen=True, eq=False)
class SampledEvents:
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


class ThinnedEvents(NamedTuple):
    """Which events are kept, and which a later choice decides."""

    kept: Flags
    undecided: Flags


def phases(kind: Column, op: Column) -> Ints:
    """Number what a span of each kind means for its thread's time; elastic operations differ in it."""
    number_of_word = {"step": _STEP, "user": _USER}
    kind_words = [*map(str, kind.words.to_pylist()), ""]  # the last stands for none, -1
    numbers = np.array([number_of_word.get(word, number) for number, word in enumerate(kind_words)])
    is_elastic = np.array([word == "elastic" for word in kind_words])[kind.codes]
    elastic_offset: Ints = is_elastic * len(kind_words) * (1 + op.codes.astype(np.int64))
    found: Ints = numbers[kind.codes] + elastic_offset
    return found


def groups(*columns: Array) -> Ints:
    """Number the different rows of some columns."""
    number = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        distinct_values, codes = np.unique(column, return_inverse=True)
        _, number = np.unique(number * len(distinct_values) + codes, return_inverse=True)
    return number


def thin(
    events: SampledEvents,
    sampling: Sampling,
    in_flight: Flags,
    *,
    continues: bool = False,
    last: bool = True,
) -> ThinnedEvents:
    """Choose the events to keep; `in_flight` is a flag for each thread.

    Unless these are the `last` events, more may come of the steps that are in them; the recording may
    be over all the same, or it still `continues`.
    """
    is_summarised = sampling.summarised(events.step)
    if not continues:  # a step that never ended may be where things went wrong
        is_unfinished_step = events.span & (events.phase == _STEP) & ~events.over
        is_summarised &= ~np.isin(events.step, events.step[is_unfinished_step])
    is_in_flight = in_flight[np.minimum(events.thread, len(in_flight) - 1)]
    open_for_choice = is_summarised & (events.phase != _STEP) & (events.over | ~events.span)
    is_kept = ~open_for_choice
    on_thread = open_for_choice & events.span & ~is_in_flight
    if on_thread.any():
        is_kept |= on_thread & _outermost(events, is_in_flight)
    last_rows, undecided_rows = _last_in_flight(
        events, np.flatnonzero(open_for_choice & events.span & is_in_flight)
    )
    if last:
        last_rows, undecided_rows = np.append(last_rows, undecided_rows), undecided_rows[:0]
    is_kept[last_rows] = True
    is_undecided = np.zeros_like(is_kept)
    is_undecided[undecided_rows] = True
    return ThinnedEvents(is_kept, is_undecided)


def _outermost(events: SampledEvents, is_in_flight: Flags) -> Flags:
    """Return True for each span whose parent, if any, is of another phase."""
    is_outermost = np.zeros(len(events.start), np.bool_)
    for thread_rows in by_thread(events.thread, events.start, events.end):
        nested_rows = thread_rows[events.span[thread_rows] & ~is_in_flight[thread_rows]]
        if len(nested_rows):
            is_outermost[nested_rows] = _outermost_of_thread(events, nested_rows)
    return is_outermost


def _outermost_of_thread(events: SampledEvents, rows: Indices) -> Flags:
    start, end = events.start[rows], events.end[rows]
    depth, phase = events.depth[rows], events.phase[rows].copy()
    is_outermost = depth <= _DEEPEST
    row_numbers = np.arange(len(rows))
    latest_above = np.full(len(rows), -1)  # the latest span of the level above
    for level in range(int(min(depth.max(), _DEEPEST)) + 1):
        level_rows = np.flatnonzero(depth == level)
        parent = latest_above[level_rows]
        is_within = (parent >= 0) & (end[parent] > start[level_rows])
        parent_phase = np.where(is_within, phase[parent], _STEP)
        own_phase = phase[level_rows]
        phase[level_rows] = np.where(
            (own_phase == _USER) & (parent_phase != _STEP), parent_phase, own_phase
        )
        is_outermost[level_rows] = phase[level_rows] != parent_phase
        latest_holders = np.full(len(rows), -1)
        spans_with_length = level_rows[end[level_rows] > start[level_rows]]
        latest_holders[spans_with_length] = row_numbers[spans_with_length]
        latest_above = np.maximum.accumulate(latest_holders)
    return is_outermost


def _last_in_flight(events: SampledEvents, candidates: Indices) -> tuple[Indices, Indices]:
    """Return the last event of each thread, group and step; apart those that may not be the last yet."""
    keys = (events.step[candidates], events.group[candidates], events.thread[candidates])
    order = candidates[np.lexsort((events.start[candidates], *keys))]
    same_values = [
        values[order][1:] == values[order][:-1] for values in (events.thread, events.group)
    ]
    has_successor = np.append(same_values[0] & same_values[1], False)  # in thread and group
    step = events.step[order]
    has_successor_in_step = has_successor & (np.append(step[1:], step[-1:]) == step)
    is_newest = ~has_successor & ~events.waited[order]
    return order[~has_successor_in_step & ~is_newest], order[~has_successor_in_step & is_newest]


class Stretch(NamedTuple):
    """Records of the consecutive segments `first` to `last`; `gap_after`: the next number is missing."""

    records: Records
    first: int
    last: int
    gap_after: bool


def stretches(segments: Sequence[tuple[int, Records]]) -> list[Stretch]:
    """Put segments together that follow each other, by their numbers."""
    numbers = [number for number, _ in segments]
    begins = [
        index
        for index, number in enumerate(numbers)
        if index == 0 or number != numbers[index - 1] + 1
    ]
    ends = [*begins, len(segments)][1:]
    return [
        Stretch(
            join([records for _, records in segments[begin_row:end_row]]),
            numbers[begin_row],
            numbers[end_row - 1],
            end_row < len(segments),
        )
        for begin_row, end_row in zip(begins, ends, strict=True)
    ]


def cut_to_last(
    runs: Sequence[Stretch],
    last: int,
    kept: Sequence[Kept],
    definitions: Sequence[Definition],
) -> list[Records]:
    """Cut each stretch to its last whole steps before each moment of `kept` and before its end.

    Where there are not more steps than that, and no gap, all is left. A gap cuts off the step that it
    is in.
    """
    steps = _step_ids(definitions)
    return [_cut_stretch(stretch, last, _moments(stretch, kept), steps) for stretch in runs]


def steps_cut_off(
    segments: Sequence[Records], kept_records: Records, definitions: Sequence[Definition]
) -> list[tuple[int, int, int]]:
    """Return step, begin and end of the steps that are over and were cut off."""
    ids = _step_ids(definitions)
    kept_starts = kept_records["start_ns"][np.isin(kept_records["definition"], ids)]
    steps_by_segment = [records[np.isin(records["definition"], ids)] for records in segments]
    return [
        (int(row["step"]), int(row["start_ns"]), abs(int(row["end_ns"])))
        for step_rows in steps_by_segment
        for row in step_rows[
            ~np.isin(step_rows["start_ns"], kept_starts) & (step_rows["end_ns"] != 0)
        ]
    ]


def _step_ids(definitions: Sequence[Definition]) -> UInt32s:
    named = [row.id for row in definitions if (row.name, row.kind, row.type) == _STEP_DEFINITION]
    return np.array(named, np.uint32)


def _cut_stretch(stretch: Stretch, last: int, moments: Sequence[int], step_ids: UInt32s) -> Records:
    records = stretch.records
    step_rows = records[np.isin(records["definition"], step_ids)]
    step_rows = step_rows[np.argsort(step_rows["start_ns"], kind="stable")]
    if not len(step_rows):
        return records
    until_ns = _whole_until(records, step_rows) if stretch.gap_after else _FOREVER
    since_ns = int(step_rows["start_ns"][0]) if stretch.first > 0 else _FIRST
    step_rows = step_rows[step_rows["start_ns"] < until_ns]
    is_wanted = np.zeros(len(records), bool)
    for begin_ns, end_ns in _windows(step_rows, last, moments, since_ns):
        is_wanted |= (records["start_ns"] >= begin_ns) & (
            records["start_ns"] < min(end_ns, until_ns)
        )
    return pick(records, np.flatnonzero(is_wanted))


def _moments(stretch: Stretch, kept: Sequence[Kept]) -> list[int]:
    """Return the moments before which steps of this stretch were to be kept."""
    moments_inside = [row.at_ns for row in kept if stretch.first <= row.segment <= stretch.last]
    return moments_inside if stretch.gap_after and moments_inside else [*moments_inside, _FOREVER]


def _whole_until(records: Records, step_rows: Records) -> int:
    """When the step begins that the gap is in: the last, unless something began after it."""
    begin_ns, end_ns = int(step_rows["start_ns"][-1]), abs(int(step_rows["end_ns"][-1]))
    is_over = end_ns != 0 and int(records["start_ns"].max()) > end_ns
    return _FOREVER if is_over else begin_ns


def _windows(
    step_rows: Records, last: int, moments_ns: Sequence[int], since_ns: int
) -> Iterator[tuple[int, int]]:
    """Return begins and ends: the last steps that were over at each moment."""
    ends = np.abs(step_rows["end_ns"])
    for moment_ns in moments_ns:
        begins = step_rows["start_ns"][(ends != 0) & (ends <= moment_ns)]
        yield (
            (int(begins[-last]) if len(begins) > last else since_ns),
            moment_ns,
        )
