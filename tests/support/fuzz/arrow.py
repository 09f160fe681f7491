"""Changes of Arrow files and streams that know where what stands, and keep checksums right.

A wrong checksum is found at once; so most changes are followed by a right one, as by somebody who means
harm. Tables are also written anew with other values, types and columns.
"""

from __future__ import annotations

import io
import json
import struct
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from support.fuzz.changes import NUMBERS, cut_off, damaged, put_number
from support.fuzz.values import TEXTS, change, text_of
from support.runs.damage import checked_file

from tracelens.conversion.messages import (
    BATCH,
    LEAD,
    MAGIC,
    Message,
    fill_in_checksum,
    get_footer,
    iterate_messages,
)
from tracelens.schema import side

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

__all__ = ["changed_file", "changed_stream", "changed_table", "table_of"]

_COMPRESSIONS: Final = (None, None, "zstd", "lz4")
_TEXTS: Final = (side.METADATA_KEY, side.METADATA_KEY, side.COMMUNICATORS_KEY, side.SUMMARY_KEY)
_TYPES: Final = (pa.int8(), pa.int64(), pa.float64(), pa.string(), pa.bool_(), pa.timestamp("ns"))


def changed_file(base: bytes, luck: random.Random) -> bytes:
    """Change a recording's file, which has a footer or has been cut off before it."""
    kind = luck.random()
    if kind < 0.15:
        return damaged(base, luck)
    content = bytearray(base)
    if kind < 0.5:
        content = bytearray(_written_anew(base, luck))
        if luck.random() < 0.5:
            return bytes(content)
    if kind < 0.6:
        _change_footer(content, luck)
    elif kind < 0.65:
        cut_off(content, luck)
    else:
        _change_messages(content, luck, len(LEAD))
    return bytes(content)


def changed_stream(base: bytes, luck: random.Random) -> bytes:
    """Change a stream without a footer."""
    content = bytearray(base)
    if luck.random() < 0.3:
        return damaged(base, luck)
    if luck.random() < 0.4:
        with pa.ipc.open_stream(base) as stream:
            table = changed_table(stream.read_all(), luck)
        sink = io.BytesIO()
        options = pa.ipc.IpcWriteOptions(compression=luck.choice(_COMPRESSIONS))
        with pa.ipc.new_stream(sink, table.schema, options=options) as stream:
            stream.write_table(table)
        content = bytearray(sink.getvalue())
        if luck.random() < 0.5:
            return bytes(content)
    _change_messages(content, luck, 0)
    return bytes(content)


def table_of(base: bytes) -> pa.Table:
    """Read a base, which is sound."""
    with pa.ipc.open_file(base) as reader:
        return reader.read_all()


def _written_anew(base: bytes, luck: random.Random) -> bytes:
    """Return a file of changed columns, words or side tables, all of whose checksums are right."""
    try:
        table = table_of(base)
    except (pa.ArrowException, OSError, ValueError):
        return base
    change_ = _with_other_texts if luck.random() < 0.4 else changed_table
    table = change_(table, luck)
    options = pa.ipc.IpcWriteOptions(
        compression=luck.choice(_COMPRESSIONS), unify_dictionaries=luck.random() < 0.5
    )
    try:
        return checked_file(table, options, luck.choice((None, None, 40)))
    except (pa.ArrowException, ValueError):  # what does not fit together is not written
        return base


def _with_other_texts(table: pa.Table, luck: random.Random) -> pa.Table:
    """Change side tables, and mostly make their checksum right again."""
    metadata = dict(table.schema.metadata or {})
    for key in {luck.choice(_TEXTS): 0 for _ in range(2)}:
        if key in metadata:
            value = json.loads(metadata[key])
            for _ in range(luck.randint(1, 3)):
                value = change(value, luck)
            metadata[key] = text_of(value, luck)
    if side.METADATA_CHECKSUM_KEY in metadata and luck.random() < 0.95:
        metadata = side.with_checksum(metadata)
    return table.replace_schema_metadata(metadata)


def changed_table(table: pa.Table, luck: random.Random) -> pa.Table:
    """Return a table with other values, types, rows or columns."""
    for _ in range(luck.randint(1, 3)):
        try:
            changed = luck.choice(_OF_TABLES)(table, luck)
            changed.validate()
        except (
            pa.ArrowException,
            ValueError,
            TypeError,
            OverflowError,
        ):  # this value has no such type
            continue
        table = changed if changed.num_columns else table
    return table


def _change_values(table: pa.Table, luck: random.Random) -> pa.Table:
    """Replace some values of a column, or all, by numbers or words at the edge."""
    column_index = luck.randrange(table.num_columns)
    field, column = table.schema.field(column_index), table.column(column_index)
    rows = column.to_pylist()
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    pool: tuple[Any, ...] = TEXTS if pa.types.is_string(kind) else NUMBERS
    for row in range(len(rows)) if luck.random() < 0.3 else _draw_rows(rows, luck):
        rows[row] = luck.choice((None, *pool))
    return _with(table, column_index, field, _array(rows, field.type))


def _array(rows: list[Any], kind: pa.DataType) -> pa.Array[Any]:
    """Make a column of a type, or of the one that the values have if they do not fit."""
    plain = kind.value_type if isinstance(kind, pa.DictionaryType) else kind
    try:
        array = pa.array(rows, plain)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        fitting = [row if isinstance(row, int) and -128 <= row < 128 else None for row in rows]
        try:
            array = pa.array(fitting, plain)
        except (pa.ArrowException, ValueError, TypeError):
            array = pa.array([None] * len(rows), plain)
    if isinstance(kind, pa.DictionaryType):
        encoded = array.dictionary_encode()
        return pa.DictionaryArray.from_arrays(
            encoded.indices.cast(kind.index_type, safe=False), encoded.dictionary, safe=False
        )
    return array


def _draw_rows(rows: list[Any], luck: random.Random) -> list[int]:
    return [luck.randrange(len(rows)) for _ in range(luck.randint(1, 3))] if rows else []


def _with(table: pa.Table, place: int, field: pa.Field[Any], column: Any) -> pa.Table:
    """Put in a column; where it holds nulls that its field forbids the field stays as it is."""
    columns: list[Any] = [column.combine_chunks() for column in table.columns]
    columns[place] = column
    fields = [*table.schema]
    fields[place] = pa.field(field.name, column.type, field.nullable, field.metadata)
    metadata: Any = table.schema.metadata
    return pa.Table.from_arrays(columns, schema=pa.schema(fields, metadata))


def _change_type(table: pa.Table, luck: random.Random) -> pa.Table:
    column_index = luck.randrange(table.num_columns)
    rows = table.column(column_index).to_pylist()
    kind = luck.choice(_TYPES)
    try:
        column = pa.array([None if row is None else str(row) for row in rows]).cast(kind)
    except pa.ArrowException:
        column = pa.nulls(len(rows), kind)
    return _with(table, column_index, table.schema.field(column_index), column)


def _drop_column(table: pa.Table, luck: random.Random) -> pa.Table:
    return table.remove_column(luck.randrange(table.num_columns))


def _repeat_column(table: pa.Table, luck: random.Random) -> pa.Table:
    place = luck.randrange(table.num_columns)
    return table.append_column(table.schema.field(place), table.column(place))


def _rename_column(table: pa.Table, luck: random.Random) -> pa.Table:
    names = list(table.column_names)
    others = (*names, *(text for text in TEXTS if text.isprintable()))
    names[luck.randrange(len(names))] = luck.choice(others)
    return table.rename_columns(names)


def _change_rows(table: pa.Table, luck: random.Random) -> pa.Table:
    rows = table.num_rows
    count = luck.choice((0, 1, rows // 2, rows, rows * 2))
    chosen = pa.array([luck.randrange(rows) for _ in range(count)] if rows else [], pa.int64())
    return table.take(chosen)


def _sort_backwards(table: pa.Table, _luck: random.Random) -> pa.Table:
    return table.take(pa.array(range(table.num_rows)[::-1], pa.int64()))


_OF_TABLES: Final[tuple[Callable[[pa.Table, random.Random], pa.Table], ...]] = (
    _change_values, _change_values, _change_values, _change_values, _change_type, _drop_column,
    _repeat_column, _rename_column, _change_rows, _sort_backwards,
)  # fmt: skip


def _change_messages(content: bytearray, luck: random.Random, begin_byte: int) -> None:
    """Change headers and bodies of messages, then make the checksums right again, mostly."""
    messages = _messages(content, begin_byte)
    if not messages:
        return
    view = memoryview(content)
    for _ in range(luck.randint(1, 3)):
        message = luck.choice(messages)
        part = message.read_header(view) if luck.random() < 0.6 else message.read_body(view)
        put_number(part, luck, luck.choice(("<b", "<h", "<i", "<q")))
    if luck.random() < 0.9:
        _check_again(view, begin_byte, messages)


def _messages(content: bytearray, begin: int) -> list[Message]:
    whole_messages = []
    try:
        for message in iterate_messages(memoryview(bytes(content)), begin):
            whole_messages.append(message)  # noqa: PERF402 - what is whole counts if one is not
    except struct.error:
        pass
    return whole_messages


def _check_again(view: memoryview, begin_byte: int, messages: list[Message]) -> None:
    for message in messages:
        if message.kind == BATCH:
            try:
                fill_in_checksum(view[begin_byte : message.end_bytes])
            except (struct.error, ValueError, StopIteration):
                return
            begin_byte = message.end_bytes


def _change_footer(content: bytearray, luck: random.Random) -> None:
    """Change what a file's end says about where batches are, or how long it is itself."""
    try:
        size = len(get_footer(memoryview(bytes(content))))
    except struct.error:
        return
    end = len(content) - len(MAGIC) - 4
    if luck.random() < 0.1:
        struct.pack_into("<i", content, end, luck.choice(NUMBERS) % (1 << 31))
        return
    for _ in range(luck.randint(1, 3)):
        put_number(memoryview(content)[end - size : end], luck, luck.choice(("<i", "<q", "<b")))
