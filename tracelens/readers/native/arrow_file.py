"""Reads one process's Arrow file, trusting nothing in it.

A whole file all of whose batches have right checksums is read by its footer, any other file as a stream
of messages up to the first damage. A right checksum does not say that who wrote the file meant well: so
columns are checked by name and type before anything is decoded, values after it (`validate`), and the
sizes that messages claim before anything is decompressed. Nothing in a file is ever executed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tracelens.conversion.columns import null_column
from tracelens.conversion.layout import GrowthLimit, find_absent_columns
from tracelens.conversion.messages import (
    BATCH,
    END,
    LEAD,
    MAGIC,
    has_sound_checksum,
    iterate_messages,
    read_footer,
)
from tracelens.conversion.tally import flag_valid_rows, read_values
from tracelens.errors import NotATrace
from tracelens.schema.arrow import EVENT_SCHEMA, FILE_SCHEMA, map_file
from tracelens.schema.gate import read_contents
from tracelens.schema.side import SideTables, Summary, is_intact

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path
    from typing import Any

    from tracelens.conversion.messages import Footer

MAX_BYTES_IN_MEMORY: Final = 64 << 20  # bytes of a file: larger ones are mapped [policy]
MAX_COLUMNS: Final = 256  # columns of a file: none that is meant well has more [policy]
_COLUMNS: Final = tuple(EVENT_SCHEMA.names)
_TIMES: Final = ("start_ns", "duration_ns")
_DAMAGED_SCHEMA: Final = "its header is damaged or cut off"


@dataclass(frozen=True)
class Recording:
    """The events and side tables of one process."""

    table: pa.Table
    side_tables: SideTables
    is_cut: bool = False  # the end of the file is missing, or a part of it is damaged


class FileEnd(NamedTuple):
    """The schema and side tables at the end of a whole file."""

    schema: pa.Schema
    side_tables: SideTables

    @property
    def summary(self) -> Summary | None:
        """Summary of the file; None for files of schema 1."""
        return Summary.from_metadata(self.schema.metadata)


def read_arrow(
    path: Path, columns: Collection[str] | None = None, window_ns: tuple[int, int] | None = None
) -> Recording:
    """Read one file.

    Args:
        path: The file.
        columns: Those of `EVENT_SCHEMA` to be read, at least one, all without it; the table has them in
            its order.
        window_ns: A time on the clock of the file: batches that are wholly outside need not be there.

    Raises:
        UnusableInput: it is not a trace file, or not one that this version can read.
        OSError: the file system refused.
        ValueError: the contents contradict themselves (also `pyarrow.ArrowInvalid`).
    """
    content = read_content(path)
    names = [name for name in _COLUMNS if columns is None or name in columns]
    file_end = parse_end(content)
    footer = None if file_end is None else read_checked_footer(content)
    if file_end is not None and footer is not None:
        table = _read_by_footer(content, file_end.schema, footer, names, window_ns)
        return Recording(table, file_end.side_tables)
    schema = _first_schema(content)
    side = SideTables.from_metadata(schema.metadata) if file_end is None else file_end.side_tables
    indices = _find_columns(schema)
    batches, is_broken = _read_by_stream(content, [indices[name] for name in names])
    table = _to_table(batches, {*names}, names)
    return Recording(table, side, is_cut=is_broken or file_end is None)


def read_end(path: Path) -> FileEnd | None:
    """Read the end of a file, and no event; None if the end is missing or damaged.

    Raises:
        UnusableInput: it is not a trace file, or not one that this version can read.
        OSError: the file system refused.
    """
    return parse_end(read_content(path, max_bytes_in_memory=0))


def read_content(path: Path, max_bytes_in_memory: int = MAX_BYTES_IN_MEMORY) -> pa.Buffer:
    """Return the content of a file; a larger file is mapped.

    A mapped file is a fatal signal (SIGBUS) if it is cut short while anything refers to it.
    """
    file_bytes = path.stat().st_size
    if file_bytes == 0:
        raise NotATrace("it is empty (0 bytes)")
    content = (
        pa.py_buffer(read_contents(path)) if file_bytes <= max_bytes_in_memory else map_file(path)
    )
    first_bytes = bytes(memoryview(content)[: len(LEAD)])
    if not first_bytes.startswith(MAGIC):
        raise NotATrace(f"it is not an Arrow file (it begins with {first_bytes!r})")
    if file_bytes <= len(LEAD):
        raise NotATrace(_DAMAGED_SCHEMA)
    return content


def _first_schema(content: pa.Buffer) -> pa.Schema:
    try:
        return pa.ipc.read_schema(content.slice(len(LEAD)))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise NotATrace(_DAMAGED_SCHEMA) from error


def parse_end(content: pa.Buffer) -> FileEnd | None:
    """Return the end of a file, where side tables are complete; None if it is missing or damaged.

    Raises:
        UnusableInput: it is whole, but its side tables are not ours.
    """
    schema = read_last_schema(content)
    if schema is None:
        return None
    return FileEnd(schema, SideTables.from_metadata(schema.metadata, is_checked=True))


def read_last_schema(content: pa.Buffer) -> pa.Schema | None:
    """Return the schema at a file's end; None without one whose metadata are intact."""
    if bytes(memoryview(content)[-len(MAGIC) :]) != MAGIC:
        return None
    try:
        with pa.ipc.open_file(content) as reader:
            schema = reader.schema
    except (pa.ArrowException, OSError, ValueError):
        return None
    return schema if is_intact(schema.metadata) else None


def read_checked_footer(content: pa.Buffer) -> Footer | None:
    """Return the positions of messages; None unless all exist and every checksum is right.

    A checksum covers the bytes from the end of the batch before it.

    Raises:
        NotATrace: it would grow out of proportion.
    """
    view = memoryview(content)
    try:
        footer = read_footer(view)
        previous_end = len(LEAD)
        for batch in footer.batch_messages:
            if batch.offset_bytes < previous_end or not has_sound_checksum(
                view, previous_end, batch
            ):
                return None
            previous_end = batch.end_bytes
        if not footer.batch_messages or bytes(view[previous_end : previous_end + len(END)]) != END:
            return None
        growth = GrowthLimit(len(view))  # of the file, when its messages are decompressed
        for message in (*footer.dictionary_messages, *footer.batch_messages):
            growth.count_message(message, view)
    except struct.error:
        return None
    return footer


def _read_by_footer(
    content: pa.Buffer,
    schema: pa.Schema,
    footer: Footer,
    column_names: Sequence[str],
    window_ns: tuple[int, int] | None,
) -> pa.Table:
    """Decode the columns that are not null in all rows; the others are made of nulls.

    Indices are those of columns in the file's schema. Batches outside of `window_ns` are left out.
    """
    view = memoryview(content)
    null_indices = set(range(len(schema)))
    for batch in footer.batch_messages:
        null_indices &= find_absent_columns(batch.read_header(view), len(schema))
    index_by_name = _find_columns(schema)
    present_names = {name for name in column_names if index_by_name[name] not in null_indices}
    # Where all columns are null there is still a number of rows, which any column tells.
    decoded_indices = [index_by_name[name] for name in present_names or column_names[:1]]
    batch_indices: Sequence[int] = range(len(footer.batch_messages))
    if window_ns is not None and len(batch_indices) > 1:
        batch_indices = _find_batches(content, [index_by_name[name] for name in _TIMES], *window_ns)
    with pa.ipc.open_file(content, **_make_options(decoded_indices)) as reader:
        batches = [reader.get_batch(index) for index in batch_indices]
    for record_batch in batches:
        record_batch.validate(full=True)
    return _to_table(batches, present_names, column_names)


def _find_batches(
    content: pa.Buffer, time_indices: list[int], first_ns: int, last_ns: int
) -> list[int]:
    """Return the indices of batches with spans that overlap the time from `first_ns` to `last_ns`.

    `time_indices` are those of the columns `_TIMES`. A span without a duration was still open.
    """
    batch_indices = []
    with pa.ipc.open_file(content, **_make_options(time_indices)) as reader:
        for index in range(reader.num_record_batches):
            batch = reader.get_batch(index)
            batch.validate(full=True)
            start_column, duration_column = (batch.column(name) for name in _TIMES)
            start_ns = read_values(start_column, np.int64)
            duration_ns = read_values(duration_column, np.int64)
            reaches_window = ~flag_valid_rows(duration_column) | (
                start_ns + duration_ns >= first_ns
            )
            if np.any(reaches_window & (start_ns <= last_ns)):
                batch_indices.append(index)
    return batch_indices


def _read_by_stream(
    content: pa.Buffer, column_indices: list[int]
) -> tuple[list[pa.RecordBatch], bool]:
    """Decode columns of batches up to the first that is damaged or cut off; return True if one is.

    Raises:
        NotATrace: they would grow out of proportion.
    """
    sound_count, is_broken = _count_sound_batches(memoryview(content))
    batches: list[pa.RecordBatch] = []
    with pa.ipc.open_stream(content.slice(len(LEAD)), **_make_options(column_indices)) as reader:
        while len(batches) < sound_count:
            try:
                batch = reader.read_next_batch()
            except (pa.ArrowException, OSError, StopIteration):
                return batches, True
            batch.validate(full=True)
            batches.append(batch)
    return batches, is_broken


def _count_sound_batches(view: memoryview) -> tuple[int, bool]:
    """Count the batches before the first that is damaged or cut off; return True if one is.

    Where one batch has a checksum, so must those after it; without one its state is None.
    """
    growth = GrowthLimit(len(view))
    count, batch_start, has_checksums = 0, len(LEAD), False
    try:
        for message in iterate_messages(view):
            growth.count_message(message, view)
            if message.kind != BATCH:
                continue
            checksum_state = has_sound_checksum(view, batch_start, message)
            if checksum_state is False or (checksum_state is None and has_checksums):
                return count, True
            has_checksums = checksum_state is True
            count, batch_start = count + 1, message.end_bytes
    except struct.error:
        return count, True
    return count, False


def _make_options(column_indices: list[int]) -> dict[str, Any]:
    """Return options to decode columns: files are read side by side, so each needs one thread."""
    return {
        "options": pa.ipc.IpcReadOptions(included_fields=sorted(column_indices), use_threads=False),
        "memory_pool": pa.system_memory_pool(),  # Arrow's own keeps what it is given back
    }


def _find_columns(schema: pa.Schema) -> dict[str, int]:
    """Return the index of each of our columns, by name; others are not even decoded."""
    if schema.equals(FILE_SCHEMA) or schema.equals(EVENT_SCHEMA):
        return {name: index for index, name in enumerate(_COLUMNS)}
    if len(schema) > MAX_COLUMNS:
        raise NotATrace(f"it has {len(schema)} columns, more than the limit of {MAX_COLUMNS}")
    index_by_name = {}
    for field in EVENT_SCHEMA:
        field_indices = schema.get_all_field_indices(field.name)
        if len(field_indices) != 1:
            raise NotATrace(
                f"column '{field.name}' is there {len(field_indices)} times, expected once of type "
                f"{field.type}"
            )
        dtype = schema.field(field_indices[0]).type
        if dtype != field.type and not (_holds_words(dtype) and _holds_words(field.type)):
            raise NotATrace(f"column '{field.name}' has type {dtype}, expected {field.type}")
        index_by_name[field.name] = field_indices[0]
    return index_by_name


def _holds_words(dtype: pa.DataType) -> bool:
    """Return True for dictionaries of strings, however wide their indexes."""
    return isinstance(dtype, pa.DictionaryType) and dtype.value_type == pa.string()


def _to_table(
    batches: list[pa.RecordBatch], present_names: set[str], column_names: Sequence[str]
) -> pa.Table:
    """Join batches; columns are in the order and types of our schema, null if not in `present_names`."""
    schema = _select_schema(tuple(column_names))
    ordered_batches = []
    for batch in batches:
        columns = [
            _cast(batch.column(field.name), field.type)
            if field.name in present_names
            else null_column(batch.num_rows, field.type)
            for field in schema
        ]
        ordered_batches.append(pa.RecordBatch.from_arrays(columns, schema=schema))
    return pa.Table.from_batches(ordered_batches, schema).unify_dictionaries()


def _cast(column: pa.Array[Any], dtype: pa.DataType) -> pa.Array[Any]:
    return column if column.type == dtype else column.cast(dtype)


@cache
def _select_schema(column_names: tuple[str, ...]) -> pa.Schema:
    if len(column_names) == len(_COLUMNS):
        return EVENT_SCHEMA
    return pa.schema([EVENT_SCHEMA.field(name) for name in column_names])
