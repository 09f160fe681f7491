"""What readers of our own exports have in common: facts of a run that stand beside its events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.model.notes import Note
from tracelens.model.trace import CLOCK_COLUMNS, THREAD_COLUMNS
from tracelens.readers.files import ReadFile
from tracelens.readers.spans.rows import wall_clocks
from tracelens.schema.vocabulary import MOST_RANKS

if TYPE_CHECKING:
    from collections.abc import Collection

    from tracelens.model.trace import Trace

__all__ = ["ExportedFile", "as_recorded", "ranks_in"]

_MOST_THREADS: Final = 2**16 - 1  # the highest number of a thread [definition]


@dataclass(eq=False)
class ExportedFile(ReadFile):
    """What an export holds beside its rows.

    `members` are the ranks of communicators, `threads` names by role, rank and number, `sentences` the
    notes. Times of ranks compare to within `window_ns`; dates are `offset_ns` later than times of the
    run.
    """

    members: dict[str, list[int]] = field(default_factory=dict)
    threads: dict[tuple[str, int, int], str] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)
    window_ns: int = 0
    offset_ns: int = 0


def ranks_in(listed: object) -> list[int]:
    """Return the ranks in a list, empty if it is none."""
    numbers = listed if isinstance(listed, list) else []
    return [rank for rank in numbers if isinstance(rank, int) and 0 <= rank < MOST_RANKS]


def as_recorded(trace: Trace, found: Collection[ExportedFile]) -> Trace:
    """Add what exports say of the run; nothing of a recording of ours has to be recognised."""
    window_ns = max(file.window_ns for file in found)
    common = {"process": 0, "method": "common", "monotonic_ns": 0, "window_ns": window_ns}
    reading = pl.DataFrame([common] if window_ns else [], schema=CLOCK_COLUMNS)
    later_ns = max(file.offset_ns for file in found)
    dates = wall_clocks(trace.processes, dates=later_ns > 0).with_columns(
        pl.col("wall_ns") + later_ns
    )
    named = pl.DataFrame(
        [
            (*place, name)
            for file in found
            for place, name in file.threads.items()
            if 0 <= place[-1] <= _MOST_THREADS
        ],
        schema={"role": pl.String, "rank": pl.Int32, "thread": pl.UInt16, "called": pl.String},
        orient="row",
        strict=False,
    ).unique(["role", "rank", "thread"])
    owners = trace.processes.select("process", "role", "rank")
    threads = trace.threads.join(owners, on="process", how="left", maintain_order="left").join(
        named, on=["role", "rank", "thread"], how="left", maintain_order="left"
    )
    return trace.with_(
        clocks=pl.concat([dates, reading]),
        threads=threads.with_columns(name=pl.coalesce("called", "name")).select(*THREAD_COLUMNS),
        notes=(*trace.notes, *(Note("", s, "chosen") for file in found for s in file.sentences)),
        recognition=None,
    )
