"""Keeps whole what findings name, and sums up the rest, so that a large run fits into a viewer.

Outside of what is kept there is one span for each rank, step, thread, kind and operation (and for each
communicator, shard or stream, where it has one):

- On a thread it lasts as long as its spans were the innermost of a phase; a user's span within a phase
  belongs to that phase, as in `accounting.phases`. Those of a step lie one after the other, in the
  order in which the first of each began, and none ends later than the last of them did. Spans that
  stay lie where they were: a sum around one lasts longer by it, so that the innermost still counts.
- On a track of operations in flight it begins with the first and lasts as long as any was in flight.
- Bytes are added up; other columns are those of all its spans, where these agree, else null.

So every nanosecond of a thread keeps its phase and its step; when in a step it was does not stay, nor do
counts. Calls and requests of steps of which anything is kept stay on all ranks, so that they match;
others keep their number only where the step has a single one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from tracelens.conversion.columns import FOREVER, by_thread, depths
from tracelens.model import fmt
from tracelens.model.finding_kinds import KINDS
from tracelens.model.trace import EVENT_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tracelens.arrays import Flags, Indices, Ints
    from tracelens.model.findings import Finding
    from tracelens.model.trace import Trace

__all__ = ["Flagged", "Part", "flagged", "sum_up"]

Owner = tuple[str, int]  # role and rank
Steps = tuple[int, int]  # the first and the last one

_EVERY: Final = (-1, 2**31 - 2)
_SHOWN: Final = 8
_KEY: Final = ("step", "thread", "kind", "op", "communicator", "shard", "stream")
_OWN: Final = ("step", "thread", "start_ns", "end_ns", "depth", "status", "seq", "request", "bytes")
_AGREED: Final = tuple(n for n in EVENT_COLUMNS if n not in {*_KEY, *_OWN, "name"})


class Part(NamedTuple):
    """Events of one process; of how many of its events there are `sums` spans instead."""

    events: pl.DataFrame
    summed_up: int = 0
    sums: int = 0


@dataclass(frozen=True)
class Flagged:
    """Which steps of which processes are kept whole; `named` lists the findings behind that."""

    steps: Mapping[Owner, tuple[Steps, ...]] = field(default_factory=dict)
    named: tuple[str, ...] = ()

    def whole(self, role: str, rank: int) -> pl.Expr:
        """Return whether an event of this process is in a step that is kept whole."""
        return _within(self.steps.get((role, rank), ()))

    def touched(self) -> pl.Expr:
        """Return whether an event is in a step that is kept whole of any process."""
        return _within({span for spans in self.steps.values() for span in spans})

    @property
    def sentence(self) -> str:
        """What is kept whole and what is summed up."""
        more = len(self.named) - _SHOWN
        shown = [*self.named[:_SHOWN], *([f"{more} more"] if more > 0 else [])]
        kept = (
            f"what findings name is whole, with the steps before and after ({'; '.join(shown)})"
            if shown
            else "no finding names a rank or a step, so nothing is whole"
        )
        return (
            f"As asked, {kept}; elsewhere one span stands for all of a rank, step, thread, kind and "
            "operation, as long as they were at work. Shares of time are of the whole run; counts of "
            "spans and calls, and what follows from single calls (waits, messages, servers), are not."
        )


def flagged(trace: Trace, findings: Iterable[Finding]) -> Flagged:
    """Return what findings name: their ranks in their steps, and the steps before and after those.

    A finding without steps names all steps of its ranks, one without ranks its steps of all ranks. One
    that names neither, or all, is about the whole run and names nothing.
    """
    workers = {("worker", int(rank)) for rank in trace.workers["rank"]}
    servers = {("ps", int(rank)) for rank in trace.shards["rank"]}
    found: dict[Owner, list[Steps]] = {}
    named: list[str] = []
    for finding in findings:
        owners = _owners(trace, finding) & (workers | servers)
        steps = _padded(finding.steps)
        everyone = not owners or owners >= workers
        if everyone and _all_steps(trace, steps):
            continue
        for owner in workers | servers if everyone else owners:
            found.setdefault(owner, []).append(steps)
        named.append(_named(finding))
    whole = {owner: tuple(sorted(set(spans))) for owner, spans in found.items()}
    return Flagged(whole, tuple(dict.fromkeys(named)))


def _owners(trace: Trace, finding: Finding) -> set[Owner]:
    """Return the processes of a finding's ranks (else of its hosts) and of its shards."""
    hosts = () if finding.ranks else finding.hosts
    mine = trace.processes.filter("main").filter(
        ((pl.col("role") == "worker") & pl.col("rank").is_in(finding.ranks))
        | ((pl.col("role") == "worker") & pl.col("host").is_in(hosts))
        | ((pl.col("role") == "ps") & pl.col("shard").is_in(finding.shards))
    )
    return {(role, int(rank)) for role, rank in mine.select("role", "rank").iter_rows()}


def _padded(steps: Steps | None) -> Steps:
    return _EVERY if steps is None else (steps[0] - 1, steps[1] + 1)


def _all_steps(trace: Trace, steps: Steps) -> bool:
    inside = trace.steps["step"].is_between(*steps)
    return bool(inside.all())


def _named(finding: Finding) -> str:
    title = KINDS[finding.kind].title
    subjects = [
        fmt.listing(noun, names)
        for noun, names in (
            ("rank", finding.ranks),
            ("host", () if finding.ranks else finding.hosts),
            ("shard", finding.shards),
        )
        if names
    ]
    when = [fmt.steps(*finding.steps)] if finding.steps else []
    return f"{title}: {', '.join([*subjects, *when])}"


def _within(steps: Iterable[Steps]) -> pl.Expr:
    inside = [pl.col("step").is_between(*span) for span in sorted(steps)]
    return pl.any_horizontal(pl.lit(value=False), *inside)


def sum_up(
    events: pl.DataFrame,
    in_flight: Iterable[int],
    whole: pl.Expr,
    touched: pl.Expr,
    steps_ns: Steps | None = None,
) -> Part:
    """Sum up the spans of one process, but for what stays.

    What stays: `whole` steps, calls and requests of `touched` ones with what is nested in them, spans of
    kind step and their counters, what is in no step, or before the first or after the last of them, and
    what never ended or ended by an exception.

    Args:
        events: One process, in `EVENT_COLUMNS`.
        in_flight: The threads that are tracks of operations in flight.
        whole: Which events are in steps that are kept whole.
        touched: Which are in steps that are kept whole of any process.
        steps_ns: Begin of the first and end of the last step of the process, ns; null if unknown.
    """
    begin, end = steps_ns or (-FOREVER, FOREVER)
    outside = (pl.col("step") < 0) | (pl.col("start_ns") < begin) | (pl.col("start_ns") >= end)
    span = pl.col("type") == "span"
    over = pl.col("end_ns").is_not_null() & pl.col("status").is_in(["closed", "estimated"])
    matched = pl.col("seq").is_not_null() | pl.col("request").is_not_null()
    rows = events.with_columns(
        unchanged=outside
        | whole
        | (pl.col("kind") == "step")
        | (span & (~over | (touched & matched))),
        flies=pl.col("thread").is_in(list(in_flight)),
        matched=matched,
    )
    flying, beside = (rows.filter(span, pl.col("flies") == flies) for flies in (True, False))
    kept, merged = _on_threads(beside.filter(pl.col("kind") != "step"))
    parts = [
        rows.filter((pl.col("kind") == "step") | (~span & pl.col("unchanged"))),
        flying.filter("unchanged", pl.col("kind") != "step"),
        kept,
        merged,
        _in_flight(flying.filter(~pl.col("unchanged"))),
    ]
    found = pl.concat([part.select(*EVENT_COLUMNS) for part in parts])
    if found.height == events.height:
        return Part(events)
    found = found.sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)
    sums = merged.height + parts[-1].height
    return Part(_nested(found), events.height - found.height + sums, sums)


def _nested(events: pl.DataFrame) -> pl.DataFrame:
    """Count the depth of spans anew."""
    end = events["end_ns"].fill_null(FOREVER).to_numpy()
    thread = events["thread"].cast(pl.Int64).to_numpy()
    found = depths(thread, events["start_ns"].to_numpy(), end)
    deepest = np.iinfo(np.uint16).max
    return events.with_columns(depth=pl.Series(np.minimum(found, deepest).astype(np.uint16)))


def _in_flight(spans: pl.DataFrame) -> pl.DataFrame:
    """Sum up operations in flight: as long as any of them was."""
    ordered = spans.sort("start_ns", "end_ns").with_columns(
        until=pl.col("end_ns").cum_max().shift(1).over(_KEY)
    )
    begin = pl.max_horizontal("start_ns", "until")
    own = (pl.col("end_ns") - begin).clip(lower_bound=0)
    return _sums(ordered.with_columns(own_ns=own, first_ns="start_ns"))


def _on_threads(spans: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the spans of threads that stay, and the sums of the others, laid out."""
    spans = spans.with_columns(alone=pl.len().over(_KEY) == 1)
    kept, merged = [spans.clear()], [_sums(_empty(spans))]
    after_all = pl.max_horizontal("start_ns", "end_ns").max() + 1
    start = spans["start_ns"].to_numpy()
    end = spans.select(pl.col("end_ns").fill_null(after_all)).to_series().to_numpy()
    thread = spans["thread"].cast(pl.Int64).to_numpy()
    for chosen in by_thread(thread, start, end) if spans.height else ():
        rows = spans[chosen]
        unchanged = _unchanged(rows, start[chosen], end[chosen])
        kept.append(rows.filter(pl.Series(unchanged)))
        if not unchanged.all():
            merged.append(_laid_out(rows, start[chosen], end[chosen], unchanged))
    return pl.concat(kept), pl.concat(merged)


def _empty(spans: pl.DataFrame) -> pl.DataFrame:
    return spans.clear().with_columns(own_ns=pl.lit(0), first_ns="start_ns")


def _unchanged(rows: pl.DataFrame, start: Ints, end: Ints) -> Flags:
    """Return what stays of a thread: with what stays, what is nested in it; and calls that are alone."""
    leaf = np.append(start[1:] >= end[:-1], True)
    single = (rows["matched"] & rows["alone"]).to_numpy() & leaf
    unchanged: Flags = rows["unchanged"].to_numpy() | single
    until = np.maximum.accumulate(np.where(unchanged, end, np.iinfo(np.int64).min))
    nested = np.append(False, start[1:] < until[:-1])
    return np.asarray(unchanged | nested)


def _laid_out(rows: pl.DataFrame, start: Ints, end: Ints, unchanged: Flags) -> pl.DataFrame:
    """Sum up the spans of a thread that do not stay, and lay them out in the time that is left."""
    taken = _Taken.by(start[unchanged], end[unchanged])
    others = np.flatnonzero(~unchanged)
    begin, until = taken.free(start[others]), taken.free(end[others])
    user = (rows["kind"] == "user").to_numpy()[others]
    own, first = _own_time(begin, until, user)
    seen = first >= 0
    spans = rows[others].with_columns(
        own_ns=pl.Series(own), first_ns=pl.Series(np.where(seen, first, begin))
    )
    # A user's span within a phase is a part of it.
    sums = _sums(spans.filter(pl.Series(seen | ~user)))
    length = (sums["end_ns"] - sums["start_ns"]).to_numpy()
    before = np.cumsum(length) - length
    place = before + np.maximum.accumulate(sums["start_ns"].to_numpy() - before)
    return sums.with_columns(
        start_ns=pl.Series(taken.used(place, "right")),
        end_ns=pl.Series(np.where(length, taken.used(place + length, "left"), 0)),
    ).with_columns(end_ns=pl.max_horizontal("start_ns", "end_ns"))


@dataclass(frozen=True, eq=False)
class _Taken:
    """The time of a thread that is taken by spans that stay: disjoint stretches, and their sums."""

    start: Ints
    end: Ints

    @classmethod
    def by(cls, start: Ints, end: Ints) -> _Taken:
        """Join what overlaps; spans are in order of their begin."""
        until = np.maximum.accumulate(end) if len(end) else end
        new = np.append(True, start[1:] > until[:-1]) if len(start) else np.zeros(0, np.bool_)
        first = np.flatnonzero(new)
        last = np.append(first[1:], len(start))[: len(first)] - 1
        return cls(start[first], until[last])

    def free(self, t: Ints) -> Ints:
        """Return the time before `t` that is not taken; within a stretch it stands still."""
        at = np.searchsorted(self.start, t, "right")
        length = np.append(0, np.cumsum(self.end - self.start))
        within = np.zeros(len(t), np.int64)
        inside = at > 0
        within[inside] = np.maximum(self.end[at[inside] - 1] - t[inside], 0)
        return np.asarray(t - length[at] + within)

    def used(self, free: Ints, side: str) -> Ints:
        """Return the times of free ones; at a stretch its begin (`left`) or its end (`right`)."""
        length = np.append(0, np.cumsum(self.end - self.start))
        begins = self.start - length[:-1]
        at = np.searchsorted(begins, free, "right" if side == "right" else "left")
        return np.asarray(free + length[at])


def _own_time(start: Ints, end: Ints, user: Flags) -> tuple[Ints, Ints]:
    """Return how long each span was the innermost of a phase, and since when; -1 if it never was.

    Spans are sorted by begin, the longer one first. User spans count where nothing else is open.
    """
    bounds = np.unique(np.concatenate([start, end]))
    inner = _innermost(bounds, start, end, np.flatnonzero(~user))
    around = _innermost(bounds, start, end, np.flatnonzero(user))
    owner = np.where(inner >= 0, inner, around)
    lengths = np.diff(bounds)
    own = np.zeros(len(start), np.int64)
    np.add.at(own, owner[owner >= 0], lengths[owner >= 0])
    first = np.full(len(start), FOREVER)
    np.minimum.at(first, owner[owner >= 0], bounds[:-1][owner >= 0])
    first[first == FOREVER] = -1
    empty = (start == end) & ~user
    first[empty] = start[empty]
    return own, first


def _innermost(bounds: Ints, start: Ints, end: Ints, among: Indices) -> Indices:
    """Return for each piece between two bounds the deepest of some spans that is open; -1 if none."""
    found = np.full(len(bounds) - 1, -1)
    begin, stop = np.searchsorted(bounds, start[among]), end[among]
    levels = np.arange(len(among)) - np.searchsorted(np.sort(stop), start[among], "right")
    for level in range(int(levels.max(initial=-1)) + 1):
        chosen = np.flatnonzero((levels == level) & (stop > start[among]))
        latest = np.full(len(bounds), -1)
        latest[begin[chosen]] = chosen
        latest = np.maximum.accumulate(latest)[:-1]
        active = np.flatnonzero((latest >= 0) & (stop[latest] > bounds[:-1]))
        found[active] = among[latest[active]]
    return found


def _sums(spans: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each key, from its first begin and as long as its own time, in that order."""
    several = pl.len() > 1
    agreed: dict[str, pl.Expr] = {
        name: pl.when(pl.col(name).n_unique() == 1).then(pl.col(name).first()) for name in _AGREED
    }
    device_end = pl.col("device_start_ns") + pl.col("device_duration_ns")
    on_device = pl.min_horizontal(
        pl.col("device_duration_ns").sum(), device_end.max() - pl.col("device_start_ns").min()
    )
    agreed |= {
        "device_start_ns": pl.col("device_start_ns").min(),
        "device_duration_ns": pl.when(device_end.count() > 0).then(on_device),
    }
    word = pl.coalesce(pl.col("op").first(), pl.col("kind").first())
    name = pl.when(pl.col("name").n_unique() == 1).then(pl.col("name").first()).otherwise(word)
    found = spans.group_by(_KEY, maintain_order=True).agg(
        start_ns=pl.col("first_ns").min(),
        length=pl.col("own_ns").sum(),
        depth=pl.col("depth").min(),
        status=pl.when(several)
        .then(pl.lit("estimated", EVENT_COLUMNS["status"]))
        .otherwise(pl.col("status").first()),
        bytes=pl.when(pl.col("bytes").count() > 0).then(pl.col("bytes").sum()),
        **{n: pl.when(~several).then(pl.col(n).first()) for n in ("seq", "request")},
        name=name,
        **agreed,
    )
    return (
        found.with_columns(end_ns=pl.col("start_ns") + pl.col("length"))
        .select(*EVENT_COLUMNS)
        .cast(pl.Schema(EVENT_COLUMNS))
        .sort("start_ns", maintain_order=True)
    )
