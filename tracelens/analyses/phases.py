"""Phases: what every worker's training thread did in every nanosecond of every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from tracelens.analyses.result import Finding

# Own work first (by kind), then what the rank waited for, then what is left.
CATEGORIES: Final = (
    "data",
    "forward",
    "backprop",
    "update",
    "checkpoint",
    "gc",
    "user",
    "wait",  # in a collective (or blocked on one in flight) that not all ranks have entered
    "ps_queue",  # a request stands in a parameter server's queue, or waits for later pushes
    "transfer",  # communication that all have entered and nothing hides
    "idle",  # no work, with a recorded cause
    "unknown",  # nothing was recorded
)
OWN_CATEGORIES: Final = CATEGORIES[:7]

# The training thread's time, cut into touching, non-overlapping pieces.
SEGMENT_COLUMNS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int32(),
    "rank": pl.Int32(),
    "step": pl.Int32(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "category": pl.Enum(CATEGORIES),
    "name": pl.Categorical(),  # innermost recorded span, null where none
}
TIME_COLUMNS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int32(),
    "rank": pl.Int32(),
    "step": pl.Int32(),
    "category": pl.Enum(CATEGORIES),
    "ns": pl.Int64(),
}
HIDDEN_COLUMNS: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "step": pl.Int32(),
    "ns": pl.Int64(),  # communication in flight under own work
}


@dataclass(frozen=True)
class Phases:
    """The partition of every worker's time; per rank and step it sums to the step exactly."""

    segments: pl.DataFrame
    times: pl.DataFrame
    hidden: pl.DataFrame
    findings: tuple[Finding, ...] = ()
