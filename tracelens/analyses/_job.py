"""How long the job lasted on the common clock: what shares are shares of."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracelens.trace import Trace


def job_ns(trace: Trace) -> int:
    """Return the time from the first rank's first step to the end of the last one; 0 without steps."""
    start, end = trace.steps["start_ns"].min(), trace.steps["end_ns"].max()
    return end - start if isinstance(start, int) and isinstance(end, int) else 0
