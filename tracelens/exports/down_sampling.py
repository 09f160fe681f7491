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
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np
import polars as pl

from tracelens.conversion.columns import FOREVER, count_depths, group_by_thread
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

_ALL_STEPS: Final = (-1, 2**31 - 2)
_MAX_FINDINGS_SHOWN: Final = 8
_KEY: Final = ("step", "thread", "kind", "op", "communicator", "shard", "stream")
_UNSHARED: Final = (
    "step",
    "thread",
    "start_ns",
    "end_ns",
    "depth",
    "status",
    "seq",
    "request",
    "bytes",
)
_SHARED: Final = tuple(n for n in EVENT_COLUMNS if n not in {*_KEY, *_UNSHARED, "name"})


class ProcessEvents(NamedTuple):
    """Events of one process; `sum_count` of the spans replace `summed_up_count` recorded events."""

    events: pl.DataFrame
    summed_up_count: int = 0
    sum_count: int = 0


@dataclass(frozen=True)
class Flagged:
    """Steps that are kept whole, by process, and a label for each finding that names them."""

    steps_by_owner: Mapping[Owner, tuple[Steps, ...]] = field(default_factory=dict)
    finding_labels: tuple[str, ...] = ()

    def select_kept(self, role: str, rank: int) -> pl.Expr:
        """Return an expression: True for events of a process in steps of its that are kept."""
        return _is_in_steps(self.steps_by_owner.get((role, rank), ()))

    def select_touched(self) -> pl.Expr:
        """Return an expression: True for events in steps that are kept of any process."""
        return _is_in_steps({span for spans in self.steps_by_owner.values() for span in spans})

    @property
    def sentence(self) -> str:
        """What is kept whole and what is summed up."""
        shown_findings = [*self.finding_labels[:_MAX_FINDINGS_SHOWN]]
        left_out_count = len(self.finding_labels) - _MAX_FINDINGS_SHOWN
        if left_out_count > 0:
            shown_findings.append(f"{left_out_count} more")
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
        step_range = _pad_steps(finding.steps)
        is_everyone = not owners or owners >= workers
        if is_everyone and _covers_all_steps(trace, step_range):
            continue
        for owner in workers | servers if is_everyone else owners:
            steps_by_owner.setdefault(owner, []).append(step_range)
        finding_labels.append(_label_finding(finding))
    kept_steps = {owner: tuple(sorted(set(ranges))) for owner, ranges in steps_by_owner.items()}
    return Flagged(kept_steps, tuple(dict.fromkeys(finding_labels)))


def _find_owners(trace: Trace, finding: Finding) -> set[Owner]:
    """Return the processes that a finding names by rank, else by host, and by shard."""
    hosts = () if finding.ranks else finding.hosts
    processes = trace.processes.filter("main").filter(
        ((pl.col("role") == "worker") & pl.col("rank").is_in(finding.ranks))
        | ((pl.col("role") == "worker") & pl.col("host").is_in(hosts))
        | ((pl.col("role") == "ps") & pl.col("shard").is_in(finding.shards))
    )
    return {(role, int(rank)) for role, rank in processes.select("role", "rank").iter_rows()}


def _pad_steps(steps: Steps | None) -> Steps:
    """Return the first and the last step, with one more on each side; None is all steps."""
    if steps is None:
        return _ALL_STEPS
    first_step, last_step = steps
    return first_step - 1, last_step + 1


def _covers_all_steps(trace: Trace, steps: Steps) -> bool:
    inside = trace.steps["step"].is_between(*steps)
    return bool(inside.all())


def _label_finding(finding: Finding) -> str:
    """Return a finding's title, processes and steps as text, such as "Straggler: rank 1"."""
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
    flagged_events = events.with_columns(
        unchanged=is_outside
        | is_whole
        | (pl.col("kind") == "step")
        | (is_span & (~has_ended | (is_touched & is_matched))),
        flies=pl.col("thread").is_in(list(in_flight_threads)),
        matched=is_matched,
    )
    flight_spans, thread_spans = (
        flagged_events.filter(is_span, pl.col("flies") == flies) for flies in (True, False)
    )
    unchanged_spans, thread_sums = _sum_up_threads(thread_spans.filter(pl.col("kind") != "step"))
    flight_sums = _sum_up_in_flight(flight_spans.filter(~pl.col("unchanged")))
    event_tables = [
        flagged_events.filter((pl.col("kind") == "step") | (~is_span & pl.col("unchanged"))),
        flight_spans.filter("unchanged", pl.col("kind") != "step"),
        unchanged_spans,
        thread_sums,
        flight_sums,
    ]
    result = pl.concat([table.select(*EVENT_COLUMNS) for table in event_tables])
    if result.height == events.height:
        return ProcessEvents(events)
    result = result.sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)
    sum_count = thread_sums.height + flight_sums.height
    return ProcessEvents(_count_depth(result), events.height - result.height + sum_count, sum_count)


def _count_depth(events: pl.DataFrame) -> pl.DataFrame:
    end_ns = events["end_ns"].fill_null(FOREVER).to_numpy()
    thread = events["thread"].cast(pl.Int64).to_numpy()
    depth = count_depths(thread, events["start_ns"].to_numpy(), end_ns)
    max_depth = np.iinfo(np.uint16).max
    return events.with_columns(depth=pl.Series(np.minimum(depth, max_depth).astype(np.uint16)))


def _sum_up_in_flight(spans: pl.DataFrame) -> pl.DataFrame:
    """Sum up operations in flight by `_KEY`, one row per sum; it lasts as long as any was in flight."""
    ordered_spans = spans.sort("start_ns", "end_ns").with_columns(
        covered_until_ns=pl.col("end_ns").cum_max().shift(1).over(_KEY)
    )
    uncovered_begin_ns = pl.max_horizontal("start_ns", "covered_until_ns")
    own_ns = (pl.col("end_ns") - uncovered_begin_ns).clip(lower_bound=0)
    return _add_up(ordered_spans.with_columns(own_ns=own_ns, first_ns="start_ns"))


def _sum_up_threads(spans: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the unchanged spans of threads, and sums of the others; one row per span.

    `unchanged` marks rows to keep, `matched` calls and requests, `alone` those with a key of their own.
    """
    spans = spans.with_columns(alone=pl.len().over(_KEY) == 1)
    unchanged_spans, sums = [spans.clear()], [_add_up(_no_spans(spans))]
    open_end_ns = pl.max_horizontal("start_ns", "end_ns").max() + 1
    start_ns = spans["start_ns"].to_numpy()
    end_ns = spans.select(pl.col("end_ns").fill_null(open_end_ns)).to_series().to_numpy()
    thread = spans["thread"].cast(pl.Int64).to_numpy()
    for thread_rows in group_by_thread(thread, start_ns, end_ns) if spans.height else ():
        times = spans[thread_rows], start_ns[thread_rows], end_ns[thread_rows]
        is_unchanged = _find_unchanged(*times)
        unchanged_spans.append(spans[thread_rows].filter(pl.Series(is_unchanged)))
        if not is_unchanged.all():
            sums.append(_lay_out_sums(*times, is_unchanged))
    return pl.concat(unchanged_spans), pl.concat(sums)


def _no_spans(spans: pl.DataFrame) -> pl.DataFrame:
    return spans.clear().with_columns(own_ns=pl.lit(0), first_ns="start_ns")


def _find_unchanged(spans: pl.DataFrame, start_ns: Ints, end_ns: Ints) -> Flags:
    """Return True for each span of a thread that is kept, nested in one, or a single call, [span].

    Sorted by begin; `unchanged` marks those to keep, `matched` calls and requests, `alone` single ones.
    """
    is_leaf = np.append(start_ns[1:] >= end_ns[:-1], True)
    is_single = (spans["matched"] & spans["alone"]).to_numpy() & is_leaf
    is_unchanged: Flags = spans["unchanged"].to_numpy() | is_single
    latest_end_ns = np.maximum.accumulate(np.where(is_unchanged, end_ns, np.iinfo(np.int64).min))
    is_nested = np.append(False, start_ns[1:] < latest_end_ns[:-1])
    return np.asarray(is_unchanged | is_nested)


def _lay_out_sums(
    spans: pl.DataFrame, start_ns: Ints, end_ns: Ints, is_unchanged: Flags
) -> pl.DataFrame:
    """Sum up the changed spans of a thread, and lay out the sums, one a row, one after the other.

    They lie in its free time, which is the time without unchanged spans, an axis without gaps. Arrays
    are [span], times ns.
    """
    occupied = _Occupied.from_spans(start_ns[is_unchanged], end_ns[is_unchanged])
    rows = np.flatnonzero(~is_unchanged)
    start_free_ns, end_free_ns = (occupied.to_free_time(ns[rows]) for ns in (start_ns, end_ns))
    is_user = (spans["kind"] == "user").to_numpy()[rows]
    own_ns, first_free_ns = _measure_own_time(start_free_ns, end_free_ns, is_user)
    was_innermost = first_free_ns >= 0
    changed_spans = spans[rows].with_columns(
        own_ns=pl.Series(own_ns),
        first_ns=pl.Series(np.where(was_innermost, first_free_ns, start_free_ns)),
    )
    # A user's span within a phase is a part of it.
    sums = _add_up(changed_spans.filter(pl.Series(was_innermost | ~is_user)))
    length_ns = (sums["end_ns"] - sums["start_ns"]).to_numpy()
    before_ns = np.cumsum(length_ns) - length_ns  # length of all sums before each
    begin_free_ns = before_ns + np.maximum.accumulate(sums["start_ns"].to_numpy() - before_ns)
    sum_ends_ns = occupied.from_free_time(begin_free_ns + length_ns, "left")
    return sums.with_columns(
        start_ns=pl.Series(occupied.from_free_time(begin_free_ns, "right")),
        end_ns=pl.Series(np.where(length_ns, sum_ends_ns, 0)),
    ).with_columns(end_ns=pl.max_horizontal("start_ns", "end_ns"))


@dataclass(frozen=True, eq=False)
class _Occupied:
    """Disjoint stretches [start, end) in which unchanged spans occupy a thread, ns, [stretch]."""

    start_ns: Ints
    end_ns: Ints

    @classmethod
    def from_spans(cls, start_ns: Ints, end_ns: Ints) -> _Occupied:
        """Join overlapping spans, sorted by begin; times are ns, [span]."""
        open_until_ns = np.maximum.accumulate(end_ns) if len(end_ns) else end_ns
        is_first_of_stretch = (
            np.append(True, start_ns[1:] > open_until_ns[:-1])
            if len(start_ns)
            else np.zeros(0, np.bool_)
        )
        first_rows = np.flatnonzero(is_first_of_stretch)
        last_rows = np.append(first_rows[1:], len(start_ns))[: len(first_rows)] - 1
        return cls(start_ns[first_rows], open_until_ns[last_rows])

    def to_free_time(self, times_ns: Ints) -> Ints:
        """Subtract from times the occupied time before them, ns, [time]; constant in a stretch."""
        begun_count = np.searchsorted(self.start_ns, times_ns, "right")
        occupied_ns = np.append(0, np.cumsum(self.end_ns - self.start_ns))  # of the first stretches
        rest_ns = np.zeros(len(times_ns), np.int64)  # from the time to the end of its stretch
        has_begun = begun_count > 0
        rest_ns[has_begun] = np.maximum(
            self.end_ns[begun_count[has_begun] - 1] - times_ns[has_begun], 0
        )
        return np.asarray(times_ns - occupied_ns[begun_count] + rest_ns)

    def from_free_time(self, free_ns: Ints, side: Literal["left", "right"]) -> Ints:
        """Map free times back to times, ns; at a stretch to its begin (`left`) or end (`right`)."""
        occupied_ns = np.append(0, np.cumsum(self.end_ns - self.start_ns))  # of the first stretches
        begin_free_ns = self.start_ns - occupied_ns[:-1]
        return np.asarray(free_ns + occupied_ns[np.searchsorted(begin_free_ns, free_ns, side)])


def _measure_own_time(start_ns: Ints, end_ns: Ints, is_user: Flags) -> tuple[Ints, Ints]:
    """Return the time each span was the innermost, and since when (-1 = never), ns, [span].

    Spans are sorted by begin, the longer first. A user's span counts where no phase is open; one
    of a phase without length counts at its begin.
    """
    bounds_ns = np.unique(np.concatenate([start_ns, end_ns]))
    innermost_phase = _find_innermost(bounds_ns, start_ns, end_ns, np.flatnonzero(~is_user))
    innermost_user = _find_innermost(bounds_ns, start_ns, end_ns, np.flatnonzero(is_user))
    innermost = np.where(innermost_phase >= 0, innermost_phase, innermost_user)  # [piece]
    pieces = np.flatnonzero(innermost >= 0)
    own_ns = np.zeros(len(start_ns), np.int64)
    np.add.at(own_ns, innermost[pieces], np.diff(bounds_ns)[pieces])
    first_ns = np.full(len(start_ns), FOREVER)
    np.minimum.at(first_ns, innermost[pieces], bounds_ns[pieces])
    first_ns[first_ns == FOREVER] = -1
    has_no_length = (start_ns == end_ns) & ~is_user
    first_ns[has_no_length] = start_ns[has_no_length]
    return own_ns, first_ns


def _find_innermost(bounds_ns: Ints, start_ns: Ints, end_ns: Ints, rows: Indices) -> Indices:
    """Return the deepest open span of `rows` between each two bounds, [piece]; -1 = none."""
    innermost = np.full(len(bounds_ns) - 1, -1)
    first_pieces, ends_ns = np.searchsorted(bounds_ns, start_ns[rows]), end_ns[rows]
    depths = np.arange(len(rows)) - np.searchsorted(np.sort(ends_ns), start_ns[rows], "right")
    for depth in range(int(depths.max(initial=-1)) + 1):
        at_depth = np.flatnonzero((depths == depth) & (ends_ns > start_ns[rows]))
        latest = np.full(len(bounds_ns), -1)  # index in `rows` of the span that began last
        latest[first_pieces[at_depth]] = at_depth
        latest = np.maximum.accumulate(latest)[:-1]
        covered_pieces = np.flatnonzero((latest >= 0) & (ends_ns[latest] > bounds_ns[:-1]))
        innermost[covered_pieces] = rows[latest[covered_pieces]]
    return innermost


def _add_up(spans: pl.DataFrame) -> pl.DataFrame:
    """Add up spans by `_KEY`, one row per sum, in `EVENT_COLUMNS`.

    A sum begins at its spans' first `first_ns` and lasts for all `own_ns`; else it has what all share.
    """
    has_several = pl.len() > 1
    agreed_columns: dict[str, pl.Expr] = {
        name: pl.when(pl.col(name).n_unique() == 1).then(pl.col(name).first()) for name in _SHARED
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
        length_ns=pl.col("own_ns").sum(),
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
        sums.with_columns(end_ns=pl.col("start_ns") + pl.col("length_ns"))
        .select(*EVENT_COLUMNS)
        .cast(pl.Schema(EVENT_COLUMNS))
        .sort("start_ns", maintain_order=True)
    )
