"""Numbers and names as people read them; the only room where nanoseconds become seconds."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tracelens.analyses.result import Finding, Report
    from tracelens.trace import Note

__all__ = ["CAUSES", "cause", "clean", "duration", "headline", "noted", "percent", "saving"]

CAUSES: Final = {
    "late_ranks": "waiting for late ranks",
    "wait": "waiting for late ranks",
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


def percent(share: float) -> str:
    """Write a share: ``12.3 %``."""
    return f"{100 * share:.1f} %"


def duration(ns: float) -> str:
    """Write a duration with a unit that suits it."""
    for unit, size in (("h", 3.6e12), ("min", 6e10), ("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(ns) >= size:
            return f"{ns / size:.3g} {unit}" if ns < 1000 * size else f"{ns / size:,.0f} {unit}"
    return f"{ns:.0f} ns"


def cause(name: str) -> str:
    """Name a bar of the waterfall in words."""
    return CAUSES.get(name, name.replace("_", " "))


def saving(finding: Finding) -> str:
    """Say what mending a finding would save, with its interval; empty where nobody knows."""
    if finding.saving is None:
        return ""
    most = "up to " if finding.category == "opportunity" else ""
    text = f"{most}{percent(finding.saving)} of the job's time"
    if finding.interval is None:
        return text
    low, high = finding.interval
    return f"{text} (95 %: {percent(low)} to {percent(high)})"


def noted(note: Note) -> str:
    """Write a note, with its file if it does not name it itself."""
    named = not note.file or note.file in note.sentence
    return clean(note.sentence if named else f"{note.file}: {note.sentence}")


def headline(report: Report) -> str:
    """Say in one line what the trace holds."""
    summary = report.summary
    seen = f"{summary.ranks_seen} rank{'s' if summary.ranks_seen != 1 else ''}"
    if summary.ranks_seen < summary.ranks_expected:
        seen = f"{summary.ranks_seen} of {summary.ranks_expected} ranks"
    parts = [seen, f"{summary.steps:,} steps", f"{summary.spans:,} spans"]
    if summary.shards:
        parts.insert(1, f"{summary.shards} PS shards")
    if report.efficiency:
        parts.append(duration(report.efficiency.job_ns))
    return ", ".join(parts)
