"""Puts a table's rows together into a raw `Trace`, as the files of a recorder would have become one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.readers.table import calls, steps, tracks
from tracelens.readers.table.cells import gather
from tracelens.readers.table.frames import fitted
from tracelens.readers.table.meanings import translate, translate_roles
from tracelens.readers.table.naming import plan
from tracelens.readers.table.processes import describe, number, wall_clocks
from tracelens.readers.table.rows import once, sound
from tracelens.readers.table.sentences import quoted
from tracelens.trace import EVENT_COLUMNS, Note, Trace

if TYPE_CHECKING:
    import polars as pl

    from tracelens.readers.table.naming import Plan, Renaming

__all__ = ["build"]


def build(table: pl.LazyFrame, renaming: Renaming, file: str, *, one_clock: bool) -> Trace:
    """Read a table; `file` is its name, empty if it is none.

    Raises:
        UnusableInput: columns are missing, or no row is usable.
    """
    name = f"'{file}'" if file else "the table"
    planned = plan(table.collect_schema().names(), renaming, name)
    cells = gather(table, planned, name)
    rows, words = translate(cells.frame, renaming)
    rows, lost = sound(translate_roles(rows, renaming, name), cells.unusable, name)
    rows, twice = once(number(rows))
    rows, threads, beside = tracks.lay_out(rows)
    rows, stepped = steps.number(rows)
    rows, matched = calls.match(rows)
    processes = describe(rows, threads, lost, name, file, one_clock=one_clock)
    notes = (*_unused(planned), *cells.notes, *words, *twice, *beside, *stepped, *matched)
    return Trace(
        events=_events(rows).lazy(),
        processes=processes,
        communicators=calls.communicators(rows),
        threads=threads,
        clocks=wall_clocks(processes, dates=cells.wall),
        notes=(*notes, *lost.notes),
        dropped=lost.counts,
    )


def _events(rows: pl.DataFrame) -> pl.DataFrame:
    """Give rows all columns of events, in their types and order."""
    return fitted(rows, EVENT_COLUMNS).sort("process", "start_ns", "depth")


def _unused(planned: Plan) -> list[Note]:
    if not planned.unused:
        return []
    listed = ", ".join(map(quoted, planned.unused))
    plural = "s" if len(planned.unused) > 1 else ""
    sentence = f"Nothing is read from the column{plural} {listed}."
    return [Note(file="", sentence=sentence, kind="table")]
