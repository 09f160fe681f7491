"""How the columns of a batch are laid out, as headers and the footer say; nothing is decoded here.

Wrong distances raise `struct.error`, never anything worse.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from tracelens.conversion.flatbuffers import (
    find_field,
    find_root,
    follow_offset,
    read_byte,
    read_number,
    read_structs,
)
from tracelens.conversion.messages import BATCH, DICTIONARY, LEAD, get_footer, iterate_messages
from tracelens.errors import NotATrace
from tracelens.schema.gate import limit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelens.conversion.messages import Message

MAX_GROWTH: Final = 200  # traces shrink about 15-fold; a bomb a thousandfold
MIN_ALLOWANCE: Final = 16 << 20  # tiny files may grow more
_PAIR: Final = struct.Struct("<qq")
STORED: Final = -1  # in place of a length: the buffer is not compressed
ZSTD: Final = 1  # CompressionType in Message.fbs
_SMALL: Final = 512  # bytes of a header that may be that of other messages, too
_FEW: Final = 256  # of these
_HEADER_TYPE, _HEADER = 1, 2  # fields of Message
_DICTIONARY_ID, _DATA, _IS_DELTA = 0, 1, 2  # fields of DictionaryBatch
_LENGTH, _NODES, _BUFFERS, _COMPRESSION = 0, 1, 2, 3  # fields of RecordBatch
_CODEC: Final = 0  # field of BodyCompression
_SCHEMA: Final = 1  # field of Footer
_ENDIANNESS, _FIELDS = 0, 1  # fields of Schema
_ENCODING, _ENCODING_ID = 4, 0  # field of Field, and of DictionaryEncoding


class Layout(NamedTuple):
    """What the header of a batch says of its columns.

    `row_and_null_counts` has (rows, rows that are null) of each column, `buffer_ranges_bytes` (begin in
    the body, length) of each buffer; `codec` is what they are compressed by, None = not at all.
    """

    row_count: int
    row_and_null_counts: list[tuple[int, int]]
    buffer_ranges_bytes: list[tuple[int, int]]
    codec: int | None


def read_layout(header: memoryview) -> Layout:
    """Return the layout of a record batch, or of a dictionary's words.

    Raises:
        struct.error: it is neither, or the header is damaged.
    """
    batch = _find_batch(header)
    if batch is None:
        raise struct.error("it is no batch")
    position = find_field(header, batch, _COMPRESSION)
    codec = None if position is None else read_byte(header, follow_offset(header, position), _CODEC)
    return Layout(
        row_count=read_number(header, batch, _LENGTH),
        row_and_null_counts=read_structs(header, batch, _NODES, _PAIR),
        buffer_ranges_bytes=read_structs(header, batch, _BUFFERS, _PAIR),
        codec=codec,
    )


def find_absent_columns(header: memoryview, count: int) -> set[int]:
    """Return the indices of a record batch's columns in which every row is null.

    Where the number of nodes is not `count`, some columns are nested, and none is returned.

    Raises:
        struct.error: the header is damaged.
    """
    batch = _find_batch(header)
    nodes = [] if batch is None else read_structs(header, batch, _NODES, _PAIR)
    if len(nodes) != count:
        return set()
    return {index for index, (rows, null_count) in enumerate(nodes) if rows == null_count}


def sum_declared_bytes(header: memoryview, body: memoryview) -> int:
    """Return the bytes that a message's buffers claim to hold when decompressed; 0 for a schema.

    Every compressed buffer begins with its full length; the header says where the buffers are.

    Raises:
        struct.error: the header points outside of itself or of the body.
    """
    read_buffers = _read_buffers if len(header) <= _SMALL else _read_buffers.__wrapped__
    buffers, is_compressed = read_buffers(bytes(header))
    total_bytes = 0
    for offset, stored_length in buffers:
        if stored_length and is_compressed:
            if offset < 0:
                raise struct.error("a buffer begins before its message")
            (declared_length,) = struct.unpack_from("<q", body, offset)
            total_bytes += stored_length if declared_length == STORED else abs(declared_length)
        else:
            total_bytes += abs(stored_length)
    return total_bytes


class GrowthLimit:
    """Counts the bytes that a file of `size` bytes claims to become when it is decompressed."""

    def __init__(
        self, size: int, *, min_allowance: int = MIN_ALLOWANCE, max_growth: int = MAX_GROWTH
    ) -> None:
        self._size = size
        self._allowed = min(max(min_allowance, max_growth * size), limit("decompressed"))
        self._total = 0

    def count_message(self, message: Message, content: memoryview) -> None:
        """Count one more message.

        Raises:
            NotATrace: it is too much.
            struct.error: it is damaged.
        """
        self.count_bytes(
            sum_declared_bytes(message.read_header(content), message.read_body(content))
        )

    def count_bytes(self, count: int) -> None:
        """Count more decompressed bytes.

        Raises:
            NotATrace: it is too much.
        """
        self._total += count
        if self._total > self._allowed:
            raise NotATrace(
                f"its {self._size} bytes would become more than {self._allowed} when decompressed"
            )

    def count_stream(self, content: memoryview, begin: int = len(LEAD)) -> None:
        """Count all messages of a stream, up to the first that is damaged or cut off.

        Raises:
            NotATrace: they are too much.
        """
        try:
            for message in iterate_messages(content, begin):
                self.count_message(message, content)
        except struct.error:
            return


@lru_cache(_FEW)
def _read_buffers(header: bytes) -> tuple[list[tuple[int, int]], bool]:
    """Return (offset, length) of each buffer, and whether they are compressed."""
    view = memoryview(header)
    batch = _find_batch(view)
    if batch is None:
        return [], False
    is_compressed = find_field(view, batch, _COMPRESSION) is not None
    return read_structs(view, batch, _BUFFERS, _PAIR), is_compressed


def read_dictionary_id(header: memoryview) -> int | None:
    """Return the id of the dictionary that a message defines; None if it only adds words to one.

    Raises:
        struct.error: the header is damaged.
    """
    header_position = find_field(header, find_root(header), _HEADER)
    if header_position is None:
        raise struct.error("a message has no header")
    dictionary_table = follow_offset(header, header_position)
    if read_byte(header, dictionary_table, _IS_DELTA):
        return None
    return read_number(header, dictionary_table, _DICTIONARY_ID)


def read_dictionary_ids(content: memoryview, column_indices: Iterable[int]) -> list[int]:
    """Return the dictionary id of each of these columns of a file, by the file's footer.

    Raises:
        struct.error: the footer is damaged, a column has none, or numbers have their high bytes first.
    """
    footer = get_footer(content)
    schema_position = find_field(footer, find_root(footer), _SCHEMA)  # where its offset is
    schema = None if schema_position is None else follow_offset(footer, schema_position)
    fields_position = None if schema is None else find_field(footer, schema, _FIELDS)
    if schema is None or fields_position is None or read_byte(footer, schema, _ENDIANNESS):
        raise struct.error("there is no schema as it was written here")
    field_vector = follow_offset(footer, fields_position)
    ids = []
    for column_index in column_indices:
        field_table = follow_offset(footer, field_vector + 4 + 4 * column_index)
        encoding_position = find_field(footer, field_table, _ENCODING)
        if encoding_position is None:
            raise struct.error("a column has no dictionary")
        ids.append(read_number(footer, follow_offset(footer, encoding_position), _ENCODING_ID))
    return ids


def _find_batch(header: memoryview) -> int | None:
    """Return the position of a record batch's table, also of that in a dictionary; else None."""
    message = find_root(header)
    type_position = find_field(header, message, _HEADER_TYPE)
    table_position = find_field(header, message, _HEADER)
    if type_position is None or table_position is None:
        return None
    (header_type,) = struct.unpack_from("<B", header, type_position)
    if header_type == DICTIONARY:
        table_position = find_field(header, follow_offset(header, table_position), _DATA)
    if table_position is None or header_type not in {DICTIONARY, BATCH}:
        return None
    return follow_offset(header, table_position)
