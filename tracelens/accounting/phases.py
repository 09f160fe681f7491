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
time, so that the events of all are never held together. The phases come with
what they are shares of, the job's length (`job_ns`), and the transfer of each step that nothing hides.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.categories import CATEGORIES, UNINSTRUMENTED
from tracelens.accounting.pieces import PieceStore, Segments, to_category_names
from tracelens.accounting.server_queues import find_server_queues
from tracelens.accounting.thread_activity import find_waits
from tracelens.accounting.weight_updates import WeightUpdates, find_step_interval
from tracelens.accounting.workers import Task, account_all
from tracelens.caching import cached_property
from tracelens.distil.outline import list_in_flight_tracks, list_outlines
from tracelens.memory import BoundedCache, free_unused_memory
from tracelens.model.display import DisplayMixin
from tracelens.model.intervals import Intervals
from tracelens.parallel import choose_batch_size, map_in_order, split_into_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor

    from tracelens.accounting.workers import Account, Amounts
    from tracelens.arrays import Array, Flags, Floats, Int32s, Ints
    from tracelens.model.findings import Finding
    from tracelens.model.trace import Trace

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

    `pieces` are the touching pieces themselves. `spent_ns` sums them up, [step window, category] in the
    order of `CATEGORIES`; `hidden_communication_ns` is what communication was in flight under own work,
    [step window]. The windows are the rows of `pieces.step_windows`. `amounts_by_name` tells how much
    work each rank had, where that was recorded.
    """

    pieces: Segments
    spent_ns: Array
    hidden_communication_ns: Array
    weight_updates: WeightUpdates
    amounts_by_name: Mapping[str, Mapping[int, Amounts]]  # then by rank
    span_count_by_process: Mapping[int, int]  # of the processes that were accounted for
    findings: tuple[Finding, ...] = ()

    @property
    def segments(self) -> pl.DataFrame:
        """The pieces as rows, in order of process and time, built at each access."""
        return self.pieces.to_frame()

    @property
    def times(self) -> pl.DataFrame:
        """What was spent, as rows (`TIME_COLUMNS`) of categories that occur; built at each access."""
        window, category_code = np.nonzero(self.spent_ns)
        times = self.pieces.step_windows[window].with_columns(
            category=to_category_names(category_code),
            ns=self.spent_ns[window, category_code].astype(np.int64),
        )
        return times.select(*TIME_COLUMNS)

    @property
    def hidden_rows(self) -> pl.DataFrame:
        """What was hidden as rows, built at each access: one for every step window."""
        ns = self.hidden_communication_ns.astype(np.int64)
        return self.pieces.step_windows.select("rank", "step").with_columns(ns=ns)

    def sum_ns_by_window(self, *categories: str) -> Ints:
        """Sum the time in some categories, ns, [step window]."""
        total_ns = np.zeros(len(self.spent_ns), np.int64)
        for category in categories:
            total_ns += self.spent_ns[:, CATEGORIES.index(category)]
        return total_ns

    @cached_property
    def step_numbers(self) -> Ints:
        """The numbers of all steps, ascending."""
        return np.unique(self._step_of_window).astype(np.int64)

    @cached_property
    def least_transfer_ns(self) -> Ints:
        """The least transfer that a rank had in each step, [step]; `NO_TIME` where none has a length."""
        return self.find_least_ns_by_step(self.sum_ns_by_window("transfer"), self.window_has_time)

    @cached_property
    def step_index_of_window(self) -> Int32s:
        """The index in `step_numbers` of each window's step, [step window]."""
        return np.searchsorted(self.step_numbers, self._step_of_window).astype(np.int32)

    @cached_property
    def window_has_time(self) -> Flags:
        """Which windows have a length, [step window]."""
        return np.asarray(self.spent_ns.any(axis=1))

    @property
    def _step_of_window(self) -> Int32s:
        return self.pieces.step_windows["step"].to_numpy()

    def sum_by_step(self, values: Array) -> Ints:
        """Sum whole numbers, [step window], up by step, [step]."""
        sums = np.bincount(self.step_index_of_window, values, minlength=len(self.step_numbers))
        return sums.astype(np.int64)

    def sum_by_worker(self, values: Ints) -> Ints:
        """Sum whole numbers, [step window], up by worker, [worker], in the order of `pieces`."""
        first_windows = self.pieces.first_window_of_worker[:-1]
        return np.add.reduceat(values, first_windows) if first_windows else np.zeros(0, np.int64)

    def find_least_ns_by_step(self, times_ns: Ints, is_counted: Flags) -> Ints:
        """Return the least of counted times, [step window], of each step, ns; `NO_TIME` without any."""
        least_ns = np.full(len(self.step_numbers), NO_TIME)
        np.minimum.at(least_ns, self.step_index_of_window[is_counted], times_ns[is_counted])
        return least_ns

    def find_windows(self, processes: Ints, step_numbers: Array) -> Int32s:
        """Return the window of each process and step, which broadcast; -1 where it lacks the step."""
        step_index = np.searchsorted(self.step_numbers, step_numbers)
        step_index[np.append(self.step_numbers, -1)[step_index] != step_numbers] = -1
        worker_by_process = {process: index for index, process in enumerate(self.pieces.processes)}
        worker_index = [worker_by_process.get(process, -1) for process in processes.tolist()]
        return self._window_by_step_and_worker[step_index, worker_index]

    @cached_property
    def _window_by_step_and_worker(self) -> Int32s:
        """The window by [step, worker]; -1 in the last row (no step) and column (no worker)."""
        worker_count = len(self.pieces)
        windows = np.full((len(self.step_numbers) + 1, worker_count + 1), -1, np.int32)
        worker_of_window = np.repeat(
            np.arange(worker_count), np.diff(self.pieces.first_window_of_worker)
        )
        windows[self.step_index_of_window, worker_of_window] = np.arange(len(worker_of_window))
        return windows


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
    outline_by_process = list_outlines(trace)
    processes = steps["process"].unique().sort().to_list()
    outlines = [outline_by_process[process] for process in processes]
    span_names = tuple(dict.fromkeys(name for outline in outlines for name in outline.span_names))
    row_count = sum(outline.event_count for outline in outlines)
    is_brief = row_count < MIN_ROWS_FOR_THREADS * len(processes)
    batches = split_into_batches(
        _list_tasks(trace, steps, processes, span_names),
        choose_batch_size(len(processes), executor) if is_brief else 1,
    )
    account = partial(account_all, cache=BoundedCache())
    accounts: Iterator[Account] = chain.from_iterable(
        map_in_order(account, batches, executor, brief=is_brief)
    )
    if progress:
        accounts = _report_progress(accounts, len(processes), progress)
    return _gather(accounts, PieceStore(memory), steps, span_names)


def in_process_order(steps: pl.DataFrame) -> pl.DataFrame:
    """Return steps by process and time; those that alignment made are, and need no copy."""
    process, start_ns = (steps[name].to_numpy() for name in ("process", "start_ns"))
    is_later = (process[1:] == process[:-1]) & (start_ns[1:] >= start_ns[:-1])
    if np.all(is_later | (process[1:] > process[:-1])):
        return steps
    return steps.sort("process", "start_ns")


def _report_progress(
    accounts: Iterable[Account], count: int, progress: Callable[[int, int], None]
) -> Iterator[Account]:
    for done, account in enumerate(accounts, 1):
        yield account
        progress(done, count)


def _list_tasks(
    trace: Trace, steps: pl.DataFrame, processes: list[int], span_names: tuple[str, ...]
) -> Iterator[Task]:
    """Yield the task of each worker (a process); `steps` has a row per step, by process and time."""
    thread_by_process = dict(trace.workers.select("process", "training_thread").drop_nulls().rows())
    queues = find_server_queues(trace)  # a row per stretch of a request's queue
    queues_by_process = queues.partition_by("process", as_dict=True)
    tracks_by_process, step_interval = list_in_flight_tracks(trace), find_step_interval(trace)
    all_waits = find_waits(trace, processes)
    for (process, bounds_ns, gaps), waits in zip(_find_windows(steps), all_waits, strict=True):
        own_queues = queues_by_process.get((process,), queues.clear())
        yield Task(
            process=process,
            source=trace.source.limit_to(process),
            window_bounds_ns=bounds_ns,
            gap_windows=gaps,
            wait_intervals=waits,
            queue_intervals=Intervals(
                own_queues["start_ns"].to_numpy(), own_queues["end_ns"].to_numpy()
            ),
            training_thread=thread_by_process.get(process),
            flight_tracks=tuple(tracks_by_process.get(process, ())),
            span_names=span_names,
            step_interval=step_interval,
        )


def _find_windows(steps: pl.DataFrame) -> Iterator[tuple[int, Ints, Ints]]:
    """Yield each process, its windows' bounds, ns, [window + 1], and the indices of those that are gaps.

    Windows touch: each is a step, or the gap before the next step. `steps` has one row per step, by
    process and time.
    """
    owners, start_ns, end_ns = (
        steps[name].to_numpy() for name in ("process", "start_ns", "end_ns")
    )
    processes, first_rows = np.unique(owners, return_index=True)
    stop_rows = np.append(first_rows, len(owners))[1:]
    for process, first, stop in zip(processes.tolist(), first_rows, stop_rows, strict=True):
        bounds_ns = np.append(start_ns[first:stop], end_ns[stop - 1])
        inner_end_ns = end_ns[first : stop - 1]
        before_gap = np.flatnonzero(inner_end_ns < bounds_ns[1:-1])
        if len(before_gap):
            bounds_ns = np.insert(bounds_ns, before_gap + 1, inner_end_ns[before_gap])
        yield process, bounds_ns, before_gap + 1 + np.arange(len(before_gap))


def _gather(
    accounts: Iterable[Account], store: PieceStore, steps: pl.DataFrame, span_names: tuple[str, ...]
) -> Phases:
    """Put the accounts of all workers, in order, together; `store` takes the pieces.

    `steps` has one row per step window, by worker and time; pieces refer to `span_names` by index.
    """
    windows = steps.select("process", "rank", "step")
    # Of most steps 32 bits are all that is needed; and memory that is never written to takes none.
    spent_ns = np.zeros((len(CATEGORIES), steps.height), np.int32)  # [category, window]
    hidden_ns = np.zeros(steps.height, spent_ns.dtype)  # [window]
    first_windows, results = [0], []
    for count, account in enumerate(accounts, 1):
        first_windows.append(first_windows[-1] + len(account.hidden_ns))
        own_windows = slice(*first_windows[-2:])
        if account.hidden_ns.itemsize > hidden_ns.itemsize:
            spent_ns, hidden_ns = spent_ns.astype(np.int64), hidden_ns.astype(np.int64)
        spent_ns[account.category_codes, own_windows] = account.spent_ns
        hidden_ns[own_windows] = account.hidden_ns
        store.append(account.pieces)
        results.append((account.weight_updates, account.amounts_by_name, account.span_count))
        if count % WORKERS_BETWEEN_RELEASES == 0:
            free_unused_memory()
    updates, amounts, span_counts = zip(*results, strict=True) if results else ((), (), ())
    workers = windows[first_windows[:-1]]
    processes, ranks = workers["process"].to_list(), workers["rank"].to_list()
    left_out_ns = measure_ns_after_steps(steps).to_numpy()
    spent_ns[UNINSTRUMENTED] -= np.minimum(left_out_ns, spent_ns[UNINSTRUMENTED])
    return Phases(
        pieces=Segments(
            store,
            first_window_of_worker=tuple(first_windows),
            step_windows=windows,
            span_names=span_names,
        ),
        spent_ns=spent_ns.T,
        hidden_communication_ns=hidden_ns,
        weight_updates=WeightUpdates.from_workers(processes, ranks, updates),
        amounts_by_name=_group_by_name(ranks, amounts),
        span_count_by_process=dict(zip(processes, span_counts, strict=True)),
    )


def _group_by_name(
    ranks: list[int], amounts_by_worker: Sequence[dict[str, Amounts]]
) -> dict[str, dict[int, Amounts]]:
    """Group all ranks' amounts by name, then rank; ranks that work equally much share their arrays.

    `amounts_by_worker` has those of each of `ranks`, by name: steps, and the amount in each.
    """
    amounts_by_name_and_rank: dict[str, dict[int, Amounts]] = {}
    previous_by_name: dict[str, Amounts] = {}
    for rank, amounts_by_name in zip(ranks, amounts_by_worker, strict=True):
        for name, amounts in amounts_by_name.items():
            previous = previous_by_name.get(name, amounts)
            shared = previous if all(map(np.array_equal, amounts, previous)) else amounts
            amounts_by_name_and_rank.setdefault(name, {})[rank] = shared
            previous_by_name[name] = shared
    return amounts_by_name_and_rank


def job_ns(trace: Trace) -> int:
    """Return the time from the first rank's first step to the end of the last one; 0 without steps.

    What was left out as asked, between selected steps, does not count: on average of the ranks.
    """
    begin_ns, end_ns = trace.steps["start_ns"].min(), trace.steps["end_ns"].max()
    if not isinstance(begin_ns, int) or not isinstance(end_ns, int):
        return 0
    total_left_out_ns = int(measure_ns_after_steps(trace.steps).sum())
    left_out_ns = total_left_out_ns // trace.steps["process"].n_unique()
    return end_ns - begin_ns - left_out_ns


def measure_ns_after_steps(steps: pl.DataFrame) -> pl.Series:
    """Measure how long after each step the next of its process begins, ns.

    That is 0, but where steps were left out. `steps` is in order of process and time.
    """
    process, begin_ns, end_ns = (
        steps[name].to_numpy() for name in ("process", "start_ns", "end_ns")
    )
    after_ns = np.zeros(len(begin_ns), np.int64)
    np.subtract(begin_ns[1:], end_ns[:-1], out=after_ns[:-1], where=process[1:] == process[:-1])
    return pl.Series("ns", after_ns)


def measure_exposed_transfer_ns(phases: Phases, step_numbers: Ints) -> Floats:
    """Return the least exposed transfer of any rank, ns, [step]: it saves no more; 0 without any."""
    least_ns = phases.least_transfer_ns
    if not len(least_ns):
        return np.zeros(len(step_numbers))
    step_index = np.minimum(np.searchsorted(phases.step_numbers, step_numbers), len(least_ns) - 1)
    is_known = (phases.step_numbers[step_index] == step_numbers) & (least_ns[step_index] != NO_TIME)
    return np.where(is_known, least_ns[step_index], 0).astype(np.float64)
