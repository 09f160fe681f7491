"""What limits the trace: ranks that are missing, were cut off, lost events, or lost step with others.

Such findings have no saving; they come first in a report, since they bound what the rest can show
(docs/analyses/integrity-and-membership.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.accounting.standstill import find_standstill
from tracelens.analyses.integrity.ends import report_end
from tracelens.analyses.integrity.hangs import report_hangs
from tracelens.analyses.integrity.wording import (
    describe_early_end,
    identify,
    list_some,
    name_process,
)
from tracelens.model.display import DisplayMixin
from tracelens.model.findings import Finding
from tracelens.schema.vocabulary import CHOSEN_LOSSES

if TYPE_CHECKING:
    from tracelens.facts import Facts
    from tracelens.model.trace import Trace

# share of events: if fewer were dropped, the findings are the same [policy]
MIN_SHARE_DROPPED_IF_FAULT: Final = 0.01


@dataclass(frozen=True, eq=False)
class Integrity(DisplayMixin):
    """The findings; `open_spans` holds the innermost open span of each process that was cut off."""

    open_spans: pl.DataFrame
    findings: tuple[Finding, ...]


def run(facts: Facts) -> Integrity:
    """Report what is not in the trace."""
    trace = facts.trace
    open_spans, standstill = _find_open_spans(trace), find_standstill(trace)
    findings = [
        *report_hangs(facts, standstill),
        *([] if trace.is_cut_short else report_end(facts, open_spans, standstill)),
        *_report_damaged(trace),
        *_report_missing(trace),
        *_report_mismatches(facts),
        *_report_dropped(trace),
        *_report_clock_jumps(trace),
    ]
    return Integrity(open_spans, tuple(findings))


def _find_open_spans(trace: Trace) -> pl.DataFrame:
    """Return a row per main process that did not end by itself: its innermost open span."""
    cut_off = trace.processes.filter(pl.col("main") & ~pl.col("complete"))
    in_flight = trace.threads.filter("in_flight").select("process", "thread")
    return (
        trace.open_spans.lazy()
        .filter(pl.col("kind") != "step")
        .join(cut_off.select("process").lazy(), on="process", how="semi")
        .join(in_flight.lazy(), on=["process", "thread"], how="anti")
        .sort("process", "start_ns", "depth")
        .group_by("process", "role", "rank", maintain_order=True)
        .agg(pl.col("kind", "op", "name", "step", "start_ns", "communicator", "seq").last())
        .collect()
    )


def _report_damaged(trace: Trace) -> list[Finding]:
    """Report files whose end is missing: the process may have run on."""
    files = [note.file for note in trace.notes if note.kind == "truncated"]
    processes = trace.processes.filter(pl.col("main") & pl.col("file").is_in(files))
    return [
        Finding.of(
            "truncated_trace",
            {"who": name_process(process), "events": f"{process['events']:,}"},
            case="damaged",
            **identify(process),
            evidence={"file": process["file"], "events": process["events"]},
        )
        for process in processes.iter_rows(named=True)
    ]


def _report_missing(trace: Trace) -> list[Finding]:
    """Report worker ranks that the job has, and the trace lacks, though none was left out."""
    expected_count = trace.expected_ranks - trace.shards.height  # workers
    communicating_ranks: set[int] = set()
    if trace.shards.is_empty():  # else communicators number servers and workers together
        communicating_ranks = {*trace.communicators["ranks"].explode().drop_nulls()}
    chosen_ranks = filter(trace.choice.has_rank, {*range(expected_count), *communicating_ranks})
    absent_ranks = sorted({*chosen_ranks} - {*trace.workers["rank"]})
    if not absent_ranks or trace.workers.height == 1:  # of a single rank, the scope says it
        return []
    plural = "s" if len(absent_ranks) > 1 else ""
    ranks = f"rank{plural} {list_some([*map(str, absent_ranks)])}"
    return [
        Finding.of(
            "missing_rank",
            {"ranks": ranks, "expected": str(expected_count)},
            case="snapshot" if trace.is_snapshot else "",
            ranks=tuple(absent_ranks),
            evidence={"expected": expected_count, "seen": trace.workers.height},
        )
    ]


def _report_dropped(trace: Trace) -> list[Finding]:
    """Report processes that dropped events, a fault if those are more than a small share."""
    lossy_processes = trace.processes.filter(pl.col("dropped") > 0)
    if lossy_processes.is_empty():
        return []
    lost_count = int(lossy_processes["dropped"].sum())
    lost_share = lost_count / max(lost_count + int(trace.processes["events"].sum()), 1)
    lost_by_reason = {
        reason: n for reason, n in trace.dropped.items() if reason not in CHOSEN_LOSSES
    }
    reasons = ", ".join(f"{reason}: {count:,}" for reason, count in lost_by_reason.items())
    return [
        Finding.of(
            "dropped_events",
            {"lost": f"{lost_count:,}", "reasons": reasons},
            category="fault" if lost_share >= MIN_SHARE_DROPPED_IF_FAULT else "opportunity",
            ranks=tuple(lossy_processes["rank"].unique().sort().to_list()),
            evidence={"dropped": lost_by_reason, "share": lost_share},
        )
    ]


def _report_mismatches(facts: Facts) -> list[Finding]:
    """Report that ranks made different calls, with the ranks that ended training early, if any."""
    notes = [note for note in facts.trace.notes if note.kind == "desync"]
    early_end = facts.early_end if notes else None
    return [
        Finding.of(
            "desync",
            {"note": note.sentence},
            more=[*describe_early_end(early_end), *_describe_failures(facts)],
            ranks=early_end.ranks if early_end else note.ranks,
            evidence={"ended_early": list(early_end.ranks)} if early_end else {},
        )
        for note in notes
    ]


def _describe_failures(facts: Facts) -> list[str]:
    """Describe in a sentence how a job ended whose ranks failed."""
    ends = [f"rank {failure.rank}: {failure.cause}" for failure in facts.failures]
    return [f"The job then ended ({list_some(ends)})."] if ends else []


def _report_clock_jumps(trace: Trace) -> list[Finding]:
    """Report clocks that were set during the run; times are corrected for it, so nothing is lost."""
    return [
        Finding.of(
            "clock_jump",
            {"host": host.host, "jumps": str(len(host.jumps))},
            hosts=(host.host,),
            evidence={"jumps_ns": list(host.jumps)},
        )
        for host in trace.alignment.hosts
        if host.jumps
    ]
