"""An Arrow file that grows batch by batch over a whole run, and is never written twice.

An Arrow file is the stream of its batches and then a footer, which repeats the schema and says
where the batches stand. What is written while the run lasts is such a file without its footer; the
last side tables, and the summary, come with the footer. Words are only ever added to a dictionary, so
the last one of each column serves all batches, and it is the one that the footer names. So it is with
the columns that are the same in a whole file, should the process learn its rank late.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import pyarrow as pa

from tracelens.conversion.layout import GrowthLimit
from tracelens.conversion.messages import (
    CHECKSUM_KEY,
    END,
    LEAD,
    MAGIC,
    NO_CHECKSUM,
    add_blocks_to_footer,
    fill_in_checksum,
    iterate_messages,
)
from tracelens.conversion.tally import Tally
from tracelens.errors import NotATrace
from tracelens.schema.arrow import BATCH_ROWS, EVENT_SCHEMA, FILE_SCHEMA, WRITE_OPTIONS, map_file
from tracelens.schema.gate import read_contents
from tracelens.schema.ownership import NO_LINK
from tracelens.schema.vocabulary import SCHEMA_VERSION, make_stem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

    from tracelens.schema.side import Process, SideTables

_FIRST_VERSION: Final = 1  # without the constant columns, checksums and a summary


class GrowingFile:
    """Appends batches to a file; `length` is how many bytes of it are whole.

    A file that an older TraceLens began goes on in that version.
    """

    def __init__(self, path: Path, side: SideTables, length: int = 0) -> None:
        """Create the file, or go on after its first `length` bytes, which are whole.

        Raises:
            OSError: it cannot be written.
            NotATrace: these bytes are damaged.
        """
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | NO_LINK, 0o644)
        self._is_new = length == 0
        self._tally = Tally()
        self._empty_batch: pa.RecordBatch | None = None  # no row, but all words
        self._version = SCHEMA_VERSION
        try:
            os.ftruncate(self._descriptor, length)
            os.lseek(self._descriptor, length, os.SEEK_SET)
            self.length_bytes = length
            if self._is_new:
                self._append_bytes(LEAD)
            else:
                self._resume(path)
        except (OSError, NotATrace):
            self.close()
            raise
        self._process = side.process
        self._stream_buffer = io.BytesIO()
        schema = self._schema.with_metadata(self._with_file_version(side).to_metadata())
        self._writer = pa.ipc.new_stream(self._stream_buffer, schema, options=WRITE_OPTIONS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def append_batch(self, batch: pa.RecordBatch) -> None:
        """Append a batch in `EVENT_SCHEMA`.

        Raises:
            OSError: there is no room.
        """
        self._tally_batch(batch)
        if self._version == _FIRST_VERSION:  # a file that an older TraceLens began
            self._writer.write_batch(batch)
            self._flush(with_checksum=False)
            return
        columns = [*batch.columns, *_make_constant_columns(self._process, batch.num_rows)]
        file_batch = pa.RecordBatch.from_arrays(columns, schema=FILE_SCHEMA)
        self._writer.write_batch(file_batch, custom_metadata={CHECKSUM_KEY: NO_CHECKSUM})
        self._flush(with_checksum=True)

    def sync(self) -> None:
        """Wait until the disk has it all.

        Raises:
            OSError: it does not get there.
        """
        os.fdatasync(self._descriptor)

    def finish(self, side: SideTables) -> None:
        """Append the footer, with the final side tables, so that it is a whole Arrow file.

        Raises:
            OSError: there is no room.
        """
        side = self._with_file_version(side)
        process, earlier = side.process, self._process
        has_new_rank = (process.role, process.rank) != (earlier.role, earlier.rank)
        if has_new_rank and self._empty_batch is not None:
            self._process = side.process
            self.append_batch(self._empty_batch)  # with the new rank, for all batches
        self._writer.close()
        if self._empty_batch is None:  # no batch was written: the schema is still in the buffer
            self._append_bytes(self._stream_buffer.getvalue()[: -len(END)])
        # Unmapped when nothing points into it any more: of an error, its frames do.
        content = mmap.mmap(self._descriptor, self.length_bytes, prot=mmap.PROT_READ)
        file_messages = list(iterate_messages(memoryview(content)))
        metadata = side.to_metadata(self._tally.make_summary(side))
        empty_footer = _empty_footer(self._schema.with_metadata(metadata))
        footer = add_blocks_to_footer(empty_footer, file_messages)
        self._append_bytes(END + footer + struct.pack("<i", len(footer)) + MAGIC)
        self.sync()

    def close(self) -> None:
        """Close the file, if it is open."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    @property
    def _schema(self) -> pa.Schema:
        return EVENT_SCHEMA if self._version == _FIRST_VERSION else FILE_SCHEMA

    def _with_file_version(self, side: SideTables) -> SideTables:
        """Return side tables that tell the version of the file, not that of the recorder."""
        return replace(side, process=replace(side.process, schema=self._version))

    def _tally_batch(self, batch: pa.RecordBatch) -> None:
        self._tally.add_batch(batch)
        self._empty_batch = batch.slice(0, 0)

    def _resume(self, path: Path) -> None:
        """Find the version of the file, and tally the events that it has."""
        stream_content = map_file(path).slice(len(LEAD))
        try:
            if set(FILE_SCHEMA.names) - set(pa.ipc.read_schema(stream_content).names):
                self._version = _FIRST_VERSION
            for batch in _read_stream(stream_content):
                self._tally_batch(batch)
        except (pa.ArrowException, OSError, ValueError, LookupError) as error:
            raise NotATrace(f"{path.name} is damaged ({error})") from error

    def _flush(self, *, with_checksum: bool) -> None:
        """Append the batch in the stream's buffer, without the schema if the file has that.

        Its content gets a checksum first if it is `with_checksum`.
        """
        has_schema = not self._is_new and self._writer.stats.num_record_batches == 1
        with self._stream_buffer.getbuffer() as written_bytes:
            new_begin = (
                next(iterate_messages(written_bytes, offset=0)).end_bytes if has_schema else 0
            )
            with written_bytes[new_begin:] as new_bytes:
                if with_checksum:
                    fill_in_checksum(new_bytes)
                self._append_bytes(new_bytes)
        self._stream_buffer.seek(0)
        self._stream_buffer.truncate()

    def _append_bytes(self, content: bytes | memoryview) -> None:
        length = len(content)
        with memoryview(content) as view:
            written = 0
            while written < length:
                written += os.write(self._descriptor, view[written:])
        self.length_bytes += length


def read_growing(path: Path, length_bytes: int) -> list[pa.RecordBatch]:
    """Read the batches, in `EVENT_SCHEMA`, in the first `length_bytes` of an unfinished file.

    Raises:
        NotATrace: it is no regular file, or would grow out of proportion.
        FileNotFoundError: there is no such file.
        OSError: it cannot be read, or is shorter.
    """
    if not length_bytes:
        return []
    file_content = map_file(path).slice(0, length_bytes)
    GrowthLimit(length_bytes).count_stream(memoryview(file_content))  # raises if it is too much
    batches = list(_read_stream(file_content.slice(len(LEAD))))
    for batch in batches:
        batch.validate(full=True)
    return batches


def read_samples(path: Path) -> list[pa.RecordBatch]:
    """Read a process's sampled stacks in `SAMPLE_SCHEMA`: the batches before any damage.

    Raises:
        NotATrace: it is no regular file, beyond its limit, or would grow out of proportion.
        OSError: there is no such file.
        ValueError: it does not begin as one of these, or contradicts itself (`pyarrow.ArrowInvalid`).
    """
    content = read_contents(path, "samples")
    GrowthLimit(len(content)).count_stream(memoryview(content), begin=0)
    batches: list[pa.RecordBatch] = []
    with pa.ipc.open_stream(content) as stream, contextlib.suppress(pa.ArrowInvalid, OSError):
        _check_names(stream.schema)
        for batch in stream:
            batches.append(batch)  # noqa: PERF402 - what is whole stays if one is not
    for batch in batches:
        batch.validate(full=True)
    return batches


def _check_names(schema: pa.Schema) -> None:
    """Refuse lists whose inner field has a name that is no text: no comparison sees it, polars panics.

    Raises:
        UnicodeDecodeError: it is no UTF-8.
    """
    for field in schema:
        if isinstance(field.type, pa.ListType):
            str(field.type.value_field.name)


def write_events(
    path: Path, events: pa.Table, side: SideTables, batch_rows: int = BATCH_ROWS
) -> None:
    """Write one process's events, a table in `EVENT_SCHEMA`, as a compressed file sorted by start.

    The file appears under its name only when it is complete, also if two processes write it.

    Raises:
        OSError: there is no room.
    """
    table = events.sort_by("start_ns").unify_dictionaries()
    unfinished_path = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        with GrowingFile(unfinished_path, side) as file:
            for batch in table.combine_chunks().to_batches(max_chunksize=batch_rows):
                file.append_batch(batch)
            file.finish(side)
        unfinished_path.replace(path)
    finally:
        unfinished_path.unlink(missing_ok=True)


def _read_stream(stream: pa.Buffer) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_stream(stream) as reader:
        for batch in reader:
            yield batch.select(EVENT_SCHEMA.names).replace_schema_metadata(None)


def _make_constant_columns(process: Process, row_count: int) -> list[pa.Array[Any]]:
    """Return the columns that are the same in all rows."""
    process_name = make_stem(process.role, process.rank, process.pid)
    zero_codes = pa.py_buffer(np.zeros(row_count, np.int8).data)
    indices = pa.Array.from_buffers(pa.int8(), row_count, [None, zero_codes])
    words = (pa.array([process.rank], pa.int32()), pa.array([process_name], pa.string()))
    return [pa.DictionaryArray.from_arrays(indices, word, safe=False) for word in words]


def _empty_footer(schema: pa.Schema) -> bytes:
    """Return the footer of a file with this schema and nothing else."""
    sink = io.BytesIO()
    pa.ipc.new_file(sink, schema).close()
    file_content = sink.getvalue()
    (footer_bytes,) = struct.unpack_from("<i", file_content, len(file_content) - len(MAGIC) - 4)
    return file_content[-len(MAGIC) - 4 - footer_bytes : -len(MAGIC) - 4]
