"""An Arrow file that grows batch by batch over a whole run, and is never written twice.

An Arrow file is the stream of its batches and then a footer, which repeats the schema and says
where the batches stand. What is written while the run lasts is such a file without its footer; the
last side tables come with the footer. Words are only ever added to a dictionary, so the last one of
each column serves all batches, and it is the one that the footer names.

Headers and footer are FlatBuffers: a table is a list of fields that may be missing; a field that is
a table or vector is a distance ahead (flatbuffers.dev/internals). Wrong distances raise
`struct.error`, never anything worse.
"""

from __future__ import annotations

import io
import mmap
import os
import struct
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import pyarrow as pa

from tracelens.schema.arrow import EVENT_SCHEMA, WRITE_OPTIONS, mapped
from tracelens.schema.ownership import NO_LINK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracelens.schema.side import SideTables

__all__ = ["GrowingFile", "field_of", "followed", "read_growing", "root_table", "with_vector"]


_ALIGNMENT = 8
_MAGIC: Final = b"ARROW1"
_LEAD: Final = _MAGIC + b"\0\0"
_END: Final = b"\xff\xff\xff\xff\0\0\0\0"  # of the stream
_PREFIX: Final = struct.Struct("<iI")  # of a message: -1, and how long its header is
_BLOCK: Final = struct.Struct("<qi4xq")
_DICTIONARY, _BATCH = 2, 3  # MessageHeader in Arrow's Message.fbs
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3  # fields of Message
_DICTIONARY_ID: Final = 0  # field of DictionaryBatch
_DICTIONARIES, _BATCHES = 2, 3  # fields of Footer in File.fbs


def root_table(buffer: memoryview) -> int:
    """Return the position of the outermost table."""
    return int(struct.unpack_from("<I", buffer, 0)[0])


def followed(buffer: memoryview, at: int) -> int:
    """Return the position to which the distance at `at` points."""
    return at + int(struct.unpack_from("<I", buffer, at)[0])


def field_of(buffer: memoryview, table: int, index: int) -> int | None:
    """Return the position of a table's field, None if it has none."""
    vtable = table - struct.unpack_from("<i", buffer, table)[0]
    if vtable < 0:
        raise struct.error("a table begins before its header")
    (size,) = struct.unpack_from("<H", buffer, vtable)
    if 4 + 2 * index >= size:
        return None
    (offset,) = struct.unpack_from("<H", buffer, vtable + 4 + 2 * index)
    return table + offset if offset else None


def with_vector(buffer: bytes, index: int, count: int, content: bytes) -> bytes:
    """Replace a vector field of the outermost table, by one of `count` structures put at the end."""
    grown = bytearray(buffer)
    # A vector's content is aligned, and its length stands right before it.
    grown += bytes(-(len(grown) + 4) % _ALIGNMENT)
    at = field_of(memoryview(buffer), root_table(memoryview(buffer)), index)
    if at is None:
        raise struct.error("the field to be replaced is missing")
    struct.pack_into("<I", grown, at, len(grown) - at)
    return bytes(grown) + struct.pack("<I", count) + content


class _Message(NamedTuple):
    kind: int
    dictionary: int
    offset: int
    header_bytes: int
    body_bytes: int

    def block(self) -> bytes:
        return _BLOCK.pack(self.offset, self.header_bytes, self.body_bytes)


class GrowingFile:
    """Appends batches to a file; `length` is how many bytes of it are whole."""

    def __init__(self, path: Path, side: SideTables, length: int = 0) -> None:
        """Create the file, or go on after its first `length` bytes, which are whole.

        Raises:
            OSError: it cannot be written.
        """
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | NO_LINK, 0o644)
        self._fresh = length == 0
        schema = EVENT_SCHEMA.with_metadata(side.to_metadata())
        self._written = io.BytesIO()
        self._writer = pa.ipc.new_stream(self._written, schema, options=WRITE_OPTIONS)
        try:
            os.ftruncate(self._descriptor, length)
            os.lseek(self._descriptor, length, os.SEEK_SET)
            self.length = length
            if self._fresh:
                self._append(_LEAD)
        except OSError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def append(self, batch: pa.RecordBatch) -> None:
        """Append a batch in `EVENT_SCHEMA`.

        Raises:
            OSError: there is no room.
        """
        self._writer.write_batch(batch)
        content = self._written.getvalue()
        self._written.seek(0)
        self._written.truncate()
        if not self._fresh and self._writer.stats.num_record_batches == 1:
            content = content[_schema_bytes(content) :]  # the file has one
        self._append(content)

    def sync(self) -> None:
        """Wait until the disk has it all.

        Raises:
            OSError: it does not get there.
        """
        os.fdatasync(self._descriptor)

    def finish(self, side: SideTables) -> None:
        """Make it a whole Arrow file, with the side tables as they are at the end.

        Raises:
            OSError: there is no room.
        """
        self._writer.close()
        if self._fresh and self._writer.stats.num_record_batches == 0:
            self._append(self._written.getvalue()[: -len(_END)])
        footer = _footer(list(self._messages()), side)
        self._append(_END + footer + struct.pack("<i", len(footer)) + _MAGIC)
        self.sync()

    def close(self) -> None:
        """Close the file, if it is open."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _append(self, content: bytes) -> None:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        self.length += len(content)

    def _messages(self) -> Iterator[_Message]:
        """Yield each message of the file, without reading its body."""
        with (
            mmap.mmap(self._descriptor, self.length, prot=mmap.PROT_READ) as mapped,
            memoryview(mapped) as content,
        ):
            offset = len(_LEAD)
            while offset < self.length:
                _, size = _PREFIX.unpack_from(content, offset)
                begin = offset + _PREFIX.size
                with content[begin : begin + size] as header:
                    message = _message(header, offset)
                yield message
                offset += message.header_bytes + message.body_bytes


def read_growing(path: Path, length: int) -> list[pa.RecordBatch]:
    """Read the batches in the first bytes of a file, which are whole; none if there are no bytes.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it cannot be read, or is shorter.
    """
    if not length:
        return []
    stream = mapped(path).slice(0, length).slice(len(_LEAD))
    with pa.ipc.open_stream(stream) as reader:
        return [batch.replace_schema_metadata(None) for batch in reader]


def _schema_bytes(stream: bytes) -> int:
    """Return the length of a stream's first message, its schema, which has no body."""
    return _PREFIX.size + int(_PREFIX.unpack_from(stream)[1])


def _message(header: memoryview, offset: int) -> _Message:
    table = root_table(header)
    kind = field_of(header, table, _HEADER_TYPE)
    inner = field_of(header, table, _HEADER)
    body = field_of(header, table, _BODY_LENGTH)
    if kind is None or inner is None:
        raise struct.error("a message has no header")
    number = None
    if header[kind] == _DICTIONARY:
        number = field_of(header, followed(header, inner), _DICTIONARY_ID)
    return _Message(
        kind=header[kind],
        dictionary=0 if number is None else struct.unpack_from("<q", header, number)[0],
        offset=offset,
        header_bytes=_PREFIX.size + len(header),
        body_bytes=0 if body is None else struct.unpack_from("<q", header, body)[0],
    )


def _footer(messages: list[_Message], side: SideTables) -> bytes:
    """Build a footer: that of an empty file with this schema, with the places of our batches."""
    sink = io.BytesIO()
    pa.ipc.new_file(sink, EVENT_SCHEMA.with_metadata(side.to_metadata())).close()
    content = sink.getvalue()
    (size,) = struct.unpack_from("<i", content, len(content) - len(_MAGIC) - 4)
    footer = content[-len(_MAGIC) - 4 - size : -len(_MAGIC) - 4]
    last = {message.dictionary: message for message in messages if message.kind == _DICTIONARY}
    batches = [message for message in messages if message.kind == _BATCH]
    for index, found in ((_DICTIONARIES, list(last.values())), (_BATCHES, batches)):
        blocks = b"".join(message.block() for message in found)
        footer = with_vector(footer, index, len(found), blocks)
    return footer
