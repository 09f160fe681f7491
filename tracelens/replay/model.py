"""A run as moments that follow each other, of which a change of any length or bond gives another run.

Moments are what training threads exchange with others (`threads.py`), when collectives went and were
through (`calls.py`), and when servers' services began and ended (`requests.py`). What a thread works
between two of its moments takes as long as it did; until when it is blocked follows from what it waits
for. Where what it waits for does not explain that, the replay of the run as it was differs from the run:
that difference is the replay's error. Time in which it is blocked by nothing that is known stays as it
was (`kept_share`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import polars as pl

from tracelens.accounting.algorithms import recorded_algorithms
from tracelens.accounting.categories import CATEGORIES
from tracelens.accounting.phases import in_process_order
from tracelens.caching import cached_property
from tracelens.replay.calls import Calls, complete_calls, end_waits
from tracelens.replay.graph import Graph
from tracelens.replay.implicit import find_implicit_calls
from tracelens.replay.links import KEPT, Bond, Carrier, Links, LinkTable
from tracelens.replay.messages import message_edges, messages_of
from tracelens.replay.pull_needs import find_needs, measure_unknown_needs
from tracelens.replay.readiness import Queue, estimate_ready_calls
from tracelens.replay.requests import Requests
from tracelens.replay.resources import Tasks, replay_events
from tracelens.replay.threads import Sides, Threads
from tracelens.replay.timeline import IS_BLOCKED, Timeline
from tracelens.schema.rules import LATEST_NS
from tracelens.schema.vocabulary import PICKLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tracelens.accounting.phases import Phases
    from tracelens.accounting.pieces import WorkerPieces
    from tracelens.arrays import Flags, Floats, Ints
    from tracelens.model.trace import Trace

__all__ = ["Model"]

# steps: no stretch has a usual time if fewer have as many stretches [chosen]
MIN_STEPS_OF_USUAL_STRETCH: Final = 8
# services: more keep the recorded order, since each takes 20 us to replay [policy]
MAX_SERVICES_IN_ARRIVAL_ORDER: Final = 500_000
# share of the run, or of the usual step: servers keep the recorded order if a replay without edits
# is further off [chosen; one decision in Model.of, Model.alternatives]
MAX_ERROR_OF_ARRIVAL_ORDER: Final = 0.01


@dataclass(frozen=True, eq=False)
class Model:
    """A run that can be replayed.

    `begin_ns` is when the first of `steps` began. `messages` are sent and received ones, `released` says
    when workers went on because of an update. `build` makes another model of the same steps.
    """

    trace: Trace
    steps: Ints
    begin_ns: int
    threads: Threads
    messages: tuple[Sides, Sides]
    calls: tuple[Calls, ...]
    queue: Queue
    requests: Requests
    released: Sides
    build: Callable[..., Self | None]

    @classmethod
    def of(cls, trace: Trace, phases: Phases, steps: tuple[int, int] | None = None) -> Self | None:
        """Build it; None for a run without steps that last, or in which a worker has none.

        Servers that serve in an order of their own, not as requests come, keep to that.

        Args:
            trace: A run.
            phases: The partition of its time.
            steps: The numbers of the first and the last step to replay, if not all.
        """
        build = partial(cls._build, trace, phases, steps)
        model = build()
        if (
            model is None
            or not len(model.tasks.link)
            or model.largest_error <= MAX_ERROR_OF_ARRIVAL_ORDER
        ):
            return model
        ordered = build(in_recorded_order=True)
        return ordered if ordered and ordered.largest_error < model.largest_error else model

    @classmethod
    def _build(
        cls,
        trace: Trace,
        phases: Phases,
        steps: tuple[int, int] | None,
        *,
        in_recorded_order: bool = False,
        alternative: int = 0,
    ) -> Self | None:
        windows = _choose_windows(trace, steps)
        if not windows:
            return None
        timeline = Timeline.from_pieces(_take_pieces(phases, windows))
        begins_ns, ends_ns = _find_ends(windows)
        messages = messages_of(trace, timeline, begins_ns, ends_ns)
        calls, queue = _read_calls(trace, timeline, windows, messages)
        requests = _read_requests(trace, timeline, windows)
        in_recorded_order |= requests.served.height > MAX_SERVICES_IN_ARRIVAL_ORDER
        requests = replace(requests, in_recorded_order=in_recorded_order, alternative=alternative)
        sides = [*messages, *(call.sides for call in calls), requests.sides]
        calls += _implicit_calls(trace, timeline, windows, sides)
        met = [*messages, *(call.sides for call in calls)]
        released = requests.released(timeline, [*met, requests.sides])
        met += [requests.needed, requests.needs_apart, released, _find_updates(timeline)]
        threads = Threads.from_sides(timeline, windows, met)
        places = accumulate((2 * call.height for call in calls), initial=threads.moment_count)
        return cls(
            trace=trace,
            steps=np.unique(pl.concat(windows)["step"].to_numpy()).astype(np.int64),
            begin_ns=int(begins_ns.min()),
            threads=threads,
            messages=messages,
            calls=tuple(
                replace(call, at=place) for call, place in zip(calls, places, strict=False)
            ),
            queue=queue,
            requests=requests,
            released=released,
            build=partial(cls._build, trace, phases, steps),
        )

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The rank of each worker."""
        return tuple(self.trace.workers["rank"].to_list())

    @cached_property
    def rows(self) -> Ints:
        """The step of each first link, as a row of `steps`; -1 of none."""
        return self.threads.find_rows(self.steps)

    @cached_property
    def ends(self) -> Ints:
        """Moments at which steps end, [step, worker]; -1 where a worker lacks one."""
        return self.threads.find_ends(self.steps)

    @cached_property
    def requests_at(self) -> int:
        """The first moment of `requests`: two a service, when it began and ended."""
        return self.threads.moment_count + 2 * sum(call.height for call in self.calls)

    @cached_property
    def _moments(self) -> Ints:
        """When all moments were, ns."""
        on_wires = [np.stack([call.on_wire, call.through], axis=1).ravel() for call in self.calls]
        return np.concatenate([self.threads.moments, *on_wires, self.requests.moments])

    @cached_property
    def recorded(self) -> Floats:
        """When all moments were, ns: those of threads, of calls, and of services."""
        return self._moments.astype(np.float64)

    @cached_property
    def links(self) -> LinkTable:
        """What each moment follows; the first links are those of `threads`, in their order."""
        links, times, threads = Links(), self._moments, self.threads
        for call in self.calls:
            call.add_links(links, threads)
        self.queue.add_links(links, self.calls)
        if self.requests.asked.height:
            self.requests.add_links(links, threads, self.requests_at, times, self.released)
        caused = [links.targets]
        sent, received = self.messages
        pairs = sent.worker * len(threads) + received.worker
        steps = threads.find_steps(sent.worker, sent.begin)
        for source, target, lag, rows in message_edges(sent, received, threads):
            links.add(source, target, lag, step=steps[rows], pair=pairs[rows])
            # A message that had come earlier did not end the wait.
            caused.append(target[times[source] + lag >= times[target]])
        links.add_first(*threads.order(np.concatenate(caused)))
        return links.table(times)

    @cached_property
    def algorithms(self) -> dict[int, frozenset[str]]:
        """How collectives of so many ranks were carried out, as far as it was recorded."""
        table = recorded_algorithms(self.trace).group_by("communicator").agg("algorithm")
        known, algorithms = dict(table.iter_rows()), dict[int, frozenset[str]]()
        for grid in self.trace.calls:
            words = frozenset(known.get(grid.uid, ())) - {PICKLE}
            names = frozenset(word.replace("-", "_") for word in words)
            algorithms[len(grid.ranks)] = algorithms.get(len(grid.ranks), frozenset()) | names
        return algorithms

    @cached_property
    def alternatives(self) -> tuple[tuple[str, Model], ...]:
        """Models with servers that explain the recording as well, with what the recording lacks."""
        if not len(self.tasks.link):
            return ()
        others = [
            (reason, self.build(alternative=number))
            for number, reason in enumerate(self.requests.occupancy.unknown)
            if number
        ]
        limit = max(self.largest_error, MAX_ERROR_OF_ARRIVAL_ORDER)
        return tuple(
            (reason, model)
            for reason, model in others
            if model is not None and model.largest_error <= limit
        )

    @cached_property
    def errors(self) -> tuple[float, float]:
        """By what shares the whole run, and the usual step, differ from the recorded ones."""
        recorded, usual = self.lengths(self.recorded), self.lengths(self.usual)
        step_errors = np.abs(usual / np.maximum(recorded, 1.0) - 1)
        return float(usual.sum() / max(recorded.sum(), 1.0) - 1), float(np.median(step_errors))

    @property
    def largest_error(self) -> float:
        """The larger one of `errors`, without its sign."""
        return max(map(abs, self.errors))

    @cached_property
    def graph(self) -> Graph:
        """The moments and links as they were."""
        links = self.links
        return Graph.of(self.recorded, links.source, links.target, links.lag)

    @cached_property
    def wires(self) -> Ints:
        """The link, by a moment at which a call went, or a service began, to when it was over."""
        links, found = self.links, np.full(len(self.recorded), -1, np.int64)
        rows = np.flatnonzero((links.target == links.source + 1) & (links.line >= 0))
        found[links.source[rows]] = rows
        return found

    @property
    def served_variables(self) -> dict[int, int]:
        """The bytes of each variable, by key; empty unless that of all that servers do is known."""
        requests = self.requests
        sized = (requests.served["bytes"].fill_null(0) > 0).to_numpy()
        known = np.isin(requests.keys, list(self.requests.variables))
        whole = bool(known[sized & (requests.worker_of_services >= 0)].all())
        return self.requests.variables if whole else {}

    @cached_property
    def tasks(self) -> Tasks:
        """What occupies links and processors of servers."""
        return self.requests.occupancy.tasks(self.service_links)

    @property
    def service_links(self) -> Ints:
        """The link from the begin to the end of each service of servers."""
        return self.wires[self.requests_at + 2 * np.arange(self.requests.served.height)]

    def replayed(
        self,
        lag: Floats,
        kept: Flags | None = None,
        more: Sequence[tuple[Ints, Ints, Floats]] = (),
        tasks: Tasks | None = None,
        ranks: int | None = None,
    ) -> Floats:
        """Return when moments come with other lags, without links that are not `kept`, and with `more`.

        Each of `more` is sources, targets and lags. `tasks` occupy servers, None = as recorded. Servers
        serve so many `ranks`, None = those recorded: others do what these do.

        Raises:
            ValueError: with these links, moments follow each other in a circle.
        """
        tasks = self.tasks if tasks is None else tasks
        if not len(tasks.link) and not more:
            graph = self.graph if kept is None or kept.all() else self.graph.keep(kept)
            return graph.play(lag)
        links = self.links
        bound = np.ones(len(lag), np.bool_) if kept is None else kept.copy()
        bound[tasks.link] = False
        if len(tasks.link):
            free = bound & (links.bond != Bond.QUEUE)
            awaits = np.zeros(len(self.recorded), np.bool_)
            awaits[links.target[free]] = True
            # What a server began by itself has nothing but its turn to follow.
            bound = free | (bound & ~awaits[links.target])
        every = [(links.source[bound], links.target[bound], lag[bound]), *more]
        source, target, whole = (np.concatenate([one[side] for one in every]) for side in range(3))
        if not len(tasks.link):
            return Graph.of(self.recorded, source, target, whole).play(whole)
        whole = np.maximum(whole, 0.0)
        work = np.maximum(lag[tasks.link] * tasks.share, 0.0)
        ends = links.source[tasks.link], links.target[tasks.link]
        if ranks is None:
            return replay_events(
                self.recorded, (source, target, whole), (*ends, tasks, work), self._priority
            )
        return self._with_ranks(ranks, (source, target, whole), (*ends, tasks, work))

    def _with_ranks(
        self,
        ranks: int,
        edges: tuple[Ints, Ints, Floats],
        occupations: tuple[Ints, Ints, Tasks, Floats],
    ) -> Floats:
        """Return when moments come with so many ranks: of those that do the same, the last one's.

        Workers are copied as often as it takes; calls, and services for no worker, are there once.
        """
        moments, recorded_ranks = len(self.recorded), len(self.ranks)
        owner = np.concatenate(
            [
                self.threads.find_owners(np.arange(self.threads.moment_count)),
                np.full(2 * sum(call.height for call in self.calls), -1),
                np.repeat(self.requests.worker_of_services, 2),
            ]
        )
        source, target, lag = edges
        starts, ends, tasks, work = occupations
        copies = -(-ranks // recorded_ranks)
        copied_edges: list[tuple[Ints, ...]] = []
        copied_ends: list[tuple[Ints, ...]] = []
        copied_tasks = []
        for number in range(copies):
            exists = owner + number * recorded_ranks < ranks
            moment = np.arange(moments) + np.where(owner >= 0, number * moments, 0)

            def find_copied(
                begin: Ints, end: Ints, exists: Flags = exists, number: int = number
            ) -> Ints:
                of_worker = np.maximum(owner[begin], owner[end]) >= 0
                return np.flatnonzero(exists[begin] & exists[end] & (of_worker | (number == 0)))

            edge, task = find_copied(source, target), find_copied(starts, ends)
            copied_edges.append((moment[source[edge]], moment[target[edge]], edge))
            copied_ends.append((moment[starts[task]], moment[ends[task]], task))
            copied_tasks.append(tasks.copy(task, number))
        source, target, edge = (np.concatenate(part) for part in zip(*copied_edges, strict=True))
        starts, ends, task = (np.concatenate(part) for part in zip(*copied_ends, strict=True))
        times = replay_events(
            np.tile(self.recorded, copies),
            (source, target, lag[edge]),
            (starts, ends, Tasks.concatenate(copied_tasks), work[task]),
            np.concatenate([self._priority + number * moments for number in range(copies)]),
        ).reshape(copies, moments)
        is_there = owner + np.arange(copies)[:, None] * recorded_ranks < ranks
        is_there[1:] &= owner >= 0
        return np.asarray(np.where(is_there, times, -np.inf).max(axis=0))

    @cached_property
    def _priority(self) -> Ints:
        """The order in which what was asked for at once has its turn: as workers asked."""
        found = np.zeros(len(self.recorded), np.int64)
        asked = self.requests.served["asked"].to_numpy() + 1
        found[self.requests_at : self.requests_at + 2 * len(asked)] = np.repeat(asked, 2)
        return found

    def waited(self, times: Floats, lag: Floats) -> Floats:
        """Return how long each worker was blocked, or in communication, ns, [worker]."""
        begins = self.threads.begins
        begun, last = times[begins[:-1]], times[begins[1:] - 1]
        worked = self.threads.sum_by_thread(lag[: len(self.rows)])
        return np.where(np.isfinite(last), last - begun - worked, 0.0)

    def measure_waits_ns(self, lag: Floats) -> float:
        """Return for how long workers wait for messages and last arrivals, with other lags, in all.

        A wait lies between the end of the work after a moment of a thread and the next moment, if that
        follows a moment elsewhere, too. A collective is waited for until it goes.
        """
        times = self.replayed(lag)
        in_order, threads_end = len(self.threads.sources), self.threads.moment_count
        owner = self.threads.find_owners(np.arange(len(times)))
        source, target = self.links.source[in_order:], self.links.target[in_order:]
        from_others = (owner[source] != owner[target]) & (target < threads_end)
        source, target = source[from_others], target[from_others]
        is_through = (source >= threads_end) & (source < self.requests_at)
        goes = source - (is_through & ((source - threads_end) % 2 == 1))
        worked_until = times.copy()
        before, after = self.links.source[:in_order], self.links.target[:in_order]
        worked_until[after] = times[before] + lag[:in_order]
        waits = np.zeros(len(times))
        until = np.minimum(times[goes], times[target])
        np.maximum.at(waits, target, until - worked_until[target])
        return float(waits.sum())

    @cached_property
    def usual(self) -> Floats:
        """When moments come in the replay of the run as it was."""
        return self.replayed(self.links.lag)

    def lengths(self, times: Floats) -> Floats:
        """Return how long after the one before each step was over on all workers, ns, [step]."""
        over = np.where(self.ends >= 0, times[self.ends], -np.inf).max(axis=1)
        return np.diff(np.maximum.accumulate(over), prepend=float(self.begin_ns))

    def worked(self, names: Sequence[str]) -> Floats:
        """Return how long threads were in some phases between their moments, ns, [first link]."""
        spent = self.threads.measure_spent(np.isin(CATEGORIES, list(names)))
        return np.where(self.threads.stopped, 0.0, spent)

    @property
    def kept_share(self) -> float:
        """What share of workers' time they are blocked by what is not known: it stays as recorded."""
        lasted_ns = np.diff(self.threads.positions)[self.threads.sources]
        return self._kept_ns / max(float(lasted_ns.sum()), 1.0)

    @cached_property
    def known_lags(self) -> Floats:
        """What of the lag of each link has a reason that is known, ns; the rest no edit changes."""
        links, known = self.links, self.links.lag.copy()
        if KEPT in links.lines:
            known[links.line == links.lines.index(KEPT)] = 0.0
        worked = self.threads.passed
        known[: len(worked)] = np.minimum(known[: len(worked)], worked)
        return known

    @cached_property
    def _kept_ns(self) -> float:
        """For how long workers are blocked by what is not known."""
        alone = np.zeros(len(self.recorded), np.bool_)
        if KEPT in self.links.lines:
            alone[self.links.target[self.links.line == self.links.lines.index(KEPT)]] = True
        threads = self.threads
        blocked = threads.measure_spent(IS_BLOCKED)
        beyond_work = np.maximum(self.links.lag[: len(blocked)] - threads.passed, 0.0)
        known = np.where(threads.stopped, 0.0, np.minimum(beyond_work, blocked))
        return float(np.where(alone[threads.sources + 1], blocked, known).sum())

    @cached_property
    def cells(self) -> Ints:
        """The place of each first link in a table [worker, step]; -1 of no step."""
        return np.where(self.rows < 0, -1, self.threads.owners * len(self.steps) + self.rows)

    def sum_by_step(self, worked: Floats) -> Floats:
        """Add what `worked` returns up by step, ns, [step, worker]."""
        is_known = self.cells >= 0
        shape = len(self.threads), len(self.steps)
        sums = np.bincount(self.cells[is_known], worked[is_known], minlength=shape[0] * shape[1])
        return sums.astype(np.float64).reshape(shape).T

    def spread_over_links(self, effect: Floats, worked: Floats) -> Floats:
        """Spread workers' effects in each step over the first links; return what is taken off each.

        What links take beyond the same links of workers without an effect goes first, for there the
        worker was late; without such workers, what they take beyond their own usual time. What is left
        of the effect is shared out as the work is.

        Args:
            effect: What is taken off workers' work, ns, [step, worker]; below 0 it is added.
            worked: How long the worker worked in each link, ns. A step without work gets nothing.
        """
        effect = effect.T.ravel()
        links = np.flatnonzero((self.cells >= 0) & (worked > 0))
        cell, work = self.cells[links], worked[links]
        peers_work = _find_work_of_peers(cell, work, len(self.steps), effect[cell] == 0)
        overrun = np.where(
            np.isnan(peers_work),
            _measure_overrun(cell, work, len(self.steps)),
            np.maximum(work - peers_work, 0.0),
        )
        whole = np.bincount(cell, overrun, minlength=len(effect))
        share = np.divide(effect, whole, out=np.zeros_like(effect), where=whole > 0)
        beyond = overrun * np.clip(share, 0.0, 1.0)[cell]
        left = effect - np.bincount(cell, beyond, minlength=len(effect))
        work = work - beyond
        whole = np.bincount(cell, work, minlength=len(effect))
        rate = np.divide(left, whole, out=np.zeros_like(effect), where=whole > 0)
        less = np.zeros(len(worked))
        less[links] = beyond + rate[cell] * work
        return less

    def extend_to_departures(self, factors: Floats) -> Floats:
        """Return factors of links with that of each collective also on what follows it.

        Ranks leave a slow collective one after the other, as its last messages come.
        """
        links = self.links
        threads_end = self.threads.moment_count
        rows = np.flatnonzero((links.communicator >= 0) & (links.source >= threads_end))
        after = np.ones(len(self.recorded))
        after[links.target[rows]] = factors[rows]
        return factors * after[links.source]

    def measure_transfer_factors(self, takes: Mapping[Carrier, Floats], steps: Ints) -> Floats:
        """Return how many times its lag each link takes if transfers take less time.

        Args:
            takes: What share of its time each transfer takes then, by what carries it, [step].
            steps: The step of each row of these, ascending.
        """
        links, factors = self.links, np.ones(len(self.links.lag))
        place = np.minimum(np.searchsorted(steps, links.step), len(steps) - 1)
        is_changed = steps[place] == links.step
        for carrier, shares in takes.items():
            rows = np.flatnonzero(is_changed & self._find_links_of(carrier))
            factors[rows] = shares[place[rows]]
        return self.extend_to_departures(factors)

    def _find_links_of(self, carrier: Carrier) -> Flags:
        """Return which links are transfers that a communicator or a link between ranks carries."""
        links = self.links
        if isinstance(carrier, str):
            is_known = carrier in links.communicators
            number = links.communicators.index(carrier) if is_known else len(links.communicators)
            return np.asarray((links.line >= 0) & (links.communicator == number))
        sender, receiver = map(self.ranks.index, carrier)
        return np.asarray(links.pair == sender * len(self.threads) + receiver)


def _measure_overrun(cell: Ints, spent: Floats, steps: int) -> Floats:
    """Return what each stretch takes beyond its usual time, ns.

    The usual time is the median over its worker's steps with as many stretches. Of fewer than
    `MIN_STEPS_OF_USUAL_STRETCH` nothing is usual.

    Args:
        cell: `worker * steps + step` of each stretch, ascending.
        spent: How long the worker worked in it, ns.
        steps: How many steps there are.
    """
    cells, first, count = np.unique(cell, return_index=True, return_counts=True)
    overrun = np.zeros(len(spent))
    worker = cells // steps
    order = np.lexsort((worker, count))
    first, worker, count = first[order], worker[order], count[order]
    is_new = (np.diff(worker, prepend=-1) != 0) | (np.diff(count, prepend=-1) != 0)
    heads = np.flatnonzero(is_new)
    steps_alike = np.diff(np.append(heads, len(order)))
    is_usual = steps_alike >= MIN_STEPS_OF_USUAL_STRETCH
    shapes = np.stack([steps_alike, count[heads]], axis=1)
    for shape in np.unique(shapes[is_usual], axis=0).tolist():
        alike = heads[(shapes == shape).all(axis=1)]
        places = first[alike[:, None] + np.arange(shape[0])][:, :, None] + np.arange(shape[1])
        usual = np.median(spent[places], axis=1, keepdims=True)
        overrun[places] = np.maximum(spent[places] - usual, 0.0)
    return overrun


def _find_work_of_peers(cell: Ints, work: Floats, steps: int, is_peer: Flags) -> Floats:
    """Return what the median peer works in the same step and place as each stretch, ns.

    Peers are alike if their step has as many stretches; nan where no such peer is.

    Args:
        cell: `worker * steps + step` of each stretch, ascending.
        work: How long the worker worked in it, ns.
        steps: How many steps there are.
        is_peer: Which stretches are of workers to compare with.
    """
    if not is_peer.any():
        return np.full(len(cell), np.nan)
    _, first, cells, count = np.unique(
        cell, return_index=True, return_inverse=True, return_counts=True
    )
    most = int(count.max()) + 1
    place = np.arange(len(cell)) - first[cells]
    key = ((cell % steps) * most + place) * most + count[cells]
    _, group = np.unique(key, return_inverse=True)
    peers = np.flatnonzero(is_peer)
    peers = peers[np.lexsort((work[peers], group[peers]))]
    known, begin, size = np.unique(group[peers], return_index=True, return_counts=True)
    usual = np.full(int(group.max()) + 1, np.nan)
    usual[known] = work[peers[begin + (size - 1) // 2]]
    return usual[group]


def _choose_windows(trace: Trace, steps: tuple[int, int] | None) -> list[pl.DataFrame]:
    """Return the steps of each worker, in order of time; empty if a worker has none, or none lasts.

    Also empty if 64 bits do not hold the time of all workers, one after the other, in nanoseconds.

    `window` is the place of each step among all of its worker.
    """
    ordered = in_process_order(trace.steps)
    if ordered.is_empty():
        return []
    process, number = (ordered[name].to_numpy() for name in ("process", "step"))
    first, last = (number.min(), number.max()) if steps is None else steps
    rows = np.flatnonzero((number >= first) & (number <= last))
    firsts = np.searchsorted(process, process[rows])
    chosen = ordered[rows].with_columns(window=pl.Series(rows - firsts))
    workers = trace.workers["process"].to_numpy()
    begins, ends = (np.searchsorted(process[rows], workers, side) for side in ("left", "right"))
    lasts = (chosen["end_ns"] > chosen["start_ns"]).any()
    if (begins == ends).any() or not lasts or _measure_line(chosen) > LATEST_NS:
        return []
    return [chosen[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]


def _measure_line(steps: pl.DataFrame) -> float:
    """Return how long the line is on which the time of each worker takes equally much, ns."""
    whole = float(steps["end_ns"].to_numpy().max()) - float(steps["start_ns"].to_numpy().min())
    return whole * steps["process"].n_unique()


def _take_pieces(phases: Phases, windows: Sequence[pl.DataFrame]) -> list[WorkerPieces]:
    """Return the pieces of each worker's time in its steps."""
    return [
        phases.pieces.of_worker(phases.pieces.processes.index(window["process"][0])).between(
            window["window"][0], window["window"][-1] + 1
        )
        for window in windows
    ]


def _find_ends(windows: Sequence[pl.DataFrame]) -> tuple[Ints, Ints]:
    """Return when the first step of each worker begins, and when its last one ends, ns."""
    begins_ns = np.array([window["start_ns"][0] for window in windows])
    return begins_ns, np.array([window["end_ns"][-1] for window in windows])


def _read_calls(
    trace: Trace,
    timeline: Timeline,
    windows: Sequence[pl.DataFrame],
    messages: tuple[Sides, Sides],
) -> tuple[list[Calls], Queue]:
    """Return the collectives that spans show, from when their data was ready, and who waits for whom."""
    recorded = [*complete_calls(trace, *_find_ends(windows))]
    queue = Queue.from_calls(recorded, timeline)
    noticed = end_waits([call.noticed(timeline) for call in recorded], timeline, messages)
    return [*estimate_ready_calls(noticed, queue, timeline.pieces, windows)], queue


def _read_requests(trace: Trace, timeline: Timeline, windows: Sequence[pl.DataFrame]) -> Requests:
    """Return what workers ask of servers, and when they need it."""
    requests = Requests.of(trace, *_find_ends(windows)).noticed(timeline)
    needs = find_needs(requests.asked, timeline, windows)
    unknown_needs = measure_unknown_needs(requests.asked, needs, timeline)
    return replace(requests, needs=needs, unknown_needs=unknown_needs)


def _implicit_calls(
    trace: Trace,
    timeline: Timeline,
    windows: Sequence[pl.DataFrame],
    communication: Sequence[Sides],
) -> Iterator[Calls]:
    """Find the collectives of all workers, and of each communicator, that no span shows."""
    processes = trace.workers["process"].to_list()
    place = {process: at for at, process in enumerate(processes)}
    members = {tuple(grid.processes.tolist()) for grid in trace.calls} | {tuple(processes)}
    groups = [
        tuple(sorted(place[process] for process in group))
        for group in members
        if len(group) > 1 and place.keys() >= set(group)
    ]
    steps = [part["step"].to_numpy().astype(np.int64) for part in windows]
    return find_implicit_calls(timeline, steps, communication, groups, trace.uncertainty_ns)


def _find_updates(timeline: Timeline) -> Sides:
    """Return when workers began to update weights, as moments without length."""
    updates = timeline.first_updates()
    moments = timeline.moments_at(updates)
    worker = timeline.workers_at(updates)
    return Sides(worker, moments, moments, np.zeros(len(moments), np.bool_))
