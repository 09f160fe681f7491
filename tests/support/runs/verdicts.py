"""Verdicts as tests need them: on findings that are made by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.model.verdict import Verdict

if TYPE_CHECKING:
    from tracelens.model.findings import Finding


def verdict_of(*findings: Finding) -> Verdict:
    """Return a verdict that repeats the first fault, or says that there is none."""
    faults = [finding for finding in findings if finding.category == "fault"]
    if not faults:
        return Verdict(
            "healthy",
            "HEALTHY: 95 % of the time is useful",
            "All is well.",
            "Nothing.",
            "All of it.",
        )
    first = faults[0]
    return Verdict("fault", first.sentence, "Because.", "Do.", "All of it.", first.kind)
