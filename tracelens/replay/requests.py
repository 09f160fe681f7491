"""Exchanges with servers in a replay: a request, its services one after the other, its answer.

A request reaches its server after the way that such requests usually take. A service follows the one
before of the same request; the one before at its server, if that serves in turn, or if the request had
come before that was over; and an update follows all that it joins. A worker that is blocked without any
partner resumes with the last update that ended meanwhile: it stood at a barrier, or awaited its turn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.caching import cached_property
from tracelens.model.intervals import Intervals
from tracelens.replay.edges import UNEXPLAINED, CostLine, EdgeReason
from tracelens.replay.occupancy import INCOMING, OUTGOING, Occupancy, find_ends_on_links
from tracelens.replay.threads import Sides
from tracelens.schema.vocabulary import EXCHANGE_KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Flags, Indices, Ints
    from tracelens.model.trace import Trace
    from tracelens.replay.edges import EdgeList
    from tracelens.replay.threads import Threads
    from tracelens.replay.timeline import Timeline

__all__ = ["Requests"]

_OF_WORKERS: Final = ("turn_wait", "worker_update", "master_update")  # operations without message
_UPDATES: Final = ("apply", "master_update")
# times the usual delay after an update: a worker that goes on later did not wait for
# the token [chosen]
MAX_RATIO_OF_TOKEN_DELAY: Final = 1.5


@dataclass(frozen=True, eq=False)
class Requests:
    """Requests of workers, and the services of servers for them.

    `sent` has a row for each request, in order of time, with its `worker` and `is_blocking`. `services`
    has a row for each service, by server and begin; `request_row` is that of its request, -1 for none.
    `servers` are the numbers of all servers, their shards' where they have any. They serve
    `in_recorded_order`, or by a rule: number `alternative` of `Occupancy.unknown`. `needs_ns` is when
    workers need the answer to each request, -1 where unknown; `unknown_needs` is the share of pulls that
    came before the worker waited, where it is unknown.
    """

    sent: pl.DataFrame
    services: pl.DataFrame
    servers: Ints
    in_recorded_order: bool = False
    alternative: int = 0
    needs_ns: Ints | None = None
    unknown_needs: float = 0.0

    @classmethod
    def from_trace(cls, trace: Trace, begins_ns: Ints, ends_ns: Ints) -> Requests:
        """Select the requests between the begin and end of their worker, and services, [worker]."""
        op, start, end = pl.col("op").cast(pl.String), pl.col("start_ns"), pl.col("end_ns")
        spans = trace.requests.filter(
            pl.col("kind").is_in(EXCHANGE_KINDS),
            end.is_not_null(),
            end >= int(begins_ns.min()),
            start <= int(ends_ns.max()),
        ).with_columns(op=op)
        workers = trace.workers.select(
            "process", "training_thread", worker=pl.int_range(pl.len(), dtype=pl.Int64)
        ).with_columns(first=pl.Series(begins_ns), last=pl.Series(ends_ns))
        sent = (
            spans.filter(~op.is_in(_OF_WORKERS))
            .join(workers, on="process", how="inner")
            .filter(start >= pl.col("first"), end <= pl.col("last"))
            .with_columns(is_blocking=pl.col("thread") == pl.col("training_thread"))
            .sort("start_ns", "request")
            .with_row_index("row")
        )
        shards = trace.shards.select("process", server=pl.coalesce("shard", "rank"))
        row_of = sent.select("request", request_row=pl.col("row").cast(pl.Int64))
        services = (
            spans.join(shards, on="process", how="inner")
            .join(row_of.drop_nulls().unique("request", keep="first"), on="request", how="left")
            .with_columns(pl.col("request_row").fill_null(-1), pl.col("op").fill_null(""))
            .sort("server", "start_ns", "end_ns")
        )
        servers = shards["server"].unique().sort().to_numpy().astype(np.int64)
        requests = cls(sent, services, servers)
        if not sent.height or not services.height:
            return requests
        over_ns = find_ends_on_links(
            services, requests.worker_of_services, requests._of_services("end_ns")
        )
        return replace(requests, services=services.with_columns(end_ns=pl.Series(over_ns)))

    @property
    def sides(self) -> Sides:
        """The workers' sides of requests, in order."""
        names = ("start_ns", "end_ns", "is_blocking")
        worker = self.sent["worker"].to_numpy().astype(np.int64)
        return Sides(worker, *(self.sent[name].to_numpy() for name in names))

    @property
    def needed_sides(self) -> Sides:
        """The same, but answers end when workers need them, if they came earlier."""
        sides, needs_ns = self.sides, self.needs_ns
        return (
            sides if needs_ns is None else sides._replace(end_ns=np.maximum(sides.end_ns, needs_ns))
        )

    @property
    def needs(self) -> Sides:
        """When workers need answers that came earlier, as sides without length."""
        sides, needed = self.sides, self.needed_sides
        early = np.flatnonzero(needed.end_ns > sides.end_ns)
        return Sides.from_times(sides.worker[early], needed.end_ns[early], is_blocking=True)

    @cached_property
    def hidden_transfer_share(self) -> float:
        """The share of pushes' time in which no server is known to receive or serve them."""
        row = pl.col("request_row")
        first_services = (
            self.services.filter(row >= 0)
            .group_by("request_row")
            .agg(pl.col("start_ns").min().alias("service_ns"))
        )
        received = self.services.filter(pl.col("op").is_in(INCOMING))["request_row"].implode()
        pushes = self.sent.with_columns(request_row=pl.col("row").cast(pl.Int64)).filter(
            pl.col("op") == "push", pl.col("bytes") > 0, ~row.is_in(received)
        )
        pushes = pushes.join(first_services, on="request_row")
        servers = self.services.select("request_row", "server").unique("request_row")
        pushes = pushes.join(servers, on="request_row")
        hidden_ns = 0.0
        for (server,), of_server in pushes.partition_by("server", as_dict=True).items():
            services = self.services.filter(pl.col("server") == server)
            busy = Intervals.merge(*(services[at].to_numpy() for at in ("start_ns", "end_ns")))
            sent_ns, served_ns = (of_server[at].to_numpy() for at in ("start_ns", "service_ns"))
            idle_ns = (
                served_ns - sent_ns - (busy.passed_before(served_ns) - busy.passed_before(sent_ns))
            )
            hidden_ns += float(np.maximum(idle_ns, 0.0).sum())
        total_ns = (pushes["end_ns"] - pushes["start_ns"]).sum()
        return hidden_ns / max(float(total_ns), 1.0)

    @cached_property
    def variables(self) -> dict[int, int]:
        """The bytes of each pushed variable, by key: those of all its parts in a step."""
        pushed = self.sent.filter(pl.col("op") == "push").drop_nulls(["key", "bytes"])
        by_step = pushed.group_by("key", "step", "process").agg(pl.col("bytes").sum())
        sizes = by_step.group_by("key").agg(pl.col("bytes").max()).sort("key")
        return dict(sizes.iter_rows())

    @cached_property
    def variable_keys(self) -> Ints:
        """The variable that each service is for, by the key of its request; -1 for none."""
        return self._of_services("key")

    @property
    def worker_of_services(self) -> Ints:
        """The worker whose request each service is for, -1 for none."""
        return self._of_services("worker")

    def _of_services(self, name: str) -> Ints:
        """Return a column of `sent` for the request of each service; -1 for none."""
        of_requests = np.append(self.sent[name].fill_null(-1).to_numpy(), -1)
        return np.array(of_requests[self.services["request_row"].to_numpy()], np.int64)

    @cached_property
    def step_of_services(self) -> Ints:
        """The step of each service, as an index of the steps that services have.

        Servers may not know it: then it is that of its request, else of the service before.
        """
        steps = self.services.select(
            "server", recorded="step", requested=pl.Series(self._of_services("step"))
        )
        known = [pl.when(pl.col(name) >= 0).then(name) for name in ("recorded", "requested")]
        step = steps.select(pl.coalesce(known).forward_fill().over("server").fill_null(-1))
        return np.unique(step.to_series().to_numpy(), return_inverse=True)[1].astype(np.int64)

    @property
    def joint_updates(self) -> Indices:
        """The services that join gradients in one update: a step has fewer of them than gradients."""
        is_update, is_gradient = pl.col("op").is_in(_UPDATES), pl.col("op") == "aggregate"
        is_joint = is_update & (is_update.sum() < is_gradient.sum()).over("server", "step")
        return np.flatnonzero(self.services.select(is_joint).to_series().to_numpy())

    @cached_property
    def occupancy(self) -> Occupancy:
        """The services that occupy links and processors of servers."""
        server = np.searchsorted(self.servers, self.services["server"].to_numpy()).astype(np.int64)
        return Occupancy.from_services(
            self.services,
            server,
            self.worker_of_services,
            in_recorded_order=self.in_recorded_order,
            alternative=self.alternative,
        )

    @property
    def event_times_ns(self) -> Ints:
        """When services began and ended, in turns, [2 * service]."""
        return self.services.select("start_ns", "end_ns").to_numpy().ravel().astype(np.int64)

    @property
    def _updates(self) -> pl.DataFrame:
        """The services after which a barrier opens, or a turn passes on, by their end."""
        updates = self.services.with_row_index("row").filter(pl.col("op").is_in(_UPDATES))
        return updates.sort("end_ns")

    def end_when_noticed(self, timeline: Timeline) -> Requests:
        """Let requests end when training threads noticed it, but not before their servers were done."""
        sides = self.sides
        noticed_ns = sides.end_when_noticed(timeline).end_ns
        done_ns = np.zeros(self.sent.height, np.int64)
        row, over_ns = (self.services[name].to_numpy() for name in ("request_row", "end_ns"))
        is_before_answer = (row >= 0) & (over_ns <= self._of_services("end_ns"))
        np.maximum.at(done_ns, row[is_before_answer], over_ns[is_before_answer])
        end_ns = np.where(done_ns > noticed_ns, sides.end_ns, noticed_ns)
        return replace(self, sent=self.sent.with_columns(end_ns=pl.Series(end_ns, dtype=pl.Int64)))

    def find_resumptions(self, timeline: Timeline, others: Sequence[Sides]) -> Sides:
        """Return when workers resumed because of an update, and nothing else, as sides without length.

        That is the update's end, if none of the `others` ended for the worker after it. If one did, but
        the worker waited on until as long after the update as usual, it is the end of the wait.
        """
        wait_begins, wait_ends = timeline.blocked_stretches
        worker = timeline.to_workers(wait_ends)
        begin_ns, end_ns = timeline.to_times_ns(wait_begins), timeline.to_times_ns(wait_ends)
        arrivals = Sides.join(others)
        arrived = timeline.locate(arrivals.worker, arrivals.end_ns)
        latest = _find_latest(np.sort(arrived), wait_ends)
        is_of_worker = timeline.to_workers(latest) == worker
        arrival_ns = np.where(is_of_worker, timeline.to_times_ns(latest), -1)
        update_ns = _find_latest(self._updates["end_ns"].to_numpy(), end_ns)
        by_update = (update_ns > np.maximum(begin_ns, arrival_ns)) & (arrival_ns < end_ns)
        delay_ns = end_ns - update_ns
        usual_delay_ns = np.median(delay_ns[by_update]) if by_update.any() else 0.0
        is_token = (update_ns > begin_ns) & (update_ns <= arrival_ns) & (arrival_ns < end_ns)
        is_token &= delay_ns <= MAX_RATIO_OF_TOKEN_DELAY * usual_delay_ns
        rows = np.flatnonzero(by_update | is_token)
        return Sides.from_times(worker[rows], np.where(by_update, update_ns, end_ns)[rows])

    def add_edges(
        self,
        edges: EdgeList,
        threads: Threads,
        first_event: int,
        event_times_ns: Ints,
        resumptions: Sides,
    ) -> None:
        """Add what services and answers follow; service i begins at event `first_event` + 2 i."""
        sides = self.sides
        request, answer = threads.find_sides(self.needed_sides)
        answer = np.where(answer < 0, threads.find_next_needs(sides.worker, sides.end_ns), answer)
        begin_event = first_event + 2 * np.arange(self.services.height)
        self._add_services(edges, begin_event)
        first_settled = len(edges)
        self._add_ways(edges, request, begin_event)
        self._add_turns(edges, begin_event)
        edges.settle(first_settled, event_times_ns.astype(np.float64))
        self._add_answers(edges, (request, answer), begin_event, event_times_ns)
        resumed = threads.find_events(resumptions.worker, resumptions.end_ns)
        updates = self._updates
        latest_ns = _find_latest(updates["end_ns"].to_numpy(), resumptions.end_ns)
        delay_ns = resumptions.end_ns - np.maximum(latest_ns, 0)
        for of_server in updates.partition_by("server"):
            ends_ns = of_server["end_ns"].to_numpy()
            update = np.searchsorted(ends_ns, resumptions.end_ns, side="right") - 1
            service = of_server["row"].to_numpy()[update]
            is_after = update >= 0
            last_event = begin_event[service] + 1
            edges.add(last_event, resumed, delay_ns, is_after, reason=EdgeReason.BARRIER)

    def _add_services(self, edges: EdgeList, begin: Ints) -> None:
        """Add that services end when they have taken what they take alone."""
        op = self.services["op"]
        for name in op.unique().to_list():
            edges.add(
                begin,
                begin + 1,
                self.occupancy.alone_ns,
                (op == name).to_numpy(),
                cost_line=CostLine(f"{name} at servers", 0, network=name in (*INCOMING, *OUTGOING)),
                nbytes=_fill(self.services["bytes"]),
                step=_fill(self.services["step"]),
                shard=_fill(self.services["server"]),
            )

    def _add_ways(self, edges: EdgeList, request: Ints, begin: Ints) -> None:
        """Add when requests come to their server: after what such ways take where no request waits."""
        row = self.services["request_row"]
        is_head = row.is_first_distinct().to_numpy() & (row >= 0).to_numpy()
        way_ns = self.services["start_ns"].to_numpy() - self._of_services("start_ns")
        way_ns = np.maximum(way_ns, 0)
        ways = self.services.select(
            "op", "server", way=pl.Series(way_ns), is_head=pl.Series(is_head)
        )
        quick = pl.col("way").filter("is_head").quantile(0.25).over("op", "server").fill_null(0)
        lag_ns = np.minimum(ways.select(quick).to_series().to_numpy(), way_ns)
        ends = np.append(request, -1)[row.to_numpy()], begin, lag_ns
        self._add_loaded(edges, "push", ends, np.maximum(row.to_numpy(), 0), is_head)

    def _add_loaded(
        self,
        edges: EdgeList,
        loaded: str,
        ends: tuple[Ints, Ints, Ints],
        rows: Ints,
        is_present: Flags,
    ) -> None:
        """Add ways (sources, targets, lags) of requests: those of one operation carry bytes."""
        if not self.sent.height:
            return
        sent = self.sent[rows]
        is_loaded = (sent["op"] == loaded).fill_null(value=False).to_numpy()
        light = CostLine(f"way without {loaded}", 0, network=True)
        edges.add(*ends, is_present & ~is_loaded, cost_line=light)
        edges.add(
            *ends,
            is_present & is_loaded,
            cost_line=CostLine(f"way of {loaded}", 0, network=True),
            nbytes=_fill(sent["bytes"]),
            step=_fill(sent["step"]),
            shard=_fill(sent["shard"]),
        )

    def _add_turns(self, edges: EdgeList, begin_event: Ints) -> None:
        """Add what services follow at their server."""
        row, start_ns, over_ns = (
            self.services[name].to_numpy() for name in ("request_row", "start_ns", "end_ns")
        )
        sent_ns, is_single = self._of_services("start_ns"), self.occupancy.is_single
        for order, has_resource in self.occupancy.find_queues():
            previous, following = order[:-1], order[1:]
            # A server that does one thing at a time takes in no request meanwhile.
            had_arrived = is_single[following] | (sent_ns[following] < over_ns[previous])
            follows = (over_ns[previous] <= start_ns[following]) & had_arrived
            reason = EdgeReason.QUEUE if has_resource else EdgeReason.TURN
            edges.add(
                begin_event[previous] + 1, begin_event[following], is_present=follows, reason=reason
            )
        by_request = np.lexsort((start_ns, row))
        previous, following = by_request[:-1], by_request[1:]
        is_same = (row[previous] == row[following]) & (row[previous] >= 0)
        is_apart = over_ns[previous] <= start_ns[following]
        edges.add(begin_event[previous] + 1, begin_event[following], is_present=is_same & is_apart)
        offset_ns = start_ns[following] - start_ns[previous]
        edges.add(begin_event[previous], begin_event[following], offset_ns, is_same & ~is_apart)
        self._add_joins(edges, begin_event)

    def _add_joins(self, edges: EdgeList, begin: Ints) -> None:
        """Add that updates follow what they join, and replies the last update before them."""
        op = pl.col("op")
        services = self.services.with_row_index("row").select(
            "row", "op", "server", "start_ns", "end_ns", pl.col("step", "key").fill_null(-1)
        )
        gradients, replies = (services.filter(op == name) for name in ("aggregate", "reply"))
        for group in (["server", "step", "key"], ["server", "step"]):
            is_of_all = pl.col("key") < 0
            updates = services.filter((op == "apply") & (is_of_all == ("key" not in group)))
            nearest: dict[str, Any] = {"on": "at", "by": group, "check_sortedness": False}
            ends = [
                rows.select(*group, at="end_ns", before="row").sort("at")
                for rows in (gradients, updates)
            ]
            begins = [
                rows.select(*group, at="start_ns", after="row").sort("at")
                for rows in (updates, replies)
            ]
            joined = ends[0].join_asof(begins[0], strategy="forward", **nearest)
            answered = begins[1].join_asof(ends[1], **nearest)
            for pairs, reason in ((joined, EdgeReason.DATA), (answered, EdgeReason.TURN)):
                known = pairs.drop_nulls()
                before, after = (known[name].to_numpy() for name in ("before", "after"))
                edges.add(begin[before] + 1, begin[after], reason=reason)

    def _add_answers(
        self, edges: EdgeList, ends: tuple[Ints, Ints], begin: Ints, event_times_ns: Ints
    ) -> None:
        """Add that requests end after their last service, or as long after they began as they did."""
        request, answer = ends
        row, start_ns, over_ns = (
            self.services[name].to_numpy() for name in ("request_row", "start_ns", "end_ns")
        )
        answer_ns = self.sent["end_ns"].to_numpy()
        before_answer = np.flatnonzero((row >= 0) & (start_ns <= self._of_services("end_ns")))
        last_service = np.full(len(answer_ns), -1)
        np.maximum.at(last_service, row[before_answer], before_answer)
        served = np.flatnonzero(last_service >= 0)
        service = last_service[served]
        source = begin[service] + (over_ns[service] <= answer_ns[served])
        lag_ns = np.maximum(answer_ns[served] - event_times_ns[source], 0)
        way_back = source, answer[served], lag_ns
        self._add_loaded(edges, "pull", way_back, served, np.ones(len(served), np.bool_))
        length_ns = answer_ns - self.sent["start_ns"].to_numpy()
        edges.add(request, answer, length_ns, last_service < 0, cost_line=UNEXPLAINED)


def _find_latest(values: Ints, limits: Ints) -> Ints:
    """Return the largest of ascending values up to each limit; -1 if all are above."""
    return np.append(-1, values)[np.searchsorted(values, limits, side="right")]


def _fill(column: pl.Series) -> Ints:
    """Return a column of numbers, -1 where it is null."""
    return column.fill_null(-1).to_numpy().astype(np.int64)
