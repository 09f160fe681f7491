"""Exchanges with servers in a replay: a request, its services one after the other, its answer.

A request reaches its server after the way that such requests usually take. A service follows the one
before of the same request; the one before at its server, if that serves in turn, or if the request had
come before that was over; and an update follows all that it joins. A worker that is blocked without any
partner goes on with the last update that ended meanwhile: it stood at a barrier, or awaited its turn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.replay.links import KEPT, Bond, Line
from tracelens.replay.threads import Sides
from tracelens.schema.vocabulary import EXCHANGE_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracelens.arrays import Flags, Indices, Ints
    from tracelens.model.trace import Trace
    from tracelens.replay.links import Links
    from tracelens.replay.threads import Blocked, Numbers

__all__ = ["Requests"]

_OWN: Final = ("turn_wait", "worker_update", "master_update")  # of a worker: no message
_UPDATES: Final = ("apply", "master_update")
_NETWORK: Final = ("receive", "reply", "weights_down", "weights_up")
_IN_TURN: Final = 0.05  # of the time of services: by no more they overlap where they are in turn


@dataclass(frozen=True, eq=False)
class Requests:
    """What workers asked for, a row each, and the services for it, by server and begin.

    `asked` has ``worker`` (its place), ``stops``; `served` has ``asked``, the row of its request, -1 for
    none, and ``joins``, the number of the update that it is part of, -1 for none.
    """

    asked: pl.DataFrame
    served: pl.DataFrame

    @classmethod
    def of(cls, trace: Trace, first: Ints, last: Ints) -> Requests:
        """Take those that lie in the steps of their worker, between `first` and `last`."""
        op, over = pl.col("op").cast(pl.String), pl.col("end_ns").is_not_null()
        begin_ns, end_ns = int(first.min()), int(last.max())
        inside = (pl.col("end_ns") >= begin_ns) & (pl.col("start_ns") <= end_ns)
        spans = trace.requests.filter(pl.col("kind").is_in(EXCHANGE_KINDS), over, inside)
        spans = spans.with_columns(op=op)
        workers = trace.workers.select(
            "process", "training_thread", worker=pl.int_range(pl.len(), dtype=pl.Int64)
        ).with_columns(first=pl.Series(first), last=pl.Series(last))
        asked = (
            spans.filter(~op.is_in(_OWN))
            .join(workers, on="process", how="inner")
            .filter(pl.col("start_ns") >= pl.col("first"), pl.col("end_ns") <= pl.col("last"))
            .with_columns(stops=pl.col("thread") == pl.col("training_thread"))
            .sort("start_ns")
            .with_row_index("row")
        )
        servers = trace.shards.select("process", server="rank")
        known = asked.select("request", asked="row").drop_nulls().unique("request", keep="first")
        served = (
            spans.join(servers, on="process", how="inner")
            .join(known, on="request", how="left")
            .with_columns(pl.col("asked").cast(pl.Int64).fill_null(-1))
            .sort("server", "start_ns", "end_ns")
        )
        return cls(asked, served)

    @property
    def sides(self) -> Sides:
        """What workers asked for."""
        names = ("worker", "start_ns", "end_ns", "stops")
        worker, begin, end, stops = (self.asked[name].to_numpy() for name in names)
        return Sides(worker.astype(np.int64), begin, end, stops)

    @property
    def variables(self) -> dict[int, int]:
        """The bytes of each variable that is pushed, by its key: all its parts in a step together."""
        pushed = self.asked.filter(pl.col("op") == "push").drop_nulls(["key", "bytes"])
        by_step = pushed.group_by("key", "step", "process").agg(pl.col("bytes").sum())
        sizes = by_step.group_by("key").agg(pl.col("bytes").max()).sort("key")
        return dict(sizes.iter_rows())

    @property
    def joined(self) -> Indices:
        """The updates with what several requests brought: of a step there are fewer than of those."""
        update, brought = pl.col("op").is_in(_UPDATES), pl.col("op") == "aggregate"
        fewer = (update.sum() < brought.sum()).over("server", "step")
        rows = self.served.with_row_index("row").filter(update & fewer)["row"]
        return np.array(rows.to_numpy(), np.int64)

    @property
    def worker_of_services(self) -> Ints:
        """The worker whose request each service is for, -1 for none."""
        worker = np.append(self.asked["worker"].to_numpy(), -1)
        return np.array(worker[self.served["asked"].to_numpy()], np.int64)

    @property
    def in_turn(self) -> list[Indices]:
        """The services of each server that does one after the other, without updates that join."""
        found = []
        for services, _ in self._orders():
            alone = np.setdiff1d(services, self.joined)
            found.append(alone if self._in_turn(alone) else alone[:0])
        return found

    @property
    def moments(self) -> Ints:
        """When services began and ended, in turns."""
        times = np.stack([self.served[name].to_numpy() for name in ("start_ns", "end_ns")], axis=1)
        return times.ravel().astype(np.int64)

    @property
    def _updates(self) -> pl.DataFrame:
        """The services after which a barrier opens, or a turn passes on, with their places."""
        return self.served.with_row_index("place").filter(pl.col("op").is_in(_UPDATES))

    def noticed(self, blocked: Blocked) -> Requests:
        """Return them with answers when training threads noticed them."""
        end = self.sides.noticed(blocked).end
        return replace(self, asked=self.asked.with_columns(end_ns=pl.Series(end, dtype=pl.Int64)))

    def released(self, blocked: Blocked, others: Sequence[Sides]) -> Sides:
        """Return when workers went on because of an update, and nothing else."""
        none = np.zeros(0, np.int64)
        ends = np.sort(self._updates["end_ns"].to_numpy())
        workers, found = [none], [none]
        for worker, (begin, end) in enumerate(blocked.stretches if len(ends) else ()):
            mine = [none, *(side.end[side.worker == worker] for side in others)]
            arrived = np.sort(np.concatenate(mine))
            latest, last = (
                np.append(-1, moments)[np.searchsorted(moments, end, "right")]
                for moments in (arrived, ends)
            )
            some = last[(last > begin) & (last > latest)]
            workers.append(np.full(len(some), worker))
            found.append(some)
        moments = np.concatenate(found)
        return Sides(np.concatenate(workers), moments, moments, np.zeros(len(moments), np.bool_))

    def add_links(
        self, links: Links, numbers: Numbers, first: int, recorded: Ints, released: Sides
    ) -> None:
        """Add what services and answers follow; service i begins at moment `first` + 2 i, ends after."""
        sides, rows = self.sides, np.arange(self.served.height)
        asks, gets = numbers.of(sides.worker, sides.begin), numbers.of(sides.worker, sides.end)
        needed = numbers.needed(sides.worker, sides.end)
        gets = np.where(gets < 0, needed, gets)
        begin, end = first + 2 * rows, first + 2 * rows + 1
        self._add_services(links, begin, end)
        settled = len(links)
        self._add_ways(links, asks, begin)
        self._add_turns(links, begin, end)
        links.settle(settled, recorded.astype(np.float64))
        self._add_answers(links, (asks, gets), begin, recorded)
        updates = self._updates.sort("end_ns")
        if updates.height:
            place = updates["end_ns"].search_sorted(pl.Series(released.end)).to_numpy()
            by = end[updates["place"].to_numpy()[np.minimum(place, updates.height - 1)]]
            goes_on = numbers.of(released.worker, released.end)
            links.add(by, goes_on, np.zeros(len(by)), bond=Bond.BARRIER)

    def _add_services(self, links: Links, begin: Ints, end: Ints) -> None:
        op, lasts = self.served["op"], self._lasts
        for name in op.unique().to_list():
            links.add(
                begin,
                end,
                lasts,
                (op == name).to_numpy(),
                line=Line(f"{name} at servers", 0, network=name in _NETWORK),
                nbytes=self.served["bytes"].fill_null(-1).to_numpy(),
                step=self.served["step"].fill_null(-1).to_numpy().astype(np.int64),
                shard=self.served["server"].to_numpy().astype(np.int64),
            )

    @property
    def _lasts(self) -> Ints:
        return (self.served["end_ns"] - self.served["start_ns"]).to_numpy()

    def _add_ways(self, links: Links, asks: Ints, begin: Ints) -> None:
        """Add when requests come to their server: after what such ways take where no request waits."""
        asked = self.served["asked"].to_numpy()
        head = np.zeros(len(asked), np.bool_)
        _, first = np.unique(asked, return_index=True)
        head[first] = True
        head &= asked >= 0
        row = np.maximum(asked, 0)
        sent = self.asked["start_ns"].to_numpy()[row] if self.asked.height else np.zeros(len(asked))
        way = np.maximum(self.served["start_ns"].to_numpy() - sent, 0)
        usual = pl.DataFrame({"op": self.served["op"], "server": self.served["server"], "way": way})
        least = usual.with_columns(head=head).select(
            pl.col("way").filter("head").quantile(0.25).over("op", "server").fill_null(0)
        )
        lag = np.minimum(least["way"].to_numpy(), way)
        source = asks[row] if len(asks) else np.full(len(asked), -1)
        self._add_loaded(links, "push", (source, begin, lag), row, head)

    def _add_loaded(
        self, links: Links, loaded: str, ends: tuple[Ints, Ints, Ints], row: Ints, there: Flags
    ) -> None:
        """Add ways of requests, by their rows: one operation's carry bytes, the others hardly any."""
        if not self.asked.height:
            return
        asked = self.asked[row]
        mine = (asked["op"] == loaded).fill_null(value=False).to_numpy()
        links.add(*ends, there & ~mine, line=Line(f"way without {loaded}", 0, network=True))
        links.add(
            *ends,
            there & mine,
            line=Line(f"way of {loaded}", 0, network=True),
            nbytes=asked["bytes"].fill_null(-1).to_numpy(),
            step=asked["step"].fill_null(-1).to_numpy().astype(np.int64),
            shard=asked["shard"].fill_null(-1).to_numpy().astype(np.int64),
        )

    def _add_turns(self, links: Links, begin: Ints, end: Ints) -> None:
        """Add what services follow at their server."""
        table = self.served
        start, over = (table[name].to_numpy() for name in ("start_ns", "end_ns"))
        for order, allowed in self._orders():
            one, two = order[:-1], order[1:]
            free = over[one] <= start[two]
            turn = free & allowed[1:]
            links.add(end[one], begin[two], np.zeros(len(one)), turn, bond=Bond.TURN)
        asked = table["asked"].to_numpy()
        of_request = np.lexsort((start, asked))
        one, two = of_request[:-1], of_request[1:]
        same = (asked[one] == asked[two]) & (asked[one] >= 0)
        free = over[one] <= start[two]
        links.add(end[one], begin[two], np.zeros(len(one)), same & free)
        links.add(begin[one], begin[two], start[two] - start[one], same & ~free)
        op = table["op"]
        joins = table.select(key=pl.struct("server", "step", pl.col("key").fill_null(-1)))["key"]
        group = joins.rank("dense").to_numpy()
        for before, after, bond in (
            ("aggregate", "apply", Bond.NONE),
            ("apply", "reply", Bond.TURN),
        ):
            one, two = (np.flatnonzero((op == name).to_numpy()) for name in (before, after))
            if len(one) and len(two):
                self._add_joins(links, (one, two), group, (begin, end), bond)

    def _add_joins(
        self,
        links: Links,
        services: tuple[Ints, Ints],
        group: Ints,
        moments: tuple[Ints, Ints],
        bond: Bond,
    ) -> None:
        """Add that services of a group follow the last one of others in it that was over before."""
        before, after = services
        start, over = (self.served[name].to_numpy() for name in ("start_ns", "end_ns"))
        known = pl.DataFrame({"group": group[before], "at": over[before], "row": before}).sort("at")
        wanted = pl.DataFrame({"group": group[after], "at": start[after], "to": after}).sort("at")
        found = wanted.join_asof(known, on="at", by="group", check_sortedness=False).drop_nulls()
        one, two = found["row"].to_numpy(), found["to"].to_numpy()
        begin, end = moments
        links.add(end[one], begin[two], np.zeros(len(one)), bond=bond)

    def _orders(self) -> Iterator[tuple[Ints, Flags]]:
        """Yield the services of each server in order, and which of them wait for the one before.

        A server that does one thing at a time takes in no request meanwhile; else only what it does with
        requests that it has is in turn.
        """
        table = self.served
        sent = np.append(self.asked["start_ns"].to_numpy(), 0)
        come = sent[table["asked"].to_numpy()]
        ends = table["end_ns"].to_numpy()
        working = (table["op"] != "receive").to_numpy()
        for server in table["server"].unique().to_list():
            mine = np.flatnonzero((table["server"] == server).to_numpy())
            if not self._in_turn(mine):
                mine = mine[working[mine]]
            before = np.append(0, ends[mine])[:-1]
            yield mine, (come[mine] < before) | self._in_turn(mine)

    def _in_turn(self, services: Ints) -> bool:
        """Return whether services hardly overlap; they are in order of their begins."""
        begins, ends = (self.served[name].to_numpy()[services] for name in ("start_ns", "end_ns"))
        beside = float(np.maximum(ends[:-1] - begins[1:], 0).sum())
        return beside <= _IN_TURN * float((ends - begins).sum())

    def _add_answers(
        self, links: Links, asking: tuple[Ints, Ints], begin: Ints, recorded: Ints
    ) -> None:
        """Add that requests end after their last service, or as long after they began as they did."""
        asks, gets = asking
        table = pl.DataFrame({"asked": self.served["asked"], "row": np.arange(len(begin))})
        over = self.served["end_ns"].to_numpy()
        asked = self.served["asked"].to_numpy()
        got = self.asked["end_ns"].to_numpy()
        begun = self.served["start_ns"].to_numpy()
        inside = (asked >= 0) & (begun <= np.append(got, 0)[asked])
        last = table.filter(pl.Series(inside)).group_by("asked").agg(pl.col("row").max())
        row, service = (last[name].to_numpy() for name in ("asked", "row"))
        within = over[service] <= got[row]
        source = begin[service] + within
        lag = np.maximum(got[row] - recorded[source], 0)
        every = np.ones(len(row), np.bool_)
        self._add_loaded(links, "pull", (source, gets[row], lag), row, every)
        alone = np.ones(len(got), np.bool_)
        alone[row] = False
        length = got - self.asked["start_ns"].to_numpy()
        links.add(asks, gets, length, alone, line=KEPT)
