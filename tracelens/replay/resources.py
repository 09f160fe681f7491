"""Links and processors of servers as resources: a task occupies one, and others wait for it or share it.

A task is a link of the event graph whose lag is work. A resource either serves one task after the other,
in order of arrival, or gives all tasks on it equal shares. Of `crowd` tasks that share it, all together
get 1 / (1 + `crowding` (crowd - 1)) of its capacity: above 0 for incast.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, fields, replace
from heapq import heappop, heappush
from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np

from tracelens.accounting.service import measure_link_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Flags, Floats, Ints

__all__ = [
    "Discipline",
    "Intervals",
    "Tasks",
    "find_disciplines",
    "measure_deviation",
    "measure_work",
    "replay_events",
]

# share of capacity lost for each further message: these are tried for a link; above 0
# is incast [chosen]
CROWDINGS: Final = (0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
# ratio: a discipline with so much of another one's deviation is clearly better [chosen]
MAX_RATIO_OF_DEVIATIONS_IF_BETTER: Final = 0.9
# share of all work: paces that are a factor of e apart count as so much deviation [chosen]
WEIGHT_OF_PACE_DIFFERENCE: Final = 0.25
# share of all work: a smaller deviation tells no discipline apart [chosen]
NEGLIGIBLE_DEVIATION: Final = 1e-3
# share of a task: it waited for another task if it began as soon after that one [chosen]
MAX_GAP_IN_LINE: Final = 0.01
# share of the tasks' time: a resource that serves one at a time has no more overlap [chosen]
MAX_OVERLAP_IN_LINE: Final = 1e-3
# share of tasks: a resource serves one at a time if as many follow another worker's so closely [chosen]
MIN_SHARE_IN_LINE: Final = 0.05
# rounds: a line and the servers' factors are fitted as often [policy]
ROUNDS_OF_RESOURCE_FIT: Final = 3
# share of all work: times of tasks that deviate more do not depend on bytes [chosen]
MAX_DEVIATION_FROM_BYTES: Final = 0.5
MAX_INTERVALS_OF_FIT: Final = 20_000  # intervals: a discipline is chosen by the first ones [policy]


class Discipline(NamedTuple):
    """How tasks of one kind get their resource.

    `crowding` is None where one task follows the other. `per_worker` gives each worker a resource of
    its own. With `streams`, tasks of one worker take turns, while those of other workers share.
    """

    crowding: float | None
    per_worker: bool = False
    streams: bool = False

    @property
    def takes_turns(self) -> bool:
        """Whether some task waits until another one is over."""
        return self.crowding is None or self.streams


_DISCIPLINES: Final = (
    Discipline(None),
    Discipline(0.0, streams=True),
    Discipline(0.0),
    Discipline(None, per_worker=True),
    *(Discipline(crowding, streams=True) for crowding in CROWDINGS[1:]),
    *(Discipline(crowding) for crowding in CROWDINGS[1:]),
)


@dataclass(frozen=True, eq=False)
class Tasks:
    """Links of a graph that occupy resources, a row each.

    A resource is of a `kind`, at a server, by its `place` among them. Where each worker has its own, it
    is in a `lane`, else in lane 0. Each task has a `share` of its link's work, as `messages` messages.
    Tasks of one `stream` take turns; -1 = none. A link ends with its last task. Where one task follows
    the other, those of a `unit` have the resource until its last one is over; `leads` says which is the
    first. `crowding` is by kind, nan where one task follows the other.
    """

    link: Ints
    place: Ints
    kind: Ints
    lane: Ints
    stream: Ints
    share: Floats
    messages: Floats
    unit: Ints
    leads: Flags
    crowding: Floats

    def hold(self, work: Floats) -> Floats:
        """Return for how long each task keeps others from its resource: 0 if it does not lead."""
        places = int(self.place.max(initial=0)) + 1
        _, group = np.unique(self.unit * places + self.place, return_inverse=True)
        return np.where(self.leads, np.bincount(group, work)[group], 0.0)

    def resources(self) -> tuple[Ints, Floats]:
        """Return the number of each task's resource, and the crowding of each resource."""
        lanes, kinds = int(self.lane.max(initial=0)) + 1, len(self.crowding)
        number = (self.place * lanes + self.lane) * kinds + self.kind
        count = (int(self.place.max(initial=0)) + 1) * lanes
        return np.asarray(number), np.tile(self.crowding, count)

    def take(self, rows: Ints) -> Tasks:
        """Return some of them."""
        columns = {one.name: getattr(self, one.name)[rows] for one in fields(self)[:-1]}
        return Tasks(**columns, crowding=self.crowding)

    def copy(self, rows: Ints, number: int) -> Tasks:
        """Return some of them as tasks of other workers, in the given copy."""
        tasks = self.take(rows)
        lane, stream, unit = (
            np.where(column >= first, column + number * (int(whole.max(initial=0)) + 1), column)
            for column, whole, first in (
                (tasks.lane, self.lane, 1),
                (tasks.stream, self.stream, 0),
                (tasks.unit, self.unit, 0),
            )
        )
        return replace(tasks, lane=lane, stream=stream, unit=unit)

    @classmethod
    def concatenate(cls, parts: Sequence[Tasks]) -> Self:
        """Put tasks with the same kinds of resources one after the other."""
        names = [one.name for one in fields(cls)[:-1]]
        columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        return cls(**columns, crowding=parts[0].crowding)


class Intervals(NamedTuple):
    """When tasks of one kind were at their resources, with their bytes, servers and workers."""

    begin: Floats
    end: Floats
    nbytes: Floats
    server: Ints
    worker: Ints

    def take(self, rows: Flags | Ints) -> Intervals:
        """Return some of them."""
        begin, end, nbytes, server, worker = self
        return Intervals(begin[rows], end[rows], nbytes[rows], server[rows], worker[rows])

    def first(self, count: int) -> Intervals:
        """Return those that began first."""
        return self.take(np.sort(np.argsort(self.begin, kind="stable")[:count]))


def find_disciplines(kinds: Sequence[Intervals]) -> list[tuple[Discipline, ...]]:
    """Return the disciplines, by kind, under which work goes by bytes most exactly.

    Where several do, all kinds get those under which their paces, ns per byte, differ least. Of what is
    left the simplest comes first; the others explain the recording as well (`_choose_different`). Empty
    where work of some kind does not go by bytes at all.
    """
    if not kinds:
        return [()]
    explanations = _explain(kinds)
    closest = [
        tuple(_DISCIPLINES[place] for place in one.places)
        for one in explanations
        if one.pace_tenths == explanations[0].pace_tenths
    ]
    return _choose_different(closest) if closest else []


def measure_deviation(kinds: Sequence[Intervals]) -> float:
    """Return how far the disciplines that explain kinds best are from doing so, as a share of all work.

    Infinite where work of some kind does not go by bytes.
    """
    return min((one.deviation for one in _explain(kinds)), default=np.inf)


def _choose_different(combined: Sequence[tuple[Discipline, ...]]) -> list[tuple[Discipline, ...]]:
    """Return the first, one for each other form that a kind's discipline may have, the most crowded."""
    chosen: list[tuple[Discipline, ...]] = []
    forms: set[tuple[int, Discipline]] = set()
    for disciplines in combined:
        new = {
            (kind, one._replace(crowding=None if one.crowding is None else 0.0))
            for kind, one in enumerate(disciplines)
        }
        if not new <= forms:
            forms |= new
            chosen.append(disciplines)
    crowded = max(combined, key=lambda one: sum(each.crowding or 0.0 for each in one))
    return chosen if crowded in chosen else [*chosen, crowded]


class _Explanation(NamedTuple):
    """How closely disciplines of all kinds explain the recording.

    `deviation` is a share of all work, `pace_tenths` how many tenths of a factor paces are apart; the
    disciplines are `places` in `_DISCIPLINES`, the simplest first.
    """

    deviation: float
    pace_tenths: int
    places: tuple[int, ...]


def _explain(kinds: Sequence[Intervals]) -> list[_Explanation]:
    """Return what explains kinds about as well as the best, those with the most equal paces first.

    Links carry bytes about as quickly to a server as from it. Different paces count as deviation, too.
    """
    choices = [_measure_disciplines(kind.first(MAX_INTERVALS_OF_FIT)) for kind in kinds]
    explanations = []
    for combined in product(*(choice.items() for choice in choices)):
        places = tuple(place for place, _ in combined)
        deviations, paces = zip(*(measured for _, measured in combined), strict=True)
        apart = float(np.log(max(paces) / min(paces)))
        deviation = float(np.mean(deviations)) + WEIGHT_OF_PACE_DIFFERENCE * apart
        explanations.append(_Explanation(deviation, round(10 * apart), places))
    best = min((one.deviation for one in explanations), default=0.0)
    limit = best / MAX_RATIO_OF_DEVIATIONS_IF_BETTER + NEGLIGIBLE_DEVIATION
    close = [one for one in explanations if one.deviation <= limit]
    return sorted(close, key=lambda one: (one.pace_tenths, one.places))


def _measure_disciplines(kind: Intervals) -> dict[int, tuple[float, float]]:
    """Return the deviation from bytes and the pace, ns per byte, under each discipline, by its place.

    Empty where work does not go by bytes at all.
    """
    works = [measure_work(discipline, kind) for discipline in _DISCIPLINES]
    total = max(float(kind.nbytes.sum()), 1.0)
    measured = {
        place: (_deviation(work, kind), max(float(work.sum()) / total, 1e-12))
        for place, work in enumerate(works)
    }
    if min(deviation for deviation, _ in measured.values()) > MAX_DEVIATION_FROM_BYTES:
        return {}
    return {0: measured[0]} if _wait_for_each_other(kind) else measured


def _wait_for_each_other(kind: Intervals) -> bool:
    """Return whether tasks of several workers never overlap, and often begin as another one ends."""
    order = np.lexsort((kind.end, kind.begin, kind.server))
    begin, end, _, server, worker = kind.take(order)
    same = server[1:] == server[:-1]
    gap, length = (begin[1:] - end[:-1])[same], (end - begin)[1:][same]
    if float(np.maximum(-gap, 0.0).sum()) > MAX_OVERLAP_IN_LINE * float(length.sum()):
        return False
    at_once = (gap <= MAX_GAP_IN_LINE * length) & (worker[1:] != worker[:-1])[same]
    return bool(at_once.sum() > MIN_SHARE_IN_LINE * len(gap))


def measure_work(discipline: Discipline, kind: Intervals) -> Floats:
    """Return how much work each task was under a discipline, ns."""
    begin, end, _, server, worker = kind
    group = server.astype(np.int64)
    if discipline.per_worker or discipline.streams:
        group = group * (int(worker.max(initial=0)) + 2) + worker + 1
    start = _started(begin, end, group) if discipline.takes_turns else begin
    if discipline.crowding is None:
        return end - start
    work = np.zeros(len(begin))
    for number in np.unique(server):
        rows = np.flatnonzero(server == number)
        work[rows] = measure_link_time(start[rows], end[rows], discipline.crowding)
    return work


def _started(begin: Floats, end: Floats, group: Ints) -> Floats:
    """Return when each task had the resource, if those of a group took turns in order of their ends."""
    order = np.lexsort((begin, end, group))
    before = np.append(-np.inf, end[order][:-1])
    before[np.append(True, np.diff(group[order]) != 0)[: len(order)]] = -np.inf
    start = np.empty(len(begin))
    start[order] = np.maximum(begin[order], before)
    return start


def _deviation(work: Floats, kind: Intervals) -> float:
    """Return what share of all work differs from a line by bytes, times a factor of each server."""
    nbytes, server = kind.nbytes, kind.server
    factor = np.ones(len(work))
    for _ in range(ROUNDS_OF_RESOURCE_FIT):
        line = _fit_line(work / factor, nbytes)
        sums = np.bincount(server, work), np.bincount(server, line)
        factor = np.maximum(sums[0] / np.maximum(sums[1], 1e-12), 1e-12)[server]
    return float(np.abs(work - factor * line).sum() / max(float(work.sum()), 1e-12))


def _fit_line(work: Floats, nbytes: Floats) -> Floats:
    """Return what a line with no negative part says of each size; errors count as shares of a size."""
    weight = 1 / nbytes
    design = np.stack([weight, np.ones(len(nbytes))], axis=1)
    fixed, pace = np.linalg.lstsq(design, work * weight, rcond=None)[0].tolist()
    if fixed < 0:
        fixed, pace = 0.0, float(np.mean(work * weight))
    return np.asarray(fixed + max(pace, 0.0) * nbytes)


class _SharedResource:
    """A resource whose tasks get equal shares: `had` is what each message on it has had until `now`."""

    __slots__ = ("busy", "crowd", "crowding", "had", "now", "on_it", "version", "waiting")

    def __init__(self, crowding: float) -> None:
        self.crowding = crowding
        self.had = self.now = self.crowd = 0.0
        self.on_it: list[tuple[float, int, int, float]] = []
        self.busy: set[int] = set()
        self.waiting: dict[int, deque[tuple[int, float, float]]] = defaultdict(deque)
        self.version = 0

    def _pace(self) -> float:
        return self.crowd * (1 + self.crowding * max(self.crowd - 1, 0.0))

    def advance(self, now: float) -> None:
        """Give all tasks what they get until now."""
        if self.crowd > 0:
            self.had += (now - self.now) / self._pace()
        self.now = now

    def add(self, task: int, stream: int, work: float, messages: float) -> None:
        """Begin a task, or let it wait for the one before of its stream."""
        if stream >= 0 and stream in self.busy:
            self.waiting[stream].append((task, work, messages))
            return
        if stream >= 0:
            self.busy.add(stream)
        heappush(self.on_it, (self.had + work / messages, task, stream, messages))
        self.crowd += messages

    def next_end(self) -> float:
        """Return when the next task ends, if none is added before."""
        return self.now + max(self.on_it[0][0] - self.had, 0.0) * self._pace()

    def end_next(self) -> int:
        """End that task, begin the one that waits for it, and return the task."""
        had, task, stream, messages = heappop(self.on_it)
        self.had = max(self.had, had)
        self.crowd = self.crowd - messages if self.on_it else 0.0
        self.busy.discard(stream)
        if queue := self.waiting.get(stream):
            following, work, more = queue.popleft()
            self.add(following, stream, work, more)
        return task


def replay_events(
    recorded: Floats,
    edges: tuple[Ints, Ints, Floats],
    occupations: tuple[Ints, Ints, Tasks, Floats],
    priority: Ints,
) -> Floats:
    """Return when events occur: each follows all its edges, and the tasks that end at it.

    Args:
        recorded: When events occurred that follow nothing.
        edges: Source, target and lag of each, no lag below 0.
        occupations: Source and target of each task, the tasks, and their work.
        priority: Of events at the same time, the lower one is first at a resource.

    Raises:
        ValueError: events follow each other in a circle.
    """
    run = _Run(edges, occupations, priority)
    replayed = run.replay(recorded)
    if replayed < len(recorded):
        raise ValueError(f"{len(recorded) - replayed} events follow each other in a circle")
    return np.array(run.times)


class _Run:
    """Events and tasks in the order of their times."""

    def __init__(
        self,
        edges: tuple[Ints, Ints, Floats],
        occupations: tuple[Ints, Ints, Tasks, Floats],
        priority: Ints,
    ) -> None:
        source, target, lag = edges
        starts, ends, tasks, work = occupations
        count = len(priority)
        order, first = _sort_by_source(source, count)
        self._targets, self._lags = target[order].tolist(), lag[order].tolist()
        self._first_edge = first.tolist()
        order, first = _sort_by_source(starts, count)
        self._tasks, self._first_task = order.tolist(), first.tolist()
        resources, crowding = tasks.resources()
        self._ends, self._resources = ends.tolist(), resources.tolist()
        self._streams, self._messages = tasks.stream.tolist(), tasks.messages.tolist()
        self._work, self._hold = work.tolist(), tasks.hold(work).tolist()
        self._leads = tasks.leads.tolist()
        self._free = [-np.inf] * len(crowding)
        self._shared = {
            number: _SharedResource(float(crowding[number]))
            for number in np.flatnonzero(~np.isnan(crowding)).tolist()
        }
        self._awaited = np.bincount(np.append(target, ends), minlength=count).tolist()
        self._priority, self.times = priority.tolist(), [-np.inf] * count
        # Ends of tasks that share a resource have a number below 0, and precede events of their time.
        self._agenda: list[tuple[float, int, int, int]] = []

    def replay(self, recorded: Floats) -> int:
        """Replay all events, and return how many there were."""
        for event in [row for row, count in enumerate(self._awaited) if not count]:
            self.times[event] = float(recorded[event])
            heappush(self._agenda, (self.times[event], self._priority[event], event, 0))
        replayed = 0
        while self._agenda:
            now, _, event, version = heappop(self._agenda)
            if event < 0:
                self._end_task(-1 - event, version, now)
                continue
            replayed += 1
            for edge in range(self._first_edge[event], self._first_edge[event + 1]):
                self._arrive(self._targets[edge], now + self._lags[edge])
            for row in range(self._first_task[event], self._first_task[event + 1]):
                self._begin_task(self._tasks[row], now)
        return replayed

    def _arrive(self, event: int, moment: float) -> None:
        """Let an event follow one thing less, which happens at a moment."""
        self.times[event] = max(self.times[event], moment)
        self._awaited[event] -= 1
        if not self._awaited[event]:
            heappush(self._agenda, (self.times[event], self._priority[event], event, 0))

    def _begin_task(self, task: int, now: float) -> None:
        number = self._resources[task]
        if (resource := self._shared.get(number)) is not None:
            resource.advance(now)
            resource.add(task, self._streams[task], self._work[task], self._messages[task])
            self._plan_end(number, resource)
            return
        start = max(now, self._free[number]) if self._leads[task] else now
        self._free[number] = max(self._free[number], start + self._hold[task])
        self._arrive(self._ends[task], start + self._work[task])

    def _end_task(self, number: int, version: int, now: float) -> None:
        """End the next task at a resource, if that was planned since tasks were last added."""
        resource = self._shared[number]
        if resource.version != version:
            return
        resource.advance(now)
        self._arrive(self._ends[resource.end_next()], now)
        self._plan_end(number, resource)

    def _plan_end(self, number: int, resource: _SharedResource) -> None:
        resource.version += 1
        if resource.on_it:
            heappush(self._agenda, (resource.next_end(), -1, -1 - number, resource.version))


def _sort_by_source(source: Ints, count: int) -> tuple[Ints, Ints]:
    """Return the order of edges by their source, and where each source's edges begin in it."""
    order = np.argsort(source, kind="stable")
    return order, np.searchsorted(source[order], np.arange(count + 1))
