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

from tracelens.conversion.flatbuffers import field, follow, number, records, root, text

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
    "checksum_holds",
    "footer_content",
    "footer_of",
    "header_in",
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
_TAIL: Final = struct.Struct("<i6s")  # of a file: how long its footer is, and the magic
DICTIONARY, BATCH = 2, 3  # MessageHeader in Message.fbs
_HEADER_TYPE, _HEADER, _BODY_LENGTH, _CUSTOM = 1, 2, 3, 4  # fields of Message
_DICTIONARY_ID: Final = 0  # field of DictionaryBatch
_DICTIONARIES, _BATCHES = 2, 3  # fields of Footer
_MOST_PAIRS: Final = 64  # of custom metadata that are looked at


class Message(NamedTuple):
    """A message's position and lengths in a file, in bytes; the header includes its prefix."""

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
        return header_in(content[self.offset :], self.header_bytes)

    def body(self, content: memoryview) -> memoryview:
        """Return its body."""
        return content[self.offset + self.header_bytes : self.end]


def header_in(message: memoryview, header_bytes: int) -> memoryview:
    """Return the FlatBuffer of a message, which comes first."""
    return message[_PREFIX.size : header_bytes]


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
        header = content[begin : begin + size]
        message = _message(header, offset)
        if len(header) < size or message.body_bytes < 0 or message.end > len(content):
            raise struct.error("a message is cut off")
        yield message
        offset = message.end


def _message(header: memoryview, offset: int) -> Message:
    table = root(header)
    type_position = field(header, table, _HEADER_TYPE)
    header_position = field(header, table, _HEADER)
    body_position = field(header, table, _BODY_LENGTH)
    if type_position is None or header_position is None:
        raise struct.error("a message has no header")
    (header_type,) = struct.unpack_from("<B", header, type_position)
    is_dictionary = header_type == DICTIONARY
    return Message(
        kind=header_type,
        dictionary=number(header, follow(header, header_position), _DICTIONARY_ID)
        if is_dictionary
        else 0,
        offset=offset,
        header_bytes=_PREFIX.size + len(header),
        body_bytes=0
        if body_position is None
        else struct.unpack_from("<q", header, body_position)[0],
    )


def footer_of(content: memoryview) -> Footer:
    """Read which messages the footer of a file names.

    Raises:
        struct.error: it is missing, or names bytes outside of the messages.
    """
    footer = footer_content(content)
    footer_begin = len(content) - _TAIL.size - len(footer)
    table = root(footer)
    return Footer(
        _blocks(footer, table, _DICTIONARIES, DICTIONARY, footer_begin),
        _blocks(footer, table, _BATCHES, BATCH, footer_begin),
        footer_begin,
    )


def footer_content(content: memoryview) -> memoryview:
    """Return the FlatBuffer at the end of a file.

    Raises:
        struct.error: it is missing.
    """
    end = len(content) - _TAIL.size
    if end < 0:
        raise struct.error("there is no room for a footer")
    size, magic = _TAIL.unpack_from(content, end)
    if magic != MAGIC or not 0 < size <= end:
        raise struct.error("there is no footer")
    return content[end - size : end]


def _blocks(footer: memoryview, table: int, index: int, kind: int, limit: int) -> list[Message]:
    messages_in_footer = [
        Message(kind, 0, *block) for block in records(footer, table, index, _BLOCK)
    ]
    if any(
        m.offset < len(LEAD) or m.header_bytes < _PREFIX.size for m in messages_in_footer
    ) or any(m.body_bytes < 0 or m.end > limit for m in messages_in_footer):
        raise struct.error("a message lies outside of the file")
    return messages_in_footer


def with_blocks(footer: bytes, file_messages: list[Message]) -> bytes:
    """Put the places of messages into the footer of an empty file with the same schema.

    Of several messages of a dictionary the last counts, as words are only ever added to one.
    """
    last_dictionaries = {
        message.dictionary: message for message in file_messages if message.kind == DICTIONARY
    }
    batches = [message for message in file_messages if message.kind == BATCH]
    for index, messages_of_kind in (
        (_DICTIONARIES, list(last_dictionaries.values())),
        (_BATCHES, batches),
    ):
        blocks = b"".join(_BLOCK.pack(*message[2:]) for message in messages_of_kind)
        footer = _with_vector(footer, index, len(messages_of_kind), blocks)
    return footer


def _with_vector(buffer: bytes, index: int, count: int, content: bytes) -> bytes:
    """Replace a vector field of the outermost table, by one of `count` structures put at the end."""
    grown = bytearray(buffer)
    # A vector's content is aligned, and its length stands right before it.
    grown += bytes(-(len(grown) + 4) % _ALIGNMENT)
    field_position = field(memoryview(buffer), root(memoryview(buffer)), index)
    if field_position is None:
        raise struct.error("the field to be replaced is missing")
    struct.pack_into("<I", grown, field_position, len(grown) - field_position)
    return bytes(grown) + struct.pack("<I", count) + content


def with_checksum(content: memoryview) -> None:
    """Fill in the checksum of the last message, a record batch, over all of `content`.

    Raises:
        struct.error: it has no place for one.
    """
    *_, last_message = messages(content, 0)
    digits_in_header = _checksum_at(last_message.header(content))
    if digits_in_header is None or last_message.kind != BATCH:
        raise struct.error("the last message has no place for a checksum")
    digits = last_message.offset + _PREFIX.size + digits_in_header
    content[digits : digits + len(NO_CHECKSUM)] = b"%08x" % _checksum(content, digits)


def checksum_holds(content: memoryview, begin: int, batch: Message) -> bool | None:
    """Return True if a batch's checksum, over bytes from `begin` on, is right; None without a checksum.

    Raises:
        struct.error: its header is damaged.
    """
    digits_in_header = _checksum_at(batch.header(content))
    if digits_in_header is None:
        return None
    digits = batch.offset + _PREFIX.size + digits_in_header
    stored_digits = bytes(content[digits : digits + len(NO_CHECKSUM)])
    return stored_digits == b"%08x" % _checksum(content[begin : batch.end], digits - begin)


def _checksum(content: memoryview, digits: int) -> int:
    """Return the CRC-32 of content in which the digits at `digits` are zeros."""
    crc = zlib.crc32(NO_CHECKSUM, zlib.crc32(content[:digits]))
    return zlib.crc32(content[digits + len(NO_CHECKSUM) :], crc)


def _checksum_at(header: memoryview) -> int | None:
    """Return the position of the checksum's digits in a message's header, or None."""
    pairs_position = field(header, root(header), _CUSTOM)
    if pairs_position is None:
        return None
    vector = follow(header, pairs_position)
    (count,) = struct.unpack_from("<I", header, vector)
    for pair_index in range(min(count, _MOST_PAIRS)):
        pair_position = follow(header, vector + 4 + 4 * pair_index)
        key, value = (text(header, pair_position, index) for index in (0, 1))
        if bytes(header[slice(*key)]) == CHECKSUM_KEY and value[1] - value[0] == len(NO_CHECKSUM):
            return value[0]
    return None
