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

from tracelens.conversion.columns import group_by_thread, join_rows, pick_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracelens.arrays import Array, Flags, Indices, Ints, UInt32s
    from tracelens.conversion.columns import Records
    from tracelens.conversion.definitions import Column
    from tracelens.schema.side import Definition, Kept

_STEP_CODE: Final = -1  # a step is no phase: what is right within it is outermost
_USER_CODE: Final = -2  # and a user's span within a phase belongs to the phase
_MAX_DEPTH: Final = 32  # what is nested deeper is surely not outermost
_STEP_DEFINITION: Final = ("step", "step", "span")
_FIRST: Final = np.iinfo(np.int64).min
_FOREVER: Final = np.iinfo(np.int64).max


class Sampling(NamedTuple):
    """The detail of `burst_steps` consecutive steps out of every `period_steps`."""

    period_steps: int
    burst_steps: int

    def is_summarised(self, step: Array) -> Flags:
        """Return True for each step that keeps only its summary."""
        return np.asarray((step >= 0) & (step % self.period_steps >= self.burst_steps))


@dataclass(frozen=True, eq=False)
class SampledEvents:
    """Columns of events to choose from, [event].

    `phase_codes` number phases, `call_group_codes` kinds of calls; `has_ended`: the span has ended
    well; `was_undecided`: an earlier choice left it open.
    """

    thread: Array
    start_ns: Ints
    end_ns: Ints
    step: Array
    depth: Ints
    phase_codes: Array
    call_group_codes: Array
    is_span: Flags
    has_ended: Flags
    was_undecided: Flags


class ThinnedEvents(NamedTuple):
    """Which events are kept, and which a later choice decides."""

    is_kept: Flags
    is_undecided: Flags


def number_phases(kind: Column, op: Column) -> Ints:
    """Return the number of each definition's phase, [definition]; equal numbers are one phase.

    A phase is a kind; for elastic operations, a kind and operation. `_STEP_CODE` and `_USER_CODE` mark
    definitions that are no phase.
    """
    special_codes = {"step": _STEP_CODE, "user": _USER_CODE}
    kind_words = [*map(str, kind.words.to_pylist()), ""]  # the last stands for none, -1
    code_of_kind = np.array([special_codes.get(word, code) for code, word in enumerate(kind_words)])
    is_elastic = np.array([word == "elastic" for word in kind_words])[kind.codes]
    elastic_offset: Ints = is_elastic * len(kind_words) * (1 + op.codes.astype(np.int64))
    phase_codes: Ints = code_of_kind[kind.codes] + elastic_offset
    return phase_codes


def number_rows(*columns: Array) -> Ints:
    """Number the distinct rows of some columns, [row]; equal rows have equal numbers."""
    row_number = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        distinct_values, codes = np.unique(column, return_inverse=True)
        _, row_number = np.unique(row_number * len(distinct_values) + codes, return_inverse=True)
    return row_number


def thin(
    events: SampledEvents,
    sampling: Sampling,
    is_in_flight_thread: Flags,
    *,
    continues: bool = False,
    is_last: bool = True,
) -> ThinnedEvents:
    """Choose the events to keep; `is_in_flight_thread` marks tracks of operations, [thread].

    Unless `is_last`, later events may follow in the same steps, and then the newest stay undecided.
    `continues` tells that the recording goes on, so that its unfinished steps are no anomaly.
    """
    is_summarised = sampling.is_summarised(events.step)
    if not continues:  # a step that never ended may be where things went wrong
        is_unfinished_step = events.is_span & (events.phase_codes == _STEP_CODE) & ~events.has_ended
        is_summarised &= ~np.isin(events.step, events.step[is_unfinished_step])
    is_in_flight = is_in_flight_thread[np.minimum(events.thread, len(is_in_flight_thread) - 1)]
    is_candidate = (
        is_summarised & (events.phase_codes != _STEP_CODE) & (events.has_ended | ~events.is_span)
    )
    is_kept = ~is_candidate
    is_on_thread = is_candidate & events.is_span & ~is_in_flight
    if is_on_thread.any():
        is_kept |= is_on_thread & _find_outermost(events, is_in_flight)
    last_rows, undecided_rows = _find_last_in_flight(
        events, np.flatnonzero(is_candidate & events.is_span & is_in_flight)
    )
    if is_last:
        last_rows, undecided_rows = np.append(last_rows, undecided_rows), undecided_rows[:0]
    is_kept[last_rows] = True
    is_undecided = np.zeros_like(is_kept)
    is_undecided[undecided_rows] = True
    return ThinnedEvents(is_kept, is_undecided)


def _find_outermost(events: SampledEvents, is_in_flight: Flags) -> Flags:
    """Return True for each span whose parent, if any, is of another phase, [event]."""
    is_outermost = np.zeros(len(events.start_ns), np.bool_)
    for thread_rows in group_by_thread(events.thread, events.start_ns, events.end_ns):
        nested_rows = thread_rows[events.is_span[thread_rows] & ~is_in_flight[thread_rows]]
        if len(nested_rows):
            is_outermost[nested_rows] = _find_outermost_on_thread(events, nested_rows)
    return is_outermost


def _find_outermost_on_thread(events: SampledEvents, rows: Indices) -> Flags:
    """Return True for each span of a thread whose parent is of another phase, [row]."""
    start_ns, end_ns = events.start_ns[rows], events.end_ns[rows]
    depth, phase = events.depth[rows], events.phase_codes[rows].copy()
    is_outermost = depth <= _MAX_DEPTH
    latest_of_level_above = np.full(len(rows), -1)  # [row]: the span that began last; -1 = none
    for level in range(min(int(depth.max()), _MAX_DEPTH) + 1):
        level_rows = np.flatnonzero(depth == level)
        parent = latest_of_level_above[level_rows]
        is_within = (parent >= 0) & (end_ns[parent] > start_ns[level_rows])
        parent_phase = np.where(is_within, phase[parent], _STEP_CODE)
        own_phase = phase[level_rows]
        phase[level_rows] = np.where(
            (own_phase == _USER_CODE) & (parent_phase != _STEP_CODE), parent_phase, own_phase
        )
        is_outermost[level_rows] = phase[level_rows] != parent_phase
        latest_of_level = np.full(len(rows), -1)
        rows_with_length = level_rows[end_ns[level_rows] > start_ns[level_rows]]
        latest_of_level[rows_with_length] = rows_with_length
        latest_of_level_above = np.maximum.accumulate(latest_of_level)
    return is_outermost


def _find_last_in_flight(events: SampledEvents, candidates: Indices) -> tuple[Indices, Indices]:
    """Return the candidates, row numbers of `events`, that are the last of their thread, group, step.

    The second array has those that a later event may still follow, and that were not undecided before.
    """
    columns = [
        column[candidates] for column in (events.step, events.call_group_codes, events.thread)
    ]
    order = np.lexsort((events.start_ns[candidates], *columns))
    rows, (step, group, thread) = candidates[order], (column[order] for column in columns)
    has_successor = np.append((thread[1:] == thread[:-1]) & (group[1:] == group[:-1]), False)
    has_successor_in_step = has_successor & (np.append(step[1:], step[-1:]) == step)
    is_newest = ~has_successor & ~events.was_undecided[rows]
    return rows[~has_successor_in_step & ~is_newest], rows[~has_successor_in_step & is_newest]


class Stretch(NamedTuple):
    """Records of consecutive segments; `has_gap_after`: the number after the last one is missing."""

    records: Records
    first_segment: int
    last_segment: int
    has_gap_after: bool


def join_consecutive(segments: Sequence[tuple[int, Records]]) -> list[Stretch]:
    """Join segments with consecutive numbers, given as (number, records) in order of number."""
    numbers = [number for number, _ in segments]
    begin_rows = [
        row for row, number in enumerate(numbers) if row == 0 or number != numbers[row - 1] + 1
    ]
    end_rows = [*begin_rows, len(segments)][1:]
    return [
        Stretch(
            records=join_rows([records for _, records in segments[begin_row:end_row]]),
            first_segment=numbers[begin_row],
            last_segment=numbers[end_row - 1],
            has_gap_after=end_row < len(segments),
        )
        for begin_row, end_row in zip(begin_rows, end_rows, strict=True)
    ]


def cut_to_last(
    stretches: Sequence[Stretch],
    step_count: int,
    moments: Sequence[Kept],
    definitions: Sequence[Definition],
) -> list[Records]:
    """Cut each stretch to its last `step_count` whole steps before each moment and before its end.

    Moments are those at which the user asked to keep the last steps. A stretch with no more steps
    than that, and no gap, stays whole. A gap cuts off its step.
    """
    ids = _step_ids(definitions)
    return [
        _cut_stretch(stretch, step_count, _find_moments(stretch, moments), ids)
        for stretch in stretches
    ]


def list_steps_cut_off(
    records_by_segment: Sequence[Records], kept_records: Records, definitions: Sequence[Definition]
) -> list[tuple[int, int, int]]:
    """Return (step number, begin, end), ns, of each finished step that is not in `kept_records`."""
    definition_ids = _step_ids(definitions)
    kept_starts_ns = kept_records["start_ns"][np.isin(kept_records["definition"], definition_ids)]
    steps_by_segment = [
        records[np.isin(records["definition"], definition_ids)] for records in records_by_segment
    ]
    return [
        (int(row["step"]), int(row["start_ns"]), abs(int(row["end_ns"])))
        for step_rows in steps_by_segment
        for row in step_rows[
            ~np.isin(step_rows["start_ns"], kept_starts_ns) & (step_rows["end_ns"] != 0)
        ]
    ]


def _step_ids(definitions: Sequence[Definition]) -> UInt32s:
    ids = [row.id for row in definitions if (row.name, row.kind, row.type) == _STEP_DEFINITION]
    return np.array(ids, np.uint32)


def _cut_stretch(
    stretch: Stretch, step_count: int, moments_ns: Sequence[int], definition_ids: UInt32s
) -> Records:
    """Return the records of a stretch that begin in the last steps before a moment.

    `moments_ns` are the moments, `step_count` is how many steps count before each, and `definition_ids`
    are those of steps. Without steps, all records are returned.
    """
    records = stretch.records
    step_rows = records[np.isin(records["definition"], definition_ids)]
    step_rows = step_rows[np.argsort(step_rows["start_ns"], kind="stable")]
    if not len(step_rows):
        return records
    limit_ns = _find_limit(records, step_rows) if stretch.has_gap_after else _FOREVER
    # Segment 0 has the recording's begin, so nothing before its first step was cut off.
    earliest_ns = int(step_rows["start_ns"][0]) if stretch.first_segment > 0 else _FIRST
    step_rows = step_rows[step_rows["start_ns"] < limit_ns]
    is_wanted, start_ns = np.zeros(len(records), bool), records["start_ns"]
    for begin_ns, end_ns in _iterate_windows(step_rows, step_count, moments_ns, earliest_ns):
        is_wanted |= (start_ns >= begin_ns) & (start_ns < min(end_ns, limit_ns))
    return pick_rows(records, np.flatnonzero(is_wanted))


def _find_moments(stretch: Stretch, kept: Sequence[Kept]) -> list[int]:
    """Return the times before which steps are to be kept, ns; `_FOREVER` for the stretch's end."""
    segments = range(stretch.first_segment, stretch.last_segment + 1)
    moments_ns = [row.at_ns for row in kept if row.segment in segments]
    return moments_ns if stretch.has_gap_after and moments_ns else [*moments_ns, _FOREVER]


def _find_limit(records: Records, step_rows: Records) -> int:
    """Return the begin of the step with the gap, ns; `_FOREVER` if the gap is after all steps."""
    begin_ns, end_ns = int(step_rows["start_ns"][-1]), abs(int(step_rows["end_ns"][-1]))
    has_later_event = end_ns != 0 and int(records["start_ns"].max()) > end_ns
    return _FOREVER if has_later_event else begin_ns


def _iterate_windows(
    step_rows: Records, step_count: int, moments_ns: Sequence[int], earliest_ns: int
) -> Iterator[tuple[int, int]]:
    """Yield begin and end, ns, of the last `step_count` steps that had ended at each moment.

    With no more steps than that, a window begins at `earliest_ns`.
    """
    ends_ns = np.abs(step_rows["end_ns"])
    for moment_ns in moments_ns:
        starts_ns = step_rows["start_ns"][(ends_ns != 0) & (ends_ns <= moment_ns)]
        begin_ns = int(starts_ns[-step_count]) if len(starts_ns) > step_count else earliest_ns
        yield begin_ns, moment_ns
