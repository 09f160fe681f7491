"""Reads one process's Arrow file, trusting nothing in it.

A whole file all of whose batches have right checksums is read by its footer: of each batch only the
columns that were asked for, and that hold something, are decoded. Any other file (of schema 1, made by
another program, damaged, cut off) is read as the stream of messages that it is, up to the first
message that is cut off, or the first batch whose checksum is wrong.

A right checksum says that a file is as it was written, not that who wrote it meant well. So either way
columns are checked by name and type before anything is decoded, values after it (`validate`: lengths
of buffers, offsets, indexes of words), and the sizes that messages claim before anything is
decompressed, as a file of some kilobytes can claim gigabytes. Nothing in a file is ever executed or
unpickled.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tracelens.conversion.columns import null_column
from tracelens.conversion.layout import Growth, absent_columns
from tracelens.conversion.messages import (
    BATCH,
    END,
    LEAD,
    MAGIC,
    checksum_holds,
    footer_of,
    messages,
)
from tracelens.conversion.tally import valid_of, values_of
from tracelens.errors import NotATrace
from tracelens.schema.arrow import EVENT_SCHEMA, FILE_SCHEMA, mapped
from tracelens.schema.gate import contents
from tracelens.schema.side import SideTables, Summary, is_intact

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path
    from typing import Any

    from tracelens.conversion.messages import Footer

__all__ = [
    "FileEnd",
    "Recording",
    "checked_footer",
    "content_of",
    "end_of",
    "read_arrow",
    "read_end",
]

_HELD_BYTES: Final = 64 << 20  # of a file, which few are larger than
MAX_COLUMNS: Final = 256
_COLUMNS: Final = tuple(EVENT_SCHEMA.names)
_TIMES: Final = ("start_ns", "duration_ns")
_DAMAGED_SCHEMA: Final = "its header is damaged or cut off"


@dataclass(frozen=True)
class Recording:
    """What one process recorded."""

    table: pa.Table
    side: SideTables
    cut: bool = False  # the end of the file is missing, or a part of it is damaged


class FileEnd(NamedTuple):
    """What a whole file says at its end."""

    schema: pa.Schema
    side: SideTables

    @property
    def summary(self) -> Summary | None:
        """What the file holds; files of schema 1 do not say it."""
        return Summary.from_metadata(self.schema.metadata)


def read_arrow(
    path: Path,
    columns: Collection[str] | None = None,
    window: tuple[int, int] | None = None,
) -> Recording:
    """Read one file.

    Args:
        path: The file.
        columns: Those of `EVENT_SCHEMA` to be read, at least one, all without it; the table has them in
            its order.
        window: A time on the clock of the file: batches that are wholly outside need not be there.

    Raises:
        UnusableInput: it is not a trace file, or not one that this version can read.
        OSError: the file system refused.
        ValueError: the contents contradict themselves (`pyarrow.ArrowInvalid` is one).
    """
    content = content_of(path)
    wanted = [name for name in _COLUMNS if columns is None or name in columns]
    end = end_of(content)
    if end is not None:
        footer = checked_footer(content)
        if footer is not None:
            table = _by_footer(content, end.schema, footer, wanted, window)
            return Recording(table, end.side)
    schema = _first_schema(content)
    side = SideTables.from_metadata(schema.metadata) if end is None else end.side
    places = _known_columns(schema)
    batches, broken = _by_stream(content, [places[name] for name in wanted])
    ordered = [_in_order(batch, {*wanted}, wanted) for batch in batches]
    return Recording(_table(ordered, wanted), side, cut=broken or end is None)


def read_end(path: Path) -> FileEnd | None:
    """Read what a file says at its end, and no event; None if the end is missing or damaged.

    Raises:
        UnusableInput: it is not a trace file, or not one that this version can read.
        OSError: the file system refused.
    """
    return end_of(content_of(path, in_memory=0))


def content_of(path: Path, in_memory: int = _HELD_BYTES) -> pa.Buffer:
    """Return what a file holds: read, up to so many bytes, else mapped.

    What is mapped is a fatal signal (SIGBUS) if the file is cut short while anything refers to it.
    """
    size = path.stat().st_size
    if size == 0:
        raise NotATrace("it is empty (0 bytes)")
    content = pa.py_buffer(contents(path)) if size <= in_memory else mapped(path)
    begin = bytes(memoryview(content)[: len(LEAD)])
    if not begin.startswith(MAGIC):
        raise NotATrace(f"it is not an Arrow file (it begins with {begin!r})")
    if size <= len(LEAD):
        raise NotATrace(_DAMAGED_SCHEMA)
    return content


def _first_schema(content: pa.Buffer) -> pa.Schema:
    try:
        return pa.ipc.read_schema(content.slice(len(LEAD)))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise NotATrace(_DAMAGED_SCHEMA) from error


def end_of(content: pa.Buffer) -> FileEnd | None:
    """Return what stands at a file's end: side tables are complete there, not yet at its begin.

    None where the end is missing or damaged.

    Raises:
        UnusableInput: it is whole, but its side tables are not ours.
    """
    schema = last_schema(content)
    if schema is None:
        return None
    return FileEnd(schema, SideTables.from_metadata(schema.metadata, is_checked=True))


def last_schema(content: pa.Buffer) -> pa.Schema | None:
    """Return the schema at a file's end, whose metadata are intact; None where that is not so."""
    if bytes(memoryview(content)[-len(MAGIC) :]) != MAGIC:
        return None
    try:
        with pa.ipc.open_file(content) as reader:
            schema = reader.schema
    except (pa.ArrowException, OSError, ValueError):
        return None
    return schema if is_intact(schema.metadata) else None


def checked_footer(content: pa.Buffer) -> Footer | None:
    """Return the places of messages; None unless all is there, and every batch has a right checksum.

    Raises:
        NotATrace: it would grow out of proportion.
    """
    view = memoryview(content)
    try:
        footer = footer_of(view)
        begin = len(LEAD)
        for batch in footer.batches:
            if batch.offset < begin or not checksum_holds(view, begin, batch):
                return None
            begin = batch.end
        if begin == len(LEAD) or bytes(view[begin : begin + len(END)]) != END:
            return None
        growth = Growth(len(view))
        for message in (*footer.dictionaries, *footer.batches):
            growth.add(message, view)
    except struct.error:
        return None
    return footer


def _by_footer(
    content: pa.Buffer,
    schema: pa.Schema,
    footer: Footer,
    wanted: Sequence[str],
    window: tuple[int, int] | None,
) -> pa.Table:
    """Decode, of the columns that are wanted, those that are not null in all rows."""
    view = memoryview(content)
    absent = set(range(len(schema)))
    for place in footer.batches:
        absent &= absent_columns(place.header(view), len(schema))
    places = _known_columns(schema)
    held = {name for name in wanted if places[name] not in absent}
    # Where nothing is held there is still a number of rows, which any column tells.
    decoded = [places[name] for name in held or wanted[:1]]
    count = len(footer.batches)
    chosen = range(count) if window is None or count < 2 else _touching(content, places, *window)
    with pa.ipc.open_file(content, **_options(decoded)) as reader:
        batches = [reader.get_batch(index) for index in chosen]
    for batch in batches:
        batch.validate(full=True)
    return _table([_in_order(batch, held, wanted) for batch in batches], wanted)


def _touching(content: pa.Buffer, places: dict[str, int], first_ns: int, last_ns: int) -> list[int]:
    """Return the batches with rows that touch a time, of which two columns tell."""
    found = []
    with pa.ipc.open_file(content, **_options([places[name] for name in _TIMES])) as reader:
        for index in range(reader.num_record_batches):
            batch = reader.get_batch(index)
            batch.validate(full=True)
            start, duration = (batch.column(name) for name in _TIMES)
            begun, length = (values_of(column, np.int64) for column in (start, duration))
            over = ~valid_of(duration) | (begun + length >= first_ns)  # null: it was still open
            if np.any(over & (begun <= last_ns)):
                found.append(index)
    return found


def _by_stream(content: pa.Buffer, places: list[int]) -> tuple[list[pa.RecordBatch], bool]:
    """Decode batches until the end or the first that is damaged or cut off; return whether one was.

    Raises:
        NotATrace: they would grow out of proportion.
    """
    sound, broken = _sound_batches(memoryview(content))
    batches: list[pa.RecordBatch] = []
    with pa.ipc.open_stream(content.slice(len(LEAD)), **_options(places)) as reader:
        while len(batches) < sound:
            try:
                batch = reader.read_next_batch()
            except (pa.ArrowException, OSError, StopIteration):
                return batches, True
            batch.validate(full=True)
            batches.append(batch)
    return batches, broken


def _sound_batches(view: memoryview) -> tuple[int, bool]:
    """Count the batches before the first that is damaged or cut off; return whether one is.

    Where one batch has a checksum, so must those after it.
    """
    growth = Growth(len(view))
    count, begin, checked = 0, len(LEAD), False
    try:
        for message in messages(view):
            growth.add(message, view)
            if message.kind != BATCH:
                continue
            holds = checksum_holds(view, begin, message)
            if holds is False or (holds is None and checked):
                return count, True
            checked = holds is True
            count, begin = count + 1, message.end
    except struct.error:
        return count, True
    return count, False


def _options(places: list[int]) -> dict[str, Any]:
    """Return how to decode columns: files are read side by side, so each needs one thread."""
    return {
        "options": pa.ipc.IpcReadOptions(included_fields=sorted(places), use_threads=False),
        "memory_pool": pa.system_memory_pool(),  # Arrow's own keeps what it is given back
    }


def _known_columns(schema: pa.Schema) -> dict[str, int]:
    """Return the positions of our columns; others are not even decoded."""
    if schema.equals(FILE_SCHEMA) or schema.equals(EVENT_SCHEMA):
        return {name: index for index, name in enumerate(_COLUMNS)}
    if len(schema) > MAX_COLUMNS:
        raise NotATrace(f"it has {len(schema)} columns, more than the limit of {MAX_COLUMNS}")
    found = {}
    for field in EVENT_SCHEMA:
        places = schema.get_all_field_indices(field.name)
        if len(places) != 1:
            raise NotATrace(
                f"column '{field.name}' is there {len(places)} times, expected once of type {field.type}"
            )
        kind = schema.field(places[0]).type
        if kind != field.type and not (_is_word(kind) and _is_word(field.type)):
            raise NotATrace(f"column '{field.name}' has type {kind}, expected {field.type}")
        found[field.name] = places[0]
    return found


def _is_word(kind: pa.DataType) -> bool:
    """Return whether a type is a dictionary of strings, however wide its indexes."""
    return isinstance(kind, pa.DictionaryType) and kind.value_type == pa.string()


def _in_order(batch: pa.RecordBatch, held: set[str], wanted: Sequence[str]) -> pa.RecordBatch:
    """Bring columns into the order and types of the schema; those that are not held are null."""
    schema = _schema_of(tuple(wanted))
    columns = [
        _as(batch.column(field.name), field.type)
        if field.name in held
        else null_column(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _as(column: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any]:
    return column if column.type == kind else column.cast(kind)


def _table(batches: list[pa.RecordBatch], wanted: Sequence[str]) -> pa.Table:
    return pa.Table.from_batches(batches, _schema_of(tuple(wanted))).unify_dictionaries()


@cache
def _schema_of(wanted: tuple[str, ...]) -> pa.Schema:
    if len(wanted) == len(_COLUMNS):
        return EVENT_SCHEMA
    return pa.schema([EVENT_SCHEMA.field(name) for name in wanted])
