"""What of a trace does not keep to its format, or is not whole: a sentence for each problem."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.distil.outline import outlined
from tracelens.model.calls import NEVER, arrivals_of
from tracelens.model.fmt import shown_name
from tracelens.readers.native.arrow_file import read_arrow
from tracelens.readers.native.recordings import DAMAGE, reason_of
from tracelens.schema.vocabulary import KINDS, OPS, TRACE_SUFFIX

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.arrays import Flags
    from tracelens.model.trace import Note, Trace

__all__ = ["problems"]

_BROKEN: Final = ("unreadable", "truncated", "incomplete", "dropped", "desync")
_SHOWN: Final = 5


def problems(trace: Trace) -> list[str]:
    """Check a trace as `tracelens.open` returns it, and the files that it was read from."""
    return [
        *(_noted(note) for note in trace.notes if note.kind in _BROKEN and _of_format(note)),
        *_unsorted(trace),
        *_unknown_words(trace),
        *_unmatched(trace),
    ]


def _of_format(note: Note) -> bool:
    """Drop what a trace may lack: steps are derived otherwise then."""
    return bool(note.file) or note.kind != "incomplete"


def _noted(note: Note) -> str:
    named = not note.file or note.file in note.sentence
    return note.sentence if named else f"{note.file}: {note.sentence}"


def _unsorted(trace: Trace) -> list[str]:
    """Find files whose rows are not in order of begin, as the format requires, or that lack some.

    Of a file whose checksums are right a column may still be none that can be decoded.
    """
    found = []
    for file in _arrow_files(trace):
        name = shown_name(file.name)
        try:
            if not _is_sorted(file):
                found.append(f"'{name}': rows are not sorted by start_ns.")
        except DAMAGE as error:
            found.append(f"'{name}': not all columns can be decoded ({reason_of(error)}).")
    return found


def _is_sorted(file: Path) -> bool:
    begins = read_arrow(file).table["start_ns"].to_numpy()
    return bool((begins[1:] >= begins[:-1]).all())


def _arrow_files(trace: Trace) -> list[Path]:
    """Return the native files that could be read whole."""
    if trace.path is None or not trace.path.is_dir():
        return []
    cut = [note.file for note in trace.notes if note.kind in {"unreadable", "truncated"}]
    names = {*trace.processes["file"]} - {*cut}
    return [
        file
        for file in sorted(trace.path.iterdir())
        if file.name.endswith(TRACE_SUFFIX) and shown_name(file.name) in names
    ]


def _unknown_words(trace: Trace) -> list[str]:
    """Find kinds, and operations of kinds, that the format does not have."""
    known = {op for ops in OPS.values() for op in ops}
    kinds: Counter[str] = Counter()
    ops: Counter[tuple[str, str]] = Counter()
    for process in trace.source.parts:
        columns = trace.source.columns(process, ("type", "kind", "op"))
        kind, op, spans = columns.word("kind"), columns.word("op"), columns.is_span
        for word in {*kind.known} - {*KINDS}:
            kinds[word] += _count(spans & kind.among((word,)))
        for word in {*op.known} - known:
            mine = spans & op.among((word,))
            for owner in OPS.keys() & kind.known:
                ops[owner, word] += _count(mine & kind.among((owner,)))
    return [
        *(
            f"{count:,} spans are of the unknown kind '{kind}'."
            for kind, count in sorted(kinds.items())
            if count
        ),
        *(
            f"{count:,} spans of kind {kind} have the unknown operation '{op}'."
            for (kind, op), count in sorted(ops.items())
            if count
        ),
    ]


def _count(rows: Flags) -> int:
    return int(np.count_nonzero(rows))


def _unmatched(trace: Trace) -> list[str]:
    """Count collectives that carry no number, and those that an expected rank never joined."""
    outlines = outlined(trace)
    silent = sum(outlines[process].numberless for process in trace.workers["process"])
    left = arrivals_of([grid.taken(np.flatnonzero(grid.last_ns == NEVER)) for grid in trace.calls])
    calls = left.group_by("communicator", "seq").agg("op", "rank", "last_rank").sort("seq")
    sentences = [f"{silent:,} collectives carry no communicator or number: nothing matches them."]
    return sentences[: bool(silent)] + _left(trace, calls)


def _left(trace: Trace, calls: pl.DataFrame) -> list[str]:
    if calls.is_empty():
        return []
    names = dict(
        trace.communicators.select(pl.col("communicator").cast(pl.String), "name").iter_rows()
    )
    shown = [
        f"{row['op'][0]} {row['seq']} of '{names.get(row['communicator'], row['communicator'])}'"
        for row in calls.head(_SHOWN).iter_rows(named=True)
    ]
    more = f" and {calls.height - _SHOWN:,} more" if calls.height > _SHOWN else ""
    listed = f"{', '.join(shown)}{more}"
    return [f"Collectives that not every rank joined: {calls.height:,} ({listed})."]
