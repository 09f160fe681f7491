"""Divides every worker's time into steps, and assigns each event to its step.

A step lasts from the begin of its step span to the begin of the next: so all that happens between two
step spans (often data loading) is in a step too. The last one ends with its own span, because
later events are no training; if that span never ended, with the training thread's last event. Devices
work after the host has queued their work. So in a profile of devices, the first step begins and the last
one ends with the devices' work. If the user left out steps, the step before them ends with its own span.
Overlapping step spans are cut at the next begin, and a note counts them; only a span wholly inside
another one is no step. Where step numbers repeat or fall within a process, as with a loop per epoch,
steps are counted instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.align.clocks.common import to_common_times
from tracelens.align.collectives import gather_calls
from tracelens.align.repeated_calls import find_in_calls, list_group_calls
from tracelens.align.repeated_messages import find_in_group_calls, find_in_messages
from tracelens.distil.outline import list_in_flight_tracks, list_outlines
from tracelens.model import fmt
from tracelens.model.calls import NEVER
from tracelens.model.columns import FOREVER
from tracelens.model.events import select_process
from tracelens.model.outline import NO_COUNTERS, NO_STEPS
from tracelens.model.trace import STEP_COLUMNS, Note

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.align.repeated_calls import Loop
    from tracelens.arrays import Array, Flags, Int32s, Ints
    from tracelens.model.calls import CallGrid
    from tracelens.model.clock_map import ClockMap
    from tracelens.model.columns import Columns
    from tracelens.model.outline import Outline
    from tracelens.model.trace import Trace

SAMPLE_COUNTER: Final = "samples"


@dataclass(frozen=True, eq=False)
class _StepMarks:
    """Where the steps of a process begin, in order of time, on the common clock; arrays are [step].

    A step ends where the next one begins, or at `latest_end_ns` if steps were left out after it as asked
    (else `FOREVER`). The last one ends at `last_end_ns`.
    """

    step_numbers: Int32s
    begin_ns: Ints
    latest_end_ns: Ints
    last_end_ns: int
    is_recorded: bool  # by step spans; else by the numbers of other spans
    overlap_count: int  # step spans that had not ended when the next one began

    @property
    def is_disordered(self) -> Flags:
        """Which numbers are negative, or not above the one before, [step]."""
        is_wrong = np.asarray(self.step_numbers < 0)
        is_wrong[1:] |= self.step_numbers[1:] <= self.step_numbers[:-1]
        return is_wrong

    def counted_from_0(self, begin_ns: Ints, last_end_ns: int) -> _StepMarks:
        """Return steps with other begins, ns, [step], and another end, counted from 0."""
        return replace(
            self,
            step_numbers=np.arange(len(begin_ns), dtype=np.int32),
            begin_ns=begin_ns,
            latest_end_ns=np.full(len(begin_ns), FOREVER),
            last_end_ns=last_end_ns,
        )

    def extended_to(
        self, device_ns: tuple[int, int] | None, clock_map: ClockMap | None
    ) -> _StepMarks:
        """Begin and end with a device's first and last work, where these are in the outer steps."""
        if device_ns is None or not len(self.begin_ns):
            return self
        first_ns, last_ns = _to_common(np.array(device_ns), clock_map).tolist()
        begin_ns = self.begin_ns.copy()
        if begin_ns[0] < first_ns < self.end_ns[0]:
            begin_ns[0] = first_ns
        last_end_ns = last_ns if last_ns > begin_ns[-1] else self.last_end_ns
        return replace(self, begin_ns=begin_ns, last_end_ns=last_end_ns)

    @property
    def end_ns(self) -> Ints:
        """The end of each step."""
        next_begin_ns = np.append(self.begin_ns[1:], self.last_end_ns)
        return np.asarray(np.minimum(next_begin_ns, self.latest_end_ns))


def divide_into_steps(trace: Trace) -> Trace:
    """Fill `steps` and the training threads, and complete the events' step numbers."""
    outlines, clock_maps = list_outlines(trace), trace.clock_maps
    trace = trace if trace.calls else gather_calls(trace)
    workers = dict(trace.workers.select("process", "rank").sort("process").iter_rows())
    thinned_processes = set(trace.processes.filter(pl.col("last_steps").is_not_null())["process"])
    threads = {
        process: thread
        for process in workers
        if process in outlines and (thread := outlines[process].training_thread) is not None
    }
    all_marks = {
        process: _read_marks(
            outlines[process], clock_maps.get(process), has_gaps=process in thinned_processes
        )
        for process in threads
    }
    all_marks, completion_notes = _complete(all_marks, trace)
    if trace.recognition is not None:  # a profile, which times each kernel
        all_marks = {
            process: marks.extended_to(outlines[process].device_extent_ns, clock_maps.get(process))
            for process, marks in all_marks.items()
        }
    all_marks, order_notes = _restore_order(all_marks)
    tracks = list_in_flight_tracks(trace)
    numbering = StepNumbering(
        windows_by_process={
            process: (marks.begin_ns, marks.step_numbers) for process, marks in all_marks.items()
        },
        threads_by_process={
            process: (threads[process], *tracks.get(process, ())) for process in all_marks
        },
        renumbers_all=bool(order_notes),
    )
    samples = {
        process: _sum_samples(outlines[process], numbering, process, clock_maps.get(process))
        for process in all_marks
    }
    step_table = _to_table(all_marks, samples, workers)
    threads_table = pl.DataFrame(
        {"process": list(threads), "training_thread": list(threads.values())},
        schema={name: trace.processes.schema[name] for name in ("process", "training_thread")},
    )
    processes = trace.processes.drop("training_thread").join(
        threads_table, on="process", how="left"
    )
    return trace.with_change(
        replace(numbering, windows_by_process=_windows_of_table(step_table, all_marks)),
        calls=tuple(_number_calls(grid, numbering) for grid in trace.calls),
        outlines={
            process: replace(outline, step_spans=NO_STEPS, counters=NO_COUNTERS)
            for process, outline in outlines.items()
        },  # the table holds them from here on
        steps=step_table,
        processes=processes.select(trace.processes.columns).sort("process"),
        notes=(*trace.notes, *_note_overlaps(all_marks), *completion_notes, *order_notes),
    )


def _read_marks(outline: Outline, clock_map: ClockMap | None, *, has_gaps: bool) -> _StepMarks:
    """Read where the steps of a process begin, by its outermost step spans, or else by other spans.

    With `has_gaps`, steps were left out as asked: the step before these ends with its own span.
    """
    spans = outline.step_spans
    times_ns = np.concatenate([spans.start_ns, spans.end_ns, [outline.training_last_ns]])
    times_ns = _to_common(times_ns, clock_map)
    starts_ns, ends_ns = times_ns[:-1].reshape(2, -1)
    outer_rows = np.arange(len(starts_ns))
    is_apart = (starts_ns[1:] > starts_ns[:-1]) & (starts_ns[1:] >= ends_ns[:-1])
    if not (is_apart.all() and spans.is_on_training_thread.all()):
        order = np.lexsort((spans.depth, -ends_ns, starts_ns))
        order = order[spans.is_on_training_thread[order]]
        outer_rows = order[find_outermost(starts_ns[order], ends_ns[order])]
    step, begin_ns = spans.step[outer_rows], starts_ns[outer_rows]
    if not len(outer_rows):
        step, implied_begin_ns = outline.implied_steps
        begin_ns = _to_common(implied_begin_ns, clock_map)
        by_time = np.argsort(begin_ns, kind="stable")
        step, begin_ns = step[by_time], begin_ns[by_time]
    is_closed = ends_ns != FOREVER
    latest_end_ns = np.full(len(step), FOREVER)
    if has_gaps:
        for index in np.flatnonzero(np.diff(step) > 1).tolist():
            ends = ends_ns[(spans.step == step[index]) & is_closed]
            latest_end_ns[index] = ends.max() if len(ends) else FOREVER
    is_last = (
        is_closed
        & spans.is_on_training_thread
        & (starts_ns == (begin_ns[-1] if len(begin_ns) else NEVER))
    )
    return _StepMarks(
        step_numbers=step,
        begin_ns=begin_ns,
        latest_end_ns=latest_end_ns,
        last_end_ns=int(ends_ns[is_last].max() if is_last.any() else times_ns[-1]),
        is_recorded=bool(len(outer_rows)),
        overlap_count=int(np.count_nonzero(starts_ns[outer_rows][1:] < ends_ns[outer_rows][:-1])),
    )


def find_outermost(begin_ns: Ints, end_ns: Ints) -> Flags:
    """Find the spans that are not wholly inside an earlier one, [span].

    Args:
        begin_ns: Ascending.
        end_ns: Of those that begin at the same time, the latest first.
    """
    is_outermost = np.ones(len(begin_ns), np.bool_)
    latest_end_ns = np.maximum.accumulate(end_ns)[:-1]
    is_outermost[1:] = (begin_ns[1:] >= latest_end_ns) | (end_ns[1:] > latest_end_ns)
    return is_outermost


def _to_common(times_ns: Ints, clock_map: ClockMap | None) -> Ints:
    return times_ns if clock_map is None else to_common_times(clock_map, times_ns, FOREVER)


def _note_overlaps(all_marks: Mapping[int, _StepMarks]) -> list[Note]:
    """Count the step spans that overlap the next, among all of the processes that have any."""
    overlapping = [marks for marks in all_marks.values() if marks.overlap_count]
    if not overlapping:
        return []
    overlaps = sum(marks.overlap_count for marks in overlapping)
    spans = fmt.count(sum(len(marks.step_numbers) for marks in overlapping), "step span")
    subject = f"{spans} of {fmt.count(len(overlapping), 'process', 'processes')}"
    verb, each = ("overlaps", "it is") if overlaps == 1 else ("overlap", "each is")
    action = f"{each} taken to end where the next begins"
    sentence = f"{overlaps:,} of {subject} {verb} the next: {action}."
    return [Note(file="", sentence=sentence, kind="incomplete")]


def _complete(
    all_marks: dict[int, _StepMarks], trace: Trace
) -> tuple[dict[int, _StepMarks], list[Note]]:
    """Find steps elsewhere for processes that recorded none, and note their source.

    The last calls of a run (a snapshot) have no steps: nothing is known of the time around them.
    """
    if trace.is_snapshot:
        return {}, []
    step_counts = [len(marks.step_numbers) for marks in all_marks.values() if not marks.is_recorded]
    if not step_counts:
        return all_marks, []
    source = (
        "their steps are taken from the step numbers of other events, or the updates that end them"
    )
    lacks_all = len(step_counts) == len(all_marks)
    if max(step_counts) < 2 or (lacks_all and len({*step_counts}) > 1):
        loop = _find_loop(trace, all_marks) if lacks_all else None
        if loop:
            source = f"their steps are taken from {loop.description}"
            all_marks = {
                process: marks.counted_from_0(
                    loop.begins_ns_by_process[process], loop.last_end_ns_by_process[process]
                )
                for process, marks in all_marks.items()
            }
        else:
            source = "nothing says where steps begin, so the whole run counts as one"
            all_marks = {
                process: marks.counted_from_0(marks.begin_ns[:1], marks.last_end_ns)
                for process, marks in all_marks.items()
            }
    sentence = (
        f"{len(step_counts)} of {len(all_marks)} workers recorded no step spans: {source}; mark steps "
        "with tl.step(i), or in a table with a column 'step'."
    )
    return all_marks, [Note(file="", sentence=sentence, kind="incomplete")]


def _find_loop(trace: Trace, all_marks: Mapping[int, _StepMarks]) -> Loop | None:
    """Find the steps by what comes back most often: collectives, or messages between ranks.

    The collectives are those that all ranks make. Without such ones, and without messages, those of
    groups of ranks count.
    """
    call_loop = find_in_calls(trace.calls, all_marks)
    outlines, message_loop = trace.outlines or {}, None
    if all(process in outlines and outlines[process].message_count for process in all_marks):
        message_loop = find_in_messages(trace.program_messages, all_marks)
    if call_loop is None and message_loop is None:
        return find_in_group_calls(list_group_calls(trace.calls, all_marks), all_marks)
    loops = [loop for loop in (call_loop, message_loop) if loop is not None]
    return max(loops, key=lambda loop: loop.step_count)  # of equals, the first


def _restore_order(all_marks: dict[int, _StepMarks]) -> tuple[dict[int, _StepMarks], list[Note]]:
    """Keep step numbers if they rise in every process, else count steps from 0 in all."""
    wrong_steps = {
        process: marks.step_numbers[marks.is_disordered][0]
        for process, marks in all_marks.items()
        if marks.is_disordered.any()
    }
    if not wrong_steps:
        return all_marks, []
    sentence = (
        f"Step numbers repeat or fall in {len(wrong_steps)} processes (first at step "
        f"{wrong_steps[min(wrong_steps)]}): steps are counted from 0 in order of time instead."
    )
    counted_marks = {
        process: marks.counted_from_0(marks.begin_ns, marks.last_end_ns)
        for process, marks in all_marks.items()
    }
    return counted_marks, [Note(file="", sentence=sentence, kind="renumbered")]


@dataclass(frozen=True, eq=False)
class StepNumbering:
    """Gives events the step in whose window they begin.

    Only those without a step, of some threads of each process (training threads and tracks in flight);
    with `renumbers_all` all of them, as the recorded numbers have lost their meaning.
    """

    # Of each process (its index in the trace) the begins of its steps, ns, and their numbers, [step].
    windows_by_process: Mapping[int, tuple[Ints, Int32s]]
    threads_by_process: Mapping[int, tuple[int, ...]]
    renumbers_all: bool = False
    needed_columns: tuple[str, ...] = ("start_ns", "step", "thread")

    def __call__(self, process: int, columns: Columns) -> Columns:
        """Return the columns of a process with the step numbers that `number_events` gives them."""
        if process not in self.windows_by_process:
            return columns
        start_ns, thread, step = (
            columns.number_column(name) for name in ("start_ns", "thread", "step")
        )
        return columns.with_numbers(step=self.number_events(process, start_ns, thread, step))

    def limit_to(self, process: int) -> StepNumbering:
        """Return the windows of one process."""
        windows = select_process(self.windows_by_process, process)
        threads = select_process(self.threads_by_process, process)
        return StepNumbering(
            windows_by_process=windows, threads_by_process=threads, renumbers_all=self.renumbers_all
        )

    def number_events(
        self, process: int, start_ns: Ints, thread: Array, step_numbers: Array
    ) -> Array:
        """Return the step of each event of a process, [event]: that of the window in which it begins.

        `thread` and `step_numbers` (as recorded; below 0 = none) are those of the events. Events of
        other threads than `threads_by_process` keep what they have.
        """
        begins_ns, step_of_window = self.windows_by_process[process]
        if self.renumbers_all:
            unnumbered_rows = np.arange(len(step_numbers))
        else:
            unnumbered_rows = np.flatnonzero(step_numbers < 0)
            if len(unnumbered_rows):
                is_numbered = np.isin(thread[unnumbered_rows], self.threads_by_process[process])
                unnumbered_rows = unnumbered_rows[is_numbered]
        if not len(unnumbered_rows):
            return step_numbers
        window = np.searchsorted(begins_ns, start_ns[unnumbered_rows], side="right") - 1
        numbered_steps = step_numbers.astype(np.int32)
        numbered_steps[unnumbered_rows] = np.where(window < 0, -1, step_of_window[window])
        return numbered_steps


def _number_calls(grid: CallGrid, numbering: StepNumbering) -> CallGrid:
    """Give calls without a step the one in whose window they begin."""
    if not numbering.renumbers_all and not (grid.step < 0).any():
        return grid
    step = np.array(grid.step)
    for column, process in enumerate(grid.processes.tolist()):
        if process in numbering.windows_by_process:
            start_ns, thread = grid.start_ns[:, column], grid.thread[:, column]
            step[:, column] = numbering.number_events(process, start_ns, thread, step[:, column])
    return replace(grid, step=step)


def _sum_samples(
    outline: Outline, numbering: StepNumbering, process: int, clock_map: ClockMap | None
) -> tuple[Array, Array]:
    """Return the steps of a process, ascending, and how many samples each had, both [step]."""
    counters = outline.counters
    is_sample_counter = np.array([*(name == SAMPLE_COUNTER for name in counters.names), False])
    rows = np.flatnonzero(is_sample_counter[counters.name_codes])
    times_ns = _to_common(counters.times_ns[rows], clock_map)
    steps = numbering.number_events(process, times_ns, counters.thread[rows], counters.step[rows])
    if (steps[1:] > steps[:-1]).all():
        return steps, counters.values[rows]
    distinct_steps, index = np.unique(steps, return_inverse=True)
    return distinct_steps, np.bincount(index, counters.values[rows], minlength=len(distinct_steps))


def _to_table(
    all_marks: Mapping[int, _StepMarks],
    samples: Mapping[int, tuple[Array, Array]],
    ranks: Mapping[int, int],
) -> pl.DataFrame:
    """Return the windows of all workers, in `STEP_COLUMNS`, by process and time.

    `samples` are steps, and the samples of each, by process; `ranks` is by process.
    """
    if not all_marks:
        return pl.DataFrame(schema=STEP_COLUMNS)
    columns_of_processes = []
    for process, marks in all_marks.items():
        count = len(marks.step_numbers)
        counted_steps, sample_sums = samples[process]
        index = np.searchsorted(counted_steps, marks.step_numbers)
        is_counted = index < len(counted_steps)
        is_counted[is_counted] = counted_steps[index[is_counted]] == marks.step_numbers[is_counted]
        samples_of_step = np.full(count, np.nan)
        samples_of_step[is_counted] = sample_sums[index[is_counted]]
        owner = np.full((2, count), [[process], [ranks[process]]], np.int32)
        columns_of_processes.append(
            (*owner, marks.step_numbers, marks.begin_ns, marks.end_ns, samples_of_step)
        )
    arrays = map(np.concatenate, zip(*columns_of_processes, strict=True))
    columns = zip(STEP_COLUMNS, arrays, strict=True)
    step_table = pl.DataFrame(dict(columns)).with_columns(pl.col("samples").fill_nan(None))
    return step_table.select(pl.col(name).cast(kind) for name, kind in STEP_COLUMNS.items())


def _windows_of_table(
    step_table: pl.DataFrame, all_marks: Mapping[int, _StepMarks]
) -> dict[int, tuple[Ints, Int32s]]:
    """Return begins, ns, and numbers of each process's steps, [step], in the memory of the table."""
    begin_ns, step = (step_table[name].to_numpy() for name in ("start_ns", "step"))
    row_bounds = np.cumsum([0, *(len(marks.step_numbers) for marks in all_marks.values())]).tolist()
    row_ranges = map(slice, row_bounds, row_bounds[1:])
    return {
        process: (begin_ns[rows], step[rows])
        for process, rows in zip(all_marks, row_ranges, strict=True)
    }
