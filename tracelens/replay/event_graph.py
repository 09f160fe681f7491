"""Event graph of a run: change a lag or an edge and replay it.

Events are what training threads exchange with others (`threads.py`), departures and completions of
collectives (`calls.py`), and begins and ends of servers' services (`requests.py`). A thread works as
long as recorded between two of its events; until when it is blocked follows from what it waits for.
Where that explains too little, the replay of the run as it was differs from the run: that difference is
the replay's error. Time in which a thread is blocked by nothing known stays as recorded
(`unexplained_share`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import polars as pl

from tracelens.accounting.algorithms import read_algorithms
from tracelens.accounting.categories import CATEGORIES
from tracelens.accounting.phases import in_process_order
from tracelens.caching import cached_property
from tracelens.replay.calls import Calls, end_by_waits, select_complete_calls
from tracelens.replay.edges import UNEXPLAINED, EdgeList, EdgeReason, LayeredGraph
from tracelens.replay.implicit import find_implicit_calls
from tracelens.replay.messages import add_message_edges, select_messages
from tracelens.replay.pull_needs import find_need_times_ns, measure_unknown_share
from tracelens.replay.readiness import add_queue_edges, estimate_ready_calls, find_queued_entries
from tracelens.replay.requests import Requests
from tracelens.replay.resources import Tasks, replay_events
from tracelens.replay.threads import Sides, Threads
from tracelens.replay.timeline import IS_BLOCKED, Timeline
from tracelens.schema.rules import LATEST_NS
from tracelens.schema.vocabulary import PICKLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Flags, Floats, Ints
    from tracelens.model.trace import Trace
    from tracelens.replay.edges import Carrier, EdgeTable

__all__ = ["EventGraph"]

# steps: no stretch has a usual time if fewer have as many stretches [chosen]
MIN_STEPS_OF_USUAL_STRETCH: Final = 8
# services: more keep the recorded order, since each takes 20 us to replay [policy]
MAX_SERVICES_IN_ARRIVAL_ORDER: Final = 500_000
# share of the run, or of the usual step: servers keep the recorded order if a replay without edits
# is further off [chosen; one decision in EventGraph.from_trace, EventGraph.alternatives]
MAX_ERROR_OF_ARRIVAL_ORDER: Final = 0.01


@dataclass(frozen=True, eq=False)
class EventGraph:
    """A run that can be replayed.

    `step_numbers` are those of its steps, ascending; the first began at `begin_ns`. `messages` are the
    senders' and the receivers' sides. `queued_entries` are those of `find_queued_entries`, `resumptions`
    of `Requests.find_resumptions`. `rebuild` makes another graph of the same steps. Worker i is row i of
    `trace.workers`.
    """

    trace: Trace
    step_numbers: Ints
    begin_ns: int
    threads: Threads
    messages: tuple[Sides, Sides]
    calls: tuple[Calls, ...]
    queued_entries: pl.DataFrame
    requests: Requests
    resumptions: Sides
    rebuild: Callable[..., Self | None]

    @classmethod
    def from_trace(
        cls, trace: Trace, phases: Phases, steps: tuple[int, int] | None = None
    ) -> Self | None:
        """Build the graph of all steps, or of those from the first to the last number in `steps`.

        None if some worker has no such steps, or no step lasts. Servers whose recorded order no rule
        explains keep that order.
        """
        build_graph = partial(cls._build, trace, phases, steps)
        graph = build_graph()
        if graph is None or not len(graph.tasks.edge_rows):  # no server has an order
            return graph
        if graph.largest_error_share <= MAX_ERROR_OF_ARRIVAL_ORDER:
            return graph
        fixed_graph = build_graph(in_recorded_order=True)
        is_closer = fixed_graph and fixed_graph.largest_error_share < graph.largest_error_share
        return fixed_graph if is_closer else graph

    @classmethod
    def _build(
        cls,
        trace: Trace,
        phases: Phases,
        steps: tuple[int, int] | None,
        *,
        in_recorded_order: bool = False,
        alternative_index: int = 0,
    ) -> Self | None:
        """Build the graph of some steps (first, last; None = all); None without steps.

        With `in_recorded_order` servers serve requests in the recorded order, instead of by arrival.
        `alternative_index` says which explanation of servers' times to take (see `Occupancy`).
        """
        worker_steps = _select_worker_steps(trace, steps)
        if not worker_steps:
            return None
        begins_ns = np.array([own_steps["start_ns"][0] for own_steps in worker_steps])
        ends_ns = np.array([own_steps["end_ns"][-1] for own_steps in worker_steps])
        timeline = _select_timeline(phases, worker_steps)
        messages = select_messages(trace, timeline, begins_ns, ends_ns)
        calls = [*select_complete_calls(trace, begins_ns, ends_ns)]
        queued_entries = find_queued_entries(calls, timeline)
        noticed_calls = [call.end_when_noticed(timeline) for call in calls]
        noticed_calls = end_by_waits(noticed_calls, timeline, messages)
        calls = estimate_ready_calls(noticed_calls, queued_entries, timeline, worker_steps)
        requests = Requests.from_trace(trace, begins_ns, ends_ns).end_when_noticed(timeline)
        needs_ns = find_need_times_ns(requests.sent_requests, timeline, worker_steps)
        is_long = requests.services.height > MAX_SERVICES_IN_ARRIVAL_ORDER
        requests = replace(
            requests,
            need_times_ns=needs_ns,
            unknown_needs_share=measure_unknown_share(requests.sent_requests, needs_ns, timeline),
            in_recorded_order=in_recorded_order or is_long,
            alternative_index=alternative_index,
        )
        recorded_sides = [*messages, *(call.sides for call in calls), requests.sides]
        calls += find_implicit_calls(
            timeline,
            [own_steps["step"].to_numpy().astype(np.int64) for own_steps in worker_steps],
            recorded_sides,
            _list_worker_groups(trace),
            trace.uncertainty_ns,
        )
        exchanged_sides = [*messages, *(call.sides for call in calls)]
        resumptions = requests.find_resumptions(timeline, [*exchanged_sides, requests.sides])
        update_positions = timeline.find_update_begins()
        update_sides = Sides.from_times(
            timeline.to_workers(update_positions), timeline.to_times_ns(update_positions)
        )
        exchanged_sides += [requests.sides_until_needed, requests.need_sides]
        exchanged_sides += [resumptions, update_sides]
        threads = Threads.from_sides(timeline, worker_steps, exchanged_sides)
        first_events = accumulate(
            (2 * call.call_count for call in calls), initial=threads.event_count
        )
        return cls(
            trace=trace,
            step_numbers=np.unique(pl.concat(worker_steps)["step"].to_numpy()).astype(np.int64),
            begin_ns=int(begins_ns.min()),
            threads=threads,
            messages=messages,
            calls=tuple(
                replace(call, first_event=event)
                for call, event in zip(calls, first_events, strict=False)
            ),
            queued_entries=queued_entries,
            requests=requests,
            resumptions=resumptions,
            rebuild=partial(cls._build, trace, phases, steps),
        )

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The rank of each worker."""
        return tuple(self.trace.workers["rank"].to_list())

    @cached_property
    def interval_step_rows(self) -> Ints:
        """The row in `step_numbers` of each interval of threads, [interval]; -1 outside of steps."""
        return self.threads.find_interval_step_rows(self.step_numbers)

    @cached_property
    def interval_cells(self) -> Ints:
        """Each interval's index in a flat table [worker, step], [interval]; -1 outside of steps."""
        cells = self.threads.worker_of_interval * len(self.step_numbers) + self.interval_step_rows
        return np.where(self.interval_step_rows < 0, -1, cells)

    @cached_property
    def step_end_events(self) -> Ints:
        """The events at which steps end, [step, worker]; -1 where a worker lacks one."""
        return self.threads.find_step_end_events(self.step_numbers)

    @cached_property
    def first_service_event(self) -> int:
        """The first event of servers: two for each service, its begin and its end, follow."""
        return self.threads.event_count + 2 * sum(call.call_count for call in self.calls)

    @cached_property
    def _event_times_ns(self) -> Ints:
        """When all events occurred, [event]: those of threads, of calls, and of services."""
        call_times_ns = [
            np.stack([call.departure_ns, call.completion_ns], axis=1).ravel() for call in self.calls
        ]
        times_ns = self.threads.event_times_ns, *call_times_ns, self.requests.event_times_ns
        return np.concatenate(times_ns)

    @cached_property
    def recorded_times_ns(self) -> Floats:
        """The same as floats, [event]: what replays are compared with."""
        return self._event_times_ns.astype(np.float64)

    @cached_property
    def edges(self) -> EdgeTable:
        """Edges between events, a row each; edge i of the first ones is interval i of a thread."""
        edges, event_times_ns, threads = EdgeList(), self._event_times_ns, self.threads
        for call in self.calls:
            call.add_edges(edges, threads)
        add_queue_edges(edges, self.queued_entries, self.calls)
        if self.requests.sent_requests.height:
            first_event = self.first_service_event
            self.requests.add_edges(edges, threads, first_event, event_times_ns, self.resumptions)
        caused_events = edges.target_events
        delayed_events = add_message_edges(edges, *self.messages, threads, event_times_ns)
        edges.add_before_others(*threads.chain_events(np.append(caused_events, delayed_events)))
        return edges.to_table(event_times_ns)

    @cached_property
    def algorithms_by_rank_count(self) -> dict[int, frozenset[str]]:
        """The names of the recorded algorithms of collectives, by their number of ranks."""
        by_communicator = read_algorithms(self.trace).group_by("communicator").agg("algorithm")
        names_by_communicator = dict(by_communicator.iter_rows())
        names_by_rank_count: dict[int, frozenset[str]] = {}
        for grid in self.trace.calls:
            recorded_names = frozenset(names_by_communicator.get(grid.communicator_uid, ())) - {
                PICKLE
            }
            names = frozenset(name.replace("-", "_") for name in recorded_names)
            rank_count = len(grid.ranks)
            names |= names_by_rank_count.get(rank_count, frozenset())
            names_by_rank_count[rank_count] = names
        return names_by_rank_count

    @cached_property
    def alternatives(self) -> tuple[tuple[str, EventGraph], ...]:
        """Other graphs that explain the recording as well, each with the fact that it lacks."""
        if not len(self.tasks.edge_rows):  # only orders of servers have alternatives
            return ()
        graphs = [
            (missing_fact, self.rebuild(alternative_index=index))
            for index, missing_fact in enumerate(self.requests.occupancy.unknown_facts)
            if index  # 0 is this graph
        ]
        max_error = max(self.largest_error_share, MAX_ERROR_OF_ARRIVAL_ORDER)
        return tuple(
            (missing_fact, graph)
            for missing_fact, graph in graphs
            if graph and graph.largest_error_share <= max_error
        )

    @cached_property
    def identity_error_shares(self) -> tuple[float, float]:
        """The share by which the replay is off: of the run (below 0: too short), of the median step."""
        recorded_ns = self.measure_steps_ns(self.recorded_times_ns)
        replayed_ns = self.measure_steps_ns(self.baseline_times_ns)
        step_errors = np.abs(replayed_ns / np.maximum(recorded_ns, 1.0) - 1)
        run_error = float(replayed_ns.sum() / max(recorded_ns.sum(), 1.0) - 1)
        return run_error, float(np.median(step_errors))

    @property
    def largest_error_share(self) -> float:
        """The larger one of `identity_error_shares`, without its sign."""
        return max(map(abs, self.identity_error_shares))

    @cached_property
    def layered_graph(self) -> LayeredGraph:
        """The events and edges as recorded, without resources."""
        edges, times_ns = self.edges, self.recorded_times_ns
        return LayeredGraph.from_edges(
            times_ns, edges.source_events, edges.target_events, edges.lag_ns
        )

    @cached_property
    def duration_edge_of_event(self) -> Ints:
        """The edge from each departure, or service's begin, to the event after it, [event]; else -1."""
        edges, edge_of_event = self.edges, np.full(len(self.recorded_times_ns), -1, np.int64)
        rows = np.flatnonzero(
            (edges.target_events == edges.source_events + 1) & (edges.cost_line_indices >= 0)
        )
        edge_of_event[edges.source_events[rows]] = rows
        return edge_of_event

    @property
    def service_edges(self) -> Ints:
        """The edge from the begin to the end of each service, [service]; -1 for none."""
        begin_events = self.first_service_event + 2 * np.arange(self.requests.services.height)
        return self.duration_edge_of_event[begin_events]

    @property
    def bytes_by_variable(self) -> dict[int, int]:
        """The bytes of each variable, by key; empty unless those of all services are known."""
        requests = self.requests
        has_bytes = (requests.services["bytes"].fill_null(0) > 0).to_numpy()
        is_known = np.isin(requests.key_of_services, list(requests.pushed_bytes_by_key))
        needs_key = has_bytes & (requests.worker_of_services >= 0)
        return requests.pushed_bytes_by_key if is_known[needs_key].all() else {}

    @cached_property
    def tasks(self) -> Tasks:
        """What occupies links and processors of servers."""
        return self.requests.occupancy.make_tasks(self.service_edges)

    def replay(
        self,
        lag_ns: Floats,
        is_kept: Flags | None = None,
        added_edges: Sequence[tuple[Ints, Ints, Floats]] = (),
        tasks: Tasks | None = None,
        rank_count: int | None = None,
    ) -> Floats:
        """Return when events occur, ns, [event]; raise `ValueError` if they follow in a circle.

        Args:
            lag_ns: The lag of each recorded edge, [edge].
            is_kept: Flags of the recorded edges that hold, [edge]; None = all.
            added_edges: Source events, target events and lags, ns, of further edges.
            tasks: What occupies servers; None = as recorded.
            rank_count: The number of ranks that servers serve; None = the recorded ones.
        """
        tasks = self.tasks if tasks is None else tasks
        has_tasks = len(tasks.edge_rows) > 0
        if not has_tasks and not added_edges:
            layered = self.layered_graph
            layered = layered if is_kept is None or is_kept.all() else layered.keep(is_kept)
            return layered.replay(lag_ns)
        edges = self.edges
        is_used = np.ones(len(lag_ns), np.bool_) if is_kept is None else is_kept.copy()
        if has_tasks:
            is_used[tasks.edge_rows] = False  # tasks take their place, and queue by themselves
            is_no_queue = is_used & (edges.reasons != EdgeReason.QUEUE)
            has_source = np.zeros(len(self.recorded_times_ns), np.bool_)  # [event]
            has_source[edges.target_events[is_no_queue]] = True
            # What a server began by itself has nothing but its turn to follow.
            is_used = is_no_queue | (is_used & ~has_source[edges.target_events])
        used_edges = edges.source_events[is_used], edges.target_events[is_used], lag_ns[is_used]
        columns = zip(used_edges, *added_edges, strict=True)
        source, target, lags_ns = map(np.concatenate, columns)
        if not has_tasks:
            layered = LayeredGraph.from_edges(self.recorded_times_ns, source, target, lags_ns)
            return layered.replay(lags_ns)
        work_ns = np.maximum(lag_ns[tasks.edge_rows] * tasks.work_share, 0.0)
        return self._replay_services(
            (source, target, np.maximum(lags_ns, 0.0)),
            (
                edges.source_events[tasks.edge_rows],
                edges.target_events[tasks.edge_rows],
                tasks,
                work_ns,
            ),
            rank_count or len(self.ranks),
        )

    def _replay_services(
        self,
        edges: tuple[Ints, Ints, Floats],
        occupations: tuple[Ints, Ints, Tasks, Floats],
        rank_count: int,
    ) -> Floats:
        """Return when events occur if servers serve `rank_count` ranks, ns, [event]: the latest copy.

        Workers are copied as often as it takes; calls, and services for no worker, exist only in copy 0.
        `edges` are source, target and lag, ns; `occupations` begin and end event of tasks, the tasks,
        and their work, ns.
        """
        event_count, recorded_count = len(self.recorded_times_ns), len(self.ranks)
        worker = np.full(event_count, -1)  # [event]; -1 = none
        thread_events = np.arange(self.threads.event_count)
        worker[thread_events] = self.threads.find_workers(thread_events)
        worker[self.first_service_event :] = np.repeat(self.requests.worker_of_services, 2)
        (source, target, lag_ns), (begins, ends, tasks, work_ns) = edges, occupations
        copy_count = -(-rank_count // recorded_count)
        copied_worker = worker + np.arange(copy_count)[:, None] * recorded_count  # [copy, event]
        exists = copied_worker < rank_count
        copied_edges, copied_ends, copied_tasks = [], [], []
        for copy in range(copy_count):
            copy_of = np.arange(event_count) + np.where(worker >= 0, copy * event_count, 0)
            edge_rows, task_rows = (
                np.flatnonzero(
                    exists[copy][begin_event]
                    & exists[copy][end_event]
                    & ((np.maximum(worker[begin_event], worker[end_event]) >= 0) | (copy == 0))
                )
                for begin_event, end_event in ((source, target), (begins, ends))
            )
            edge_ends = copy_of[source[edge_rows]], copy_of[target[edge_rows]]
            task_ends = copy_of[begins[task_rows]], copy_of[ends[task_rows]]
            copied_edges.append((*edge_ends, lag_ns[edge_rows]))
            copied_ends.append((*task_ends, work_ns[task_rows]))
            copied_tasks.append(tasks.copy_for_workers(task_rows, copy))
        source, target, lag_ns = map(np.concatenate, zip(*copied_edges, strict=True))
        begins, ends, work_ns = map(np.concatenate, zip(*copied_ends, strict=True))
        times_ns = replay_events(
            np.tile(self.recorded_times_ns, copy_count),
            (source, target, lag_ns),
            (begins, ends, Tasks.concatenate(copied_tasks), work_ns),
            np.concatenate([self._priority + copy * event_count for copy in range(copy_count)]),
        ).reshape(copy_count, event_count)
        exists[1:] &= worker >= 0
        return np.asarray(np.where(exists, times_ns, -np.inf).max(axis=0))

    @cached_property
    def _priority(self) -> Ints:
        """The order of events of services at the same time, [event]: as workers asked; 0 for others."""
        request = self.requests.services["request_row"].to_numpy() + 1
        others = np.zeros(self.first_service_event, np.int64)
        return np.concatenate([others, np.repeat(request, 2)])

    def measure_blocked_ns(self, times_ns: Floats, lag_ns: Floats) -> Floats:
        """Return the time in which each worker does not work in a replay, [worker], by lags, [edge]."""
        first_events = self.threads.first_events
        begin_ns, end_ns = times_ns[first_events[:-1]], times_ns[first_events[1:] - 1]
        # The edge of a thread's interval has its work as lag.
        work_ns = self.threads.sum_intervals_by_worker(lag_ns[: len(self.interval_step_rows)])
        return np.where(np.isfinite(end_ns), end_ns - begin_ns - work_ns, 0.0)

    def measure_waits_ns(self, lag_ns: Floats) -> float:
        """Sum how long workers wait for messages and last arrivals with some lags, [edge], ns.

        A wait lies between the end of the work after an event of a thread and the next event, if that
        follows an event elsewhere, too. A collective is waited for until it departs.
        """
        times_ns = self.replay(lag_ns)
        interval_begins, first_call_event = (
            self.threads.interval_begin_events,
            self.threads.event_count,
        )
        interval_count = len(interval_begins)
        # [event]; those of calls and services, behind all threads, are of no worker.
        worker = self.threads.find_workers(np.arange(len(times_ns)))
        source, target = (
            self.edges.source_events[interval_count:],
            self.edges.target_events[interval_count:],
        )
        is_from_others = (worker[source] != worker[target]) & (target < first_call_event)
        source, target = source[is_from_others], target[is_from_others]
        is_of_call = (source >= first_call_event) & (source < self.first_service_event)
        is_completion = is_of_call & ((source - first_call_event) % 2 == 1)
        awaited_event = source - is_completion  # of a completed call, its departure
        work_ends_ns = times_ns.copy()  # [event]: when the work before it ends
        work_ends_ns[interval_begins + 1] = times_ns[interval_begins] + lag_ns[:interval_count]
        waits_ns = np.zeros(len(times_ns))
        wait_ends_ns = np.minimum(times_ns[awaited_event], times_ns[target])
        np.maximum.at(waits_ns, target, wait_ends_ns - work_ends_ns[target])
        return float(waits_ns.sum())

    @cached_property
    def baseline_times_ns(self) -> Floats:
        """When events occur in the replay without edits, [event]."""
        return self.replay(self.edges.lag_ns)

    def measure_steps_ns(self, times_ns: Floats) -> Floats:
        """Return the time from one step's end on all workers to the next one's, [step]."""
        events = self.step_end_events  # [step, worker]
        step_ends_ns = np.where(events >= 0, times_ns[events], -np.inf).max(axis=1)
        return np.diff(np.maximum.accumulate(step_ends_ns), prepend=float(self.begin_ns))

    def measure_work_ns(self, phases: Sequence[str]) -> Floats:
        """Return the time that threads are in some phases, [interval]."""
        return self.threads.measure_work_ns(np.isin(CATEGORIES, list(phases)))

    @cached_property
    def _is_unexplained(self) -> Flags:
        """Which edges are requests without a known reason for their end, [edge]."""
        lines = [*self.edges.cost_lines, UNEXPLAINED]
        return np.asarray(self.edges.cost_line_indices == lines.index(UNEXPLAINED))

    @cached_property
    def explained_lag_ns(self) -> Floats:
        """The part of each edge's lag that has a known reason, [edge]; no edit changes the rest."""
        explained_ns = np.where(self._is_unexplained, 0.0, self.edges.lag_ns)
        work_ns = self.threads.measure_work_ns()
        explained_ns[: len(work_ns)] = np.minimum(explained_ns[: len(work_ns)], work_ns)
        return explained_ns

    @cached_property
    def unexplained_share(self) -> float:
        """The share of workers' time in which they are blocked for an unknown reason, 0 to 1."""
        threads = self.threads
        ends_unexplained = np.zeros(len(self.recorded_times_ns), np.bool_)  # [event]
        ends_unexplained[self.edges.target_events[self._is_unexplained]] = True
        blocked_ns = threads.measure_categories_ns(IS_BLOCKED)  # [interval], as all that follow
        beyond_work_ns = self.edges.lag_ns[: len(blocked_ns)] - threads.measure_work_ns()
        unexplained_ns = np.minimum(np.maximum(beyond_work_ns, 0.0), blocked_ns)
        unexplained_ns = np.where(threads.is_communicating, 0.0, unexplained_ns)
        is_unexplained = ends_unexplained[threads.interval_begin_events + 1]
        unexplained_ns = np.where(is_unexplained, blocked_ns, unexplained_ns)
        return float(unexplained_ns.sum()) / max(float(threads.interval_lengths_ns.sum()), 1.0)

    def sum_by_step_and_worker(self, work_ns: Floats) -> Floats:
        """Sum the work of intervals of threads, ns, [interval], by [step, worker]."""
        cells, worker_count = self.interval_cells, self.threads.worker_count
        is_in_step, cell_count = cells >= 0, worker_count * len(self.step_numbers)
        sums_ns = np.bincount(cells[is_in_step], work_ns[is_in_step], minlength=cell_count)
        return sums_ns.astype(np.float64).reshape(worker_count, -1).T

    def spread_over_intervals(self, effect_ns: Floats, work_ns: Floats) -> Floats:
        """Spread effects, ns, [step, worker], over work, ns, [interval]; return what each loses, ns.

        What intervals take beyond those of workers without an effect in the same step and position goes
        first, for there the worker was delayed. Without such workers it is what they take beyond the
        median of the worker's steps with as many intervals. The rest of the effect (below 0: more work)
        is shared out as the work is; steps without work get nothing.
        """
        cell_effect_ns = effect_ns.T.ravel()  # a cell is a step of a worker
        rows = np.flatnonzero((self.interval_cells >= 0) & (work_ns > 0))
        cell, interval_ns = self.interval_cells[rows], work_ns[rows]
        worker, step = np.divmod(cell, len(self.step_numbers))
        columns = {"cell": cell, "worker": worker, "step": step, "work": interval_ns}
        intervals = pl.DataFrame(columns | {"is_peer": cell_effect_ns[cell] == 0}).with_columns(
            position=pl.int_range(pl.len()).over("cell"), count=pl.len().over("cell")
        )
        work = pl.col("work")
        peer_median = work.filter("is_peer").quantile(0.5, "lower")
        usual_of_peers = peer_median.over("step", "position", "count")
        has_enough = pl.len() >= MIN_STEPS_OF_USUAL_STRETCH
        worker_usual = pl.when(has_enough).then(work.median()).over("worker", "position", "count")
        usual = intervals.select(pl.coalesce(usual_of_peers, worker_usual, work))
        usual_ns = usual.to_series().to_numpy()
        overrun_ns = np.maximum(interval_ns - usual_ns, 0.0)
        overrun_share = _measure_effect_shares(cell_effect_ns, cell, overrun_ns)
        from_overrun_ns = overrun_ns * np.clip(overrun_share, 0.0, 1.0)[cell]
        taken_ns = np.bincount(cell, from_overrun_ns, minlength=len(cell_effect_ns))
        cell_effect_ns = cell_effect_ns - taken_ns
        rest_ns = interval_ns - from_overrun_ns
        rest_share = _measure_effect_shares(cell_effect_ns, cell, rest_ns)
        relief_ns = np.zeros(len(work_ns))
        relief_ns[rows] = from_overrun_ns + rest_share[cell] * rest_ns
        return relief_ns

    def extend_to_departures(self, factors: Floats) -> Floats:
        """Return `factors` of lags, [edge], with that of each collective also on the edges after it.

        Ranks leave a slow collective one after the other, as its last messages come.
        """
        edges = self.edges
        is_of_call = (edges.communicator_indices >= 0) & (
            edges.source_events >= self.threads.event_count
        )
        call_edges = np.flatnonzero(is_of_call)
        factor_of_event = np.ones(len(self.recorded_times_ns))
        factor_of_event[edges.target_events[call_edges]] = factors[call_edges]
        return factors * factor_of_event[edges.source_events]

    def measure_transfer_factors(
        self, time_ratios: Mapping[Carrier, Floats], step_numbers: Ints
    ) -> Floats:
        """Return factors of lags if transfers take other times, [edge].

        `time_ratios` are how many times as long each transfer takes, by its carrier (a communicator, or
        sender and receiver), [step]; `step_numbers` are those of these steps, ascending.
        """
        edges, factors = self.edges, np.ones(len(self.edges.lag_ns))
        step_index = np.minimum(
            np.searchsorted(step_numbers, edges.step_numbers), len(step_numbers) - 1
        )
        for carrier, carrier_ratios in time_ratios.items():
            if isinstance(carrier, str):
                communicators = [*edges.communicators, carrier]
                is_carried = edges.communicator_indices == communicators.index(carrier)
                is_carried &= edges.cost_line_indices >= 0
            else:
                sender, receiver = map(self.ranks.index, carrier)
                is_carried = edges.pair_numbers == sender * self.threads.worker_count + receiver
            changed_edges = np.flatnonzero(
                is_carried & (step_numbers[step_index] == edges.step_numbers)
            )
            factors[changed_edges] = carrier_ratios[step_index[changed_edges]]
        return self.extend_to_departures(factors)


def _measure_effect_shares(effect_ns: Floats, interval_cells: Ints, interval_ns: Floats) -> Floats:
    """Return the effect on each cell, [cell], as a share of its intervals' time; 0 without any."""
    cell_ns = np.bincount(interval_cells, interval_ns, minlength=len(effect_ns))
    return np.divide(effect_ns, cell_ns, out=np.zeros(len(effect_ns)), where=cell_ns > 0)


def _select_worker_steps(trace: Trace, steps: tuple[int, int] | None) -> list[pl.DataFrame]:
    """Return a frame for each worker, a row per step, in order of time.

    Column `window` is the step's index among all steps of its process. `steps` are the first and last
    number to keep; None = all. Empty if a worker has no steps, no step lasts, or 64 bits do not hold the
    time of all workers, one after the other, in nanoseconds.
    """
    step_table = in_process_order(trace.steps)
    if step_table.is_empty():
        return []
    step_table = step_table.with_columns(window=pl.int_range(pl.len()).over("process"))
    if steps is not None:
        step_table = step_table.filter(pl.col("step").is_between(*steps))
    frames_by_process = step_table.partition_by("process", as_dict=True)
    worker_steps = [
        frames_by_process.get((process,)) for process in trace.workers["process"].to_list()
    ]
    has_length = (step_table["end_ns"] > step_table["start_ns"]).any()
    known_steps = [frame for frame in worker_steps if frame is not None]
    if len(known_steps) < len(worker_steps) or not has_length:
        return []
    run_ns = float(step_table["end_ns"].to_numpy().max())
    run_ns -= float(step_table["start_ns"].to_numpy().min())
    all_workers_ns = run_ns * step_table["process"].n_unique()
    return known_steps if all_workers_ns <= LATEST_NS else []


def _select_timeline(phases: Phases, worker_steps: Sequence[pl.DataFrame]) -> Timeline:
    """Return the line of each worker's pieces in its steps."""
    worker_pieces = []
    for steps in worker_steps:
        pieces = phases.pieces.unpack_worker(phases.pieces.processes.index(steps["process"][0]))
        worker_pieces.append(pieces.select_windows(steps["window"][0], steps["window"][-1] + 1))
    return Timeline.from_pieces(worker_pieces)


def _list_worker_groups(trace: Trace) -> list[tuple[int, ...]]:
    """Return groups of workers (indices) that may meet without a span: of each communicator, and all."""
    processes = trace.workers["process"].to_list()
    worker_of_process = {process: worker for worker, process in enumerate(processes)}
    process_groups = {tuple(grid.processes.tolist()) for grid in trace.calls} | {tuple(processes)}
    return [
        tuple(sorted(worker_of_process[process] for process in group))
        for group in process_groups
        if len(group) > 1 and worker_of_process.keys() >= set(group)
    ]
