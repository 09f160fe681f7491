"""A part of a run (`tracelens.model.choice`): its ranks, and the time of the steps that are wanted.

Files of other ranks are not read. Steps and times are windows: the first pass, which finds when they
were, goes over the whole run, so that clocks are tied and steps are numbered as without a choice; what
lies outside of the windows is not read again. A step is here as a whole, with whatever reaches into it
from others; such events and calls count as being in no step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.errors import InvalidArgument
from tracelens.model.calls import NEVER, is_uniform
from tracelens.model.choice import find_empty_range, format_ranges, ranges_of
from tracelens.model.events import Numbered, Source
from tracelens.model.trace import OF_PROCESSES, Note, Trace

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tracelens.arrays import Array, Flags, Ints
    from tracelens.model.calls import CallGrid
    from tracelens.model.choice import Choice
    from tracelens.model.columns import Columns
    from tracelens.model.trace import Moved

__all__ = ["Within", "begin_of", "check_ranks", "cut", "of_ranks", "window_of", "within"]

_SAMPLED: Final = 64  # moments at which a clock is compared with the common one
_MARGIN_NS: Final = 1_000_000
_NO_STEP: Final = -1
_ALWAYS: Final = (-(1 << 62), 1 << 62)


def check_ranks(choice: Choice, there: Collection[int]) -> None:
    """Refuse ranks that the run does not have.

    Raises:
        InvalidArgument: one of the ranges holds none of the ranks that are there.
    """
    missing = None if choice.ranks is None else find_empty_range(choice.ranks, there)
    if missing is not None:
        present = f"it has ranks {format_ranges(ranges_of(there))}" if there else "it has none"
        raise InvalidArgument(
            f"--ranks {missing}: none of them is a worker of this run; {present}."
        )


def of_ranks(trace: Trace, choice: Choice, named: Collection[int] = ()) -> Trace:
    """Leave out the other ranks, of a trace as it was read; servers stay.

    Args:
        trace: Of which files of other ranks may not have been read.
        choice: Stands in the result, without ranks where no rank is left out.
        named: Ranks of the run that need not be in the trace.

    Raises:
        InvalidArgument: ranks are wanted that the run does not have.
    """
    if choice.ranks is None:
        return trace.with_(choice=choice)
    ranks = trace.processes.filter(pl.col("role") == "worker")
    there = {*named, *ranks["rank"]}
    check_ranks(choice, there)
    expected = {*there, *range(trace.expected_ranks - trace.shards.height)}
    if all(map(choice.has_rank, expected)):
        return trace.with_(choice=replace(choice, ranks=None))
    others = {rank for rank in ranks["rank"].unique() if not choice.has_rank(rank)}
    left_out = ranks.filter(pl.col("rank").is_in(others))["process"]
    found = _without(trace, left_out) if len(left_out) else trace
    sentence = _of_ranks_sentence(choice, len(expected), servers=trace.shards.height > 0)
    note = Note("", sentence, "chosen")
    return found.with_(choice=choice, notes=(*found.notes, note))


def _without(trace: Trace, processes: pl.Series) -> Trace:
    """Leave out some processes; the others are numbered anew."""
    kept = trace.processes.filter(~pl.col("process").is_in(processes.implode()))[
        "process"
    ].to_list()
    number = {process: place for place, process in enumerate(kept)}
    tables: dict[str, Any] = {
        name: _renumbered(getattr(trace, name), number) for name in OF_PROCESSES
    }
    source, outlines = trace.source, trace.outlines
    return Trace.from_source(
        Source(
            {number[p]: Numbered(source.parts[p], number[p]) for p in kept if p in source.parts},
            kept={number[p]: source.kept[p] for p in kept if p in source.kept},
        ),
        outlines={number[p]: outlines[p] for p in kept} if outlines else None,
        communicators=trace.communicators,
        notes=trace.notes,
        dropped=trace.dropped,
        path=trace.path,
        recognition=trace.recognition,
        **tables,
    )


def _renumbered(table: pl.DataFrame, number: Mapping[int, int]) -> pl.DataFrame:
    kept = table.filter(pl.col("process").is_in([*number]))
    process = pl.col("process").replace_strict(number, return_dtype=pl.Int32)
    return kept.with_columns(process)


def _of_ranks_sentence(choice: Choice, expected: int, *, servers: bool) -> str:
    limits = " What limits the parameter servers is not judged." if servers else ""
    return (
        f"As asked, only ranks {format_ranges(choice.ranks or ())} of {expected} were read: who of the "
        "others came late to a collective is not known, so waits for them count as exposed "
        f"communication, and savings are upper bounds: ranks that were left out may be as late.{limits}"
    )


def within(trace: Trace) -> Trace:
    """Leave out other steps and times, of a prepared run; as it is if all are wanted.

    Raises:
        InvalidArgument: the run has nothing of it.
    """
    choice = trace.choice
    if choice.steps is None and choice.time is None:
        return trace
    window = window_of(trace, choice)
    steps = trace.steps
    wanted = pl.Series(choice.of_steps(steps["step"].to_numpy()), dtype=pl.Boolean)
    touching = (pl.col("start_ns") < window[1]) & (pl.col("end_ns") > window[0])
    some = steps.filter(wanted).filter(touching)
    numbers = some["step"].unique().to_list()
    if steps.height and not numbers:
        raise InvalidArgument(
            f"Nothing is selected: {replace(choice, ranks=None).description} hold no step of this run, "
            f"whose steps take {_length_s(steps):.6g} s."
        )
    if steps.height and len(numbers) == steps["step"].n_unique():
        return trace.with_(choice=replace(choice, steps=None, time=None))
    resolved = replace(choice, steps=ranges_of(numbers)) if numbers else choice
    kept = steps.filter(pl.col("step").is_in(numbers))
    common = _joined(kept.sort("start_ns")) if kept.height else np.array([window])
    change = Within(
        windows={
            process: _joined(part)
            for (process,), part in kept.sort("start_ns")
            .partition_by("process", as_dict=True)
            .items()
        },
        otherwise=common,
        choice=resolved,
    )
    note = Note("", _of_steps_sentence(choice, resolved, steps["step"].n_unique()), "chosen")
    last = steps["step"].max() if steps.height else None
    return _read_less(trace, change).changed(
        change,
        calls=tuple(change.calls(grid) for grid in trace.calls),
        steps=kept,
        samples=change.samples(trace.samples),
        choice=resolved,
        cut_short=last not in numbers,
        notes=(*trace.notes, note),
    )


def _length_s(steps: pl.DataFrame) -> float:
    first, last = steps.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    return float(last - first) / 1e9


def _of_steps_sentence(asked: Choice, found: Choice, count: int) -> str:
    if not found.steps:
        return f"As asked, only {replace(asked, ranks=None).description} of the run were analyzed."
    reaching = f", those that reach into {asked.texts['time']} s of the run" if asked.time else ""
    return (
        f"As asked, only steps {format_ranges(found.steps)} of {count} were analyzed{reaching}: job "
        "time and shares are of these steps."
    )


def cut(trace: Trace, choice: Choice) -> Trace:
    """Leave out events and samples of other steps and times, to the nanosecond; tables stay.

    Raises:
        InvalidArgument: the run has none of the steps.
    """
    if choice.steps is None and choice.time is None:
        return trace
    begin, end = window_of(trace, choice)
    if choice.steps is not None:
        inside = trace.steps.filter(pl.Series(choice.of_steps(trace.steps["step"].to_numpy())))
        first, last = inside.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
        begin, end = max(begin, first), min(end, last)
    change = Within({}, np.array([(begin, end)]), choice, strict=True)
    return _read_less(trace, change).changed(change, samples=change.samples(trace.samples))


def begin_of(trace: Trace) -> int:
    """Where time begins: with the first step, as on every page; without one, with the first event."""
    starts = (trace.steps["start_ns"], trace.processes["first_ns"])
    found = (times.min() for times in starts if times.count())
    first = next(found, 0)
    return first if isinstance(first, int) else 0


def window_of(trace: Trace, choice: Choice) -> tuple[int, int]:
    """Return the wanted time on the common clock; very long without one.

    Raises:
        InvalidArgument: the run has none of some steps that are wanted.
    """
    there = trace.steps["step"].unique().sort().to_list()
    missing = None if choice.steps is None else find_empty_range(choice.steps, there)
    if missing is not None:
        first, dash, last = missing.partition("-")
        asked = f"{first} on" if dash and not last else f"{first} to {last or first}"
        present = f"it has steps {there[0]} to {there[-1]}" if there else "it has none"
        raise InvalidArgument(f"--steps: this run has no step from {asked}; {present}.")
    if choice.time is None:
        return _ALWAYS
    begin = begin_of(trace)
    return begin + choice.time[0], begin + choice.time[1]


@dataclass(frozen=True, eq=False)
class Within:
    """Keeps the events that touch windows of time, of each process or of all others.

    Windows are begins and ends, [window, 2], in order. An event of another step that reaches into one is
    in no step, or, if `strict`, left out.
    """

    windows: Mapping[int, Ints]
    otherwise: Ints
    choice: Choice
    strict: bool = False
    needs: tuple[str, ...] = (
        "start_ns", "end_ns", "step", "device_start_ns", "device_duration_ns",
    )  # fmt: skip

    def __call__(self, process: int, columns: Columns) -> Columns:
        """Return the columns with fewer rows."""
        start, end = columns.number("start_ns"), columns.number("end_ns")
        length = columns.number("device_duration_ns")
        if np.any(length >= 0):  # a device may do the work long after it was queued
            begun = columns.number("device_start_ns")
            start = np.where(length >= 0, np.minimum(start, begun), start)
            end = np.where(length >= 0, np.maximum(end, begun + length), end)
        rows = np.flatnonzero(self.touched(process, start, end))
        step = columns.number("step")[rows]
        others = (step >= 0) & ~self.choice.of_steps(step)
        if self.strict and others.any():
            rows, step, others = rows[~others], step[~others], others[~others]
        found = columns.taken(rows)
        return found.replaced(step=np.where(others, _NO_STEP, step)) if others.any() else found

    def only(self, process: int) -> Within:
        """Return the windows of one process."""
        windows = {process: self.windows[process]} if process in self.windows else {}
        return replace(self, windows=windows)

    def of(self, process: int) -> Ints:
        """Return the windows of a process."""
        return self.windows.get(process, self.otherwise)

    def touched(self, process: int, start: Ints, end: Ints) -> Flags:
        """Return what touches a window; what has no length touches it from its begin on."""
        begins, ends = self.of(process).T
        place = np.searchsorted(ends, start, side="right")
        there = place < len(ends)
        begin = begins[np.minimum(place, len(ends) - 1)]
        return np.asarray(there & ((begin < end) | (begin <= start)))

    def calls(self, grid: CallGrid) -> CallGrid:
        """Return the calls that any of their ranks made in its windows."""
        kept = np.zeros(grid.height, np.bool_)
        for column, process in enumerate(grid.processes.tolist()):
            start, end = grid.start_ns[:, column], grid.end_ns[:, column]
            kept |= (start != NEVER) & self.touched(process, start, end)
        found = grid.taken(np.flatnonzero(kept))
        return replace(found, step=self._steps(found.step))

    def _steps(self, step: Array) -> Array:
        if is_uniform(step) and step.shape[1]:
            return np.broadcast_to(self._numbered(step[:, 0])[:, None], step.shape)
        return self._numbered(step)

    def _numbered(self, step: Array) -> Array:
        return np.where(self.choice.of_steps(step), step, np.int32(_NO_STEP))

    def samples(self, samples: pl.DataFrame) -> pl.DataFrame:
        """Return the samples of stacks that touch the windows."""
        parts = samples.partition_by("process", as_dict=True, maintain_order=True)
        kept = [
            part.filter(
                pl.Series(
                    self.touched(process, part["start_ns"].to_numpy(), part["end_ns"].to_numpy()),
                    dtype=pl.Boolean,
                )
            )
            for (process,), part in parts.items()
        ]
        return pl.concat([samples.clear(), *kept])


def _joined(steps: pl.DataFrame) -> Ints:
    """Return the windows of some steps, in order of begin; those that touch are one."""
    start = steps["start_ns"].to_numpy()
    end = np.maximum.accumulate(steps["end_ns"].to_numpy())
    new = np.append(True, start[1:] > end[:-1])
    last = np.append(np.flatnonzero(new)[1:] - 1, len(start) - 1)
    return np.stack([start[new], end[last]], axis=1)


def _read_less(trace: Trace, change: Within) -> Trace:
    """Have recordings read only around the windows; what a device did may lie anywhere."""
    if trace.outlines is None or trace.device_clocks.height:
        return trace
    parts = {
        process: part.trim_to(*_own_times(change.of(process), trace, process))
        for process, part in trace.source.parts.items()
    }
    source = replace(trace.source, parts=parts)
    return trace.with_(parts=source)


def _own_times(windows: Ints, trace: Trace, process: int) -> tuple[int, int]:
    """Return a time on a process's own clock in which all of its windows surely lie."""
    first, last = int(windows[0, 0]), int(windows[-1, 1])
    assert trace.outlines is not None
    outline, moved = trace.outlines[process], trace.moved.get(process)
    low, high = _ahead(moved, outline.first_ns or 0, outline.last_ns or 0)
    return first - high - _MARGIN_NS, last - low + _MARGIN_NS


def _ahead(moved: Moved | None, first: int, last: int) -> tuple[int, int]:
    """Return by how much the common clock is ahead of a process's own, at least and at most."""
    if moved is None:
        return 0, 0
    own = np.linspace(first, last, _SAMPLED).astype(np.int64)
    ahead = moved.apply(own) - own
    low, high = int(ahead.min()), int(ahead.max())
    return low - (high - low), high + (high - low)
