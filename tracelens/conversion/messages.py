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

from tracelens.conversion.flatbuffers import (
    find_field,
    find_root,
    find_text,
    follow_offset,
    read_number,
    read_structs,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC: Final = b"ARROW1"
LEAD: Final = MAGIC + b"\0\0"  # of a file; after it comes a stream
END: Final = b"\xff\xff\xff\xff\0\0\0\0"  # of the stream
CHECKSUM_KEY: Final = b"crc32"
NO_CHECKSUM: Final = b"00000000"

_ALIGNMENT_BYTES: Final = 8
_PREFIX: Final = struct.Struct("<iI")  # of a message: -1, and how long its header is
_BLOCK: Final = struct.Struct("<qi4xq")
_TAIL: Final = struct.Struct("<i6s")  # of a file: how long its footer is, and the magic
DICTIONARY, BATCH = 2, 3  # MessageHeader in Message.fbs
_HEADER_TYPE, _HEADER, _BODY_LENGTH, _CUSTOM = 1, 2, 3, 4  # fields of Message
_DICTIONARY_ID: Final = 0  # field of DictionaryBatch
_KEY, _VALUE = 0, 1  # fields of KeyValue
_DICTIONARIES, _BATCHES = 2, 3  # fields of Footer
_MAX_METADATA_PAIRS: Final = 64  # of custom metadata that are looked at


class Message(NamedTuple):
    """A message's position and lengths in a file, in bytes; the header includes its prefix."""

    kind: int
    dictionary_id: int
    offset_bytes: int
    header_bytes: int
    body_bytes: int

    @property
    def end_bytes(self) -> int:
        """The place after its body."""
        return self.offset_bytes + self.header_bytes + self.body_bytes

    def read_header(self, content: memoryview) -> memoryview:
        """Return its FlatBuffer."""
        return slice_header(content[self.offset_bytes :], self.header_bytes)

    def read_body(self, content: memoryview) -> memoryview:
        """Return its body."""
        return content[self.offset_bytes + self.header_bytes : self.end_bytes]


def slice_header(message: memoryview, header_bytes: int) -> memoryview:
    """Return the FlatBuffer of a message, which comes first."""
    return message[_PREFIX.size : header_bytes]


class Footer(NamedTuple):
    """The messages that a file's footer names, and where it begins itself."""

    dictionary_messages: list[Message]
    batch_messages: list[Message]
    begin_bytes: int


def iterate_messages(content: memoryview, offset: int = len(LEAD)) -> Iterator[Message]:
    """Yield the messages from `offset` on, until the end of the stream, or of the content.

    Raises:
        struct.error: one is damaged or cut off.
    """
    while offset < len(content):
        continuation_mark, header_length = _PREFIX.unpack_from(content, offset)
        if continuation_mark != -1:
            raise struct.error("a message does not begin as one")
        if not header_length:
            return
        header_begin = offset + _PREFIX.size
        header = content[header_begin : header_begin + header_length]
        message = _parse_message(header, offset)
        if (
            len(header) < header_length
            or message.body_bytes < 0
            or message.end_bytes > len(content)
        ):
            raise struct.error("a message is cut off")
        yield message
        offset = message.end_bytes


def _parse_message(header: memoryview, offset: int) -> Message:
    """Parse the header of the message that begins at `offset`."""
    table = find_root(header)
    type_position = find_field(header, table, _HEADER_TYPE)
    header_position = find_field(header, table, _HEADER)
    if type_position is None or header_position is None:
        raise struct.error("a message has no header")
    (header_type,) = struct.unpack_from("<B", header, type_position)
    dictionary_id = 0  # of what is no dictionary
    if header_type == DICTIONARY:
        dictionary_table = follow_offset(header, header_position)
        dictionary_id = read_number(header, dictionary_table, _DICTIONARY_ID)
    return Message(
        kind=header_type,
        dictionary_id=dictionary_id,
        offset_bytes=offset,
        header_bytes=_PREFIX.size + len(header),
        body_bytes=read_number(header, table, _BODY_LENGTH),
    )


def read_footer(content: memoryview) -> Footer:
    """Read which messages the footer of a file names.

    Raises:
        struct.error: it is missing, or names bytes outside of the messages.
    """
    footer = get_footer(content)
    footer_begin = len(content) - _TAIL.size - len(footer)
    table = find_root(footer)
    return Footer(
        _read_blocks(footer, table, _DICTIONARIES, DICTIONARY, footer_begin),
        _read_blocks(footer, table, _BATCHES, BATCH, footer_begin),
        footer_begin,
    )


def get_footer(content: memoryview) -> memoryview:
    """Return the FlatBuffer at the end of a file.

    Raises:
        struct.error: it is missing.
    """
    footer_end = len(content) - _TAIL.size
    if footer_end < 0:
        raise struct.error("there is no room for a footer")
    footer_length, magic = _TAIL.unpack_from(content, footer_end)
    if magic != MAGIC or not 0 < footer_length <= footer_end:
        raise struct.error("there is no footer")
    return content[footer_end - footer_length : footer_end]


def _read_blocks(
    footer: memoryview, table: int, index: int, kind: int, limit: int
) -> list[Message]:
    """Return the messages of one kind that a field of a footer lists.

    `table` is the byte offset of the footer's table, and `index` the number of the field in it. The
    messages end before byte `limit` of the file.
    """
    listed = [
        Message(
            kind, dictionary_id=0, offset_bytes=offset, header_bytes=length, body_bytes=body_length
        )
        for offset, length, body_length in read_structs(footer, table, index, _BLOCK)
    ]
    for message in listed:
        begins_early = message.offset_bytes < len(LEAD) or message.header_bytes < _PREFIX.size
        if begins_early or message.body_bytes < 0 or message.end_bytes > limit:
            raise struct.error("a message lies outside of the file")
    return listed


def add_blocks_to_footer(footer: bytes, file_messages: list[Message]) -> bytes:
    """Return a footer with the positions of messages, made of that of an empty file.

    Of several messages of a dictionary the last counts, as words are only ever added to one.
    """
    last_dictionaries = {
        message.dictionary_id: message for message in file_messages if message.kind == DICTIONARY
    }
    batches = [message for message in file_messages if message.kind == BATCH]
    for index, messages_of_kind in (
        (_DICTIONARIES, list(last_dictionaries.values())),
        (_BATCHES, batches),
    ):
        # Of each message the offset, and the bytes of header and body.
        blocks = b"".join(_BLOCK.pack(*message[2:]) for message in messages_of_kind)
        footer = _replace_vector(footer, index, len(messages_of_kind), blocks)
    return footer


def _replace_vector(footer: bytes, field_index: int, element_count: int, elements: bytes) -> bytes:
    """Return the footer with a vector field replaced by `elements`, structs at its end."""
    longer_footer = bytearray(footer)
    # A vector's content is aligned, and its length stands right before it.
    longer_footer += bytes(-(len(longer_footer) + 4) % _ALIGNMENT_BYTES)
    field_position = find_field(memoryview(footer), find_root(memoryview(footer)), field_index)
    if field_position is None:
        raise struct.error("the field to be replaced is missing")
    struct.pack_into("<I", longer_footer, field_position, len(longer_footer) - field_position)
    return bytes(longer_footer) + struct.pack("<I", element_count) + elements


def fill_in_checksum(content: memoryview) -> None:
    """Write the checksum of all of `content` into its last message, a record batch, in place.

    Raises:
        struct.error: it has no place for one.
    """
    *_, last_message = iterate_messages(content, offset=0)
    offset_in_header = _find_checksum(last_message.read_header(content))
    if offset_in_header is None or last_message.kind != BATCH:
        raise struct.error("the last message has no place for a checksum")
    digits_begin = last_message.offset_bytes + _PREFIX.size + offset_in_header
    content[digits_begin : digits_begin + len(NO_CHECKSUM)] = b"%08x" % _compute_checksum(
        content, digits_begin
    )


def has_sound_checksum(content: memoryview, begin: int, batch: Message) -> bool | None:
    """Return True if a batch's checksum of the bytes from `begin` on is right; None without one.

    Raises:
        struct.error: its header is damaged.
    """
    offset_in_header = _find_checksum(batch.read_header(content))
    if offset_in_header is None:
        return None
    digits_begin = batch.offset_bytes + _PREFIX.size + offset_in_header
    stored_digits = bytes(content[digits_begin : digits_begin + len(NO_CHECKSUM)])
    return stored_digits == b"%08x" % _compute_checksum(
        content[begin : batch.end_bytes], digits_begin - begin
    )


def _compute_checksum(content: memoryview, digits_begin: int) -> int:
    """Return the CRC-32 of content whose digits at `digits_begin` count as zeros."""
    crc = zlib.crc32(NO_CHECKSUM, zlib.crc32(content[:digits_begin]))
    return zlib.crc32(content[digits_begin + len(NO_CHECKSUM) :], crc)


def _find_checksum(header: memoryview) -> int | None:
    """Return the offset of the checksum's digits in a message's header; None without them."""
    pairs_position = find_field(header, find_root(header), _CUSTOM)
    if pairs_position is None:
        return None
    pair_vector = follow_offset(header, pairs_position)
    (pair_count,) = struct.unpack_from("<I", header, pair_vector)
    for pair_index in range(min(pair_count, _MAX_METADATA_PAIRS)):
        pair_position = follow_offset(header, pair_vector + 4 + 4 * pair_index)
        key_begin, key_end = find_text(header, pair_position, _KEY)
        begin, end = find_text(header, pair_position, _VALUE)
        if bytes(header[key_begin:key_end]) == CHECKSUM_KEY and end - begin == len(NO_CHECKSUM):
            return begin
    return None
