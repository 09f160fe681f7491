"""Links and processors of servers as resources: a task occupies one, and others wait for it or share it.

A task is an edge of the event graph whose lag is work. A resource either serves one task after the
other, in order of arrival, or gives all its tasks equal shares. If n messages share it, all together get
1 / (1 + `crowding` (n - 1)) of its capacity: crowding above 0 is incast.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, fields, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Flags, Floats, Ints

__all__ = ["Tasks", "replay_events"]


@dataclass(frozen=True, eq=False)
class Tasks:
    """Tasks as columns, [task]: `edge_rows` are rows of the event graph's edges.

    The task's resource is the one of its kind at the server with `server_index`, and in a `lane`: each
    worker's own, or 0. A task takes `work_share` of its edge's work, in `message_counts` messages; an
    edge ends with its last task. Tasks of one `stream` take turns; -1 = none. Where one task follows the
    other, those of a `unit` have the resource until its last one is over; `is_unit_begin` marks the
    first. `crowding_of_kind` is [kind]; nan where one task follows the other.
    """

    edge_rows: Ints
    server_index: Ints
    kind_indices: Ints
    lane: Ints
    stream: Ints
    work_share: Floats
    message_counts: Floats
    unit: Ints
    is_unit_begin: Flags
    crowding_of_kind: Floats

    def measure_hold_times_ns(self, work_ns: Floats) -> Floats:
        """Return the time for which each task keeps its resource, ns: that of all its unit, if first."""
        key = self.unit * (int(self.server_index.max(initial=0)) + 1) + self.server_index
        _, unit = np.unique(key, return_inverse=True)
        return np.where(self.is_unit_begin, np.bincount(unit, work_ns)[unit], 0.0)

    def number_resources(self) -> tuple[Ints, Floats]:
        """Return the number of each task's resource, [task], and the crowding of each resource."""
        lane_count, kind_count = int(self.lane.max(initial=0)) + 1, len(self.crowding_of_kind)
        number = (self.server_index * lane_count + self.lane) * kind_count + self.kind_indices
        server_lane_count = (int(self.server_index.max(initial=0)) + 1) * lane_count
        return np.asarray(number), np.tile(self.crowding_of_kind, server_lane_count)

    def take(self, rows: Ints) -> Self:
        """Return the tasks of some rows."""
        names = [column.name for column in fields(self)[:-1]]  # all but `crowding_of_kind`
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    def copy_for_workers(self, rows: Ints, copy: int) -> Self:
        """Return the tasks of some rows for copy number `copy` of their workers.

        Lanes, streams and units of a worker get numbers of their own; lane 0 and stream -1 stay.
        """
        tasks = self.take(rows)
        columns = {}
        for name, least_own in (("lane", 1), ("stream", 0), ("unit", 0)):
            numbers, count = getattr(tasks, name), int(getattr(self, name).max(initial=0)) + 1
            columns[name] = np.where(numbers >= least_own, numbers + copy * count, numbers)
        return replace(tasks, **columns)

    @classmethod
    def concatenate(cls, parts: Sequence[Tasks]) -> Self:
        """Concatenate tasks with the same kinds of resources."""
        names = [column.name for column in fields(cls)[:-1]]  # all but `crowding_of_kind`
        columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        return cls(**columns, crowding_of_kind=parts[0].crowding_of_kind)


def replay_events(
    recorded_ns: Floats,
    edges: tuple[Ints, Ints, Floats],
    occupations: tuple[Ints, Ints, Tasks, Floats],
    priority: Ints,
) -> Floats:
    """Return when events occur, ns, [event]: each follows all its edges, and the tasks that end at it.

    Args:
        recorded_ns: When events were recorded, [event]; those that follow nothing occur then.
        edges: Source, target and lag of each, no lag below 0.
        occupations: Begin and end event of each task, the tasks, and their work, ns.
        priority: Of events at the same time, the lower one is first at a resource.
    """
    loop = _EventLoop(edges, occupations, priority)
    missing_count = len(recorded_ns) - loop.replay(recorded_ns)
    if missing_count:
        raise ValueError(f"{missing_count} events follow each other in a circle")
    return np.array(loop.times_ns)


class _SharedResource:
    """A resource whose tasks get equal shares.

    `served_ns` is the work that each message on it has got until `now_ns`, at which `message_count`
    share it. `active_tasks` is a heap: the `served_ns` at which a task ends, the task, its stream and
    messages; `waiting_by_stream` has task, work (ns) and messages. `plan_version` counts planned ends.
    """

    __slots__ = (
        *("active_tasks", "busy_streams", "crowding", "message_count", "now_ns"),
        *("plan_version", "served_ns", "waiting_by_stream"),
    )

    def __init__(self, crowding: float) -> None:
        self.crowding = crowding
        self.served_ns = self.now_ns = self.message_count = 0.0
        self.active_tasks: list[tuple[float, int, int, float]] = []
        self.busy_streams: set[int] = set()
        self.waiting_by_stream: dict[int, deque[tuple[int, float, float]]] = defaultdict(deque)
        self.plan_version = 0

    def _measure_slowdown(self) -> float:
        """Return the ratio of the time that each message takes to what it would take alone."""
        return self.message_count * (1 + self.crowding * max(self.message_count - 1, 0.0))

    def advance(self, now_ns: float) -> None:
        """Serve all tasks until `now_ns`."""
        if self.message_count > 0:
            self.served_ns += (now_ns - self.now_ns) / self._measure_slowdown()
        self.now_ns = now_ns

    def add(self, task: int, stream: int, work_ns: float, message_count: float) -> None:
        """Begin a task, or let it wait for the one before of its stream (-1 = none)."""
        if stream >= 0 and stream in self.busy_streams:
            self.waiting_by_stream[stream].append((task, work_ns, message_count))
            return
        if stream >= 0:
            self.busy_streams.add(stream)
        end_served_ns = self.served_ns + work_ns / message_count
        heappush(self.active_tasks, (end_served_ns, task, stream, message_count))
        self.message_count += message_count

    def find_next_end_ns(self) -> float:
        """Return when the next active task ends if none is added before, ns."""
        remaining_ns = max(self.active_tasks[0][0] - self.served_ns, 0.0)
        return self.now_ns + remaining_ns * self._measure_slowdown()

    def end_next(self) -> int:
        """End the task that ends next, begin the one that waits for its stream, and return it."""
        end_served_ns, task, stream, message_count = heappop(self.active_tasks)
        self.served_ns = max(self.served_ns, end_served_ns)
        self.message_count = self.message_count - message_count if self.active_tasks else 0.0
        self.busy_streams.discard(stream)
        if queue := self.waiting_by_stream.get(stream):
            next_task, work_ns, next_message_count = queue.popleft()
            self.add(next_task, stream, work_ns, next_message_count)
        return task


class _EventLoop:
    """Events and tasks in the order of their times."""

    def __init__(
        self,
        edges: tuple[Ints, Ints, Floats],
        occupations: tuple[Ints, Ints, Tasks, Floats],
        priority: Ints,
    ) -> None:
        """Prepare `replay_events` by lists, [event]: numbers of Python are quicker one by one."""
        source, target, lag_ns = edges
        begin_event, end_event, tasks, work_ns = occupations
        event_count = len(priority)
        edge_order, first_edge = _sort_by_source(source, event_count)
        self._targets, self._lags_ns = target[edge_order].tolist(), lag_ns[edge_order].tolist()
        self._first_edge = first_edge.tolist()
        task_order, first_task = _sort_by_source(begin_event, event_count)
        self._tasks, self._first_task = task_order.tolist(), first_task.tolist()
        resource_of_task, crowding = tasks.number_resources()
        self._end_events, self._resources = end_event.tolist(), resource_of_task.tolist()
        self._streams, self._message_counts = tasks.stream.tolist(), tasks.message_counts.tolist()
        self._work_ns = work_ns.tolist()
        self._hold_times_ns = tasks.measure_hold_times_ns(work_ns).tolist()
        self._is_unit_begin = tasks.is_unit_begin.tolist()
        self._free_ns = [-np.inf] * len(crowding)  # when each resource is free
        self._shared_by_number = {
            resource: _SharedResource(float(crowding[resource]))
            for resource in np.flatnonzero(~np.isnan(crowding)).tolist()
        }
        sources_left = np.bincount(np.append(target, end_event), minlength=event_count)
        self._sources_left = sources_left.tolist()
        self._priority, self.times_ns = priority.tolist(), [-np.inf] * event_count
        # A heap: time, ns, priority, entry (an event; -1 - resource for a task's end), plan version.
        # Ends of tasks that share a resource precede events of their time.
        self._agenda: list[tuple[float, int, int, int]] = []

    def replay(self, recorded_ns: Floats) -> int:
        """Replay events, those without sources as `recorded_ns`, [event]; return how many occurred."""
        for event in [event for event, left in enumerate(self._sources_left) if not left]:
            self.times_ns[event] = float(recorded_ns[event])
            heappush(self._agenda, (self.times_ns[event], self._priority[event], event, 0))
        replayed_count = 0
        while self._agenda:
            now_ns, _, entry, plan_version = heappop(self._agenda)
            if entry < 0:  # the end of a task at resource -1 - entry
                self._end_task(-1 - entry, plan_version, now_ns)
                continue
            replayed_count += 1
            for edge in range(self._first_edge[entry], self._first_edge[entry + 1]):
                self._arrive(self._targets[edge], now_ns + self._lags_ns[edge])
            for row in range(self._first_task[entry], self._first_task[entry + 1]):
                self._begin_task(self._tasks[row], now_ns)
        return replayed_count

    def _arrive(self, event: int, time_ns: float) -> None:
        """Let an event wait for one source less; it occurs no earlier than `time_ns`."""
        self.times_ns[event] = max(self.times_ns[event], time_ns)
        self._sources_left[event] -= 1
        if not self._sources_left[event]:
            heappush(self._agenda, (self.times_ns[event], self._priority[event], event, 0))

    def _begin_task(self, task: int, now_ns: float) -> None:
        """Begin a task at its resource: at `now_ns` if that is shared, else when it is free."""
        resource = self._resources[task]
        if (shared_resource := self._shared_by_number.get(resource)) is not None:
            shared_resource.advance(now_ns)
            work_ns, message_count = self._work_ns[task], self._message_counts[task]
            shared_resource.add(task, self._streams[task], work_ns, message_count)
            self._plan_end(resource, shared_resource)
            return
        # Later tasks of a unit have the resource already.
        begin_ns = max(now_ns, self._free_ns[resource]) if self._is_unit_begin[task] else now_ns
        held_until_ns = begin_ns + self._hold_times_ns[task]
        self._free_ns[resource] = max(self._free_ns[resource], held_until_ns)
        self._arrive(self._end_events[task], begin_ns + self._work_ns[task])

    def _end_task(self, number: int, plan_version: int, now_ns: float) -> None:
        """End the next task at a resource (a number), unless its end has been planned anew since."""
        resource = self._shared_by_number[number]
        if resource.plan_version != plan_version:
            return
        resource.advance(now_ns)
        self._arrive(self._end_events[resource.end_next()], now_ns)
        self._plan_end(number, resource)

    def _plan_end(self, number: int, resource: _SharedResource) -> None:
        """Put the end of a resource's next task on the agenda; an earlier plan is void."""
        resource.plan_version += 1
        if resource.active_tasks:
            planned = (resource.find_next_end_ns(), -1, -1 - number, resource.plan_version)
            heappush(self._agenda, planned)


def _sort_by_source(source: Ints, event_count: int) -> tuple[Ints, Ints]:
    """Return the order of rows by `source`, an event, and each event's first row in it, [event + 1]."""
    order = np.argsort(source, kind="stable")
    return order, np.searchsorted(source[order], np.arange(event_count + 1))
