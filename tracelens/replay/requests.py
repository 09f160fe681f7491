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
        """Select the requests between each worker's begin and end, ns, [worker], and all services."""
        op, start, end = pl.col("op").cast(pl.String), pl.col("start_ns"), pl.col("end_ns")
        spans = trace.requests.filter(
            pl.col("kind").is_in(EXCHANGE_KINDS),
            end.is_not_null(),
            end >= int(begins_ns.min()),
            start <= int(ends_ns.max()),
        ).with_columns(op=op)
        workers = trace.workers.select(
            "process", "training_thread", worker=pl.int_range(pl.len(), dtype=pl.Int64)
        ).with_columns(worker_begin_ns=pl.Series(begins_ns), worker_end_ns=pl.Series(ends_ns))
        sent = (
            spans.filter(~op.is_in(_OF_WORKERS))
            .join(workers, on="process", how="inner")
            .filter(start >= pl.col("worker_begin_ns"), end <= pl.col("worker_end_ns"))
            .with_columns(is_blocking=pl.col("thread") == pl.col("training_thread"))
            .sort("start_ns", "request")
            .with_row_index("row")
        )
        server_processes = trace.shards.select("process", server=pl.coalesce("shard", "rank"))
        request_rows = sent.select("request", request_row=pl.col("row").cast(pl.Int64))
        request_rows = request_rows.drop_nulls().unique("request", keep="first")
        services = (
            spans.join(server_processes, on="process", how="inner")
            .join(request_rows, on="request", how="left")
            .with_columns(pl.col("request_row").fill_null(-1), pl.col("op").fill_null(""))
            .sort("server", "start_ns", "end_ns")
        )
        servers = server_processes["server"].unique().sort().to_numpy().astype(np.int64)
        requests = cls(sent, services, servers)
        if not sent.height or not services.height:
            return requests
        ends_on_link_ns = find_ends_on_links(
            services, requests.worker_of_services, requests._of_services("end_ns")
        )
        return replace(requests, services=services.with_columns(end_ns=pl.Series(ends_on_link_ns)))

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
        """The share of pushes' time in which no server is known to receive or serve them, 0 to 1."""
        request_row = pl.col("request_row")
        first_services = (
            self.services.filter(request_row >= 0)
            .group_by("request_row")
            .agg(pl.col("start_ns").min().alias("served_ns"), pl.col("server").first())
        )
        received = self.services.filter(pl.col("op").is_in(INCOMING))["request_row"].implode()
        pushes = (
            self.sent.with_columns(request_row=pl.col("row").cast(pl.Int64))
            .filter(pl.col("op") == "push", pl.col("bytes") > 0, ~request_row.is_in(received))
            .join(first_services, on="request_row")
        )
        hidden_ns = 0.0
        for (server,), server_pushes in pushes.partition_by("server", as_dict=True).items():
            services = self.services.filter(pl.col("server") == server)
            busy = Intervals.merge(services["start_ns"].to_numpy(), services["end_ns"].to_numpy())
            sent_ns, served_ns = server_pushes.select("start_ns", "served_ns").to_numpy().T
            busy_ns = busy.passed_before(served_ns) - busy.passed_before(sent_ns)
            hidden_ns += float(np.maximum(served_ns - sent_ns - busy_ns, 0.0).sum())
        push_ns = (pushes["end_ns"] - pushes["start_ns"]).sum()
        return hidden_ns / max(float(push_ns), 1.0)

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
        """The step of each service, [service], as an index in the sorted numbers of their steps.

        Servers may not know it: then it is that of its request, else of the service before.
        """
        steps = self.services.select(
            "server", recorded="step", requested=pl.Series(self._of_services("step"))
        )
        known = [pl.when(pl.col(name) >= 0).then(name) for name in ("recorded", "requested")]
        step = steps.select(pl.coalesce(known).forward_fill().over("server").fill_null(-1))
        _, step_index = np.unique(step.to_series().to_numpy(), return_inverse=True)
        return step_index.astype(np.int64)

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
        """Return the requests, ended when training threads noticed it, not before servers were done."""
        sides = self.sides
        noticed_ns = sides.end_when_noticed(timeline).end_ns
        served_ns = np.zeros(self.sent.height, np.int64)
        request_row, service_end_ns = (
            self.services[name].to_numpy() for name in ("request_row", "end_ns")
        )
        is_before_answer = (request_row >= 0) & (service_end_ns <= self._of_services("end_ns"))
        np.maximum.at(served_ns, request_row[is_before_answer], service_end_ns[is_before_answer])
        end_ns = np.where(served_ns > noticed_ns, sides.end_ns, noticed_ns)
        return replace(self, sent=self.sent.with_columns(end_ns=pl.Series(end_ns, dtype=pl.Int64)))

    def find_resumptions(self, timeline: Timeline, others: Sequence[Sides]) -> Sides:
        """Return when workers resumed because of an update, and nothing else, as sides without length.

        That is the update's end, if none of the `others` ended for the worker after it. If one did, but
        the worker waited on until as long after the update as usual, it is the end of the wait.
        """
        wait_begins, wait_ends = timeline.blocked_stretches  # positions: of a worker and a time
        worker = timeline.to_workers(wait_ends)
        wait_begin_ns, wait_end_ns = map(timeline.to_times_ns, (wait_begins, wait_ends))
        other_sides = Sides.join(others)
        other_ends = timeline.locate(other_sides.worker, other_sides.end_ns)
        latest_other = _find_latest(np.sort(other_ends), wait_ends)
        is_of_worker = timeline.to_workers(latest_other) == worker
        other_ns = np.where(is_of_worker, timeline.to_times_ns(latest_other), -1)
        update_ns = _find_latest(self._updates["end_ns"].to_numpy(), wait_end_ns)
        is_by_update = (update_ns > np.maximum(wait_begin_ns, other_ns)) & (other_ns < wait_end_ns)
        delay_ns = wait_end_ns - update_ns
        usual_delay_ns = np.median(delay_ns[is_by_update]) if is_by_update.any() else 0.0
        is_by_token = (update_ns > wait_begin_ns) & (update_ns <= other_ns)
        is_by_token &= other_ns < wait_end_ns
        is_by_token &= delay_ns <= MAX_RATIO_OF_TOKEN_DELAY * usual_delay_ns
        rows = np.flatnonzero(is_by_update | is_by_token)
        return Sides.from_times(worker[rows], np.where(is_by_update, update_ns, wait_end_ns)[rows])

    def add_edges(
        self,
        edges: EdgeList,
        threads: Threads,
        first_event: int,
        event_times_ns: Ints,
        resumptions: Sides,
    ) -> None:
        """Add edges of services (i begins at event `first_event` + 2 i), answers and resumptions."""
        sides = self.sides
        request_event, answer_event = threads.find_sides(self.needed_sides)
        next_need = threads.find_next_needs(sides.worker, sides.end_ns)
        answer_event = np.where(answer_event < 0, next_need, answer_event)
        begin_event = first_event + 2 * np.arange(self.services.height)
        self._add_services(edges, begin_event)
        first_call_to_settle = len(edges)
        self._add_travel(edges, request_event, begin_event)
        self._add_turns(edges, begin_event)
        edges.settle(first_call_to_settle, event_times_ns.astype(np.float64))
        self._add_answers(edges, (request_event, answer_event), begin_event, event_times_ns)
        resumed_event = threads.find_events(resumptions.worker, resumptions.end_ns)
        updates = self._updates  # a row each, by end
        update_ns = _find_latest(updates["end_ns"].to_numpy(), resumptions.end_ns)
        delay_ns = resumptions.end_ns - np.maximum(update_ns, 0)
        for server_updates in updates.partition_by("server"):
            ends_ns = server_updates["end_ns"].to_numpy()
            latest_row = np.searchsorted(ends_ns, resumptions.end_ns, side="right") - 1
            end_event = begin_event[server_updates["row"].to_numpy()[latest_row]] + 1
            has_update = latest_row >= 0
            edges.add(end_event, resumed_event, delay_ns, has_update, reason=EdgeReason.BARRIER)

    def _add_services(self, edges: EdgeList, begin_event: Ints) -> None:
        """Add edges from begin to end of services: each lasts as long as it takes alone."""
        op = self.services["op"]
        for name in op.unique().to_list():
            edges.add(
                begin_event,
                begin_event + 1,
                self.occupancy.alone_ns,
                (op == name).to_numpy(),
                cost_line=CostLine(f"{name} at servers", 0, network=name in (*INCOMING, *OUTGOING)),
                nbytes=_fill(self.services["bytes"]),
                step=_fill(self.services["step"]),
                shard=_fill(self.services["server"]),
            )

    def _add_travel(self, edges: EdgeList, request_event: Ints, begin_event: Ints) -> None:
        """Add edges from requests to first services; the lag is the lower quartile of such times."""
        request_row = self.services["request_row"]
        is_first = request_row.is_first_distinct().to_numpy() & (request_row >= 0).to_numpy()
        travel_ns = self.services["start_ns"].to_numpy() - self._of_services("start_ns")
        travel_ns = np.maximum(travel_ns, 0)
        services = self.services.select(
            "op", "server", travel=pl.Series(travel_ns), is_first=pl.Series(is_first)
        )
        quick_travel = pl.col("travel").filter("is_first").quantile(0.25).over("op", "server")
        quick_ns = services.select(quick_travel.fill_null(0)).to_series().to_numpy()
        source = np.append(request_event, -1)[request_row.to_numpy()]
        ends_and_lags = source, begin_event, np.minimum(quick_ns, travel_ns)
        rows = np.maximum(request_row.to_numpy(), 0)
        self._add_messages(edges, "push", ends_and_lags, rows, is_first)

    def _add_messages(
        self,
        edges: EdgeList,
        op_with_bytes: str,
        ends_and_lags: tuple[Ints, Ints, Ints],
        request_rows: Ints,
        is_present: Flags,
    ) -> None:
        """Add edges of messages: only those of requests of one operation carry the request's bytes.

        `ends_and_lags` are source events, target events and lags, ns, `request_rows` the request of each
        edge, `is_present` flags the edges to add; all are [edge].
        """
        if not self.sent.height:
            return
        requests = self.sent[request_rows]
        has_bytes = (requests["op"] == op_with_bytes).fill_null(value=False).to_numpy()
        no_bytes_line = CostLine(f"way without {op_with_bytes}", 0, network=True)
        edges.add(*ends_and_lags, is_present & ~has_bytes, cost_line=no_bytes_line)
        edges.add(
            *ends_and_lags,
            is_present & has_bytes,
            cost_line=CostLine(f"way of {op_with_bytes}", 0, network=True),
            nbytes=_fill(requests["bytes"]),
            step=_fill(requests["step"]),
            shard=_fill(requests["shard"]),
        )

    def _add_turns(self, edges: EdgeList, begins: Ints) -> None:
        """Add edges between services (begin events) that follow by turn, request or joint update."""
        request_row, start_ns, end_ns = (
            self.services[name].to_numpy() for name in ("request_row", "start_ns", "end_ns")
        )
        sent_ns, serves_one = self._of_services("start_ns"), self.occupancy.is_single
        for order, has_resource in self.occupancy.find_queues():
            row, next_row = order[:-1], order[1:]  # neighbours in a queue
            # A server that does one thing at a time takes in no request meanwhile.
            had_arrived = serves_one[next_row] | (sent_ns[next_row] < end_ns[row])
            follows = (end_ns[row] <= start_ns[next_row]) & had_arrived
            reason = EdgeReason.QUEUE if has_resource else EdgeReason.TURN
            edges.add(begins[row] + 1, begins[next_row], is_present=follows, reason=reason)
        by_request = np.lexsort((start_ns, request_row))
        row, next_row = by_request[:-1], by_request[1:]
        is_same_request = (request_row[row] == request_row[next_row]) & (request_row[row] >= 0)
        is_after = end_ns[row] <= start_ns[next_row]
        edges.add(begins[row] + 1, begins[next_row], is_present=is_same_request & is_after)
        offset_ns = start_ns[next_row] - start_ns[row]
        edges.add(begins[row], begins[next_row], offset_ns, is_same_request & ~is_after)
        self._add_joins(edges, begins)

    def _add_joins(self, edges: EdgeList, begin_event: Ints) -> None:
        """Add edges from gradients to the update that joins them, and from updates to next replies."""
        op = pl.col("op")
        services = self.services.with_row_index("row").select(
            "row", "op", "server", "start_ns", "end_ns", pl.col("step", "key").fill_null(-1)
        )
        gradients, replies = (services.filter(op == name) for name in ("aggregate", "reply"))
        for group in (["server", "step", "key"], ["server", "step"]):
            is_of_all = pl.col("key") < 0
            updates = services.filter((op == "apply") & (is_of_all == ("key" not in group)))
            nearest: dict[str, Any] = {"on": "time_ns", "by": group, "check_sortedness": False}
            gradient_ends, update_ends = (
                rows.select(*group, time_ns="end_ns", earlier="row").sort("time_ns")
                for rows in (gradients, updates)
            )
            update_begins, reply_begins = (
                rows.select(*group, time_ns="start_ns", later="row").sort("time_ns")
                for rows in (updates, replies)
            )
            joined = gradient_ends.join_asof(update_begins, strategy="forward", **nearest)
            answered = reply_begins.join_asof(update_ends, **nearest)
            for pairs, reason in ((joined, EdgeReason.DATA), (answered, EdgeReason.TURN)):
                earlier, later = pairs.drop_nulls().select("earlier", "later").to_numpy().T
                edges.add(begin_event[earlier] + 1, begin_event[later], reason=reason)

    def _add_answers(
        self,
        edges: EdgeList,
        request_events: tuple[Ints, Ints],
        begin_event: Ints,
        event_times_ns: Ints,
    ) -> None:
        """Add edges to each request's answer from its last service, or else from the request itself."""
        request_event, answer_event = request_events
        request_row, start_ns, service_end_ns = (
            self.services[name].to_numpy() for name in ("request_row", "start_ns", "end_ns")
        )
        answer_ns = self.sent["end_ns"].to_numpy()
        is_before_answer = (request_row >= 0) & (start_ns <= self._of_services("end_ns"))
        services = np.flatnonzero(is_before_answer)
        last_service = np.full(len(answer_ns), -1)  # [request]; -1 = none
        np.maximum.at(last_service, request_row[services], services)
        served_requests = np.flatnonzero(last_service >= 0)
        service = last_service[served_requests]
        source = begin_event[service] + (service_end_ns[service] <= answer_ns[served_requests])
        lag_ns = np.maximum(answer_ns[served_requests] - event_times_ns[source], 0)
        ends_and_lags = source, answer_event[served_requests], lag_ns
        is_present = np.ones(len(served_requests), np.bool_)
        self._add_messages(edges, "pull", ends_and_lags, served_requests, is_present)
        length_ns = answer_ns - self.sent["start_ns"].to_numpy()
        is_unserved = last_service < 0
        edges.add(request_event, answer_event, length_ns, is_unserved, cost_line=UNEXPLAINED)


def _find_latest(values: Ints, limits: Ints) -> Ints:
    """Return the largest of ascending values up to each limit; -1 if all are above."""
    return np.append(-1, values)[np.searchsorted(values, limits, side="right")]


def _fill(column: pl.Series) -> Ints:
    """Return a column of numbers, -1 where it is null."""
    return column.fill_null(-1).to_numpy().astype(np.int64)
