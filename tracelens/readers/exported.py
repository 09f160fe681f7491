"""Facts of a run that our own exports hold with its events, and that their readers have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.model.notes import Note
from tracelens.model.trace import CLOCK_COLUMNS, THREAD_COLUMNS
from tracelens.readers.files import ReadFile
from tracelens.readers.spans.rows import build_wall_clocks
from tracelens.schema.vocabulary import MOST_RANKS

if TYPE_CHECKING:
    from collections.abc import Collection

    from tracelens.model.trace import Trace

_MOST_THREADS: Final = 2**16 - 1  # the highest number of a thread [definition]


@dataclass(eq=False)
class ExportedFile(ReadFile):
    """An export: its rows, and facts of the run."""

    # By role, rank and number.
    name_by_thread: dict[tuple[str, int, int], str] = field(default_factory=dict)
    note_sentences: list[str] = field(default_factory=list)
    clock_window_ns: int = 0  # times of ranks compare to within this
    date_offset_ns: int = 0  # dates are later by this than times of the run; 0: times are no dates


def as_ranks(value: object) -> list[int]:
    """Return the ranks in a list; none for anything else."""
    numbers = value if isinstance(value, list) else []
    return [rank for rank in numbers if isinstance(rank, int) and 0 <= rank < MOST_RANKS]


def build_common_clock(window_ns: int) -> pl.DataFrame:
    """Return the clock reading that times of ranks compare to within `window_ns`; none if it is 0."""
    reading = {"process": 0, "method": "common", "monotonic_ns": 0, "window_ns": window_ns}
    return pl.DataFrame([reading] if window_ns else [], schema=CLOCK_COLUMNS)


def add_run_facts(trace: Trace, exports: Collection[ExportedFile]) -> Trace:
    """Return the trace with clocks, thread names and notes of the exports, as it was recorded.

    Dates are later than times of the run by `date_offset_ns`; 0 if times are no dates.
    """
    date_offset_ns = max(file.date_offset_ns for file in exports)
    wall_clocks = build_wall_clocks(trace.processes, has_dates=date_offset_ns > 0)
    wall_clocks = wall_clocks.with_columns(pl.col("wall_ns") + date_offset_ns)
    common_clock = build_common_clock(max(file.clock_window_ns for file in exports))
    exported_names = pl.DataFrame(
        [
            (*thread, name)
            for file in exports
            for thread, name in file.name_by_thread.items()
            if 0 <= thread[-1] <= _MOST_THREADS
        ],
        schema={"role": pl.String, "rank": pl.Int32, "thread": pl.UInt16, "exported": pl.String},
        orient="row",
        strict=False,
    ).unique(["role", "rank", "thread"])
    process_ranks = trace.processes.select("process", "role", "rank")
    threads = trace.threads.join(process_ranks, on="process", how="left", maintain_order="left")
    threads = threads.join(
        exported_names, on=["role", "rank", "thread"], how="left", maintain_order="left"
    )
    sentences = (sentence for file in exports for sentence in file.note_sentences)
    return trace.with_(
        clocks=pl.concat([wall_clocks, common_clock]),
        threads=threads.with_columns(name=pl.coalesce("exported", "name")).select(*THREAD_COLUMNS),
        notes=(
            *trace.notes,
            *(Note(file="", sentence=sentence, kind="chosen") for sentence in sentences),
        ),
        recognition=None,
    )
