"""The messages of an Arrow stream, the places in a file's footer, and the checksum of each batch.

Nothing is decoded here. Headers and footer are FlatBuffers: a table is a list of fields that may be
missing; a field that is a table or vector is a distance ahead (flatbuffers.dev/internals; the fields:
Message.fbs and File.fbs of Apache Arrow). Wrong distances raise `struct.error`, never anything worse.

The header of each record batch has custom metadata with the key `CHECKSUM_KEY`: eight hexadecimal
digits, the CRC-32 (that of zlib) of all bytes since the end of the record batch before it, or since
the file's first eight bytes, up to the end of the batch's own body; these eight digits count as
zeros. So the dictionaries that come before a batch, and the schema before the first, are in it, too.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "BATCH",
    "CHECKSUM_KEY",
    "DICTIONARY",
    "END",
    "LEAD",
    "MAGIC",
    "NO_CHECKSUM",
    "Footer",
    "Message",
    "absent_columns",
    "checksum_holds",
    "declared_bytes",
    "footer_of",
    "messages",
    "with_blocks",
    "with_checksum",
]

MAGIC: Final = b"ARROW1"
LEAD: Final = MAGIC + b"\0\0"  # of a file; after it comes a stream
END: Final = b"\xff\xff\xff\xff\0\0\0\0"  # of the stream
CHECKSUM_KEY: Final = b"crc32"
NO_CHECKSUM: Final = b"00000000"

_ALIGNMENT: Final = 8
_PREFIX: Final = struct.Struct("<iI")  # of a message: -1, and how long its header is
_BLOCK: Final = struct.Struct("<qi4xq")
_PAIR: Final = struct.Struct("<qq")
_TAIL: Final = struct.Struct("<i6s")  # of a file: how long its footer is, and the magic
DICTIONARY, BATCH = 2, 3  # MessageHeader in Message.fbs
_HEADER_TYPE, _HEADER, _BODY_LENGTH, _CUSTOM = 1, 2, 3, 4  # fields of Message
_DICTIONARY_ID, _DATA = 0, 1  # fields of DictionaryBatch
_NODES, _BUFFERS, _COMPRESSION = 1, 2, 3  # fields of RecordBatch
_DICTIONARIES, _BATCHES = 2, 3  # fields of Footer
_MOST_PAIRS: Final = 64  # of custom metadata that are looked at
_STORED: Final = -1  # in place of a length: the buffer is not compressed


class Message(NamedTuple):
    """Where a message stands in a file, in bytes; the header includes its prefix."""

    kind: int
    dictionary: int
    offset: int
    header_bytes: int
    body_bytes: int

    @property
    def end(self) -> int:
        """The place after its body."""
        return self.offset + self.header_bytes + self.body_bytes

    def header(self, content: memoryview) -> memoryview:
        """Return its FlatBuffer."""
        return content[self.offset + _PREFIX.size : self.offset + self.header_bytes]

    def body(self, content: memoryview) -> memoryview:
        """Return what follows the header."""
        return content[self.offset + self.header_bytes : self.end]


class Footer(NamedTuple):
    """The messages that a file's footer names, and where it begins itself."""

    dictionaries: list[Message]
    batches: list[Message]
    begin: int


def messages(content: memoryview, offset: int = len(LEAD)) -> Iterator[Message]:
    """Yield each message until the end of the stream, or of the content.

    Raises:
        struct.error: one is damaged or cut off.
    """
    while offset < len(content):
        mark, size = _PREFIX.unpack_from(content, offset)
        if mark != -1:
            raise struct.error("a message does not begin as one")
        if not size:
            return
        begin = offset + _PREFIX.size
        message = _message(content[begin : begin + size], offset)
        if message.body_bytes < 0 or message.end > len(content):
            raise struct.error("a message is cut off")
        yield message
        offset = message.end


def _message(header: memoryview, offset: int) -> Message:
    table = _root(header)
    kind = _field(header, table, _HEADER_TYPE)
    inner = _field(header, table, _HEADER)
    body = _field(header, table, _BODY_LENGTH)
    if kind is None or inner is None:
        raise struct.error("a message has no header")
    (found,) = struct.unpack_from("<B", header, kind)
    number = None
    if found == DICTIONARY:
        number = _field(header, _followed(header, inner), _DICTIONARY_ID)
    return Message(
        kind=found,
        dictionary=0 if number is None else struct.unpack_from("<q", header, number)[0],
        offset=offset,
        header_bytes=_PREFIX.size + len(header),
        body_bytes=0 if body is None else struct.unpack_from("<q", header, body)[0],
    )


def footer_of(content: memoryview) -> Footer:
    """Read which messages the footer of a file names.

    Raises:
        struct.error: there is none, or it names places outside of what precedes it.
    """
    end = len(content) - _TAIL.size
    if end < 0:
        raise struct.error("there is no room for a footer")
    size, magic = _TAIL.unpack_from(content, end)
    if magic != MAGIC or not 0 < size <= end:
        raise struct.error("there is no footer")
    footer = content[end - size : end]
    table = _root(footer)
    return Footer(
        _blocks(footer, table, _DICTIONARIES, DICTIONARY, end - size),
        _blocks(footer, table, _BATCHES, BATCH, end - size),
        end - size,
    )


def _blocks(footer: memoryview, table: int, index: int, kind: int, limit: int) -> list[Message]:
    at = _field(footer, table, index)
    if at is None:
        return []
    vector = _followed(footer, at)
    (count,) = struct.unpack_from("<I", footer, vector)
    content = footer[vector + 4 : vector + 4 + _BLOCK.size * count]
    if len(content) != _BLOCK.size * count:
        raise struct.error("a list of places is cut off")
    found = [Message(kind, 0, *block) for block in _BLOCK.iter_unpack(content)]
    if any(m.offset < len(LEAD) or m.header_bytes < _PREFIX.size for m in found) or any(
        m.body_bytes < 0 or m.end > limit for m in found
    ):
        raise struct.error("a message lies outside of the file")
    return found


def with_blocks(footer: bytes, found: list[Message]) -> bytes:
    """Put the places of messages into the footer of an empty file with the same schema.

    Of several messages of a dictionary the last counts, as words are only ever added to one.
    """
    last = {message.dictionary: message for message in found if message.kind == DICTIONARY}
    batches = [message for message in found if message.kind == BATCH]
    for index, named in ((_DICTIONARIES, list(last.values())), (_BATCHES, batches)):
        blocks = b"".join(_BLOCK.pack(*message[2:]) for message in named)
        footer = _with_vector(footer, index, len(named), blocks)
    return footer


def _with_vector(buffer: bytes, index: int, count: int, content: bytes) -> bytes:
    """Replace a vector field of the outermost table, by one of `count` structures put at the end."""
    grown = bytearray(buffer)
    # A vector's content is aligned, and its length stands right before it.
    grown += bytes(-(len(grown) + 4) % _ALIGNMENT)
    at = _field(memoryview(buffer), _root(memoryview(buffer)), index)
    if at is None:
        raise struct.error("the field to be replaced is missing")
    struct.pack_into("<I", grown, at, len(grown) - at)
    return bytes(grown) + struct.pack("<I", count) + content


def with_checksum(content: memoryview) -> None:
    """Fill in the checksum of the last message, a record batch, over all of `content`.

    Raises:
        struct.error: it has no place for one.
    """
    *_, last = messages(content, 0)
    at = _checksum_at(last.header(content))
    if at is None or last.kind != BATCH:
        raise struct.error("the last message has no place for a checksum")
    place = last.offset + _PREFIX.size + at
    content[place : place + len(NO_CHECKSUM)] = b"%08x" % _checksum(content, place)


def checksum_holds(content: memoryview, begin: int, batch: Message) -> bool | None:
    """Return whether a batch's checksum, from `begin` on, is right; None if it has none.

    Raises:
        struct.error: its header is damaged.
    """
    at = _checksum_at(batch.header(content))
    if at is None:
        return None
    place = batch.offset + _PREFIX.size + at
    given = bytes(content[place : place + len(NO_CHECKSUM)])
    return given == b"%08x" % _checksum(content[begin : batch.end], place - begin)


def _checksum(content: memoryview, place: int) -> int:
    """Return the CRC-32 of content in which the digits at `place` are zeros."""
    found = zlib.crc32(NO_CHECKSUM, zlib.crc32(content[:place]))
    return zlib.crc32(content[place + len(NO_CHECKSUM) :], found)


def _checksum_at(header: memoryview) -> int | None:
    """Return where in a message's header the digits of its checksum are."""
    custom = _field(header, _root(header), _CUSTOM)
    if custom is None:
        return None
    vector = _followed(header, custom)
    (count,) = struct.unpack_from("<I", header, vector)
    for index in range(min(count, _MOST_PAIRS)):
        pair = _followed(header, vector + 4 + 4 * index)
        key, value = (_text(header, pair, field) for field in (0, 1))
        if bytes(header[slice(*key)]) == CHECKSUM_KEY and value[1] - value[0] == len(NO_CHECKSUM):
            return value[0]
    return None


def _text(buffer: memoryview, table: int, index: int) -> tuple[int, int]:
    """Return begin and end of a text field."""
    at = _field(buffer, table, index)
    if at is None:
        return (0, 0)
    begin = _followed(buffer, at) + 4
    (size,) = struct.unpack_from("<I", buffer, begin - 4)
    if begin + size > len(buffer):
        raise struct.error("a text is cut off")
    return (begin, begin + size)


def absent_columns(header: memoryview, columns: int) -> set[int]:
    """Return the columns of a record batch in which every row is null.

    Where there are not as many nodes as `columns`, some are nested, and none is told.

    Raises:
        struct.error: the header is damaged.
    """
    inner = _field(header, _root(header), _HEADER)
    at = None if inner is None else _field(header, _followed(header, inner), _NODES)
    if at is None:
        return set()
    vector = _followed(header, at)
    (count,) = struct.unpack_from("<I", header, vector)
    if count != columns:
        return set()
    nodes = _PAIR.iter_unpack(header[vector + 4 : vector + 4 + _PAIR.size * count])
    return {index for index, (length, nulls) in enumerate(nodes) if length == nulls}


def declared_bytes(header: memoryview, body: memoryview) -> int:
    """Return how many bytes the buffers of one message claim to hold; 0 for a schema.

    Every compressed buffer begins with its full length, and the header says where buffers are.

    Raises:
        struct.error: the header points outside of itself or of the body.
    """
    message = _root(header)
    kind = _field(header, message, _HEADER_TYPE)
    table = _field(header, message, _HEADER)
    if kind is None or table is None:
        return 0
    (found,) = struct.unpack_from("<B", header, kind)
    if found not in {DICTIONARY, BATCH}:
        return 0
    batch = _followed(header, table)
    if found == DICTIONARY:
        data = _field(header, batch, _DATA)
        if data is None:
            return 0
        batch = _followed(header, data)
    buffers = _field(header, batch, _BUFFERS)
    if buffers is None:
        return 0
    compressed = _field(header, batch, _COMPRESSION) is not None
    return _total(header, _followed(header, buffers), body, compressed=compressed)


def _total(header: memoryview, vector: int, body: memoryview, *, compressed: bool) -> int:
    (count,) = struct.unpack_from("<I", header, vector)
    places = header[vector + 4 : vector + 4 + _PAIR.size * count]
    if len(places) != _PAIR.size * count:
        raise struct.error("a list of buffers is cut off")
    total = 0
    for offset, length in _PAIR.iter_unpack(places):
        if length and compressed:
            if offset < 0:
                raise struct.error("a buffer begins before its message")
            (full,) = struct.unpack_from("<q", body, offset)
            total += length if full == _STORED else abs(full)
        else:
            total += abs(length)
    return total


def _root(buffer: memoryview) -> int:
    """Return the position of the outermost table."""
    return int(struct.unpack_from("<I", buffer, 0)[0])


def _followed(buffer: memoryview, at: int) -> int:
    """Return the position to which the distance at `at` points."""
    return at + int(struct.unpack_from("<I", buffer, at)[0])


def _field(buffer: memoryview, table: int, index: int) -> int | None:
    """Return the position of a table's field, None if it has none."""
    vtable = table - struct.unpack_from("<i", buffer, table)[0]
    if vtable < 0:
        raise struct.error("a table begins before its header")
    (size,) = struct.unpack_from("<H", buffer, vtable)
    if 4 + 2 * index >= size:
        return None
    (offset,) = struct.unpack_from("<H", buffer, vtable + 4 + 2 * index)
    return table + offset if offset else None
