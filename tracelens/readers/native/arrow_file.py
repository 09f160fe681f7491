"""Reads one process's Arrow file, trusting nothing in it.

The file is read as the stream of messages that it is, so a file cut short yields all its complete
batches. Columns are checked by name and type before anything is decoded, values after it. Nothing
in a file is ever executed or unpickled.

Sizes are checked before anything is decompressed, as a file of some kilobytes can claim gigabytes.
Every compressed buffer begins with its full length, and the message's header says where buffers
are; the header is a FlatBuffer, of which this reads the few fields it needs (format:
arrow.apache.org/docs/format/Columnar.html).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tracelens.conversion.arrow_file import field_of, followed, root_table
from tracelens.errors import NotATrace
from tracelens.schema.arrow import EVENT_SCHEMA, mapped
from tracelens.schema.side import SideTables

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path


MAGIC: Final = b"ARROW1"
_LEAD: Final = 8  # the magic, padded; after it comes a stream
MAX_FILE_BYTES: Final = 4 << 30
MAX_GROWTH: Final = 200  # traces shrink about 15-fold; a bomb a thousandfold
MIN_ALLOWANCE: Final = 16 << 20  # tiny files may grow more
MAX_COLUMNS: Final = 256
_DICTIONARY_BATCH: Final = 2
_RECORD_BATCH: Final = 3
_STORED: Final = -1  # in place of a length: the buffer is not compressed


@dataclass(frozen=True)
class Recording:
    """What one process recorded."""

    table: pa.Table
    side: SideTables
    cut: bool = False  # the end of the file is missing


def read_arrow(path: Path, names: Collection[str] | None = None) -> Recording:
    """Read one file, or only some of its columns.

    Raises:
        UnusableInput: it is not a trace file, or not one that this version can read.
        OSError: the file system refused.
        ValueError: the contents contradict themselves (`pyarrow.ArrowInvalid` is one).
    """
    size = path.stat().st_size
    if size == 0:
        raise NotATrace("it is empty (0 bytes)")
    if size > MAX_FILE_BYTES:
        raise NotATrace(f"it has {size} bytes, more than the limit of {MAX_FILE_BYTES}")
    content = mapped(path)
    begin = bytes(memoryview(content)[:_LEAD])
    if not begin.startswith(MAGIC):
        raise NotATrace(f"it is not an Arrow file (it begins with {begin!r})")
    if size <= _LEAD:
        raise NotATrace("its header is damaged or cut off")
    stream = content.slice(_LEAD)
    schema = _schema(stream)
    metadata = _last_metadata(content)
    side = SideTables.from_metadata(schema.metadata if metadata is None else metadata)
    columns = _known_columns(schema, names)
    _refuse_bombs(stream, size)
    batches, broken = _batches(stream, columns)
    table = pa.Table.from_batches(batches, schema=_selected(schema, columns))
    return Recording(_in_order(table.unify_dictionaries()), side, cut=broken or metadata is None)


def _schema(stream: pa.Buffer) -> pa.Schema:
    try:
        schema = pa.ipc.read_schema(stream)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise NotATrace("its header is damaged or cut off") from error
    if len(schema) > MAX_COLUMNS:
        raise NotATrace(f"it has {len(schema)} columns, more than the limit of {MAX_COLUMNS}")
    return schema


def _last_metadata(content: pa.Buffer) -> dict[bytes, bytes] | None:
    """Return the metadata at a file's end: side tables are complete there, not yet at its begin.

    None where the end is missing or damaged.
    """
    if bytes(memoryview(content)[-len(MAGIC) :]) != MAGIC:
        return None
    try:
        with pa.ipc.open_file(content) as reader:
            return reader.schema.metadata or {}
    except (pa.ArrowException, OSError, ValueError):
        return None


def _known_columns(schema: pa.Schema, names: Collection[str] | None) -> list[int]:
    """Return the positions of our columns that are asked for; others are not even decoded."""
    found = []
    for field in EVENT_SCHEMA:
        places = schema.get_all_field_indices(field.name)
        if len(places) != 1:
            raise NotATrace(
                f"column '{field.name}' is there {len(places)} times, expected once of type {field.type}"
            )
        kind = schema.field(places[0]).type
        if kind != field.type and not (_is_word(kind) and _is_word(field.type)):
            raise NotATrace(f"column '{field.name}' has type {kind}, expected {field.type}")
        if names is None or field.name in names:
            found.append(places[0])
    return sorted(found)


def _is_word(kind: pa.DataType) -> bool:
    """Return whether a type is a dictionary of strings, however wide its indexes."""
    return isinstance(kind, pa.DictionaryType) and kind.value_type == pa.string()


def _selected(schema: pa.Schema, columns: list[int]) -> pa.Schema:
    return pa.schema([schema.field(index) for index in columns])


def _refuse_bombs(stream: pa.Buffer, size: int) -> None:
    """Refuse a file that would grow out of proportion."""
    allowed = max(MIN_ALLOWANCE, MAX_GROWTH * size)
    total = 0
    try:
        for message in pa.ipc.MessageReader.open_stream(stream):
            total += _declared_bytes(memoryview(message.metadata), _body(message))
            if total > allowed:
                raise NotATrace(
                    f"its {size} bytes would become more than {allowed} when decompressed"
                )
    except (pa.ArrowException, OSError, EOFError):
        return  # cut off here; what precedes has been counted, what follows will not be read
    except struct.error as error:
        raise NotATrace("a message header in it is damaged") from error


def _body(message: pa.Message) -> memoryview:
    return memoryview(message.body) if message.body is not None else memoryview(b"")


def _batches(stream: pa.Buffer, columns: list[int]) -> tuple[list[pa.RecordBatch], bool]:
    """Read batches until the end or the first that is cut off; return whether it was cut off."""
    # Files are read side by side, so each needs one thread.
    options = pa.ipc.IpcReadOptions(included_fields=columns, use_threads=False)
    pool = pa.system_memory_pool()  # Arrow's own keeps what it is given back
    batches: list[pa.RecordBatch] = []
    with pa.ipc.open_stream(stream, options=options, memory_pool=pool) as reader:
        while True:
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                return batches, False
            except (pa.ArrowException, OSError):
                return batches, True
            batch.validate(full=True)
            batches.append(batch)


def _in_order(table: pa.Table) -> pa.Table:
    """Bring the columns into the order and types of the schema."""
    fields = [field for field in EVENT_SCHEMA if field.name in table.column_names]
    columns = [
        column if column.type == field.type else column.cast(field.type)  # which imports much
        for column, field in ((table[field.name], field) for field in fields)
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _declared_bytes(header: memoryview, body: memoryview) -> int:
    """Return how many bytes the buffers of one message claim to hold; 0 for a schema.

    Raises:
        struct.error: the header points outside of itself or of the body.
    """
    message = root_table(header)
    kind = field_of(header, message, 1)
    table = field_of(header, message, 2)
    if kind is None or table is None or header[kind] not in {_DICTIONARY_BATCH, _RECORD_BATCH}:
        return 0
    batch = followed(header, table)
    if header[kind] == _DICTIONARY_BATCH:
        data = field_of(header, batch, 1)
        if data is None:
            return 0
        batch = followed(header, data)
    buffers = field_of(header, batch, 2)
    if buffers is None:
        return 0
    compressed = field_of(header, batch, 3) is not None
    return _total(header, followed(header, buffers), body, compressed=compressed)


def _total(header: memoryview, vector: int, body: memoryview, *, compressed: bool) -> int:
    (count,) = struct.unpack_from("<I", header, vector)
    total = 0
    for index in range(count):
        offset, length = struct.unpack_from("<qq", header, vector + 4 + 16 * index)
        if length and compressed:
            if offset < 0:
                raise struct.error("a buffer begins before its message")
            (full,) = struct.unpack_from("<q", body, offset)
            total += length if full == _STORED else abs(full)
        else:
            total += abs(length)
    return total
