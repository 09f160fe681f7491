"""Which services of servers occupy a link or a processor, and how long each takes by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.replay.resources import (
    Discipline,
    Intervals,
    Tasks,
    find_disciplines,
    measure_deviation,
    measure_work,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from tracelens.arrays import Flags, Floats, Ints

__all__ = ["INCOMING", "OUTGOING", "Occupancy", "find_ends_on_links"]

INCOMING: Final = ("receive", "weights_up")
OUTGOING: Final = ("reply", "weights_down")
_IN, _OUT, _PROCESSOR, _KINDS = range(4)
_SHARED: Final = Discipline(0.0)
_NOTHING: Final = ""
_UNKNOWN_LINKS: Final = "how messages that come at once share a server's link"
_UNKNOWN_SENDER: Final = "whether servers do other work while they send replies"
# share of services' time: services that overlap no more take turns [chosen; one decision in
# _find_sender, is_in_turn]
MAX_OVERLAP_IN_TURN: Final = 0.05


@dataclass(frozen=True, eq=False)
class Occupancy:
    """The resource of each service, of a `kind`: an incoming or outgoing link, or a processor.

    Services that `occupies` is false of have none, and keep their order. `alone` is what each takes
    without those that share its resource, ns. `disciplines` are by kind. Servers that are `single` do
    one thing at a time. `unknown` are the alternatives that explain the recording as well, the first one
    the simplest: what the recording does not tell if another one is as good.
    """

    kind: Ints
    occupies: Flags
    server: Ints  # its place among all of the run
    worker: Ints
    request: Ints
    alone: Floats
    single: Flags
    disciplines: tuple[Discipline, ...]
    unknown: tuple[str, ...]

    @classmethod
    def of(
        cls,
        served: pl.DataFrame,
        server: Ints,
        worker: Ints,
        *,
        in_recorded_order: bool,
        alternative: int = 0,
    ) -> Occupancy:
        """Find it among services by server and begin, each for a request of a `worker` (-1: of none).

        `alternative` is a number of `unknown`; 0 = the simplest.
        """
        columns = ("start_ns", "end_ns", "bytes", "asked")
        begin, end, nbytes, request = (
            served[name].fill_null(0).to_numpy().astype(np.int64) for name in columns
        )
        kind = np.full(served.height, _PROCESSOR)
        kind[served["op"].is_in(INCOMING).to_numpy()] = _IN
        kind[served["op"].is_in(OUTGOING).to_numpy()] = _OUT
        disciplines = [Discipline(None)] * _KINDS
        occupies, single = np.zeros((2, len(kind)), np.bool_)
        alone = (end - begin).astype(np.float64)
        on_link = (kind != _PROCESSOR) & (nbytes > 0)
        times = begin.astype(np.float64), end.astype(np.float64)
        intervals = Intervals(*times, nbytes.astype(np.float64), server, worker)
        used = [number for number in (_IN, _OUT) if (on_link & (kind == number)).any()]
        choices: list[tuple[Discipline, ...]] = []
        if not in_recorded_order:
            choices = find_disciplines([intervals.take(on_link & (kind == one)) for one in used])
        sender = _find_sender(kind, (begin, end), (server, request))
        unknown = (_NOTHING, *[_UNKNOWN_LINKS] * (len(choices) - 1))
        if choices and sender is None:
            unknown += (_UNKNOWN_SENDER,)
        chosen = choices[alternative if alternative < len(choices) else 0] if choices else None
        for number, discipline in zip(used, chosen or (), strict=chosen is not None):
            rows = on_link & (kind == number)
            disciplines[number] = discipline
            alone[rows] = measure_work(discipline, intervals.take(rows))
            occupies[rows] = True
        if chosen is None or sender or (sender is None and alternative < len(choices)):
            kind[kind == _OUT] = _PROCESSOR
        for number in np.unique(server):
            services = np.flatnonzero(server == number)
            processor = services[kind[services] == _PROCESSOR]
            if chosen is not None:
                occupies[processor] = is_in_turn(begin[processor], end[processor])
            elif is_in_turn(begin[services], end[services]):
                kind[services], single[services] = _PROCESSOR, True
        return cls(
            kind, occupies, server, worker, request, alone, single, tuple(disciplines), unknown
        )

    def queues(self) -> Iterator[tuple[Ints, bool]]:
        """Yield services that take turns, in order, and whether they do because of a resource."""
        has_lane = self._of_services("per_worker") | self._of_services("streams")
        lane = np.where(has_lane, self.worker + 1, 0)
        takes_turns = self._of_services("takes_turns")
        takes_turns &= self.occupies | (self.kind == _PROCESSOR)
        group = (self.server * (int(lane.max(initial=0)) + 1) + lane) * _KINDS + self.kind
        for number in np.unique(group[takes_turns]):
            order = np.flatnonzero((group == number) & takes_turns)
            yield order, bool(self.occupies[order].all())

    def tasks(self, links: Ints) -> Tasks:
        """Return the tasks of services; `links` are theirs in the event graph."""
        unit, leads = self._units()
        rows = np.flatnonzero(self.occupies & (links >= 0))
        crowding = [np.nan if one.crowding is None else one.crowding for one in self.disciplines]
        return Tasks(
            link=links[rows],
            place=self.server[rows],
            kind=self.kind[rows],
            lane=np.where(self._of_services("per_worker"), self.worker + 1, 0)[rows],
            stream=np.where(self._of_services("streams"), self.worker, -1)[rows],
            share=np.ones(len(rows)),
            messages=np.ones(len(rows)),
            unit=unit[rows],
            leads=leads[rows],
            crowding=np.array(crowding),
        )

    def _of_services(self, name: str) -> Flags:
        """Return a flag of `Discipline` for the kind of each service."""
        return np.array([getattr(one, name) for one in self.disciplines], np.bool_)[self.kind]

    def _units(self) -> tuple[Ints, Flags]:
        """Number what a processor does without a break for one request; return what begins that."""
        leads = np.ones(len(self.kind), np.bool_)
        rows = np.flatnonzero(self.kind == _PROCESSOR)
        same = (np.diff(self.server[rows]) == 0) & (np.diff(self.request[rows]) == 0)
        leads[rows[1:][same & (self.request[rows[1:]] >= 0)]] = False
        unit = np.arange(len(leads))
        unit[rows] = rows[np.maximum.accumulate(np.where(leads[rows], np.arange(len(rows)), 0))]
        return unit, leads


def _find_sender(kind: Ints, times: tuple[Ints, Ints], places: tuple[Ints, Ints]) -> bool | None:
    """Return whether processors send replies, so that what else they do waits for these.

    None if nothing was ever ready while a reply was sent.
    """
    (begin, end), (server, request), replies = times, places, kind == _OUT
    rows = np.flatnonzero(kind != _IN)
    before, after = rows[:-1], rows[1:]
    same = server[before] == server[after]
    overlap = np.maximum(end[before] - begin[after], 0)[same].sum()
    if overlap > MAX_OVERLAP_IN_TURN * (end - begin)[rows].sum():
        return False
    order = np.lexsort((begin, request))
    one, two = order[:-1], order[1:]
    ready = begin.copy()
    follows = (request[one] == request[two]) & (request[two] >= 0)
    ready[two[follows]] = end[one[follows]]
    at_once = begin[after] < end[before]
    delayed = same & replies[before] & ~replies[after] & ~at_once & (ready[after] < end[before])
    beside = same & (replies[before] != replies[after]) & at_once
    if not delayed.any() and not beside.any():
        return None
    return bool(delayed.sum() > beside.sum())


def find_ends_on_links(served: pl.DataFrame, worker: Ints, received: Ints) -> Ints:
    """Return when each service was over on the link, ns: a reply may leave its server's buffer later.

    A server may put a reply into a buffer, and note that as its end, before the link has carried most
    of it. Replies last until they are received, less the way of the quickest, if most of that time is
    after their end, and if all that servers send and receive goes by bytes more exactly then.

    Args:
        served: Services by server and begin, as in `Requests`.
        worker: For whom each is; -1 = for none.
        received: When its request had its answer, ns; -1 = not known.
    """
    begin, end, nbytes = (
        served[name].fill_null(0).to_numpy().astype(np.float64)
        for name in ("start_ns", "end_ns", "bytes")
    )
    noted = Intervals(begin, end, nbytes, served["server"].to_numpy().astype(np.int64), worker)
    incoming = served["op"].is_in(INCOMING).to_numpy() & (nbytes > 0)
    outgoing = served["op"].is_in(OUTGOING).to_numpy() & (nbytes > 0)
    known = np.flatnonzero(outgoing & (received >= 0))
    until = np.array(served["end_ns"].to_numpy(), np.int64)
    if not len(known) or not incoming.any():
        return until
    ns_per_byte = measure_work(_SHARED, noted.take(incoming)).sum() / nbytes[incoming].sum()
    sent = noted.take(known)._replace(end=received[known].astype(np.float64))
    candidates = []
    for took in (sent.end - sent.begin, measure_work(_SHARED, sent)):
        # What the quickest takes beyond its bytes is the way to its worker, which occupies no link.
        way = np.full(int(worker.max()) + 1, np.inf)
        np.minimum.at(way, sent.worker, took - sent.nbytes * ns_per_byte)
        carried = end.copy()
        carried[known] = np.maximum(end[known], sent.end - np.maximum(way[sent.worker], 0.0))
        if (carried - end).sum() > (end - begin)[known].sum():
            candidates.append(carried)
    if not candidates:
        return until
    best = min(
        (end, *candidates),
        key=lambda over: measure_deviation(
            [noted._replace(end=over).take(kind) for kind in (incoming, outgoing)]
        ),
    )
    return np.where(best > end, best.astype(np.int64), until)


def is_in_turn(begin: Ints, end: Ints) -> bool:
    """Return whether services hardly overlap; they are in order of their begins."""
    overlap = float(np.maximum(end[:-1] - begin[1:], 0).sum())
    return overlap <= MAX_OVERLAP_IN_TURN * float((end - begin).sum())
