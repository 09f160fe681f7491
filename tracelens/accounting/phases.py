"""Phases: what every worker's training thread did in every nanosecond of every step.

The innermost recorded phase wins; a user's span within a phase belongs to that phase. Communication on
the thread, and unrecorded time while something of the rank is in flight, is split: ``wait`` while a
collective of the rank has not been entered by all, or a message has not been sent that it awaits,
``ps_queue`` while a shard holds a request of the rank that it has not begun to serve, or the rank stands
at a barrier for its update, else ``transfer``.
What is left is ``idle`` where another record
explains it, else ``uninstrumented``, the rank's own work that no span covers; what lies between steps
that were left out as asked is no step's time.

Where work was timed on a device, what the device did counts, for the thread only queued it; and so does
what threads of their own compute for a training thread that only directs them. One process is read at a
time, so that the events of all are never needed at once. Beside the phases stands
what they are shares of, the job's length (`job_ns`), and the transfer of each step that nothing hides.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.categories import CATEGORIES, OWN_CATEGORIES, UNINSTRUMENTED
from tracelens.accounting.joined import grouped
from tracelens.accounting.partition import Intervals, Pieces
from tracelens.accounting.pieces import (
    SEGMENT_COLUMNS,
    PieceStore,
    Segments,
    categories,
)
from tracelens.accounting.server_queues import server_queues
from tracelens.accounting.thread_activity import all_waits
from tracelens.accounting.weight_updates import WeightUpdates, followed
from tracelens.accounting.workers import Accounted, Amounts, Task, account
from tracelens.caching import cached_property
from tracelens.distil.outline import in_flight_tracks, outlined
from tracelens.memory import BoundedCache, give_back
from tracelens.model.display import DisplayMixin
from tracelens.parallel import at_once, mapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor

    from tracelens.arrays import Array, Flags, Floats, Int32s, Ints
    from tracelens.model.findings import Finding
    from tracelens.model.trace import Trace

__all__ = [
    "CATEGORIES",
    "NO_TIME",
    "OWN_CATEGORIES",
    "SEGMENT_COLUMNS",
    "TIME_COLUMNS",
    "Phases",
    "Pieces",
    "Segments",
    "after_steps",
    "exposed_transfer",
    "in_process_order",
    "job_ns",
    "run",
]


TIME_COLUMNS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int32(),
    "rank": pl.Int32(),
    "step": pl.Int32(),
    "category": pl.Enum(CATEGORIES),
    "ns": pl.Int64(),
}
# rows of a process: threads are not worth their cost for fewer [policy]
MIN_ROWS_FOR_THREADS: Final = 1 << 16
# workers: free memory is returned after each such number [policy]
WORKERS_BETWEEN_RELEASES: Final = 32
NO_TIME: Final = 1 << 62  # ns: where no rank has a least time [definition]


@dataclass(frozen=True, eq=False)
class Phases(DisplayMixin):
    """The partition of every worker's time; per rank and step it sums to the step exactly.

    `pieces` are the touching pieces themselves. `spent` sums them up, [step window, category] in the
    order of `CATEGORIES`, and `hidden_ns` is what communication was in flight under own work, [step
    window], both in nanoseconds; the windows are the rows of `pieces.steps`. `updates` tells of updates
    of weights, `amounts` how much work ranks had, where that was recorded (by name and rank: steps, and
    how much in each), and `spans` how many each process has, of those that were accounted for.
    """

    pieces: Segments
    spent: Array
    hidden_ns: Array
    updates: WeightUpdates
    amounts: Mapping[str, Mapping[int, Amounts]]
    spans: Mapping[int, int]
    findings: tuple[Finding, ...] = ()

    @property
    def segments(self) -> pl.DataFrame:
        """The pieces as rows, in order of process and time, built at each access."""
        return self.pieces.frame()

    @property
    def times(self) -> pl.DataFrame:
        """What was spent as rows, built at each access; only categories that occur."""
        row, category = np.nonzero(self.spent)
        found = self.pieces.steps[row].with_columns(
            category=categories(category), ns=self.spent[row, category].astype(np.int64)
        )
        return found.select(*TIME_COLUMNS)

    @property
    def hidden(self) -> pl.DataFrame:
        """What was hidden as rows, built at each access: one for every step window."""
        ns = self.hidden_ns.astype(np.int64)
        return self.pieces.steps.select("rank", "step").with_columns(ns=ns)

    def of(self, *names: str) -> Ints:
        """Return what was spent in some categories, [step window]."""
        found = np.zeros(len(self.spent), np.int64)
        for name in names:
            found += self.spent[:, CATEGORIES.index(name)]
        return found

    @cached_property
    def steps(self) -> Ints:
        """The numbers of all steps, ascending."""
        return np.unique(self._step).astype(np.int64)

    @cached_property
    def least_transfer(self) -> Ints:
        """The least transfer that a rank had in each step, [step]."""
        return self.least(self.of("transfer"), self.there)

    @cached_property
    def step_places(self) -> Int32s:
        """Where in `steps` each window's step stands, [step window]."""
        return np.searchsorted(self.steps, self._step).astype(np.int32)

    @cached_property
    def there(self) -> Flags:
        """Which windows have a length, [step window]."""
        return np.asarray(self.spent.any(axis=1))

    @property
    def _step(self) -> Int32s:
        return self.pieces.steps["step"].to_numpy()

    def by_step(self, values: Array) -> Ints:
        """Sum whole numbers up by step, [step]."""
        return np.bincount(self.step_places, values, minlength=len(self.steps)).astype(np.int64)

    def by_worker(self, values: Ints) -> Ints:
        """Sum whole numbers up by worker, in the order of `pieces`."""
        begins = self.pieces.begins[:-1]
        return np.add.reduceat(values, begins) if begins else np.zeros(0, np.int64)

    def least(self, values: Ints, among: Flags) -> Ints:
        """Return the least value of each step among some windows, [step]; `NO_TIME` where none is."""
        least = np.full(len(self.steps), NO_TIME)
        np.minimum.at(least, self.step_places[among], values[among])
        return least

    def windows_of(self, processes: Ints, steps: Array) -> Int32s:
        """Return the windows of steps, a column a process, or one for all; -1 where it lacks a step."""
        place = np.searchsorted(self.steps, steps)
        place[np.append(self.steps, -1)[place] != steps] = -1
        worker = {process: at for at, process in enumerate(self.pieces.processes)}
        return self._windows[place, [worker.get(process, -1) for process in processes.tolist()]]

    @cached_property
    def _windows(self) -> Int32s:
        """The window of each step and worker; those of a step or a worker that is none are -1."""
        workers = len(self.pieces)
        table = np.full((len(self.steps) + 1, workers + 1), -1, np.int32)
        owner = np.repeat(np.arange(workers), np.diff(self.pieces.begins))
        table[self.step_places, owner] = np.arange(len(owner))
        return table


def run(
    trace: Trace,
    progress: Callable[[int, int], None] | None = None,
    executor: Executor | None = None,
    memory: int | None = None,
) -> Phases:
    """Divide every worker's steps into categories.

    Args:
        trace: With its steps and calls, as `tracelens.open` returns it.
        progress: Called with (done, total) workers.
        executor: Where workers are accounted for; None = in threads of this process.
        memory: How many bytes of pieces may be held, others are in a temporary file; None = all.
    """
    steps = in_process_order(trace.steps)
    words = _words(trace, steps)
    outlines, workers = outlined(trace), steps["process"].unique().to_list()
    brief = sum(outlines[process].rows for process in workers) < MIN_ROWS_FOR_THREADS * len(workers)
    least = at_once(len(workers), executor) if brief else 1
    tasks = _tasks(trace, steps, words)
    groups = grouped(tasks, lambda task: outlines[task.process].rows, least)
    accounts = mapped(partial(account, cache=BoundedCache()), groups, executor, brief=brief)
    found: Iterator[Accounted] = chain.from_iterable(accounts)
    if progress:
        found = _counted(found, steps["process"].n_unique(), progress)
    return _gathered(found, PieceStore(memory), steps, words)


def in_process_order(steps: pl.DataFrame) -> pl.DataFrame:
    """Return steps by process and time; those that alignment made are, and need no copy."""
    process, start = (steps[name].to_numpy() for name in ("process", "start_ns"))
    later = (process[1:] == process[:-1]) & (start[1:] >= start[:-1])
    if np.all(later | (process[1:] > process[:-1])):
        return steps
    return steps.sort("process", "start_ns")


def _counted(
    found: Iterator[Accounted], count: int, progress: Callable[[int, int], None]
) -> Iterator[Accounted]:
    for done, one in enumerate(found, 1):
        yield one
        progress(done, count)


def _words(trace: Trace, steps: pl.DataFrame) -> tuple[str, ...]:
    """Return the names of spans of all workers."""
    outlines = outlined(trace)
    workers = steps["process"].unique().sort()
    return tuple(dict.fromkeys(name for process in workers for name in outlines[process].names))


def _tasks(trace: Trace, steps: pl.DataFrame, words: tuple[str, ...]) -> Iterator[Task]:
    training = dict(trace.workers.select("process", "training_thread").drop_nulls().iter_rows())
    queues = server_queues(trace).partition_by("process", as_dict=True)
    tracks, every = in_flight_tracks(trace), followed(trace)
    waits = all_waits(trace, steps["process"].unique().sort().to_list())
    for (process, windows, gaps), wait in zip(_windows(steps), waits, strict=True):
        queue = queues.get((process,))
        yield Task(
            process=process,
            source=trace.source.only(process),
            windows=windows,
            gaps=gaps,
            wait=wait,
            queue=_NO_INTERVALS
            if queue is None
            else Intervals(queue["start_ns"].to_numpy(), queue["end_ns"].to_numpy()),
            training=training.get(process),
            tracks=tuple(tracks.get(process, ())),
            words=words,
            every=every,
        )


_NO_INTERVALS: Final = Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64))


def _windows(steps: pl.DataFrame) -> Iterator[tuple[int, Ints, Ints]]:
    """Yield each process, the bounds of its steps, and which of the windows between them are gaps."""
    process, start, end = (steps[name].to_numpy() for name in ("process", "start_ns", "end_ns"))
    known, first = np.unique(process, return_index=True)
    for one, begin, after in zip(known, first, np.append(first, len(process))[1:], strict=True):
        bounds, ends = np.append(start[begin:after], end[after - 1]), end[begin : after - 1]
        apart = np.flatnonzero(ends < bounds[1:-1])
        gaps = apart + 1 + np.arange(len(apart))
        yield int(one), np.insert(bounds, apart + 1, ends[apart]) if len(apart) else bounds, gaps


def _gathered(
    found: Iterable[Accounted], pieces: PieceStore, steps: pl.DataFrame, words: tuple[str, ...]
) -> Phases:
    """Put all workers' accounts together as they come."""
    of_step = steps.select("process", "rank", "step")
    # Of most steps 32 bits are all that is needed; and memory that is never written to takes none.
    spent = np.zeros((len(CATEGORIES), steps.height), np.int32)
    hidden = np.zeros(steps.height, spent.dtype)
    begins, done = [0], []
    for count, one in enumerate(found, 1):
        begins.append(begins[-1] + len(one.hidden))
        if one.hidden.itemsize > hidden.itemsize:
            spent, hidden = spent.astype(np.int64), hidden.astype(np.int64)
        spent[one.categories, begins[-2] : begins[-1]] = one.spent
        hidden[begins[-2] : begins[-1]] = one.hidden
        pieces.append(one.pieces)
        done.append((one.updates, one.amounts, one.spans))
        if count % WORKERS_BETWEEN_RELEASES == 0:
            give_back()
    updates, amounts, spans = zip(*done, strict=True) if done else ((), (), ())
    segments = Segments(pieces, tuple(begins), of_step, words)
    owners = of_step[begins[:-1]].select("process", "rank").rows()
    left_out = after_steps(steps).to_numpy()
    spent[UNINSTRUMENTED] -= np.minimum(left_out, spent[UNINSTRUMENTED])
    return Phases(
        pieces=segments,
        spent=spent.T,
        hidden_ns=hidden,
        updates=WeightUpdates.of(owners, updates),
        amounts=_by_name([rank for _, rank in owners], amounts),
        spans={process: count for (process, _), count in zip(owners, spans, strict=True)},
    )


def _by_name(
    ranks: list[int], found: Sequence[dict[str, Amounts]]
) -> dict[str, dict[int, Amounts]]:
    """Put all ranks' amounts together; ranks that work equally much share their arrays."""
    named: dict[str, dict[int, Amounts]] = {}
    like: dict[str, Amounts] = {}
    for rank, amounts in zip(ranks, found, strict=True):
        for name, mine in amounts.items():
            other = like.get(name, mine)
            equal = all(map(np.array_equal, mine, other))
            like[name] = named.setdefault(name, {})[rank] = other if equal else mine
    return named


def job_ns(trace: Trace) -> int:
    """Return the time from the first rank's first step to the end of the last one; 0 without steps.

    What was left out as asked, between steps that were kept, does not count: on average of the ranks.
    """
    start, end = trace.steps["start_ns"].min(), trace.steps["end_ns"].max()
    if not isinstance(start, int) or not isinstance(end, int):
        return 0
    return end - start - int(after_steps(trace.steps).sum()) // trace.steps["process"].n_unique()


def after_steps(steps: pl.DataFrame) -> pl.Series:
    """Return how long after each step the next of its process begins: 0, but where steps were left out.

    `steps` is in order of process and time.
    """
    process, start, end = (steps[name].to_numpy() for name in ("process", "start_ns", "end_ns"))
    after = np.zeros(len(start), np.int64)
    np.subtract(start[1:], end[:-1], out=after[:-1], where=process[1:] == process[:-1])
    return pl.Series("ns", after)


def exposed_transfer(phases: Phases, steps: Ints) -> Floats:
    """Return nanoseconds for each of `steps`: no step can become shorter by more without transfer."""
    least = phases.least_transfer
    if not len(least):
        return np.zeros(len(steps))
    place = np.minimum(np.searchsorted(phases.steps, steps), len(least) - 1)
    known = (phases.steps[place] == steps) & (least[place] != NO_TIME)
    return np.where(known, least[place], 0).astype(np.float64)
