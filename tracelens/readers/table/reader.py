"""The reader for tables of spans: a file of any kind, or a frame in memory, becomes a raw `Trace`.

Tables are opened as lazy frames, whole or streamed, and put together as the files of a recorder
would have been; `TableReader` has the options that such a table may need.
"""

from __future__ import annotations

import io
import os
import struct
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from tracelens.conversion.layout import GrowthLimit, read_layout
from tracelens.conversion.messages import BATCH, LEAD, iterate_messages
from tracelens.errors import InvalidArgument, NotATrace
from tracelens.model.trace import Note, Trace
from tracelens.readers import spans
from tracelens.readers.base import SIMPLY, Reading, quoted
from tracelens.readers.exported import build_common_clock
from tracelens.readers.json_values import as_count, as_object
from tracelens.readers.spans import Origin
from tracelens.readers.table.arrow_rows import scan_arrow, scan_parquet
from tracelens.readers.table.cells import read_cells
from tracelens.readers.table.kinds import translate, translate_roles
from tracelens.readers.table.naming import Renaming, plan
from tracelens.schema.arrow import map_file
from tracelens.schema.gate import (
    check_path,
    limit,
    open_regular,
    read_beginning,
    read_contents,
    refuse_beyond,
)
from tracelens.schema.json_text import loads
from tracelens.schema.rules import LONGEST_NS
from tracelens.schema.side import CONVERSION_KEY, METADATA_KEY
from tracelens.schema.vocabulary import SUMMED_UP

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracelens.readers.table.naming import Plan

_ARROW: Final = b"ARROW1"
_PARQUET: Final = b"PAR1"
_TEXT: Final = (".csv", ".tsv")
_NAMED: Final = (".parquet", ".feather", *_TEXT)
_BLOCK_BYTES: Final = 1 << 18  # bytes of text that are looked at together
_DELIMITERS: Final = (",", ";", "\t", "|")
# What a damaged file makes polars and Arrow's library raise.
_DAMAGE: Final = (
    *(pl.exceptions.PolarsError, pl.exceptions.PanicException, pa.ArrowException),
    *(OSError, ValueError),
)


def is_table(path: Path) -> bool:
    """Return True if a file is a table: by its name, or an Arrow or Parquet file that is not ours."""
    if not path.is_file():
        return False
    if path.suffix.casefold() in _NAMED:
        return True
    begin = _begin(path)
    return begin.startswith(_PARQUET) or (begin.startswith(_ARROW) and not _is_ours(path))


def scan(path: Path) -> pl.LazyFrame:
    """Open a file; nothing but its header is read.

    Raises:
        NotATrace: its content is not what its name says, or it would become too large.
    """
    first_bytes = _begin(path)
    try:
        _refuse_huge(path, first_bytes)
    except NotATrace as error:
        raise NotATrace(f"'{path}' cannot be read as a table: {error}.") from error
    except (OSError, ValueError, struct.error, pa.ArrowException):
        pass  # who reads it says what is wrong with it
    try:
        if first_bytes.startswith(_PARQUET):
            return scan_parquet(path)
        if first_bytes.startswith(_ARROW):
            return scan_arrow(path)
        if path.suffix.casefold() in _TEXT:
            table = _scan_csv(path)
            table.collect_schema()  # what is wrong with the header shows here
            return table
    except (*_DAMAGE, NotATrace) as error:
        raise NotATrace(f"'{path}' cannot be read as a table: {_reason(error)}.") from error
    raise NotATrace(
        f"'{path}' is neither an Arrow nor a Parquet file (it begins with {first_bytes!r}): expected "
        "one, or a .csv with a header line."
    )


def _refuse_huge(path: Path, first_bytes: bytes) -> None:
    """Refuse what is no regular file, or claims to hold more than the limits, before it is read.

    Raises:
        NotATrace: it is, or does.
        OSError, ValueError, struct.error, pyarrow.ArrowException: it is damaged.
    """
    with open_regular(path) as file:
        file_bytes = os.fstat(file.fileno()).st_size
    row_count, column_count = 0, 0
    if first_bytes.startswith(_PARQUET):
        metadata = _footer(path)
        row_count, column_count = metadata.num_rows, metadata.num_columns
        row_groups = map(metadata.row_group, range(metadata.num_row_groups))
        GrowthLimit(file_bytes).count_bytes(
            sum(max(0, group.total_byte_size) for group in row_groups)
        )
    elif first_bytes.startswith(_ARROW):
        content = map_file(path)
        view = memoryview(content)
        GrowthLimit(file_bytes).count_stream(view)
        batches = [message for message in iterate_messages(view) if message.kind == BATCH]
        row_count = sum(read_layout(batch.read_header(view)).row_count for batch in batches)
        column_count = len(pa.ipc.read_schema(content.slice(len(LEAD))))
    else:
        row_count = _count_lines(path)
    refuse_beyond("rows", row_count)
    refuse_beyond("columns", column_count)


def _count_lines(path: Path) -> int:
    """Count the line breaks of a file outside of quotes.

    Raises:
        NotATrace: a line is longer than any that is read.
    """
    line_count = line_bytes = 0  # `line_bytes`: at least those of the line that has not ended
    is_quoted = False
    with open_regular(path) as file:
        for block in iter(partial(file.read, _BLOCK_BYTES), b""):
            line_bytes += len(block)
            for section in block.split(b'"'):
                if not is_quoted and b"\n" in section:
                    line_count += section.count(b"\n")
                    line_bytes = 0
                is_quoted = not is_quoted
            is_quoted = not is_quoted  # a block ends within a section
            refuse_beyond("text", line_bytes, "a line")
    return line_count


def from_object(table: Any) -> pl.LazyFrame:
    """Read a frame of polars or pandas, an Arrow table, or a mapping of columns.

    Raises:
        InvalidArgument: it is another object, or its columns differ in length.
    """
    if isinstance(table, pl.LazyFrame):
        return table
    try:
        return _spell_objects(_frame(table)).lazy()
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InvalidArgument(
            f"a {type(table).__name__} is no table of spans ({reason.rstrip('.')}): expected a path, "
            "a polars or pandas frame, an Arrow table or a mapping of columns."
        ) from error


def _frame(table: Any) -> pl.DataFrame:
    """Convert a whole frame, or column by column where one of pandas mixes objects."""
    try:
        return pl.DataFrame(table, strict=False)
    except (TypeError, ValueError):
        if not hasattr(table, "columns"):
            raise
        cells = {str(name): list(table[name]) for name in table.columns}
        return pl.DataFrame(cells, strict=False)


def _spell_objects(table: pl.DataFrame) -> pl.DataFrame:
    """Turn columns of mixed Python objects into text."""
    mixed_columns = [name for name, kind in table.schema.items() if kind == pl.Object]
    return table.with_columns(
        pl.Series(name, [None if cell is None else str(cell) for cell in table[name]], pl.String)
        for name in mixed_columns
    )


def _scan_csv(path: Path) -> pl.LazyFrame:
    """Read every cell as text: what it means is decided by column, not by its first rows."""
    with open_regular(path) as file, io.BufferedReader(file) as lines:
        header = lines.readline(limit("text")).decode("utf-8-sig", "strict")
    if not header.strip():
        raise NotATrace(f"'{path}' has no header line: expected the names of the columns.")
    delimiter = max(_DELIMITERS, key=header.count)
    refuse_beyond("columns", header.count(delimiter) + 1)
    return pl.scan_csv(
        _source(path),
        separator=delimiter,
        infer_schema=False,
        truncate_ragged_lines=True,
        glob=False,
    )


def _source(path: Path) -> Path | io.BytesIO:
    """Return a path for polars, or the content of a file whose path is not UTF-8."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return io.BytesIO(read_contents(path))
    return check_path(path)


def _begin(path: Path) -> bytes:
    return read_beginning(path, len(_ARROW))


def _footer(path: Path) -> pq.FileMetaData:
    """Read what a Parquet file says of itself.

    Raises:
        NotATrace, OSError, ValueError, pyarrow.ArrowException: as `scan_parquet` does.
    """
    return pq.read_metadata(pa.BufferReader(map_file(path)))


def _is_ours(path: Path) -> bool:
    """Return True if an Arrow file holds a process of a native trace, or is too damaged to tell."""
    try:
        with pa.ipc.open_file(map_file(path)) as reader:
            return METADATA_KEY in (reader.schema.metadata or {})
    except (pa.ArrowException, OSError, ValueError):
        return True


def build(table: pl.LazyFrame, renaming: Renaming, file: str, *, one_clock: bool) -> Trace:
    """Read a table; `file` is its name, empty if it is no file.

    With `one_clock` the times of all ranks count as those of one clock.

    Raises:
        UnusableInput: columns are missing, or no row is usable.
    """
    name = f"'{file}'" if file else "the table"
    column_plan = plan(table.collect_schema().names(), renaming, name)
    cells = read_cells(table, column_plan, name)
    translated_rows, word_notes = translate(cells.rows, renaming)
    origin = Origin(
        name=name,
        file=file,
        has_one_clock=one_clock,
        has_dates=cells.has_dates,
        unusable_by_reason=cells.unusable_by_reason,
        notes=(*_unused(column_plan), *cells.notes, *word_notes),
    )
    return spans.build(translate_roles(translated_rows, renaming, name), origin)


def _unused(planned: Plan) -> list[Note]:
    if not planned.unused_columns:
        return []
    listed = ", ".join(map(quoted, planned.unused_columns))
    plural = "s" if len(planned.unused_columns) > 1 else ""
    sentence = f"Nothing is read from the column{plural} {listed}."
    return [Note(file="", sentence=sentence, kind="table")]


@dataclass(frozen=True)
class TableReader:
    """Reads one row a span; `one_clock`: all times of the table are of one clock."""

    renaming: Renaming = field(default_factory=Renaming)
    one_clock: bool = False
    name: str = "table of spans"

    def sniff(self, path: Path) -> bool:
        """Return True if a file is a table by its name or its content."""
        return is_table(path)

    def read(self, path: Path, options: Reading = SIMPLY) -> Trace:
        """Read a file, which one process does, and whose events all stay in memory."""
        table = scan(path)
        with _name_damage(path):
            trace = build(table, self.renaming, path.name, one_clock=self.one_clock)
            trace = _add_conversion_facts(trace, path)
        if options.progress:
            options.progress(1, 1)
        return trace.with_(path=path)

    def take(self, table: Any) -> Trace:
        """Read a frame, an Arrow table or a mapping of columns."""
        return build(from_object(table), self.renaming, file="", one_clock=self.one_clock)


def _add_conversion_facts(trace: Trace, path: Path) -> Trace:
    """Add the facts that a conversion left in a Parquet file: its notes, and how sure its clock is."""
    if not _begin(path).startswith(_PARQUET):
        return trace
    try:
        facts = as_object(loads((_footer(path).metadata or {}).get(CONVERSION_KEY, b"{}")))
    except (OSError, ValueError, pa.ArrowException):
        return trace
    entries = facts.get("notes")
    texts = [text for text in entries if isinstance(text, str)] if isinstance(entries, list) else []
    notes = [Note(file="", sentence=" ".join(text.split()), kind="chosen") for text in texts]
    window_ns = as_count(facts.get("window_ns"), limit=LONGEST_NS) or 0
    summed_up_count = as_count(facts.get("summed_up"), limit=LONGEST_NS) or 0
    return trace.with_(
        clocks=pl.concat([trace.clocks, build_common_clock(window_ns)]),
        notes=(*trace.notes, *notes),
        dropped=trace.dropped | ({SUMMED_UP: summed_up_count} if summed_up_count else {}),
    )


@contextmanager
def _name_damage(path: Path) -> Iterator[None]:
    """Turn errors of polars, while the rows of a damaged file are read, into a sentence."""
    try:
        yield
    except NotATrace as error:
        raise NotATrace(f"'{path}' cannot be read as a table: {error}.") from error
    except _DAMAGE as error:
        raise NotATrace(f"'{path}' is damaged or cut off: {_reason(error)}.") from error


def _reason(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "no reason is given").rstrip(".")
