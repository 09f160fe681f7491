"""Ask a run "what if", the fixes of its findings included."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.accounting.phases import Phases
from tracelens.replay.whatif import EVERY, Replay
from tracelens.verdicts.report import analyze

if TYPE_CHECKING:
    from tracelens.model.trace import Trace
    from tracelens.replay.whatif import WhatIf


def whatif(trace: Trace, *edits: str, phases: Phases | None = None) -> WhatIf:
    """Answer edits that are made together; with ``all``, every single one that is known.

    ``fix:N`` applies the fix of finding N of the run's report, which is made for it.

    Args:
        trace: As `tracelens.open` returns it.
        edits: Such as ``rank:3=median`` (docs/whatif.md).
        phases: The partition of its time, if that was made before.

    Raises:
        InvalidArgument: no edit, an edit that this trace cannot answer, or no steps.
    """
    if any(edit == EVERY or edit.strip().startswith("fix:") for edit in edits):
        return replay_with_fixes(trace).answer(*edits)
    return Replay.from_trace(trace, phases).answer(*edits)


def replay_with_fixes(trace: Trace) -> Replay:
    """Analyze a run, and return its replay, which knows the fix of each finding.

    Raises:
        InvalidArgument: it has no steps.
    """
    report = analyze(trace)
    phases = report.results["phases"]
    assert isinstance(phases, Phases)
    return Replay.from_trace(trace, phases, report.findings)
