"""Divides every worker's time into steps, and assigns each event to its step.

A step lasts from the begin of its step span to the begin of the next: so whatever happens between two
step spans (often data loading) is in a step too. The last one ends with its own span, for what follows
is no training; if that never ended, with the training thread's last event. In a profile of devices,
which do their work after it was queued, the first step begins and the last one ends with what devices
do. Where steps were left out as asked, the one before them ends with its own span. Step spans that
overlap are so cut at the next begin, and a note counts them; only a span wholly inside another one is no
step. Where step numbers repeat or fall within a process, as with a loop per epoch, steps are counted
instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.align import repeated_calls, repeated_messages
from tracelens.align.clocks.common import moved_times
from tracelens.align.collectives import gather
from tracelens.distil.outline import in_flight_tracks, outlined
from tracelens.model import fmt
from tracelens.model.calls import NEVER
from tracelens.model.columns import FOREVER
from tracelens.model.outline import NO_COUNTERS, NO_STEPS
from tracelens.model.trace import STEP_COLUMNS, Note

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tracelens.align.repeated_calls import Repeated
    from tracelens.arrays import Array, Flags, Int32s, Ints
    from tracelens.model.calls import CallGrid
    from tracelens.model.columns import Columns
    from tracelens.model.outline import Outline
    from tracelens.model.trace import Moved, Trace

SAMPLES: Final = "samples"


@dataclass(frozen=True, eq=False)
class _Marks:
    """Where the steps of a process begin, in order of time, and what else tells where they end.

    `left_ns` is the end of each step after which steps were left out as asked, else `FOREVER`;
    `last_ns` the end of the last one.
    """

    step: Int32s
    begin_ns: Ints
    left_ns: Ints
    last_ns: int
    recorded: bool  # by step spans; else by the numbers of other spans
    cut: int  # step spans that had not ended when the next one began

    @property
    def disordered(self) -> Flags:
        """Return which numbers are negative, or not above the one before."""
        wrong = np.asarray(self.step < 0)
        wrong[1:] |= self.step[1:] <= self.step[:-1]
        return wrong

    def whole(self) -> _Marks:
        """Return them as one step, from the first begin to the end."""
        return replace(
            self,
            step=np.zeros(min(len(self.step), 1), np.int32),
            begin_ns=self.begin_ns[:1],
            left_ns=np.full(min(len(self.step), 1), FOREVER),
        )

    def of_device(self, device_ns: tuple[int, int] | None, moved: Moved | None) -> _Marks:
        """Return them from a device's first to its last work, where these are in the outer steps."""
        if device_ns is None or not len(self.begin_ns):
            return self
        begin_ns, (first, last) = self.begin_ns.copy(), _moved(np.array(device_ns), moved).tolist()
        if begin_ns[0] < first < self.windows()[1][0]:
            begin_ns[0] = first
        last_ns = last if last > begin_ns[-1] else self.last_ns
        return replace(self, begin_ns=begin_ns, last_ns=last_ns)

    def windows(self) -> tuple[Ints, Ints]:
        """Return begin and end of each step."""
        following = np.append(self.begin_ns[1:], self.last_ns)
        return self.begin_ns, np.minimum(following, self.left_ns)


def divide(trace: Trace) -> Trace:
    """Fill `steps` and the training threads, and complete the events' step numbers."""
    outlines = outlined(trace)
    trace = trace if trace.calls else gather(trace)
    workers = dict(trace.workers.select("process", "rank").sort("process").iter_rows())
    ring = set(trace.processes.filter(pl.col("last_steps").is_not_null())["process"])
    threads = {
        process: thread
        for process in workers
        if process in outlines and (thread := outlines[process].training_thread) is not None
    }
    marks = {
        process: _marks(outlines[process], trace.moved.get(process), cut_short=process in ring)
        for process in threads
    }
    marks, how = _completed(marks, trace)
    if trace.recognition is not None:  # a profile, which times each kernel
        marks = {
            process: one.of_device(outlines[process].device_ns, trace.moved.get(process))
            for process, one in marks.items()
        }
    marks, renumbered = _numbered(marks)
    tracks = in_flight_tracks(trace)
    places = {
        process: (*([threads[process]] if process in threads else []), *tracks.get(process, ()))
        for process in marks
    }
    numbering = Numbering(
        {process: (one.begin_ns, one.step) for process, one in marks.items()},
        places,
        everywhere=bool(renumbered),
    )
    done = {
        process: _samples(outlines[process], numbering, process, trace.moved.get(process))
        for process in marks
    }
    table = _table(marks, done, workers)
    return trace.changed(
        replace(numbering, windows=_windows(table, marks)),
        calls=tuple(_numbered_calls(grid, numbering) for grid in trace.calls),
        outlines={
            process: replace(one, steps=NO_STEPS, counters=NO_COUNTERS)
            for process, one in outlines.items()
        },  # the table holds them from here on
        steps=table,
        processes=_with_threads(trace.processes, threads),
        notes=(*trace.notes, *_overlapping(marks), *how, *renumbered),
    )


def _marks(found: Outline, moved: Moved | None, *, cut_short: bool) -> _Marks:
    """Return where the steps of a process begin, on the common clock."""
    spans = found.steps
    times = _moved(np.concatenate([spans.start_ns, spans.end_ns, [found.training_last_ns]]), moved)
    begin, end = times[:-1].reshape(2, -1)
    last = int(times[-1])
    chosen = np.arange(len(begin))
    apart = (begin[1:] > begin[:-1]) & (begin[1:] >= end[:-1])
    if not (apart.all() and spans.on_training.all()):
        order = np.lexsort((spans.depth, -end, begin))
        order = order[spans.on_training[order]]
        chosen = order[outermost(begin[order], end[order])]
    cut = np.count_nonzero(begin[chosen][1:] < end[chosen][:-1])
    step, at = spans.step[chosen], begin[chosen]
    recorded = bool(len(chosen))
    if not recorded:
        step, at = found.implied[0], _moved(found.implied[1], moved)
        by_time = np.argsort(at, kind="stable")
        step, at = step[by_time], at[by_time]
    left = np.full(len(step), FOREVER)
    if cut_short:
        for place in np.flatnonzero(np.diff(step) > 1).tolist():
            ends = end[(spans.step == step[place]) & (end != FOREVER)]
            left[place] = ends.max(initial=NEVER) if len(ends) else FOREVER
    own = end[spans.on_training & (begin == at[-1]) & (end != FOREVER)] if len(at) else end[:0]
    return _Marks(step, at, left, int(own.max()) if len(own) else last, recorded, int(cut))


def outermost(begin: Ints, end: Ints) -> Flags:
    """Return which spans are not wholly inside an earlier one.

    Args:
        begin: Ascending.
        end: Of those that begin at once, the latest first.
    """
    outer = np.ones(len(begin), np.bool_)
    before = np.maximum.accumulate(end)[:-1]
    outer[1:] = (begin[1:] >= before) | (end[1:] > before)
    return outer


def _moved(times: Ints, moved: Moved | None) -> Ints:
    return times if moved is None else moved_times(moved, times, FOREVER)


def _overlapping(marks: Mapping[int, _Marks]) -> list[Note]:
    """Count the step spans that are cut, among all of the processes that have any."""
    some = [one for one in marks.values() if one.cut]
    if not some:
        return []
    cut, spans = sum(one.cut for one in some), sum(len(one.step) for one in some)
    where = f"{fmt.count(spans, 'step span')} of {fmt.count(len(some), 'process', 'processes')}"
    verbs = ("overlaps", "it is") if cut == 1 else ("overlap", "each is")
    sentence = (
        f"{cut:,} of {where} {verbs[0]} the next: {verbs[1]} taken to end where the next begins."
    )
    return [Note(file="", sentence=sentence, kind="incomplete")]


def _completed(marks: dict[int, _Marks], trace: Trace) -> tuple[dict[int, _Marks], list[Note]]:
    """Look for steps elsewhere where none were recorded, and note where from they are.

    The last calls of a run have none: nothing is known of the time around them.
    """
    if trace.is_snapshot:
        return {}, []
    without = [process for process, one in marks.items() if not one.recorded]
    if not without:
        return marks, []
    counts = {len(marks[process].step) for process in without}
    joint = len(without) == len(marks)
    how = (
        "their steps are taken from the step numbers of other events, or the updates that end them"
    )
    if max(counts) < 2 or (joint and len(counts) > 1):
        found = _repeating(trace, marks) if joint else None
        if found:
            how = f"their steps are taken from {found.what}"
            marks = {process: _repeated(one, found, process) for process, one in marks.items()}
        else:
            how = "nothing says where steps begin, so the whole run counts as one"
            marks = {process: one.whole() for process, one in marks.items()}
    sentence = (
        f"{len(without)} of {len(marks)} workers recorded no step spans: {how}; mark steps with "
        "tl.step(i), or in a table with a column 'step'."
    )
    return marks, [Note(file="", sentence=sentence, kind="incomplete")]


def _repeating(trace: Trace, marks: Mapping[int, _Marks]) -> Repeated | None:
    """Return the steps by what comes back most often: collectives, or messages between ranks."""
    calls = repeated_calls.find(trace.calls, marks)
    outlines = trace.outlines or {}
    messages = None
    if all(process in outlines and outlines[process].messages for process in marks):
        messages = repeated_messages.find(trace.sent, marks)
    if calls is None and messages is None:
        of_groups = repeated_calls.calls_of_groups(trace.calls, marks)
        return repeated_messages.find_calls(of_groups, marks)
    if calls is None or messages is None:
        return calls or messages
    return max(calls, messages, key=lambda one: one.often)  # of equals, the first


def _repeated(one: _Marks, found: Repeated, process: int) -> _Marks:
    begin = found.begins_ns[process]
    step = np.arange(len(begin), dtype=np.int32)
    left = np.full(len(step), FOREVER)
    return replace(one, step=step, begin_ns=begin, left_ns=left, last_ns=found.last_ns[process])


def _numbered(marks: dict[int, _Marks]) -> tuple[dict[int, _Marks], list[Note]]:
    """Keep step numbers if they rise in every process, else count steps from 0 in all."""
    bad = {process: one for process, one in marks.items() if one.disordered.any()}
    if not bad:
        return marks, []
    first = bad[min(bad)]
    step = first.step[first.disordered][0]
    sentence = (
        f"Step numbers repeat or fall in {len(bad)} processes (first at step "
        f"{step}): steps are counted from 0 in order of time instead."
    )
    counted = {
        process: replace(
            one,
            step=np.arange(len(one.step), dtype=np.int32),
            left_ns=np.full(len(one.step), FOREVER),
        )
        for process, one in marks.items()
    }
    return counted, [Note(file="", sentence=sentence, kind="renumbered")]


@dataclass(frozen=True, eq=False)
class Numbering:
    """Gives events the step in whose window they begin.

    Only those without a step, of the threads in `places` (training threads and tracks in flight);
    all of them with `everywhere`, when the recorded numbers have lost their meaning.
    """

    windows: Mapping[int, tuple[Ints, Int32s]]  # by process: begins, and their steps
    places: Mapping[int, tuple[int, ...]]
    everywhere: bool = False
    needs: tuple[str, ...] = ("start_ns", "step", "thread")

    def __call__(self, process: int, columns: Columns) -> Columns:
        """Return the columns with other steps."""
        if process not in self.windows:
            return columns
        start, thread, step = (columns.number(name) for name in ("start_ns", "thread", "step"))
        return columns.replaced(step=self.steps_of(process, start, thread, step))

    def only(self, process: int) -> Numbering:
        """Return the windows of one process."""
        if process not in self.windows:
            return Numbering({}, {})
        windows, places = {process: self.windows[process]}, {process: self.places[process]}
        return Numbering(windows, places, self.everywhere)

    def steps_of(self, process: int, start_ns: Ints, thread: Array, step: Array) -> Array:
        """Return the steps of some events of a process."""
        begins, numbers = self.windows[process]
        if self.everywhere:
            lost = np.arange(len(step))
        else:
            lost = np.flatnonzero(step < 0)
            lost = lost[np.isin(thread[lost], self.places[process])] if len(lost) else lost
        if not len(lost):
            return step
        window = np.searchsorted(begins, start_ns[lost], side="right") - 1
        found = step.astype(np.int32)
        found[lost] = np.where(window < 0, -1, numbers[window])
        return found


def _numbered_calls(grid: CallGrid, numbering: Numbering) -> CallGrid:
    """Give calls without a step the one in whose window they begin."""
    if not numbering.everywhere and not (grid.step < 0).any():
        return grid
    step = np.array(grid.step)
    for column, process in enumerate(grid.processes.tolist()):
        if process in numbering.windows:
            start, thread = grid.start_ns[:, column], grid.thread[:, column]
            step[:, column] = numbering.steps_of(process, start, thread, step[:, column])
    return replace(grid, step=step)


def _samples(
    found: Outline, numbering: Numbering, process: int, moved: Moved | None
) -> tuple[Array, Array]:
    """Return how many samples a process says to have worked through: step, sum."""
    counters = found.counters
    rows = np.flatnonzero(
        np.array([*(name == SAMPLES for name in counters.names), False])[counters.name]
    )
    at = _moved(counters.at_ns[rows], moved)
    steps = numbering.steps_of(process, at, counters.thread[rows], counters.step[rows])
    if (steps[1:] > steps[:-1]).all():
        return steps, counters.value[rows]
    known, place = np.unique(steps, return_inverse=True)
    return known, np.bincount(place, counters.value[rows], minlength=len(known))


def _table(
    marks: Mapping[int, _Marks], done: Mapping[int, Any], ranks: Mapping[int, int]
) -> pl.DataFrame:
    """Return the windows of all workers, in `STEP_COLUMNS`, by process and time."""
    parts = list(_columns(marks, done, ranks))
    if not parts:
        return pl.DataFrame(schema=STEP_COLUMNS)
    columns = dict(zip(STEP_COLUMNS, map(np.concatenate, zip(*parts, strict=True)), strict=True))
    samples = pl.Series(columns.pop("samples")).fill_nan(None)
    table = pl.DataFrame(columns).with_columns(samples=samples)
    return table.select(pl.col(name).cast(kind) for name, kind in STEP_COLUMNS.items())


def _windows(table: pl.DataFrame, marks: Mapping[int, _Marks]) -> dict[int, tuple[Ints, Int32s]]:
    """Return where the steps of each process begin, and their numbers, as the table holds them."""
    begin, step = (table[name].to_numpy() for name in ("start_ns", "step"))
    first = np.cumsum([0, *(len(one.step) for one in marks.values())]).tolist()
    rows = map(slice, first, first[1:])
    return {process: (begin[some], step[some]) for process, some in zip(marks, rows, strict=True)}


def _columns(
    marks: Mapping[int, _Marks], done: Mapping[int, Any], ranks: Mapping[int, int]
) -> Iterator[tuple[Array, ...]]:
    for process, one in marks.items():
        begin, end = one.windows()
        count = len(begin)
        samples = np.full(count, np.nan)
        steps, sums = done[process]
        place = np.searchsorted(steps, one.step)
        there = place < len(steps)
        there[there] = steps[place[there]] == one.step[there]
        samples[there] = sums[place[there]]
        owner = np.full((2, count), [[process], [ranks[process]]], np.int32)
        yield *owner, one.step, begin, end, samples


def _with_threads(processes: pl.DataFrame, threads: Mapping[int, int]) -> pl.DataFrame:
    known = pl.DataFrame(
        {"process": list(threads), "training_thread": list(threads.values())},
        schema={name: processes.schema[name] for name in ("process", "training_thread")},
    )
    joined = processes.drop("training_thread").join(known, on="process", how="left")
    return joined.select(processes.columns).sort("process")
