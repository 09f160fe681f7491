"""Replays the exchange with parameter servers, request by request, with other processors or links.

Between two rounds of requests (pushes to all shards, pulls from all) a worker works on its own, as long
as it did. A request reaches its shard after the time it took to, less what the shard was at work
meanwhile, for a shard at work may not look who asks. Pushes on a shard's link share it evenly; the
shard serves one request after the other as they come (all at once, if it was seen to), those that wait
already in the order that it was seen to take, applies the sum after the last push, and answers pulls
from then on. Where workers wait at a barrier, they go on after the last update. So what a worker waits
for follows from what all of them do. Where pulls were answered before the pushes of the round before
were served (asynchronous servers), it does not, and nothing is replayed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracelens.arrays import Floats, Indices, Ints

__all__ = [
    "MOST_REQUESTS",
    "PROCESSOR",
    "Change",
    "Rounds",
    "in_turn",
    "link_time",
    "shared",
    "worked_until",
]


PROCESSOR: Final = ("aggregate", "apply")


def in_turn(able: Floats, work: Floats) -> Floats:
    """Return when each is served, one after the other."""
    done = np.cumsum(work)
    return np.asarray(np.maximum.accumulate(able - (done - work)) + done)


def link_time(begin: Floats, end: Floats) -> Floats:
    """Return what part of a link's time each message had, if those at once had equal parts."""
    edges = np.unique(np.concatenate([begin, end]))
    first, last = np.searchsorted(edges, begin), np.searchsorted(edges, end)
    change = np.bincount(first, minlength=len(edges)) - np.bincount(last, minlength=len(edges))
    share = np.diff(edges) / np.maximum(np.cumsum(change)[:-1], 1)
    until = np.concatenate([[0.0], np.cumsum(share)])
    return np.asarray(until[last] - until[first])


def shared(come: Floats, work: Floats) -> Floats:
    """Return when each message is through, which needs so much of the link's time.

    `given` is the time that each message there has had since the first one; who came with more of it
    to go is through later.
    """
    through = [0.0] * len(come)
    there: list[tuple[float, int]] = []
    now = given = 0.0
    times, works = come.tolist(), work.tolist()
    for one in np.argsort(come, kind="stable").tolist():
        time, count = times[one], len(there)
        while count:
            until, first = there[0]
            done = now + (until - given) * count
            if done > time:
                given += (time - now) / count
                break
            through[first] = done
            now, given, count = done, until, count - 1
            heappop(there)
        now = time
        heappush(there, (given + works[one], one))
    for left, (until, first) in enumerate(sorted(there)):
        now += (until - given) * (len(there) - left)
        through[first], given = now, until
    return np.array(through)


TOGETHER: Final = 0.25  # of the time of services, if they overlap, is saved by it at least
MOST_REQUESTS: Final = 500_000  # played again: of a long run, its first steps
_TIMES: Final = ("start_ns", "end_ns", "arrived", "got", "begun", "done", "busy")


@dataclass(frozen=True, eq=False)
class Change:
    """How many times as long each shard's processor and link take.

    `ns_per_byte`, where not nan, lets a link receive at that pace, however many push at once. Of what a
    link does for a push and for a reply, `message_ns` is for the message itself: that part takes
    `messages` times as long, and is `message_share` of the link's work.
    """

    cpu: Floats
    wire: Floats
    ns_per_byte: Floats
    message_ns: tuple[float, float] = (0.0, 0.0)
    message_share: float = 0.0
    messages: float = 1.0

    @classmethod
    def none(cls, shards: int) -> Change:
        """Everything as it was."""
        return cls(np.ones(shards), np.ones(shards), np.full(shards, np.nan))

    def of_link(self, work: Floats, shard: int, *, push: bool) -> Floats:
        """Return how long a shard's link works for messages."""
        fixed = np.minimum(work, self.message_ns[0 if push else 1])
        return np.asarray(fixed * self.messages + (work - fixed) * self.wire[shard])


@dataclass(frozen=True, eq=False)
class _AtShard:
    """The requests of a round at one shard; `at_once` says that it serves them beside each other.

    `applied` is how long after the last push it had applied the sum.
    """

    shard: int
    mine: Indices  # places among all of the round
    nbytes: Floats
    receiving: Floats  # of the link's time
    begun: Floats
    serving: Floats
    applied: float
    at_once: bool


@dataclass(frozen=True, eq=False)
class _Round:
    """Requests of all workers, [worker, request]: times as recorded, nanoseconds."""

    push: bool
    step: int
    own: Floats  # [worker], from the end of its round before
    there: Floats  # from the worker's begin to the shard
    back: Floats  # from the end of service to the worker's end
    shards: tuple[_AtShard, ...]
    joins: bool = False  # workers go on when all updates are made


class Rounds:
    """The rounds of a run in which all workers have alike ones.

    Of a long run only the first ones are played: `length_ns` is the job's part that they stand for.
    """

    def __init__(
        self, rounds: list[_Round], first: Floats, shards: int, length_ns: float = 1.0
    ) -> None:
        self._rounds = rounds
        self._first = first
        self._shards = shards
        self._usual = self._ends(Change.none(shards))
        self.length_ns = length_ns

    @classmethod
    def of(
        cls,
        asked: pl.DataFrame,
        served: pl.DataFrame,
        shards: pl.Series,
        job_ns: float,
        *,
        at_barriers: bool = False,
        most_requests: int = MOST_REQUESTS,
    ) -> Rounds | None:
        """Join both sides of the requests; None where workers' rounds are not alike, or not in turn.

        `at_barriers` says that workers go on after a round of pushes when all its updates are made. Of a
        run with more than `most_requests` only the first rounds are joined.
        """
        wanted = _in_rounds(asked, shards)
        every = max(int(wanted["round"].n_unique()), 1)
        per_round = max(wanted.height // every, 1)
        few = wanted.filter(pl.col("round") <= max(most_requests // per_round, 2))
        table = _joined(few, served, shards)
        workers = table["rank"].n_unique()
        if table.is_empty() or table.select(_TIMES).null_count().sum_horizontal()[0]:
            return None
        rounds: list[_Round] = []
        ended: Floats | None = None
        first = np.zeros(workers)
        applying = np.full(len(shards), -np.inf)
        for part in _parts(table):
            if part.height % workers or part["rank"].n_unique() < workers:
                return None
            ordered = part.sort("rank", "shard", "key", "start_ns")
            if ordered["rank"].to_numpy().reshape(workers, -1).std(axis=1).any():
                return None
            times = _times(ordered, workers)
            begin = times["start_ns"].min(axis=1)
            if ended is None:
                first = ended = begin
            one = _round(ordered, times, begin - ended, len(shards))
            if not _in_turn_with_updates(one, applying):
                return None
            rounds.append(replace(one, joins=at_barriers and one.push))
            ended = times["end_ns"].max(axis=1)
            if rounds[-1].joins:
                ended = np.maximum(ended, times["applied"].max())
        if len(rounds) < 2 or job_ns <= 0:
            return None
        return cls(rounds, first, len(shards), job_ns * len(rounds) / every)

    def lost(self, change: Change) -> Floats:
        """Return by how many nanoseconds each round is over earlier, seen from the one before."""
        gained = self._usual - self._ends(change)
        return np.diff(gained, prepend=0.0)

    @property
    def workers(self) -> int:
        """How many there are."""
        return len(self._first)

    def relieved(self, steps: Ints, effect: Floats) -> float:
        """Return what share of the job is saved if workers work less by `effect`, [step, worker]."""
        own = np.stack([one.own for one in self._rounds])
        earlier = np.zeros_like(own)
        rows: dict[int, list[int]] = {}
        for row, one in enumerate(self._rounds):
            rows.setdefault(one.step, []).append(row)
        for row, step in enumerate(steps.tolist()):
            # Before which round of its step a worker loses it is not known: before that it works most.
            here = np.array(rows.get(step, []), np.int64)
            if len(here):
                earlier[here[own[here].argmax(axis=0)], np.arange(self.workers)] = effect[row]
        fixed = self._ends(Change.none(self._shards), earlier)
        return float(max(self._usual[-1] - fixed[-1], 0.0) / self.length_ns)

    def _ends(self, change: Change, earlier: Floats | None = None) -> Floats:
        """Return when the last worker ends each round."""
        now = self._first.copy()
        free = applied = np.full(self._shards, -np.inf)
        ends = []
        for row, one in enumerate(self._rounds):
            own = one.own
            if earlier is not None:
                own = np.where(earlier[row] > 0, np.maximum(own - earlier[row], 0.0), own)
            asked = (now + own)[:, None] + one.there
            served, free, applied = _serve(one, asked, (free, applied), change)
            now = (served + one.back).max(axis=1)
            if one.joins:
                now = np.maximum(now, applied[[there.shard for there in one.shards]].max())
            ends.append(now.max())
        return np.array(ends)


def _serve(
    one: _Round, asked: Floats, state: tuple[Floats, Floats], change: Change
) -> tuple[Floats, Floats, Floats]:
    """Serve a round: when each request is served, and from when on shards are free and have applied."""
    free, applied = (part.copy() for part in state)
    served = np.empty(asked.size)
    for part in one.shards:
        shard, come = part.shard, asked.reshape(-1)[part.mine]
        if one.push:
            come = _received(part, come, change)
        able = np.maximum(come, free[shard] if one.push else max(free[shard], applied[shard]))
        order = np.lexsort((part.begun, able))  # who waits already is served as it was
        serving = part.serving[order]
        able, work = (
            able[order],
            serving * change.cpu[shard] if one.push else change.of_link(serving, shard, push=False),
        )
        ended = able + work if part.at_once else in_turn(able, work)
        served[part.mine[order]] = ended
        free[shard] = ended.max()
        if one.push:
            applied[shard] = free[shard] = ended.max() + part.applied * change.cpu[shard]
    return served.reshape(asked.shape), free, applied


def _received(part: _AtShard, come: Floats, change: Change) -> Floats:
    pace = change.ns_per_byte[part.shard]
    if np.isnan(pace):
        return shared(come, change.of_link(part.receiving, part.shard, push=True))
    return shared(come, part.nbytes * pace)


def _in_turn_with_updates(one: _Round, applying: Floats) -> bool:
    """Return whether no pull is answered before the pushes before it; notes when these are served."""
    for there in one.shards:
        if one.push:
            applying[there.shard] = (there.begun + there.serving).max()
        elif there.begun.min() < applying[there.shard]:
            return False
    return True


def _in_rounds(asked: pl.DataFrame, shards: pl.Series) -> pl.DataFrame:
    """Number the rounds of each worker: a push after pulls, or a pull after pushes, begins one."""
    op = pl.col("op")
    turn = (op != op.shift(1).over("rank")).fill_null(value=True)
    wanted = asked.filter(op.is_in(["push", "pull"]), pl.col("shard").is_in(shards.implode()))
    return wanted.sort("rank", "start_ns").with_columns(round=turn.cum_sum().over("rank"))


def _joined(few: pl.DataFrame, served: pl.DataFrame, shards: pl.Series) -> pl.DataFrame:
    """Put the shard's times beside each request."""
    op, same = pl.col("op"), ["shard", "request"]
    received = (
        served.filter(op == "receive")
        .group_by(same)
        .agg(arrived=pl.col("start_ns").min(), got=pl.col("end_ns").min())
    )
    main = (
        served.filter(op.is_in([PROCESSOR[0], "reply"]))
        .group_by(same)
        .agg(begun=pl.col("start_ns").min(), done=pl.col("end_ns").max())
    )
    applied = (
        served.filter(op == "apply").group_by("shard", "step").agg(applied=pl.col("end_ns").max())
    )
    column = shards.search_sorted(few["shard"])
    return (
        few.with_columns(column=column.cast(pl.Int64))
        .join(received, on=same, how="left")
        .join(main, on=same, how="left")
        .join(applied, on=["shard", "step"], how="left")
        .with_columns(pl.coalesce("arrived", "begun"), pl.coalesce("got", "begun"))
        .with_columns(pl.coalesce("applied", "done"))
        .pipe(_less_busy, served)
    )


def _less_busy(table: pl.DataFrame, served: pl.DataFrame) -> pl.DataFrame:
    """Add for how long a request's shard was at work between the worker's begin and its arrival."""
    busy = np.zeros(table.height)
    begin, arrived = table["start_ns"].to_numpy(), table["arrived"].to_numpy()
    working = served.filter(pl.col("op") != "receive").sort("start_ns")
    for (shard,), work in working.partition_by("shard", as_dict=True).items():
        mine = np.flatnonzero((table["shard"] == shard).to_numpy())
        worked = worked_until(work["start_ns"].to_numpy(), work["end_ns"].to_numpy())
        busy[mine] = worked(arrived[mine]) - worked(begin[mine])
    return table.with_columns(busy=pl.Series(np.maximum(busy, 0.0)))


def worked_until(start: Ints, end: Ints) -> Callable[[Ints], Floats]:
    """Return how long a shard has been at work until a moment; work is sorted by its start."""
    reached = np.maximum.accumulate(end)
    begin = np.maximum(start, np.concatenate([start[:1], reached[:-1]]))
    length = np.maximum(end - begin, 0)
    before = np.concatenate([[0], np.cumsum(length)])

    def until(moment: Ints) -> Floats:
        last = np.searchsorted(begin, moment, side="right")
        inside = np.clip(moment - begin[last - 1], 0, length[last - 1])
        return np.where(last > 0, before[last - 1] + inside, 0).astype(np.float64)

    return until


def _parts(table: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the rounds in which all workers do the same."""
    table = table.sort("round")
    bounds = np.append(np.flatnonzero(np.diff(table["round"].to_numpy(), prepend=0)), table.height)
    for begin, end in pairwise(bounds.tolist()):
        yield table.slice(begin, end - begin)


def _times(ordered: pl.DataFrame, workers: int) -> dict[str, Floats]:
    return {
        name: ordered[name].to_numpy().reshape(workers, -1).astype(np.float64)
        for name in (*_TIMES, "applied")
    }


def _round(ordered: pl.DataFrame, times: dict[str, Floats], own: Floats, shards: int) -> _Round:
    push = ordered["op"][0] == "push"
    shard = ordered["column"].to_numpy()
    nbytes = ordered["bytes"].fill_null(0).to_numpy().astype(np.float64)
    flat = {name: values.reshape(-1) for name, values in times.items()} | {"bytes": nbytes}
    places = [np.flatnonzero(shard == one) for one in range(shards)]
    begin = times["start_ns"].min(axis=1, keepdims=True)
    return _Round(
        push=push,
        step=int(ordered["step"].fill_null(-1)[0]),
        own=own,
        there=times["arrived"] - begin - times["busy"],
        back=times["end_ns"] - times["done"],
        shards=tuple(
            _at_shard(one, mine, {name: values[mine] for name, values in flat.items()}, push=push)
            for one, mine in enumerate(places)
            if len(mine)
        ),
    )


def _at_shard(shard: int, mine: Indices, times: dict[str, Floats], *, push: bool) -> _AtShard:
    begun, done = times["begun"], times["done"]
    serving = done - begun
    beside = done.max() - begun.min() < (1 - TOGETHER) * serving.sum()
    return _AtShard(
        shard=shard,
        mine=mine,
        nbytes=times["bytes"],
        receiving=link_time(times["arrived"], np.maximum(times["got"], times["arrived"])),
        begun=begun,
        serving=serving,
        applied=float(np.maximum(times["applied"].max() - done.max(), 0)) if push else 0.0,
        at_once=bool(len(mine) > 1 and beside),
    )
