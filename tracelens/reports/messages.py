"""The parts of a report that every format writes in the same words."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Final

from tracelens.model import fmt

if TYPE_CHECKING:
    from tracelens.model.findings import Finding
    from tracelens.model.result import Report
    from tracelens.model.trace import Note

__all__ = ["CAUSES", "cause", "clean", "headline", "noted", "saving"]

CAUSES: Final = {
    "late_ranks": "wait at collectives",
    "wait": "wait at collectives",
    "slow_host": "wait for a slow host",
    "ps_queue": "server queue",
    "transfer": "exposed communication",
    "exposed_transfer": "exposed communication",
    "data": "data loading",
    "checkpoint": "checkpoints",
    "gc": "garbage collection",
    "idle": "idle (cause known)",
    "outside": "outside steps",
    "unknown": "uninstrumented",
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
    """Return what fixing a finding would save, with its interval; empty where that is unknown."""
    if finding.saving is None:
        return ""
    most = "up to " if finding.category == "opportunity" else ""
    text = f"{most}{fmt.percent(finding.saving, 1)} of the job's time"
    if finding.interval is None:
        return text
    low, high = finding.interval
    return f"{text} (95 % CI: {fmt.percent(low, 1)} to {fmt.percent(high, 1)})"


def noted(note: Note) -> str:
    """Write a note, with its file if it does not name it itself."""
    named = not note.file or note.file in note.sentence
    return clean(note.sentence if named else f"{note.file}: {note.sentence}")


def headline(report: Report) -> str:
    """Return in one line what the trace holds."""
    summary = report.summary
    seen = fmt.count(summary.ranks_seen, "rank")
    if summary.ranks_seen < summary.ranks_expected:
        seen = f"{summary.ranks_seen} of {summary.ranks_expected} ranks"
    parts = [seen, fmt.count(summary.steps, "step"), fmt.count(summary.spans, "span")]
    if summary.shards:
        parts.insert(1, fmt.count(summary.shards, "PS shard"))
    if report.efficiency:
        parts.append(fmt.duration(report.efficiency.job_ns))
    if summary.part:
        parts.append(f"only {summary.part}, as asked")
    return ", ".join(parts)
