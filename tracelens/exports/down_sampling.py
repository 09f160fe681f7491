"""Keeps the steps that findings name, and sums up the rest, so that a large run fits into a viewer.

Elsewhere one span, a sum, replaces all spans of a rank, step, thread, kind and operation (and of a
communicator, shard or stream):

- On a thread a sum lasts as long as its spans were the innermost of a phase; a user's span within a
  phase belongs to that phase, as in `accounting.phases`. The sums of a step follow each other, in the
  order in which the first span of each began, and none ends later than the last span did. Kept spans
  stay where they were: a sum around one lasts longer by it, so that the innermost span still counts.
- On a track of operations in flight a sum begins with the first and lasts as long as any was in flight.
- Bytes are added up. Other columns have the value that all spans share, else null.

So every nanosecond of a thread keeps its phase and its step, but not its position in the step, and
counts of spans are lost. Calls and requests of a step that is kept on any rank are kept on all ranks,
so that they match. Other calls keep their number only if the step has a single one.
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

Owner = tuple[str, int]  # role and rank
Steps = tuple[int, int]  # the first and the last one

_EVERY: Final = (-1, 2**31 - 2)
_SHOWN: Final = 8
_KEY: Final = ("step", "thread", "kind", "op", "communicator", "shard", "stream")
_OWN: Final = ("step", "thread", "start_ns", "end_ns", "depth", "status", "seq", "request", "bytes")
_AGREED: Final = tuple(n for n in EVENT_COLUMNS if n not in {*_KEY, *_OWN, "name"})


class ProcessEvents(NamedTuple):
    """Events of one process; `sums` of the spans replace `summed_up` recorded events."""

    events: pl.DataFrame
    summed_up: int = 0
    sums: int = 0


@dataclass(frozen=True)
class Flagged:
    """The steps that are kept whole, by process, and a label for each finding that names them."""

    steps: Mapping[Owner, tuple[Steps, ...]] = field(default_factory=dict)
    finding_labels: tuple[str, ...] = ()

    def is_kept(self, role: str, rank: int) -> pl.Expr:
        """Return an expression: True for events of a process in steps of its that are kept."""
        return _is_in_steps(self.steps.get((role, rank), ()))

    def is_touched(self) -> pl.Expr:
        """Return an expression: True for events in steps that are kept of any process."""
        return _is_in_steps({span for spans in self.steps.values() for span in spans})

    @property
    def sentence(self) -> str:
        """What is kept whole and what is summed up."""
        left_out = len(self.finding_labels) - _SHOWN
        shown_findings = [
            *self.finding_labels[:_SHOWN],
            *([f"{left_out} more"] if left_out > 0 else []),
        ]
        kept_phrase = (
            f"what findings name is whole, with the steps before and after ({'; '.join(shown_findings)})"
            if shown_findings
            else "no finding names a rank or a step, so nothing is whole"
        )
        return (
            f"As asked, {kept_phrase}; elsewhere one span stands for all of a rank, step, thread, "
            "kind and operation, as long as they were at work. Shares of time are of the whole "
            "run; counts of spans and calls, and what follows from single calls (waits, messages, "
            "servers), are not."
        )


def find_flagged(trace: Trace, findings: Iterable[Finding]) -> Flagged:
    """Find the steps to keep: those that findings name, of their ranks, and one step to each side.

    A finding without steps names all steps of its ranks, one without ranks its steps of all ranks. A
    finding that names neither, or all, is about the whole run and keeps nothing.
    """
    workers = {("worker", int(rank)) for rank in trace.workers["rank"]}
    servers = {("ps", int(rank)) for rank in trace.shards["rank"]}
    steps_by_owner: dict[Owner, list[Steps]] = {}
    finding_labels: list[str] = []
    for finding in findings:
        owners = _find_owners(trace, finding) & (workers | servers)
        steps = _pad_steps(finding.steps)
        is_everyone = not owners or owners >= workers
        if is_everyone and _covers_all_steps(trace, steps):
            continue
        for owner in workers | servers if is_everyone else owners:
            steps_by_owner.setdefault(owner, []).append(steps)
        finding_labels.append(_label_finding(finding))
    kept_steps = {owner: tuple(sorted(set(spans))) for owner, spans in steps_by_owner.items()}
    return Flagged(kept_steps, tuple(dict.fromkeys(finding_labels)))


def _find_owners(trace: Trace, finding: Finding) -> set[Owner]:
    """Return the processes of a finding's ranks (else of its hosts) and of its shards."""
    hosts = () if finding.ranks else finding.hosts
    processes = trace.processes.filter("main").filter(
        ((pl.col("role") == "worker") & pl.col("rank").is_in(finding.ranks))
        | ((pl.col("role") == "worker") & pl.col("host").is_in(hosts))
        | ((pl.col("role") == "ps") & pl.col("shard").is_in(finding.shards))
    )
    return {(role, int(rank)) for role, rank in processes.select("role", "rank").iter_rows()}


def _pad_steps(steps: Steps | None) -> Steps:
    return _EVERY if steps is None else (steps[0] - 1, steps[1] + 1)


def _covers_all_steps(trace: Trace, steps: Steps) -> bool:
    inside = trace.steps["step"].is_between(*steps)
    return bool(inside.all())


def _label_finding(finding: Finding) -> str:
    title = KINDS[finding.kind].title
    labels = [
        fmt.listing(noun, names)
        for noun, names in (
            ("rank", finding.ranks),
            ("host", () if finding.ranks else finding.hosts),
            ("shard", finding.shards),
        )
        if names
    ]
    steps_label = [fmt.steps(*finding.steps)] if finding.steps else []
    return f"{title}: {', '.join([*labels, *steps_label])}"


def _is_in_steps(steps: Iterable[Steps]) -> pl.Expr:
    inside = [pl.col("step").is_between(*span) for span in sorted(steps)]
    return pl.any_horizontal(pl.lit(value=False), *inside)


def sum_up(
    events: pl.DataFrame,
    in_flight_threads: Iterable[int],
    is_whole: pl.Expr,
    is_touched: pl.Expr,
    steps_ns: Steps | None = None,
) -> ProcessEvents:
    """Sum up the spans of one process, but for what is kept.

    Kept are: events of `is_whole` steps; calls and requests of `is_touched` steps with what is nested
    in them; spans of kind step and their counters; what is outside of all steps; and spans that never
    ended, or ended by an exception.

    Args:
        events: One process, in `EVENT_COLUMNS`.
        in_flight_threads: The threads that are tracks of operations in flight.
        is_whole: True for events in steps of this process that are kept.
        is_touched: True for events in steps that are kept of any process.
        steps_ns: Begin of the first and end of the last step of the process, ns; None if unknown.
    """
    begin_ns, end_ns = steps_ns or (-FOREVER, FOREVER)
    is_outside = (
        (pl.col("step") < 0) | (pl.col("start_ns") < begin_ns) | (pl.col("start_ns") >= end_ns)
    )
    is_span = pl.col("type") == "span"
    has_ended = pl.col("end_ns").is_not_null() & pl.col("status").is_in(["closed", "estimated"])
    is_matched = pl.col("seq").is_not_null() | pl.col("request").is_not_null()
    rows = events.with_columns(
        unchanged=is_outside
        | is_whole
        | (pl.col("kind") == "step")
        | (is_span & (~has_ended | (is_touched & is_matched))),
        flies=pl.col("thread").is_in(list(in_flight_threads)),
        matched=is_matched,
    )
    flight_spans, thread_spans = (
        rows.filter(is_span, pl.col("flies") == flies) for flies in (True, False)
    )
    unchanged, thread_sums = _sum_up_threads(thread_spans.filter(pl.col("kind") != "step"))
    tables = [
        rows.filter((pl.col("kind") == "step") | (~is_span & pl.col("unchanged"))),
        flight_spans.filter("unchanged", pl.col("kind") != "step"),
        unchanged,
        thread_sums,
        _sum_up_in_flight(flight_spans.filter(~pl.col("unchanged"))),
    ]
    result = pl.concat([part.select(*EVENT_COLUMNS) for part in tables])
    if result.height == events.height:
        return ProcessEvents(events)
    result = result.sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)
    sum_count = thread_sums.height + tables[-1].height
    return ProcessEvents(_count_depth(result), events.height - result.height + sum_count, sum_count)


def _count_depth(events: pl.DataFrame) -> pl.DataFrame:
    end_ns = events["end_ns"].fill_null(FOREVER).to_numpy()
    thread = events["thread"].cast(pl.Int64).to_numpy()
    depth = depths(thread, events["start_ns"].to_numpy(), end_ns)
    max_depth = np.iinfo(np.uint16).max
    return events.with_columns(depth=pl.Series(np.minimum(depth, max_depth).astype(np.uint16)))


def _sum_up_in_flight(spans: pl.DataFrame) -> pl.DataFrame:
    """Sum up operations in flight: a sum lasts as long as any of them was in flight."""
    ordered = spans.sort("start_ns", "end_ns").with_columns(
        until=pl.col("end_ns").cum_max().shift(1).over(_KEY)
    )
    begin_ns = pl.max_horizontal("start_ns", "until")
    own_ns = (pl.col("end_ns") - begin_ns).clip(lower_bound=0)
    return _add_up(ordered.with_columns(own_ns=own_ns, first_ns="start_ns"))


def _sum_up_threads(spans: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the kept spans of threads, and the sums of the others, laid out."""
    spans = spans.with_columns(alone=pl.len().over(_KEY) == 1)
    unchanged_spans, sums = [spans.clear()], [_add_up(_no_spans(spans))]
    after_last_ns = pl.max_horizontal("start_ns", "end_ns").max() + 1
    start_ns = spans["start_ns"].to_numpy()
    end_ns = spans.select(pl.col("end_ns").fill_null(after_last_ns)).to_series().to_numpy()
    thread = spans["thread"].cast(pl.Int64).to_numpy()
    for thread_rows in by_thread(thread, start_ns, end_ns) if spans.height else ():
        rows = spans[thread_rows]
        unchanged = _find_unchanged(rows, start_ns[thread_rows], end_ns[thread_rows])
        unchanged_spans.append(rows.filter(pl.Series(unchanged)))
        if not unchanged.all():
            sums.append(_lay_out_sums(rows, start_ns[thread_rows], end_ns[thread_rows], unchanged))
    return pl.concat(unchanged_spans), pl.concat(sums)


def _no_spans(spans: pl.DataFrame) -> pl.DataFrame:
    return spans.clear().with_columns(own_ns=pl.lit(0), first_ns="start_ns")


def _find_unchanged(spans: pl.DataFrame, start_ns: Ints, end_ns: Ints) -> Flags:
    """Return True for each kept span of a thread, [span], for spans nested in one, and single calls."""
    is_leaf = np.append(start_ns[1:] >= end_ns[:-1], True)
    is_single = (spans["matched"] & spans["alone"]).to_numpy() & is_leaf
    is_unchanged: Flags = spans["unchanged"].to_numpy() | is_single
    open_until_ns = np.maximum.accumulate(np.where(is_unchanged, end_ns, np.iinfo(np.int64).min))
    is_nested = np.append(False, start_ns[1:] < open_until_ns[:-1])
    return np.asarray(is_unchanged | is_nested)


def _lay_out_sums(
    spans: pl.DataFrame, start_ns: Ints, end_ns: Ints, is_unchanged: Flags
) -> pl.DataFrame:
    """Sum up the spans of a thread that are not kept, and lay the sums out in its free time."""
    occupied = _Occupied.from_spans(start_ns[is_unchanged], end_ns[is_unchanged])
    merged_rows = np.flatnonzero(~is_unchanged)
    begin_ns, until_ns = (
        occupied.to_free_time(start_ns[merged_rows]),
        occupied.to_free_time(end_ns[merged_rows]),
    )
    is_user = (spans["kind"] == "user").to_numpy()[merged_rows]
    own_ns, first_ns = _measure_own_time(begin_ns, until_ns, is_user)
    is_innermost = first_ns >= 0
    merged_spans = spans[merged_rows].with_columns(
        own_ns=pl.Series(own_ns), first_ns=pl.Series(np.where(is_innermost, first_ns, begin_ns))
    )
    # A user's span within a phase is a part of it.
    sums = _add_up(merged_spans.filter(pl.Series(is_innermost | ~is_user)))
    length_ns = (sums["end_ns"] - sums["start_ns"]).to_numpy()
    before_ns = np.cumsum(length_ns) - length_ns
    position_ns = before_ns + np.maximum.accumulate(sums["start_ns"].to_numpy() - before_ns)
    return sums.with_columns(
        start_ns=pl.Series(occupied.from_free_time(position_ns, "right")),
        end_ns=pl.Series(
            np.where(length_ns, occupied.from_free_time(position_ns + length_ns, "left"), 0)
        ),
    ).with_columns(end_ns=pl.max_horizontal("start_ns", "end_ns"))


@dataclass(frozen=True, eq=False)
class _Occupied:
    """The time of a thread that kept spans occupy: disjoint stretches [start, end), ns, [stretch]."""

    start: Ints
    end: Ints

    @classmethod
    def from_spans(cls, start_ns: Ints, end_ns: Ints) -> _Occupied:
        """Join spans that overlap; they are sorted by begin."""
        open_until_ns = np.maximum.accumulate(end_ns) if len(end_ns) else end_ns
        begins_stretch = (
            np.append(True, start_ns[1:] > open_until_ns[:-1])
            if len(start_ns)
            else np.zeros(0, np.bool_)
        )
        first_rows = np.flatnonzero(begins_stretch)
        last_rows = np.append(first_rows[1:], len(start_ns))[: len(first_rows)] - 1
        return cls(start_ns[first_rows], open_until_ns[last_rows])

    def to_free_time(self, times_ns: Ints) -> Ints:
        """Map times to the free time before them, ns; it stands still within a stretch."""
        stretch_index = np.searchsorted(self.start, times_ns, "right")
        length_ns = np.append(0, np.cumsum(self.end - self.start))
        within_ns = np.zeros(len(times_ns), np.int64)
        is_after_begin = stretch_index > 0
        within_ns[is_after_begin] = np.maximum(
            self.end[stretch_index[is_after_begin] - 1] - times_ns[is_after_begin], 0
        )
        return np.asarray(times_ns - length_ns[stretch_index] + within_ns)

    def from_free_time(self, free_ns: Ints, side: str) -> Ints:
        """Map free times back to times, ns; at a stretch to its begin (`left`) or its end (`right`)."""
        length_ns = np.append(0, np.cumsum(self.end - self.start))
        begin_ns = self.start - length_ns[:-1]
        stretch_index = np.searchsorted(begin_ns, free_ns, "right" if side == "right" else "left")
        return np.asarray(free_ns + length_ns[stretch_index])


def _measure_own_time(start_ns: Ints, end_ns: Ints, is_user: Flags) -> tuple[Ints, Ints]:
    """Measure for how long each span was the innermost of a phase, and since when, ns, [span].

    Spans are sorted by begin, the longer one first. User spans count where nothing else is open. A span
    that never was the innermost begins at -1.
    """
    bounds_ns = np.unique(np.concatenate([start_ns, end_ns]))
    phase_owner = _find_innermost(bounds_ns, start_ns, end_ns, np.flatnonzero(~is_user))
    user_owner = _find_innermost(bounds_ns, start_ns, end_ns, np.flatnonzero(is_user))
    owner = np.where(phase_owner >= 0, phase_owner, user_owner)
    length_ns = np.diff(bounds_ns)
    own_ns = np.zeros(len(start_ns), np.int64)
    np.add.at(own_ns, owner[owner >= 0], length_ns[owner >= 0])
    first_ns = np.full(len(start_ns), FOREVER)
    np.minimum.at(first_ns, owner[owner >= 0], bounds_ns[:-1][owner >= 0])
    first_ns[first_ns == FOREVER] = -1
    is_empty = (start_ns == end_ns) & ~is_user
    first_ns[is_empty] = start_ns[is_empty]
    return own_ns, first_ns


def _find_innermost(bounds_ns: Ints, start_ns: Ints, end_ns: Ints, rows: Indices) -> Indices:
    """Return the deepest open span of `rows` for each piece between two bounds, [piece]; -1 = none."""
    innermost = np.full(len(bounds_ns) - 1, -1)
    begin_index, stop_ns = np.searchsorted(bounds_ns, start_ns[rows]), end_ns[rows]
    levels = np.arange(len(rows)) - np.searchsorted(np.sort(stop_ns), start_ns[rows], "right")
    for level in range(int(levels.max(initial=-1)) + 1):
        level_rows = np.flatnonzero((levels == level) & (stop_ns > start_ns[rows]))
        latest = np.full(len(bounds_ns), -1)
        latest[begin_index[level_rows]] = level_rows
        latest = np.maximum.accumulate(latest)[:-1]
        covered_pieces = np.flatnonzero((latest >= 0) & (stop_ns[latest] > bounds_ns[:-1]))
        innermost[covered_pieces] = rows[latest[covered_pieces]]
    return innermost


def _add_up(spans: pl.DataFrame) -> pl.DataFrame:
    """Add up spans by `_KEY`: each sum begins with the first and lasts as long as their own time."""
    has_several = pl.len() > 1
    agreed_columns: dict[str, pl.Expr] = {
        name: pl.when(pl.col(name).n_unique() == 1).then(pl.col(name).first()) for name in _AGREED
    }
    device_end_ns = pl.col("device_start_ns") + pl.col("device_duration_ns")
    device_duration_ns = pl.min_horizontal(
        pl.col("device_duration_ns").sum(), device_end_ns.max() - pl.col("device_start_ns").min()
    )
    agreed_columns |= {
        "device_start_ns": pl.col("device_start_ns").min(),
        "device_duration_ns": pl.when(device_end_ns.count() > 0).then(device_duration_ns),
    }
    default_name = pl.coalesce(pl.col("op").first(), pl.col("kind").first())
    name = (
        pl.when(pl.col("name").n_unique() == 1).then(pl.col("name").first()).otherwise(default_name)
    )
    sums = spans.group_by(_KEY, maintain_order=True).agg(
        start_ns=pl.col("first_ns").min(),
        length=pl.col("own_ns").sum(),
        depth=pl.col("depth").min(),
        status=pl.when(has_several)
        .then(pl.lit("estimated", EVENT_COLUMNS["status"]))
        .otherwise(pl.col("status").first()),
        bytes=pl.when(pl.col("bytes").count() > 0).then(pl.col("bytes").sum()),
        **{n: pl.when(~has_several).then(pl.col(n).first()) for n in ("seq", "request")},
        name=name,
        **agreed_columns,
    )
    return (
        sums.with_columns(end_ns=pl.col("start_ns") + pl.col("length"))
        .select(*EVENT_COLUMNS)
        .cast(pl.Schema(EVENT_COLUMNS))
        .sort("start_ns", maintain_order=True)
    )
