"""Problems of a trace: a sentence for each part that breaks its format, or is not whole."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.distil.outline import list_outlines
from tracelens.model.calls import NEVER, list_arrivals
from tracelens.model.fmt import shown_name
from tracelens.readers.native.arrow_file import read_arrow
from tracelens.readers.native.recordings import DAMAGE, read_first_line
from tracelens.schema.vocabulary import KINDS, OPS, TRACE_SUFFIX

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.arrays import Flags
    from tracelens.model.trace import Note, Trace

_BROKEN: Final = ("unreadable", "truncated", "incomplete", "dropped", "desync")
MAX_CALLS_LISTED: Final = 5  # calls in a sentence: more are counted [policy]


def list_problems(trace: Trace) -> list[str]:
    """Check a trace as `tracelens.open` returns it, and the files that it was read from."""
    return [
        *(_sentence(note) for note in trace.notes if note.kind in _BROKEN and _of_format(note)),
        *_find_unsorted(trace),
        *_find_unknown_words(trace),
        *_find_unmatched(trace),
    ]


def _of_format(note: Note) -> bool:
    """Return False for what a trace may lack: steps are derived otherwise then."""
    return bool(note.file) or note.kind != "incomplete"


def _sentence(note: Note) -> str:
    names_file = not note.file or note.file in note.sentence
    return note.sentence if names_file else f"{note.file}: {note.sentence}"


def _find_unsorted(trace: Trace) -> list[str]:
    """Find files whose rows are not in order of begin, as the format requires, or that lack some.

    Even in a file with right checksums there may be a column that cannot be decoded.
    """
    sentences = []
    for file in _arrow_files(trace):
        name = shown_name(file.name)
        try:
            start_ns = read_arrow(file).table["start_ns"].to_numpy()
            if not (start_ns[1:] >= start_ns[:-1]).all():
                sentences.append(f"'{name}': rows are not sorted by start_ns.")
        except DAMAGE as error:
            sentences.append(
                f"'{name}': not all columns can be decoded ({read_first_line(error)})."
            )
    return sentences


def _arrow_files(trace: Trace) -> list[Path]:
    """Return the native files that could be read whole."""
    if trace.path is None or not trace.path.is_dir():
        return []
    damaged_files = [note.file for note in trace.notes if note.kind in {"unreadable", "truncated"}]
    whole_files = {*trace.processes["file"]} - {*damaged_files}
    files = [file for file in sorted(trace.path.iterdir()) if file.name.endswith(TRACE_SUFFIX)]
    return [file for file in files if shown_name(file.name) in whole_files]


def _find_unknown_words(trace: Trace) -> list[str]:
    """Return sentences on kinds, and operations of kinds, that the format does not have."""
    known_ops = {op for ops in OPS.values() for op in ops}
    count_by_kind: Counter[str] = Counter()  # numbers of spans
    count_by_op: Counter[tuple[str, str]] = Counter()  # by kind and operation
    for process in trace.source.part_by_process:
        columns = trace.source.read_columns(process, ("type", "kind", "op"))
        kind_column, op_column = columns.word_column("kind"), columns.word_column("op")
        is_span = columns.is_span
        for unknown_kind in {*kind_column.vocabulary} - {*KINDS}:
            count_by_kind[unknown_kind] += _count(is_span & kind_column.is_in((unknown_kind,)))
        for unknown_op in {*op_column.vocabulary} - known_ops:
            has_op = is_span & op_column.is_in((unknown_op,))
            for kind in OPS.keys() & kind_column.vocabulary:
                count_by_op[kind, unknown_op] += _count(has_op & kind_column.is_in((kind,)))
    kind_sentences = (
        f"{count:,} spans are of the unknown kind '{kind}'."
        for kind, count in sorted(count_by_kind.items())
        if count
    )
    op_sentences = (
        f"{count:,} spans of kind {kind} have the unknown operation '{op}'."
        for (kind, op), count in sorted(count_by_op.items())
        if count
    )
    return [*kind_sentences, *op_sentences]


def _count(rows: Flags) -> int:
    return int(np.count_nonzero(rows))


def _find_unmatched(trace: Trace) -> list[str]:
    """Return sentences on collectives that have no number, and on those that a rank never joined."""
    outlines = list_outlines(trace)
    numberless_count = sum(
        outlines[process].unnumbered_call_count for process in trace.workers["process"]
    )
    never_joined = [
        grid.take_calls(np.flatnonzero(grid.last_arrival_ns == NEVER)) for grid in trace.calls
    ]
    arrivals = list_arrivals(never_joined)
    calls = arrivals.group_by("communicator", "seq").agg("op", "rank", "last_rank").sort("seq")
    sentences = []
    if numberless_count:
        sentences.append(
            f"{numberless_count:,} collectives carry no communicator or number: nothing matches them."
        )
    if calls.is_empty():
        return sentences
    uid = pl.col("communicator").cast(pl.String)
    name_by_uid = dict(trace.communicators.select(uid, "name").iter_rows())
    listed_calls = [
        f"{ops[0]} {seq} of '{name_by_uid.get(communicator, communicator)}'"
        for communicator, seq, ops in calls.head(MAX_CALLS_LISTED)
        .select("communicator", "seq", "op")
        .iter_rows()
    ]
    unlisted_count = calls.height - MAX_CALLS_LISTED
    unlisted_text = f" and {unlisted_count:,} more" if unlisted_count > 0 else ""
    calls_text = ", ".join(listed_calls) + unlisted_text
    return [*sentences, f"Collectives that not every rank joined: {calls.height:,} ({calls_text})."]
