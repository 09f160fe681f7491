"""Selects a part of a run (`tracelens.model.choice`): some ranks, and the time of some steps.

Files of other ranks are not read. Steps and times are windows of time. The first pass finds them in the
whole run, so that clocks are tied and steps are numbered as without a choice; the second one reads no
more than the windows. A selected step is complete. Events and calls that reach into it from other steps
are kept, and count as being in no step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.errors import InvalidArgument
from tracelens.model.calls import NEVER, repeats_one_column
from tracelens.model.choice import find_empty_range, format_ranges, to_ranges
from tracelens.model.events import Renumbered, Source, select_process
from tracelens.model.intervals import Intervals
from tracelens.model.trace import OF_PROCESSES, Note, Trace

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from tracelens.arrays import Array, Flags, Ints
    from tracelens.model.calls import CallGrid
    from tracelens.model.choice import Choice
    from tracelens.model.clock_map import ClockMap
    from tracelens.model.columns import Columns

SAMPLED_TIMES: Final = 64  # at which a clock is compared with the common one
MARGIN_NS: Final = 1_000_000  # that is read around windows
_NO_STEP: Final = -1
_ALL_TIME_NS: Final = (-(1 << 62), 1 << 62)


def check_ranks(choice: Choice, present: Collection[int]) -> None:
    """Refuse ranks that the run does not have.

    Raises:
        InvalidArgument: one of the ranges holds none of the ranks that are `present`.
    """
    empty_range = (
        None if choice.rank_ranges is None else find_empty_range(choice.rank_ranges, present)
    )
    if empty_range is not None:
        actual = f"it has ranks {format_ranges(to_ranges(present))}" if present else "it has none"
        raise InvalidArgument(
            f"--ranks {empty_range}: none of them is a worker of this run; {actual}."
        )


def select_ranks(trace: Trace, choice: Choice, file_ranks: Collection[int] = ()) -> Trace:
    """Leave out the other ranks, of a trace as it was read; servers stay.

    Args:
        trace: Files of other ranks may not have been read.
        choice: Stands in the result, without ranks where no rank is left out.
        file_ranks: Ranks that files are named after; they need not be in the trace.

    Raises:
        InvalidArgument: ranks are wanted that the run does not have.
    """
    if choice.rank_ranges is None:
        return trace.with_(choice=choice)
    workers = trace.processes.filter(pl.col("role") == "worker")
    present_ranks = {*file_ranks, *workers["rank"]}
    check_ranks(choice, present_ranks)
    expected_ranks = {*present_ranks, *range(trace.expected_ranks - trace.shards.height)}
    if all(map(choice.has_rank, expected_ranks)):
        return trace.with_(choice=replace(choice, rank_ranges=None))
    other_ranks = {rank for rank in workers["rank"].unique() if not choice.has_rank(rank)}
    left_out_processes = workers.filter(pl.col("rank").is_in(other_ranks))["process"]
    selected_trace = _leave_out(trace, left_out_processes) if len(left_out_processes) else trace
    limits = " What limits the parameter servers is not judged." if trace.shards.height else ""
    sentence = (
        f"As asked, only ranks {format_ranges(choice.rank_ranges)} of {len(expected_ranks)} were read: "
        "who of the others came late to a collective is not known, so waits for them count as exposed "
        "communication, and savings are upper bounds: ranks that were left out may be as "
        f"late.{limits}"
    )
    note = Note(file="", sentence=sentence, kind="chosen")
    return selected_trace.with_(choice=choice, notes=(*selected_trace.notes, note))


def _leave_out(trace: Trace, processes: pl.Series) -> Trace:
    """Return the trace without some processes; the others are numbered anew."""
    is_kept = ~pl.col("process").is_in(processes.implode())
    kept_processes = trace.processes.filter(is_kept)["process"].to_list()
    new_number_by_process = {process: index for index, process in enumerate(kept_processes)}
    source, outlines = trace.source, trace.outlines
    tables: dict[str, Any] = {
        name: _renumber(getattr(trace, name), new_number_by_process) for name in OF_PROCESSES
    }
    part_by_process = {
        new: Renumbered(source.part_by_process[old], new)
        for old, new in new_number_by_process.items()
        if old in source.part_by_process
    }
    packed_by_process = {
        new: source.packed_by_process[old]
        for old, new in new_number_by_process.items()
        if old in source.packed_by_process
    }
    return Trace.from_source(
        Source(part_by_process, packed_by_process=packed_by_process),
        outlines={new: outlines[old] for old, new in new_number_by_process.items()}
        if outlines
        else None,
        communicators=trace.communicators,
        notes=trace.notes,
        dropped=trace.dropped,
        path=trace.path,
        recognition=trace.recognition,
        **tables,
    )


def _renumber(table: pl.DataFrame, new_number_by_old: Mapping[int, int]) -> pl.DataFrame:
    process = pl.col("process").replace_strict(new_number_by_old, return_dtype=pl.Int32)
    return table.filter(pl.col("process").is_in([*new_number_by_old])).with_columns(process)


def select_steps(trace: Trace) -> Trace:
    """Return the trace without other steps and times than its choice has.

    Raises:
        InvalidArgument: the run has nothing of it.
    """
    choice, steps = trace.choice, trace.steps
    if choice.step_ranges is None and choice.time_range_ns is None:
        return trace
    begin_ns, end_ns = resolve_window(trace, choice)
    is_wanted = pl.Series(choice.flag_chosen_steps(steps["step"].to_numpy()), dtype=pl.Boolean)
    is_inside = (pl.col("start_ns") < end_ns) & (pl.col("end_ns") > begin_ns)
    step_numbers = steps.filter(is_wanted).filter(is_inside)["step"].unique().to_list()
    step_count = steps["step"].n_unique()
    if steps.height and not step_numbers:
        selection = replace(choice, rank_ranges=None).description
        raise InvalidArgument(
            f"Nothing is selected: {selection} hold no step of this run, "
            f"whose steps take {_measure_length_s(steps):.6g} s."
        )
    if steps.height and len(step_numbers) == step_count:
        return trace.with_(choice=replace(choice, step_ranges=None, time_range_ns=None))
    resolved_choice = (
        replace(choice, step_ranges=to_ranges(step_numbers)) if step_numbers else choice
    )
    selected_steps = steps.filter(pl.col("step").is_in(step_numbers))
    windows = {
        process: _merge_windows(process_steps)
        for process, process_steps in _split_by_process(selected_steps)
    }
    other_windows = (
        _merge_windows(selected_steps) if selected_steps.height else np.array([(begin_ns, end_ns)])
    )
    change = WindowSelection(
        windows_by_process=windows, other_windows=other_windows, choice=resolved_choice
    )
    sentence = _describe_selection(choice, resolved_choice, step_count)
    note = Note(file="", sentence=sentence, kind="chosen")
    last_step = steps["step"].max() if steps.height else None
    return _read_less(trace, change).with_change(
        change,
        calls=tuple(change.select_calls(grid) for grid in trace.calls),
        steps=selected_steps,
        samples=change.select_samples(trace.samples),
        choice=resolved_choice,
        is_cut_short=last_step not in step_numbers,
        notes=(*trace.notes, note),
    )


def _measure_length_s(steps: pl.DataFrame) -> float:
    first, last = steps.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    return float(last - first) / 1e9


def _describe_selection(request: Choice, resolved_choice: Choice, step_count: int) -> str:
    """Return the sentence of the note on selected steps; the run has `step_count`."""
    if not resolved_choice.step_ranges:
        selection = replace(request, rank_ranges=None).description
        return f"As asked, only {selection} of the run were analyzed."
    reaching = (
        f", those that reach into {request.text_by_option['time']} s of the run"
        if request.time_range_ns
        else ""
    )
    steps_text = format_ranges(resolved_choice.step_ranges)
    return (
        f"As asked, only steps {steps_text} of {step_count} were analyzed{reaching}: "
        "job time and shares are of these steps."
    )


def cut_to_choice(trace: Trace, choice: Choice) -> Trace:
    """Leave out events and samples of other steps and times, to the nanosecond; tables stay.

    No process has windows of its own: the same window of the common clock counts for all.

    Raises:
        InvalidArgument: the run has none of the steps.
    """
    if choice.step_ranges is None and choice.time_range_ns is None:
        return trace
    begin_ns, end_ns = resolve_window(trace, choice)
    if choice.step_ranges is not None:
        chosen_steps = trace.steps.filter(
            pl.Series(choice.flag_chosen_steps(trace.steps["step"].to_numpy()))
        )
        first_ns, last_ns = chosen_steps.select(
            pl.col("start_ns").min(), pl.col("end_ns").max()
        ).row(0)
        begin_ns, end_ns = max(begin_ns, first_ns), min(end_ns, last_ns)
    change = WindowSelection(
        windows_by_process={},
        other_windows=np.array([(begin_ns, end_ns)]),
        choice=choice,
        is_strict=True,
    )
    return _read_less(trace, change).with_change(
        change, samples=change.select_samples(trace.samples)
    )


def find_begin(trace: Trace) -> int:
    """Return when time begins, ns: with the first step, as on every page, or with the first event."""
    columns = (trace.steps["start_ns"], trace.processes["first_ns"])
    first_ns = next((times.min() for times in columns if times.count()), 0)
    return first_ns if isinstance(first_ns, int) else 0


def resolve_window(trace: Trace, choice: Choice) -> tuple[int, int]:
    """Return begin and end of the wanted time on the common clock; very long without one.

    Raises:
        InvalidArgument: the run has none of some steps that are wanted.
    """
    present = trace.steps["step"].unique().sort().to_list()
    empty_range = (
        None if choice.step_ranges is None else find_empty_range(choice.step_ranges, present)
    )
    if empty_range is not None:
        first, dash, last = empty_range.partition("-")
        asked_text = f"{first} on" if dash and not last else f"{first} to {last or first}"
        present_text = f"it has steps {present[0]} to {present[-1]}" if present else "it has none"
        raise InvalidArgument(f"--steps: this run has no step from {asked_text}; {present_text}.")
    if choice.time_range_ns is None:
        return _ALL_TIME_NS
    begin_ns = find_begin(trace)
    first_ns, last_ns = choice.time_range_ns
    return begin_ns + first_ns, begin_ns + last_ns


@dataclass(frozen=True, eq=False)
class WindowSelection:
    """Keeps the events that touch windows of time.

    `other_windows` are those of processes that `windows_by_process` lacks. All are begins and ends in
    order, [window, 2], ns. An event of another step that reaches into a window is in no step, or, if
    `is_strict`, left out.
    """

    windows_by_process: Mapping[int, Ints]
    other_windows: Ints
    choice: Choice
    is_strict: bool = False
    needed_columns: tuple[str, ...] = (
        "start_ns", "end_ns", "step", "device_start_ns", "device_duration_ns",
    )  # fmt: skip

    def __call__(self, process: int, columns: Columns) -> Columns:
        """Return the events of a process that touch its windows; see the class for other steps."""
        start_ns, end_ns = columns.number_column("start_ns"), columns.number_column("end_ns")
        device_lengths_ns = columns.number_column("device_duration_ns")
        is_timed = device_lengths_ns >= 0
        if is_timed.any():  # a device may do the work long after it was queued
            device_start_ns = columns.number_column("device_start_ns")
            start_ns = np.where(is_timed, np.minimum(start_ns, device_start_ns), start_ns)
            device_end_ns = device_start_ns + device_lengths_ns
            end_ns = np.where(is_timed, np.maximum(end_ns, device_end_ns), end_ns)
        rows = np.flatnonzero(self.flag_touching(process, start_ns, end_ns))
        step = columns.number_column("step")[rows]
        is_other = (step >= 0) & ~self.choice.flag_chosen_steps(step)
        if self.is_strict:
            return columns.take(rows[~is_other])
        selected = columns.take(rows)
        if not is_other.any():
            return selected
        return selected.with_numbers(step=np.where(is_other, _NO_STEP, step))

    def limit_to(self, process: int) -> WindowSelection:
        """Return the windows of one process."""
        windows = select_process(self.windows_by_process, process)
        return replace(self, windows_by_process=windows)

    def windows_of(self, process: int) -> Ints:
        """Return the windows of a process, [window, 2], ns."""
        return self.windows_by_process.get(process, self.other_windows)

    def flag_touching(self, process: int, start_ns: Ints, end_ns: Ints) -> Flags:
        """Find which events touch a window, [event]; one without a length also at a window's begin.

        `start_ns` and `end_ns` are those of a process's events, [event].
        """
        begins_ns, ends_ns = self.windows_of(process).T
        window = np.searchsorted(ends_ns, start_ns, side="right")
        begin_ns = begins_ns[np.minimum(window, len(ends_ns) - 1)]
        return np.asarray((window < len(ends_ns)) & ((begin_ns < end_ns) | (begin_ns <= start_ns)))

    def select_calls(self, grid: CallGrid) -> CallGrid:
        """Return the calls that any of their ranks made in its windows."""
        is_inside = np.zeros(grid.call_count, np.bool_)
        for column, process in enumerate(grid.processes.tolist()):
            start_ns, end_ns = grid.start_ns[:, column], grid.end_ns[:, column]
            is_inside |= (start_ns != NEVER) & self.flag_touching(process, start_ns, end_ns)
        selected = grid.take_calls(np.flatnonzero(is_inside))
        step = selected.step
        if repeats_one_column(step) and step.shape[1]:
            uniform_step = self._renumber_steps(step[:, 0])[:, None]
            return replace(selected, step=np.broadcast_to(uniform_step, step.shape))
        return replace(selected, step=self._renumber_steps(step))

    def _renumber_steps(self, step_numbers: Array) -> Array:
        return np.where(
            self.choice.flag_chosen_steps(step_numbers), step_numbers, np.int32(_NO_STEP)
        )

    def select_samples(self, samples: pl.DataFrame) -> pl.DataFrame:
        """Return the samples of stacks that touch the windows."""
        tables = [
            process_samples.filter(
                pl.Series(
                    self.flag_touching(process, *_get_times_ns(process_samples)), dtype=pl.Boolean
                )
            )
            for process, process_samples in _split_by_process(samples)
        ]
        return pl.concat([samples.clear(), *tables])


def _split_by_process(table: pl.DataFrame) -> Iterator[tuple[int, pl.DataFrame]]:
    parts = table.partition_by("process", as_dict=True, maintain_order=True)
    return ((int(process), part) for (process,), part in parts.items())


def _get_times_ns(table: pl.DataFrame) -> tuple[Ints, Ints]:
    return table["start_ns"].to_numpy(), table["end_ns"].to_numpy()


def _merge_windows(steps: pl.DataFrame) -> Ints:
    """Return the windows of some steps in order, [window, 2], ns; those that touch are one."""
    merged = Intervals.merge(*_get_times_ns(steps))
    return np.stack([merged.start_ns, merged.end_ns], axis=1)


def _read_less(trace: Trace, change: WindowSelection) -> Trace:
    """Return the trace with recordings that are read only around the windows of `change`.

    It stays as it is if devices were recorded, as what a device did may lie anywhere.
    """
    if trace.outlines is None or trace.device_clocks.height:
        return trace
    part_by_process = {
        process: part.trim_to(*_to_own_times(change.windows_of(process), trace, process))
        for process, part in trace.source.part_by_process.items()
    }
    return trace.with_(parts=replace(trace.source, part_by_process=part_by_process))


def _to_own_times(windows: Ints, trace: Trace, process: int) -> tuple[int, int]:
    """Return begin and end, on a process's own clock, between which its windows surely lie, ns.

    `windows` are on the common clock, [window, 2].
    """
    assert trace.outlines is not None
    outline = trace.outlines[process]
    extent_ns = outline.first_ns or 0, outline.last_ns or 0
    low_ns, high_ns = _bound_lead(trace.clock_maps.get(process), *extent_ns)
    return int(windows[0, 0]) - high_ns - MARGIN_NS, int(windows[-1, 1]) - low_ns + MARGIN_NS


def _bound_lead(clock_map: ClockMap | None, first_ns: int, last_ns: int) -> tuple[int, int]:
    """Return by how much the common clock is ahead of a process's own, at least and at most, ns."""
    if clock_map is None:
        return 0, 0
    times_ns = np.linspace(first_ns, last_ns, SAMPLED_TIMES).astype(np.int64)
    lead_ns = clock_map.to_common_ns(times_ns) - times_ns
    low_ns, high_ns = int(lead_ns.min()), int(lead_ns.max())
    return low_ns - (high_ns - low_ns), high_ns + (high_ns - low_ns)
