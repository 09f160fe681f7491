"""Exchanges with servers in a replay: a request, its services one after the other, its answer.

A request reaches its server after the way that such requests usually take. A service follows the one
before of the same request; the one before at its server, if that serves in turn, or if the request had
come before that was over; and an update follows all that it joins. A worker that is blocked without any
partner goes on with the last update that ended meanwhile: it stood at a barrier, or awaited its turn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.accounting.service import sum_work_until
from tracelens.caching import cached_property
from tracelens.replay.links import KEPT, Bond, Line
from tracelens.replay.occupancy import INCOMING, OUTGOING, Occupancy, find_ends_on_links
from tracelens.replay.threads import Sides
from tracelens.schema.vocabulary import EXCHANGE_KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Flags, Indices, Ints
    from tracelens.model.trace import Trace
    from tracelens.replay.links import Links
    from tracelens.replay.threads import Threads
    from tracelens.replay.timeline import Timeline

__all__ = ["Requests"]

_OWN: Final = ("turn_wait", "worker_update", "master_update")  # of a worker: no message
_UPDATES: Final = ("apply", "master_update")
# times the usual delay after an update: a worker that goes on later did not wait for
# the token [chosen]
MAX_RATIO_OF_TOKEN_DELAY: Final = 1.5
_NETWORK: Final = (*INCOMING, *OUTGOING)


@dataclass(frozen=True, eq=False)
class Requests:
    """What workers asked for, a row each, and the services for it, by server and begin.

    `asked` has ``worker`` (its place), ``stops``; `served` has ``asked``, the row of its request, -1 for
    none. `servers` are the numbers of all servers, their shards' where they have any. They serve
    `in_recorded_order`, or by a rule, which is the given `alternative` of `Occupancy.unknown`. `needs`
    are from when on workers need what they asked for, -1 where it is not known; `unknown_needs` is the
    share of pulls that came before the worker waited, where it is not.
    """

    asked: pl.DataFrame
    served: pl.DataFrame
    servers: Ints
    in_recorded_order: bool = False
    alternative: int = 0
    needs: Ints | None = None
    unknown_needs: float = 0.0

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
            .sort("start_ns", "request")
            .with_row_index("row")
        )
        servers = trace.shards.select("process", server=pl.coalesce("shard", "rank"))
        known = asked.select("request", asked="row").drop_nulls().unique("request", keep="first")
        served = (
            spans.join(servers, on="process", how="inner")
            .join(known, on="request", how="left")
            .with_columns(pl.col("asked").cast(pl.Int64).fill_null(-1), pl.col("op").fill_null(""))
            .sort("server", "start_ns", "end_ns")
        )
        ranks = servers["server"].unique().sort().to_numpy().astype(np.int64)
        return cls(asked, served, ranks).extend_replies()

    def extend_replies(self) -> Requests:
        """Return them with replies that last until links have carried them."""
        if not self.asked.height or not self.served.height:
            return self
        until = find_ends_on_links(
            self.served, self.worker_of_services, self._of_services("end_ns")
        )
        return replace(self, served=self.served.with_columns(end_ns=pl.Series(until)))

    @property
    def sides(self) -> Sides:
        """What workers asked for."""
        names = ("worker", "start_ns", "end_ns", "stops")
        worker, begin, end, stops = (self.asked[name].to_numpy() for name in names)
        return Sides(worker.astype(np.int64), begin, end, stops)

    @property
    def needed(self) -> Sides:
        """What workers asked for, with ends when they need what came earlier than that."""
        sides = self.sides
        return (
            sides if self.needs is None else sides._replace(end=np.maximum(sides.end, self.needs))
        )

    @property
    def needs_apart(self) -> Sides:
        """When workers need what came earlier, as moments without length."""
        sides, needed = self.sides, self.needed
        early = np.flatnonzero(needed.end > sides.end)
        return Sides.at(sides.worker[early], needed.end[early], stops=True)

    @cached_property
    def hidden_transfer_share(self) -> float:
        """The share of pushes' time in which they were neither received, by any row, nor served."""
        incoming, asked = self.served["op"].is_in(INCOMING), pl.col("asked")
        begun = self.served.filter(asked >= 0).group_by("asked").agg(pl.col("start_ns").min())
        received = self.served.filter(incoming)["asked"].implode()
        sent = self.asked.with_columns(asked=pl.col("row").cast(pl.Int64)).filter(
            pl.col("op") == "push", pl.col("bytes") > 0, ~asked.is_in(received)
        )
        sent = sent.join(begun, on="asked", suffix="_served")
        sent = sent.join(self.served.select("asked", "server").unique("asked"), on="asked")
        hidden = 0.0
        for (server,), pushes in sent.partition_by("server", as_dict=True).items():
            work = self.served.filter(pl.col("server") == server).sort("start_ns")
            worked = sum_work_until(work["start_ns"].to_numpy(), work["end_ns"].to_numpy())
            start, begin = (pushes[name].to_numpy() for name in ("start_ns", "start_ns_served"))
            idle = begin - start - (worked(begin) - worked(start))
            hidden += float(np.maximum(idle, 0.0).sum())
        whole = (sent["end_ns"] - sent["start_ns"]).sum()
        return hidden / max(float(whole), 1.0)

    @cached_property
    def variables(self) -> dict[int, int]:
        """The bytes of each variable that is pushed, by its key: all its parts in a step together."""
        pushed = self.asked.filter(pl.col("op") == "push").drop_nulls(["key", "bytes"])
        by_step = pushed.group_by("key", "step", "process").agg(pl.col("bytes").sum())
        sizes = by_step.group_by("key").agg(pl.col("bytes").max()).sort("key")
        return dict(sizes.iter_rows())

    @cached_property
    def keys(self) -> Ints:
        """The variable that each service is for, by the key of its request; -1 for none."""
        return self._of_services("key")

    def _of_services(self, name: str) -> Ints:
        """Return a column of `asked` for the request of each service; -1 for none."""
        of_requests = np.append(self.asked[name].fill_null(-1).to_numpy(), -1)
        return np.array(of_requests[self.served["asked"].to_numpy()], np.int64)

    @cached_property
    def step_of_services(self) -> Ints:
        """The step of each service, by its place among all steps of services.

        That is its request's, for servers may not know it; else that of what was served before.
        """
        rows = self.served.select(
            "server", own=pl.col("step"), asked=pl.Series(self._of_services("step"))
        )
        known = [pl.when(pl.col(name) >= 0).then(name) for name in ("own", "asked")]
        step = rows.select(pl.coalesce(known).forward_fill().over("server").fill_null(-1))
        return np.unique(step.to_series().to_numpy(), return_inverse=True)[1].astype(np.int64)

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
        return self._of_services("worker")

    @cached_property
    def occupancy(self) -> Occupancy:
        """Which services occupy links and processors of servers."""
        place = np.searchsorted(self.servers, self.served["server"].to_numpy()).astype(np.int64)
        return Occupancy.of(
            self.served,
            place,
            self.worker_of_services,
            in_recorded_order=self.in_recorded_order,
            alternative=self.alternative,
        )

    @property
    def moments(self) -> Ints:
        """When services began and ended, in turns."""
        return self.served.select("start_ns", "end_ns").to_numpy().ravel().astype(np.int64)

    @property
    def _updates(self) -> pl.DataFrame:
        """The services after which a barrier opens, or a turn passes on, with their places."""
        return self.served.with_row_index("place").filter(pl.col("op").is_in(_UPDATES))

    def noticed(self, timeline: Timeline) -> Requests:
        """Return them with answers when training threads noticed them, not before servers were done."""
        sides = self.sides
        noticed = sides.noticed(timeline).end
        done = np.zeros(self.asked.height, np.int64)
        asked, over = (self.served[name].to_numpy() for name in ("asked", "end_ns"))
        answered = (asked >= 0) & (over <= self._of_services("end_ns"))
        np.maximum.at(done, asked[answered], over[answered])
        end = np.where(done > noticed, sides.end, noticed)
        return replace(self, asked=self.asked.with_columns(end_ns=pl.Series(end, dtype=pl.Int64)))

    def released(self, timeline: Timeline, others: Sequence[Sides]) -> Sides:
        """Return when workers went on because of an update, and nothing else.

        That is the update's end, if nothing came for the worker after it. If something did, but the
        worker waited on, until as long after the update as usual, it is when the wait ended.
        """
        updates = np.sort(self._updates["end_ns"].to_numpy())
        begins, ends = timeline.blocked
        worker = timeline.workers_at(ends)
        begin, end = timeline.moments_at(begins), timeline.moments_at(ends)
        arrivals = Sides.join(others)
        arrived = np.sort(timeline.locate(arrivals.worker, arrivals.end))
        latest = np.append(-1, arrived)[np.searchsorted(arrived, ends, "right")]
        latest = np.where(timeline.workers_at(latest) == worker, timeline.moments_at(latest), -1)
        update = np.append(-1, updates)[np.searchsorted(updates, end, "right")]
        by_update = (update > np.maximum(begin, latest)) & (latest < end)
        usual = np.median((end - update)[by_update]) if by_update.any() else 0.0
        is_token = (update > begin) & (update <= latest) & (latest < end)
        is_token &= end - update <= MAX_RATIO_OF_TOKEN_DELAY * usual
        rows = np.flatnonzero(by_update | is_token)
        return Sides.at(worker[rows], np.where(by_update, update, end)[rows])

    def add_links(
        self, links: Links, threads: Threads, first: int, recorded: Ints, released: Sides
    ) -> None:
        """Add what services and answers follow; service i begins at moment `first` + 2 i, ends after."""
        sides, rows = self.sides, np.arange(self.served.height)
        asks, gets = threads.find_both(self.needed)
        gets = np.where(gets < 0, threads.find_needed(sides.worker, sides.end), gets)
        begin, end = first + 2 * rows, first + 2 * rows + 1
        self._add_services(links, begin, end)
        settled = len(links)
        self._add_ways(links, asks, begin)
        self._add_turns(links, begin, end)
        links.settle(settled, recorded.astype(np.float64))
        self._add_answers(links, (asks, gets), begin, recorded)
        goes_on = threads.find(released.worker, released.end)
        updates = self._updates.sort("end_ns")
        ends = np.append(0, updates["end_ns"].to_numpy())
        delay = released.end - ends[np.searchsorted(ends[1:], released.end, side="right")]
        for of_server in updates.partition_by("server"):
            row = np.searchsorted(of_server["end_ns"].to_numpy(), released.end, side="right") - 1
            update = of_server["place"].to_numpy()[np.maximum(row, 0)]
            links.add(end[update], goes_on, delay, row >= 0, bond=Bond.BARRIER)

    def _add_services(self, links: Links, begin: Ints, end: Ints) -> None:
        op, lasts = self.served["op"], self.occupancy.alone
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

    def _add_ways(self, links: Links, asks: Ints, begin: Ints) -> None:
        """Add when requests come to their server: after what such ways take where no request waits."""
        asked = self.served["asked"].to_numpy()
        head = self.served["asked"].is_first_distinct().to_numpy() & (asked >= 0)
        way = np.maximum(self.served["start_ns"].to_numpy() - self._of_services("start_ns"), 0)
        ways = self.served.select("op", "server", way=pl.Series(way), head=pl.Series(head))
        least = ways.select(
            pl.col("way").filter("head").quantile(0.25).over("op", "server").fill_null(0)
        )
        lag = np.minimum(least["way"].to_numpy(), way)
        ends = np.append(asks, -1)[asked], begin, lag
        self._add_loaded(links, "push", ends, np.maximum(asked, 0), head)

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
        sent, single = self._of_services("start_ns"), self.occupancy.single
        for order, by_resource in self.occupancy.queues():
            one, two = order[:-1], order[1:]
            # A server that does one thing at a time takes in no request meanwhile.
            had_been_sent = single[two] | (sent[two] < over[one])
            turn = (over[one] <= start[two]) & had_been_sent
            bond = Bond.QUEUE if by_resource else Bond.TURN
            links.add(end[one], begin[two], np.zeros(len(one)), turn, bond=bond)
        asked = table["asked"].to_numpy()
        of_request = np.lexsort((start, asked))
        one, two = of_request[:-1], of_request[1:]
        same = (asked[one] == asked[two]) & (asked[one] >= 0)
        free = over[one] <= start[two]
        links.add(end[one], begin[two], np.zeros(len(one)), same & free)
        links.add(begin[one], begin[two], start[two] - start[one], same & ~free)
        self._add_joins(links, begin, end)

    def _add_joins(self, links: Links, begin: Ints, end: Ints) -> None:
        """Add that updates follow what they join, and replies the last update before them."""
        op, columns = pl.col("op"), ("op", "server", "start_ns", "end_ns")
        services = self.served.with_row_index("row").select(
            "row", *columns, pl.col("step", "key").fill_null(-1)
        )
        for group in (["server", "step", "key"], ["server", "step"]):
            is_apply, is_of_all = op == "apply", pl.col("key") < 0
            applies = services.filter(is_apply & (is_of_all == ("key" not in group)))
            joins, replies = (services.filter(op == name) for name in ("aggregate", "reply"))
            nearest: dict[str, Any] = {"on": "at", "by": group, "check_sortedness": False}
            for before, after, bond in (
                (joins, applies, Bond.NONE),
                (applies, replies, Bond.TURN),
            ):
                done = before.select(*group, at="end_ns", before="row").sort("at")
                begun = after.select(*group, at="start_ns", after="row").sort("at")
                joined = begun.join_asof(done, **nearest)
                if bond is Bond.NONE:
                    joined = done.join_asof(begun, strategy="forward", **nearest)
                joined = joined.drop_nulls()
                one, two = joined["before"].to_numpy(), joined["after"].to_numpy()
                links.add(end[one], begin[two], np.zeros(len(one)), bond=bond)

    def _add_answers(
        self, links: Links, asking: tuple[Ints, Ints], begin: Ints, recorded: Ints
    ) -> None:
        """Add that requests end after their last service, or as long after they began as they did."""
        asks, gets = asking
        names = ("asked", "start_ns", "end_ns")
        asked, begun, over = (self.served[name].to_numpy() for name in names)
        got = self.asked["end_ns"].to_numpy()
        inside = np.flatnonzero((asked >= 0) & (begun <= self._of_services("end_ns")))
        last = np.full(len(got), -1)
        np.maximum.at(last, asked[inside], inside)
        row = np.flatnonzero(last >= 0)
        service = last[row]
        source = begin[service] + (over[service] <= got[row])
        lag = np.maximum(got[row] - recorded[source], 0)
        self._add_loaded(links, "pull", (source, gets[row], lag), row, np.ones(len(row), np.bool_))
        length = got - self.asked["start_ns"].to_numpy()
        links.add(asks, gets, length, last < 0, line=KEPT)
