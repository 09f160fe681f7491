"""The parts of a report that every format says in the same words."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Final

from tracelens.model import fmt

if TYPE_CHECKING:
    from tracelens.model.result import Finding, Report
    from tracelens.model.trace import Note

__all__ = ["CAUSES", "cause", "clean", "headline", "noted", "saving"]

CAUSES: Final = {
    "late_ranks": "waiting for late ranks",
    "wait": "waiting for late ranks",
    "slow_host": "waiting for a slow host",
    "ps_queue": "queues at servers",
    "transfer": "exposed transfer",
    "exposed_transfer": "exposed transfer",
    "data": "data loading",
    "checkpoint": "checkpoints",
    "gc": "garbage collection",
    "idle": "idle, cause recorded",
    "outside": "outside steps",
    "unknown": "unknown (nothing recorded)",
}


def clean(text: str) -> str:
    """Make control and direction characters of recorded names visible, so that none acts."""
    return "".join(
        c if not unicodedata.category(c).startswith("C") else f"\\x{ord(c):02x}" for c in text
    )


def cause(name: str) -> str:
    """Name a bar of the waterfall in words."""
    return CAUSES.get(name, name.replace("_", " "))


def saving(finding: Finding) -> str:
    """Say what mending a finding would save, with its interval; empty where nobody knows."""
    if finding.saving is None:
        return ""
    most = "up to " if finding.category == "opportunity" else ""
    text = f"{most}{fmt.percent(finding.saving, 1)} of the job's time"
    if finding.interval is None:
        return text
    low, high = finding.interval
    return f"{text} (95 %: {fmt.percent(low, 1)} to {fmt.percent(high, 1)})"


def noted(note: Note) -> str:
    """Write a note, with its file if it does not name it itself."""
    named = not note.file or note.file in note.sentence
    return clean(note.sentence if named else f"{note.file}: {note.sentence}")


def headline(report: Report) -> str:
    """Say in one line what the trace holds."""
    summary = report.summary
    seen = fmt.count(summary.ranks_seen, "rank")
    if summary.ranks_seen < summary.ranks_expected:
        seen = f"{summary.ranks_seen} of {summary.ranks_expected} ranks"
    parts = [seen, fmt.count(summary.steps, "step"), fmt.count(summary.spans, "span")]
    if summary.shards:
        parts.insert(1, fmt.count(summary.shards, "PS shard"))
    if report.efficiency:
        parts.append(fmt.duration(report.efficiency.job_ns))
    return ", ".join(parts)
