"""Which services of servers occupy a link or a processor, and how long each takes by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.replay.disciplines import (
    Discipline,
    TaskTimes,
    find_disciplines,
    measure_deviation_share,
    measure_work,
)
from tracelens.replay.resources import Tasks

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from tracelens.arrays import Flags, Floats, Ints

__all__ = ["INCOMING", "OUTGOING", "Occupancy", "find_ends_on_links"]

INCOMING: Final = ("receive", "weights_up")
OUTGOING: Final = ("reply", "weights_down")
_IN, _OUT, _PROCESSOR, _KINDS = range(4)
_UNKNOWN_LINKS: Final = "how messages that come at once share a server's link"
_UNKNOWN_SENDER: Final = "whether servers do other work while they send replies"
# share of services' time: services that overlap no more take turns [chosen; one decision in
# _do_processors_send, is_in_turn]
MAX_OVERLAP_IN_TURN: Final = 0.05


@dataclass(frozen=True, eq=False)
class Occupancy:
    """The resource of each service, by columns, [service].

    `kind` is an incoming or outgoing link, or a processor, of the server with `server_index`. Services
    without `has_resource` keep their order. `worker` and `request_row` are -1 for none. `alone_ns` is
    what a service takes without those that share its resource. Servers of `is_serial` ones do one thing
    at a time. `disciplines` are by kind. `unknown_facts` says for each alternative that explains the
    recording which fact it lacks; "" for the first, simplest one.
    """

    kind: Ints
    has_resource: Flags
    server_index: Ints
    worker: Ints
    request_row: Ints
    alone_ns: Floats
    is_serial: Flags
    disciplines: tuple[Discipline, ...]
    unknown_facts: tuple[str, ...]

    @classmethod
    def from_services(
        cls,
        services: pl.DataFrame,
        server_index: Ints,
        workers: Ints,
        *,
        in_recorded_order: bool,
        alternative_index: int,
    ) -> Occupancy:
        """Find the resource of each service, one per row, sorted by server and begin.

        Args:
            services: The services.
            server_index: The server of each, [service].
            workers: The worker that each serves, [service]; -1 = none.
            in_recorded_order: Keep the recorded order, and share no link.
            alternative_index: Which explanation of the recording to take, an index of `unknown_facts`.
        """
        columns = ("start_ns", "end_ns", "bytes", "request_row")
        begin_ns, end_ns, nbytes, request_row = (
            services[name].fill_null(0).to_numpy().astype(np.int64) for name in columns
        )
        kind = np.full(services.height, _PROCESSOR)
        kind[services["op"].is_in(INCOMING).to_numpy()] = _IN
        kind[services["op"].is_in(OUTGOING).to_numpy()] = _OUT
        disciplines = [Discipline(crowding=None)] * _KINDS
        has_resource, is_serial = np.zeros((2, len(kind)), np.bool_)
        alone_ns = (end_ns - begin_ns).astype(np.float64)
        begin, end, size = (column.astype(np.float64) for column in (begin_ns, end_ns, nbytes))
        task_times = TaskTimes(
            begin_ns=begin, end_ns=end, nbytes=size, server=server_index, worker=workers
        )
        on_links = [(link, (nbytes > 0) & (kind == link)) for link in (_IN, _OUT)]
        on_links = [(link, rows) for link, rows in on_links if rows.any()]
        choices: list[tuple[Discipline, ...]] = []
        if not in_recorded_order:
            choices = find_disciplines([task_times.take(rows) for _, rows in on_links])
        is_sending = _do_processors_send(kind, begin_ns, end_ns, server_index, request_row)
        unknown_facts = ("", *[_UNKNOWN_LINKS] * (len(choices) - 1))
        if choices:
            unknown_facts += (_UNKNOWN_SENDER,) * (is_sending is None)
            chosen = choices[alternative_index if alternative_index < len(choices) else 0]
            for (link, rows), discipline in zip(on_links, chosen, strict=True):
                disciplines[link] = discipline
                alone_ns[rows] = measure_work(discipline, task_times.take(rows))
                has_resource[rows] = True
        if not choices or is_sending or (is_sending is None and alternative_index < len(choices)):
            kind[kind == _OUT] = _PROCESSOR
        for index in np.unique(server_index):
            of_server = np.flatnonzero(server_index == index)
            of_processor = of_server[kind[of_server] == _PROCESSOR]
            if choices:
                has_resource[of_processor] = is_in_turn(
                    begin_ns[of_processor], end_ns[of_processor]
                )
            elif is_in_turn(begin_ns[of_server], end_ns[of_server]):
                kind[of_server], is_serial[of_server] = _PROCESSOR, True
        identity_columns = (kind, has_resource, server_index, workers, request_row)
        return cls(*identity_columns, alone_ns, is_serial, tuple(disciplines), unknown_facts)

    def find_queues(self) -> Iterator[tuple[Ints, bool]]:
        """Yield the services (rows) of each queue, which follow one after the other.

        A queue is a server's link or processor, or the lane that a worker has on a link for itself. With
        each queue comes True if its services all have a resource, which replay gives to one at a time;
        False if they keep their recorded order, as those of a processor may.
        """
        has_lane = self._select_flags("has_lane_per_worker") | self._select_flags("has_streams")
        lane = np.where(has_lane, self.worker + 1, 0)
        is_queued = self._select_flags("has_turns") & (
            self.has_resource | (self.kind == _PROCESSOR)
        )
        queue = (self.server_index * (int(lane.max(initial=0)) + 1) + lane) * _KINDS + self.kind
        for queue_number in np.unique(queue[is_queued]):
            rows = np.flatnonzero((queue == queue_number) & is_queued)
            yield rows, bool(self.has_resource[rows].all())

    def make_tasks(self, service_edges: Ints) -> Tasks:
        """Return the tasks of services with a resource; `service_edges`, [service], -1 = none."""
        unit, is_unit_begin = self._number_units()
        rows = np.flatnonzero(self.has_resource & (service_edges >= 0))
        crowding = [np.nan if one.crowding is None else one.crowding for one in self.disciplines]
        return Tasks(
            edge_rows=service_edges[rows],
            server_index=self.server_index[rows],
            kind_indices=self.kind[rows],
            lane=np.where(self._select_flags("has_lane_per_worker"), self.worker + 1, 0)[rows],
            stream=np.where(self._select_flags("has_streams"), self.worker, -1)[rows],
            work_share=np.ones(len(rows)),
            message_counts=np.ones(len(rows)),
            unit=unit[rows],
            is_unit_begin=is_unit_begin[rows],
            crowding_of_kind=np.array(crowding),
        )

    def _select_flags(self, name: str) -> Flags:
        """Return a flag of the `Discipline` of each service's kind, [service]."""
        return np.array([getattr(one, name) for one in self.disciplines], np.bool_)[self.kind]

    def _number_units(self) -> tuple[Ints, Flags]:
        """Return the unit of each service, and whether it is the unit's first one, both [service].

        A unit is what a processor does for one request without a break; its number is its first row.
        """
        is_first = np.ones(len(self.kind), np.bool_)
        rows = np.flatnonzero(self.kind == _PROCESSOR)
        continues = (np.diff(self.server_index[rows]) == 0) & (np.diff(self.request_row[rows]) == 0)
        is_first[rows[1:][continues & (self.request_row[rows[1:]] >= 0)]] = False
        unit = np.arange(len(is_first))
        unit[rows] = np.maximum.accumulate(np.where(is_first[rows], rows, -1))
        return unit, is_first


def _do_processors_send(
    kind: Ints, begin_ns: Ints, end_ns: Ints, server: Ints, request: Ints
) -> bool | None:
    """Return True if processors send replies, for which other services wait; None if nothing tells.

    All arrays are [service]; `request` is its row, -1 = none.
    """
    rows, is_reply = np.flatnonzero(kind != _IN), kind == _OUT
    previous, following = rows[:-1], rows[1:]
    is_same_server = server[previous] == server[following]
    overlap_ns = np.maximum(end_ns[previous] - begin_ns[following], 0)[is_same_server].sum()
    if overlap_ns > MAX_OVERLAP_IN_TURN * (end_ns - begin_ns)[rows].sum():
        return False
    by_request = np.lexsort((begin_ns, request))
    row, next_row = by_request[:-1], by_request[1:]
    is_same_request = (request[row] == request[next_row]) & (request[next_row] >= 0)
    ready_ns = begin_ns.copy()  # when the service before of the same request was over
    ready_ns[next_row[is_same_request]] = end_ns[row[is_same_request]]
    overlaps = begin_ns[following] < end_ns[previous]
    waits_for_reply = is_same_server & is_reply[previous] & ~is_reply[following] & ~overlaps
    waits_for_reply &= ready_ns[following] < end_ns[previous]
    is_beside_reply = is_same_server & (is_reply[previous] != is_reply[following]) & overlaps
    if not waits_for_reply.any() and not is_beside_reply.any():
        return None
    return bool(waits_for_reply.sum() > is_beside_reply.sum())


def find_ends_on_links(services: pl.DataFrame, workers: Ints, received_ns: Ints) -> Ints:
    """Return when services were over on the link, ns, [service]: replies may leave their buffer later.

    A server may put a reply into a buffer, and note that as its end, before the link has carried most
    of it. Replies last until they are received, less the way of the quickest, if most of that time is
    after their end, and if all that servers send and receive goes by bytes more exactly then. `workers`
    and the time when the request had its answer, `received_ns`, are -1 for none.
    """
    begin_ns, end_ns, nbytes = (
        services[name].fill_null(0).to_numpy().astype(np.float64)
        for name in ("start_ns", "end_ns", "bytes")
    )
    server = services["server"].to_numpy().astype(np.int64)
    recorded = TaskTimes(begin_ns, end_ns, nbytes, server, workers)
    incoming, outgoing = (
        services["op"].is_in(operations).to_numpy() & (nbytes > 0)
        for operations in (INCOMING, OUTGOING)
    )
    rows = np.flatnonzero(outgoing & (received_ns >= 0))
    recorded_end_ns = np.array(services["end_ns"].to_numpy(), np.int64)  # exact, unlike floats
    if not len(rows) or not incoming.any():
        return recorded_end_ns
    equal_shares = Discipline(crowding=0.0)
    ns_per_byte = measure_work(equal_shares, recorded.take(incoming)).sum() / nbytes[incoming].sum()
    sent = recorded.take(rows)._replace(end_ns=received_ns[rows].astype(np.float64))
    candidates = [end_ns]
    for duration_ns in (sent.end_ns - sent.begin_ns, measure_work(equal_shares, sent)):
        # What the quickest takes beyond its bytes is the way to its worker, which occupies no link.
        travel_ns = np.full(int(workers.max()) + 1, np.inf)
        np.minimum.at(travel_ns, sent.worker, duration_ns - sent.nbytes * ns_per_byte)
        link_end_ns = end_ns.copy()
        arrival_ns = sent.end_ns - np.maximum(travel_ns[sent.worker], 0.0)
        link_end_ns[rows] = np.maximum(end_ns[rows], arrival_ns)
        if (link_end_ns - end_ns).sum() > (end_ns - begin_ns)[rows].sum():
            candidates.append(link_end_ns)
    if len(candidates) == 1:
        return recorded_end_ns

    def measure_share(ends_ns: Floats) -> float:
        times = recorded._replace(end_ns=ends_ns)
        return measure_deviation_share([times.take(incoming), times.take(outgoing)])

    best_end_ns = min(candidates, key=measure_share)
    return np.where(best_end_ns > end_ns, best_end_ns.astype(np.int64), recorded_end_ns)


def is_in_turn(begin_ns: Ints, end_ns: Ints) -> bool:
    """Return True if services, by their begins, hardly overlap."""
    overlap_ns = float(np.maximum(end_ns[:-1] - begin_ns[1:], 0).sum())
    return overlap_ns <= MAX_OVERLAP_IN_TURN * float((end_ns - begin_ns).sum())
