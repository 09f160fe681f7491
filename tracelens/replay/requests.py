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

    `sent_requests` has a row for each request, in order of time, with its `worker` and `is_blocking`.
    `services` has a row for each service, by server and begin; `request_row` is that of its request, -1
    for none. `server_numbers` are those of all servers, their shards' where they have any. They serve
    `in_recorded_order`, or by a rule: `alternative_index` in `Occupancy.unknown_facts`. `need_times_ns`
    is when workers need the answer to each request, [request], -1 where unknown; `unknown_needs_share`
    is the share of pulls that came before the worker waited, where it is unknown.
    """

    sent_requests: pl.DataFrame
    services: pl.DataFrame
    server_numbers: Ints
    in_recorded_order: bool = False
    alternative_index: int = 0
    need_times_ns: Ints | None = None
    unknown_needs_share: float = 0.0

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
        requests = cls(sent_requests=sent, services=services, server_numbers=servers)
        if not sent.height or not services.height:
            return requests
        ends_on_link_ns = find_ends_on_links(
            services, requests.worker_of_services, requests._take_request_column("end_ns")
        )
        return replace(requests, services=services.with_columns(end_ns=pl.Series(ends_on_link_ns)))

    @property
    def sides(self) -> Sides:
        """The workers' sides of requests, from request to answer, in order, [request]."""
        names = ("start_ns", "end_ns", "is_blocking")
        worker = self.sent_requests["worker"].to_numpy().astype(np.int64)
        return Sides(worker, *(self.sent_requests[name].to_numpy() for name in names))

    @property
    def sides_until_needed(self) -> Sides:
        """The same, but answers end when workers need them, if they came earlier."""
        sides, needs_ns = self.sides, self.need_times_ns
        if needs_ns is None:
            return sides
        return sides._replace(end_ns=np.maximum(sides.end_ns, needs_ns))

    @property
    def need_sides(self) -> Sides:
        """When workers need answers that came earlier, as sides without length."""
        sides, needed = self.sides, self.sides_until_needed
        early = np.flatnonzero(needed.end_ns > sides.end_ns)
        return Sides.from_times(sides.workers[early], needed.end_ns[early], is_blocking=True)

    @cached_property
    def hidden_transfer_share(self) -> float:
        """The share of pushes' time in which no server is known to receive or serve them, 0 to 1.

        Until its first service a push may be under way, unless its server is busy with others.
        """
        request_row = pl.col("request_row")
        first_services = (
            self.services.filter(request_row >= 0)
            .group_by("request_row")
            .agg(pl.col("start_ns").min().alias("served_ns"), pl.col("server").first())
        )
        received_rows = self.services.filter(pl.col("op").is_in(INCOMING))["request_row"].implode()
        pushes = (
            self.sent_requests.with_columns(request_row=pl.col("row").cast(pl.Int64))
            .filter(pl.col("op") == "push", pl.col("bytes") > 0, ~request_row.is_in(received_rows))
            .join(first_services, on="request_row")
        )
        total_hidden_ns = 0.0
        for (server,), server_pushes in pushes.partition_by("server", as_dict=True).items():
            services = self.services.filter(pl.col("server") == server)
            busy = Intervals.merge(services["start_ns"].to_numpy(), services["end_ns"].to_numpy())
            sent_ns, served_ns = server_pushes.select("start_ns", "served_ns").to_numpy().T
            busy_ns = busy.covered_ns_before(served_ns) - busy.covered_ns_before(sent_ns)
            total_hidden_ns += float(np.maximum(served_ns - sent_ns - busy_ns, 0.0).sum())
        total_push_ns = (pushes["end_ns"] - pushes["start_ns"]).sum()
        return total_hidden_ns / max(float(total_push_ns), 1.0)

    @cached_property
    def pushed_bytes_by_key(self) -> dict[int, int]:
        """The bytes of each pushed variable, by key: those of all its parts in a step of a worker."""
        pushes = self.sent_requests.filter(pl.col("op") == "push").drop_nulls(["key", "bytes"])
        by_step = pushes.group_by("key", "step", "process").agg(pl.col("bytes").sum())
        bytes_of_keys = by_step.group_by("key").agg(pl.col("bytes").max()).sort("key")
        return dict(bytes_of_keys.iter_rows())

    @cached_property
    def key_of_services(self) -> Ints:
        """The key of the variable that each service is for, [service]; -1 for none."""
        return self._take_request_column("key")

    @property
    def worker_of_services(self) -> Ints:
        """The worker whose request each service is for, [service]; -1 for none."""
        return self._take_request_column("worker")

    def _take_request_column(self, name: str) -> Ints:
        """Return a column of `sent_requests` for the request of each service, [service]; -1 for none."""
        values = np.append(self.sent_requests[name].fill_null(-1).to_numpy(), -1)
        return np.array(values[self.services["request_row"].to_numpy()], np.int64)

    @cached_property
    def step_index_of_services(self) -> Ints:
        """The step of each service, [service], as an index in the sorted numbers of their steps.

        Servers may not know it: then it is that of its request, else of the service before.
        """
        steps = self.services.select(
            "server", recorded="step", requested=pl.Series(self._take_request_column("step"))
        )
        known = [pl.when(pl.col(name) >= 0).then(name) for name in ("recorded", "requested")]
        step = steps.select(pl.coalesce(known).forward_fill().over("server").fill_null(-1))
        _, step_index = np.unique(step.to_series().to_numpy(), return_inverse=True)
        return step_index.astype(np.int64)

    @property
    def joint_update_rows(self) -> Indices:
        """The services (rows) that join gradients in one update: a step has fewer than gradients."""
        is_update, is_gradient = pl.col("op").is_in(_UPDATES), pl.col("op") == "aggregate"
        is_joint = is_update & (is_update.sum() < is_gradient.sum()).over("server", "step")
        return np.flatnonzero(self.services.select(is_joint).to_series().to_numpy())

    @cached_property
    def occupancy(self) -> Occupancy:
        """The services that occupy links and processors of servers."""
        server_index = np.searchsorted(self.server_numbers, self.services["server"].to_numpy())
        return Occupancy.from_services(
            self.services,
            server_index.astype(np.int64),
            self.worker_of_services,
            in_recorded_order=self.in_recorded_order,
            alternative_index=self.alternative_index,
        )

    @property
    def event_times_ns(self) -> Ints:
        """When services began and ended, in turns, [2 * service]."""
        return self.services.select("start_ns", "end_ns").to_numpy().ravel().astype(np.int64)

    @property
    def _update_services(self) -> pl.DataFrame:
        """The services after which a barrier opens or a turn passes on, by end; `row`: in `services`."""
        updates = self.services.with_row_index("row").filter(pl.col("op").is_in(_UPDATES))
        return updates.sort("end_ns")

    def end_when_noticed(self, timeline: Timeline) -> Requests:
        """Return the requests, ended when training threads noticed it, not before servers were done."""
        sides = self.sides
        noticed_ns = sides.end_when_noticed(timeline).end_ns
        served_ns = np.zeros(len(noticed_ns), np.int64)  # the last service's end, [request]
        request_row, service_end_ns = (
            self.services[name].to_numpy() for name in ("request_row", "end_ns")
        )
        answer_ns = self._take_request_column("end_ns")  # [service]
        is_before_answer = (request_row >= 0) & (service_end_ns <= answer_ns)
        np.maximum.at(served_ns, request_row[is_before_answer], service_end_ns[is_before_answer])
        end_ns = np.where(served_ns > noticed_ns, sides.end_ns, noticed_ns)  # [request]
        ended_requests = self.sent_requests.with_columns(end_ns=pl.Series(end_ns, dtype=pl.Int64))
        return replace(self, sent_requests=ended_requests)

    def find_resumptions(self, timeline: Timeline, others: Sequence[Sides]) -> Sides:
        """Return when workers resumed because of an update, and nothing else, as sides without length.

        An update gives all workers that wait for it a token to go on. A worker resumes at the update's
        end, if none of the `others` (its sides of messages and calls) ended after that. If one did, but
        the worker waited on until as long after the update as usual, it waited for the token, and
        resumed at the end of the wait.
        """
        # Arrays are [wait]; begins and ends are positions: a worker and a time.
        wait_begins, wait_ends = timeline.blocked_stretches
        worker = timeline.to_workers(wait_ends)
        wait_begin_ns, wait_end_ns = map(timeline.to_times_ns, (wait_begins, wait_ends))
        other_sides = Sides.join(others)
        other_ends = timeline.to_positions(other_sides.workers, other_sides.end_ns)
        latest_other = _find_latest_values(np.sort(other_ends), wait_ends)
        is_of_worker = timeline.to_workers(latest_other) == worker
        other_ns = np.where(is_of_worker, timeline.to_times_ns(latest_other), -1)
        update_ns = _find_latest_values(self._update_services["end_ns"].to_numpy(), wait_end_ns)
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
        """Add edges of services (i begins at event `first_event` + 2 i), answers and resumptions.

        `event_times_ns` is when all events were recorded, [event]; `resumptions` are those of
        `find_resumptions`.
        """
        sides = self.sides
        # [request]; an answer that no thread noted is needed at its worker's next wait, update or end.
        request_event, answer_event = threads.find_side_events(self.sides_until_needed)
        next_need = threads.find_next_need_events(sides.workers, sides.end_ns)
        answer_event = np.where(answer_event < 0, next_need, answer_event)
        begin_event = first_event + 2 * np.arange(self.services.height)
        self._add_services(edges, begin_event)
        first_part = edges.part_count
        self._add_travel(edges, request_event, begin_event)
        self._add_turns(edges, begin_event)
        edges.shift_to_recorded_times(first_part, event_times_ns.astype(np.float64))
        self._add_answers(edges, (request_event, answer_event), begin_event, event_times_ns)
        resumed_event = threads.find_events(resumptions.workers, resumptions.end_ns)
        updates = self._update_services  # a row each, by end
        update_ns = _find_latest_values(updates["end_ns"].to_numpy(), resumptions.end_ns)
        delay_ns = resumptions.end_ns - np.maximum(update_ns, 0)
        for server_updates in updates.partition_by("server"):  # workers wait for all servers
            ends_ns = server_updates["end_ns"].to_numpy()
            latest_row = np.searchsorted(ends_ns, resumptions.end_ns, side="right") - 1
            end_event = begin_event[server_updates["row"].to_numpy()[latest_row]] + 1
            has_update = latest_row >= 0
            edges.add(end_event, resumed_event, delay_ns, has_update, reason=EdgeReason.BARRIER)

    def _add_services(self, edges: EdgeList, begin_events: Ints) -> None:
        """Add edges from begins, [service], to ends: each service lasts as long as it takes alone."""
        op = self.services["op"]
        for name in op.unique().to_list():
            edges.add(
                begin_events,
                begin_events + 1,
                self.occupancy.alone_ns,
                (op == name).to_numpy(),
                cost_line=CostLine(f"{name} at servers", is_network=name in (*INCOMING, *OUTGOING)),
                nbytes=_to_numbers(self.services["bytes"]),
                step=_to_numbers(self.services["step"]),
                shard=_to_numbers(self.services["server"]),
            )

    def _add_travel(self, edges: EdgeList, request_events: Ints, begin_events: Ints) -> None:
        """Add edges from requests, [request], to their first services, [service], without queueing."""
        request_row = self.services["request_row"]
        is_first = request_row.is_first_distinct().to_numpy() & (request_row >= 0).to_numpy()
        travel_ns = self.services["start_ns"].to_numpy() - self._take_request_column("start_ns")
        travel_ns = np.maximum(travel_ns, 0)
        services = self.services.select(
            "op", "server", travel=pl.Series(travel_ns), is_first=pl.Series(is_first)
        )
        quick_travel = pl.col("travel").filter("is_first").quantile(0.25).over("op", "server")
        quick_ns = services.select(quick_travel.fill_null(0)).to_series().to_numpy()
        source = np.append(request_events, -1)[request_row.to_numpy()]  # -1: no edge
        ends_and_lags = source, begin_events, np.minimum(quick_ns, travel_ns)
        edge_requests = np.maximum(request_row.to_numpy(), 0)
        self._add_messages(edges, "push", ends_and_lags, edge_requests, is_first)

    def _add_messages(
        self,
        edges: EdgeList,
        op_with_bytes: str,
        ends_and_lags: tuple[Ints, Ints, Ints],
        edge_requests: Ints,
        is_present: Flags,
    ) -> None:
        """Add edges of messages: only those of requests of one operation carry the request's bytes.

        `ends_and_lags` are source events, target events and lags, ns; `edge_requests` is the request of
        each edge (a row of `sent_requests`), `is_present` flags the edges to add; all are [edge].
        """
        if not self.sent_requests.height:
            return
        requests = self.sent_requests[edge_requests]
        has_bytes = (requests["op"] == op_with_bytes).fill_null(value=False).to_numpy()
        no_bytes_line = CostLine(f"way without {op_with_bytes}", is_network=True)
        edges.add(*ends_and_lags, is_present & ~has_bytes, cost_line=no_bytes_line)
        edges.add(
            *ends_and_lags,
            is_present & has_bytes,
            cost_line=CostLine(f"way of {op_with_bytes}", is_network=True),
            nbytes=_to_numbers(requests["bytes"]),
            step=_to_numbers(requests["step"]),
            shard=_to_numbers(requests["shard"]),
        )

    def _add_turns(self, edges: EdgeList, begins: Ints) -> None:
        """Add edges between services (begin events, [service]) in turn, of a request or joint update."""
        request_row, start_ns, end_ns = (
            self.services[name].to_numpy() for name in ("request_row", "start_ns", "end_ns")
        )
        request_ns, is_serial = self._take_request_column("start_ns"), self.occupancy.is_serial
        for queue_rows, has_resource in self.occupancy.find_queues():
            row, next_row = queue_rows[:-1], queue_rows[1:]  # neighbours in a queue
            # A server that does one thing at a time takes in no request meanwhile.
            had_arrived = is_serial[next_row] | (request_ns[next_row] < end_ns[row])
            follows = (end_ns[row] <= start_ns[next_row]) & had_arrived
            reason = EdgeReason.QUEUE if has_resource else EdgeReason.TURN
            edges.add(begins[row] + 1, begins[next_row], is_present=follows, reason=reason)
        by_request = np.lexsort((start_ns, request_row))
        row, next_row = by_request[:-1], by_request[1:]
        is_same_request = (request_row[row] == request_row[next_row]) & (request_row[row] >= 0)
        is_after = end_ns[row] <= start_ns[next_row]
        edges.add(begins[row] + 1, begins[next_row], is_present=is_same_request & is_after)
        # Services of a request that overlap keep the time between their begins.
        offset_ns = start_ns[next_row] - start_ns[row]
        edges.add(begins[row], begins[next_row], offset_ns, is_same_request & ~is_after)
        self._add_joins(edges, begins)

    def _add_joins(self, edges: EdgeList, begin_events: Ints) -> None:
        """Add edges from gradients to the update that joins them, and from updates to next replies.

        `begin_events` are [service]. Updates of one variable have its key, those of all (-1) join
        gradients of any key.
        """
        op = pl.col("op")
        services = self.services.with_row_index("row").select(
            "row", "op", "server", "start_ns", "end_ns", pl.col("step", "key").fill_null(-1)
        )
        gradients, replies = (services.filter(op == name) for name in ("aggregate", "reply"))
        is_of_all = pl.col("key") < 0
        for group in (["server", "step", "key"], ["server", "step"]):
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
                edges.add(begin_events[earlier] + 1, begin_events[later], reason=reason)

    def _add_answers(
        self,
        edges: EdgeList,
        request_events: tuple[Ints, Ints],
        begin_events: Ints,
        event_times_ns: Ints,
    ) -> None:
        """Add edges to answers, [request], from the last service, or else from the request."""
        request_event, answer_event = request_events
        request_row, start_ns, service_end_ns = (
            self.services[name].to_numpy() for name in ("request_row", "start_ns", "end_ns")
        )
        answer_ns = self.sent_requests["end_ns"].to_numpy()
        is_before_answer = (request_row >= 0) & (start_ns <= self._take_request_column("end_ns"))
        services = np.flatnonzero(is_before_answer)
        last_service = np.full(len(answer_ns), -1)  # [request]; -1 = none
        np.maximum.at(last_service, request_row[services], services)
        served_requests = np.flatnonzero(last_service >= 0)
        service = last_service[served_requests]
        # The service's end, or its begin if the answer came before the end.
        source = begin_events[service] + (service_end_ns[service] <= answer_ns[served_requests])
        lag_ns = np.maximum(answer_ns[served_requests] - event_times_ns[source], 0)
        ends_and_lags = source, answer_event[served_requests], lag_ns
        is_present = np.ones(len(served_requests), np.bool_)
        self._add_messages(edges, "pull", ends_and_lags, served_requests, is_present)
        length_ns = answer_ns - self.sent_requests["start_ns"].to_numpy()
        is_unserved = last_service < 0
        edges.add(request_event, answer_event, length_ns, is_unserved, cost_line=UNEXPLAINED)


def _find_latest_values(values: Ints, limits: Ints) -> Ints:
    """Return the largest of ascending values up to each limit, [limit]; -1 if all are above."""
    return np.append(-1, values)[np.searchsorted(values, limits, side="right")]


def _to_numbers(column: pl.Series) -> Ints:
    """Return a column of numbers, -1 where it is null."""
    return column.fill_null(-1).to_numpy().astype(np.int64)
