"""How the columns of a batch are laid out, as headers and the footer say; nothing is decoded here.

Wrong distances raise `struct.error`, never anything worse.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from tracelens.conversion.flatbuffers import byte, field, follow, number, records, root
from tracelens.conversion.messages import BATCH, DICTIONARY, LEAD, footer_content, messages
from tracelens.errors import NotATrace
from tracelens.schema.gate import limit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelens.conversion.messages import Message

__all__ = [
    "STORED",
    "ZSTD",
    "Growth",
    "Layout",
    "absent_columns",
    "declared_bytes",
    "dictionary_ids",
    "dictionary_of",
    "layout_of",
]

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

    `nodes` are how many rows each column has, and how many of them are null; `buffers`, where each
    begins in the body, and how long it is; `codec` by what they are compressed, None = not at all.
    """

    rows: int
    nodes: list[tuple[int, int]]
    buffers: list[tuple[int, int]]
    codec: int | None


def layout_of(header: memoryview) -> Layout:
    """Return the layout of a record batch, or of a dictionary's words.

    Raises:
        struct.error: it is neither, or the header is damaged.
    """
    batch = _batch_of(header)
    if batch is None:
        raise struct.error("it is no batch")
    compression = field(header, batch, _COMPRESSION)
    return Layout(
        rows=number(header, batch, _LENGTH),
        nodes=records(header, batch, _NODES, _PAIR),
        buffers=records(header, batch, _BUFFERS, _PAIR),
        codec=None if compression is None else byte(header, follow(header, compression), _CODEC),
    )


def absent_columns(header: memoryview, columns: int) -> set[int]:
    """Return the columns of a record batch in which every row is null.

    Where there are not as many nodes as `columns`, some are nested, and none is returned.

    Raises:
        struct.error: the header is damaged.
    """
    batch = _batch_of(header)
    nodes = [] if batch is None else records(header, batch, _NODES, _PAIR)
    if len(nodes) != columns:
        return set()
    return {index for index, (length, nulls) in enumerate(nodes) if length == nulls}


def declared_bytes(header: memoryview, body: memoryview) -> int:
    """Return the bytes that one message's buffers claim to hold when decompressed; 0 for a schema.

    Every compressed buffer begins with its full length, and the header says where buffers are.

    Raises:
        struct.error: the header points outside of itself or of the body.
    """
    read = _buffers if len(header) <= _SMALL else _buffers.__wrapped__
    buffers, compressed = read(bytes(header))
    total = 0
    for offset, length in buffers:
        if length and compressed:
            if offset < 0:
                raise struct.error("a buffer begins before its message")
            (full,) = struct.unpack_from("<q", body, offset)
            total += length if full == STORED else abs(full)
        else:
            total += abs(length)
    return total


class Growth:
    """Counts the bytes that a file of `size` bytes claims to become when it is decompressed."""

    def __init__(
        self, size: int, *, min_allowance: int = MIN_ALLOWANCE, max_growth: int = MAX_GROWTH
    ) -> None:
        self._size = size
        self._allowed = min(max(min_allowance, max_growth * size), limit("decompressed"))
        self._total = 0

    def add(self, message: Message, content: memoryview) -> None:
        """Count one more message.

        Raises:
            NotATrace: it is too much.
            struct.error: it is damaged.
        """
        self.add_bytes(declared_bytes(message.header(content), message.body(content)))

    def add_bytes(self, count: int) -> None:
        """Count more decompressed bytes.

        Raises:
            NotATrace: it is too much.
        """
        self._total += count
        if self._total > self._allowed:
            raise NotATrace(
                f"its {self._size} bytes would become more than {self._allowed} when decompressed"
            )

    def add_all(self, content: memoryview, begin: int = len(LEAD)) -> None:
        """Count all messages of a stream, up to the first that is damaged or cut off.

        Raises:
            NotATrace: they are too much.
        """
        try:
            for message in messages(content, begin):
                self.add(message, content)
        except struct.error:
            return


@lru_cache(_FEW)
def _buffers(header: bytes) -> tuple[list[tuple[int, int]], bool]:
    """Return (offset, length) of each buffer, and whether they are compressed."""
    view = memoryview(header)
    batch = _batch_of(view)
    if batch is None:
        return [], False
    return records(view, batch, _BUFFERS, _PAIR), field(view, batch, _COMPRESSION) is not None


def dictionary_of(header: memoryview) -> int | None:
    """Return the number of the dictionary that a message defines; None if it only adds words.

    Raises:
        struct.error: the header is damaged.
    """
    table = field(header, root(header), _HEADER)
    if table is None:
        raise struct.error("a message has no header")
    dictionary = follow(header, table)
    if byte(header, dictionary, _IS_DELTA):
        return None
    return number(header, dictionary, _DICTIONARY_ID)


def dictionary_ids(content: memoryview, columns: Iterable[int]) -> list[int]:
    """Return the dictionary number of each of some columns of a file, by its footer.

    Raises:
        struct.error: the footer is damaged, a column has none, or numbers have their high bytes first.
    """
    footer = footer_content(content)
    schema_position = field(footer, root(footer), _SCHEMA)
    schema = None if schema_position is None else follow(footer, schema_position)
    fields = None if schema is None else field(footer, schema, _FIELDS)
    if schema is None or fields is None or byte(footer, schema, _ENDIANNESS):
        raise struct.error("there is no schema as it was written here")
    vector = follow(footer, fields)
    ids = []
    for column in columns:
        encoding = field(footer, follow(footer, vector + 4 + 4 * column), _ENCODING)
        if encoding is None:
            raise struct.error("a column has no dictionary")
        ids.append(number(footer, follow(footer, encoding), _ENCODING_ID))
    return ids


def _batch_of(header: memoryview) -> int | None:
    """Return the position of the table of a record batch, also of that in a dictionary."""
    message = root(header)
    kind, table = field(header, message, _HEADER_TYPE), field(header, message, _HEADER)
    if kind is None or table is None:
        return None
    (header_type,) = struct.unpack_from("<B", header, kind)
    if header_type == DICTIONARY:
        table = field(header, follow(header, table), _DATA)
    return (
        None if table is None or header_type not in {DICTIONARY, BATCH} else follow(header, table)
    )
