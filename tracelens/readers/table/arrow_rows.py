"""Rows of Arrow and Parquet files as a lazy frame, decoded and checked by Arrow's own library.

polars ends a damaged file by a panic. Arrow's library returns an error, and `validate` finds lengths,
offsets and indexes that lead outside of the file. polars gets columns of simple types under names that
are text; of any other type there are nulls, as nothing would be read from it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, cast

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from polars.io.plugins import register_io_source

from tracelens.errors import NotATrace
from tracelens.readers.base import quoted
from tracelens.schema.arrow import map_file
from tracelens.schema.gate import limit, refuse_beyond

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any, TypeAlias

    _ReadBatches: TypeAlias = Callable[[list[str]], Iterator[pa.RecordBatch]]

_BATCH_ROWS: Final = 1 << 16
_TEXT: Final = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_SIMPLE: Final = (
    *_TEXT,
    *(pa.types.is_integer, pa.types.is_float32, pa.types.is_float64, pa.types.is_boolean),
    *(pa.types.is_date, pa.types.is_timestamp, pa.types.is_duration, pa.types.is_decimal128),
    *(pa.types.is_binary, pa.types.is_null),
)


def scan_arrow(path: Path) -> pl.LazyFrame:
    """Open an Arrow file; its header is read.

    Raises:
        NotATrace: two columns have one name.
        ValueError, OSError, pyarrow.ArrowException: it is damaged.
    """

    def read_batches(names: list[str]) -> Iterator[pa.RecordBatch]:
        column_indices = sorted(schema.get_field_index(name) for name in names)
        options = pa.ipc.IpcReadOptions(included_fields=column_indices, use_threads=False)
        with pa.ipc.open_file(map_file(path), options=options) as reader:
            for index in range(reader.num_record_batches):
                yield reader.get_batch(index)

    with pa.ipc.open_file(map_file(path)) as reader:
        schema = reader.schema
    return _scan(schema, read_batches)


def scan_parquet(path: Path) -> pl.LazyFrame:
    """Open a Parquet file; its footer is read.

    Raises:
        NotATrace, ValueError, OSError, pyarrow.ArrowException: as `scan_arrow` does.
    """

    def read_batches(names: list[str]) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(pa.BufferReader(map_file(path))) as file:
            yield from file.iter_batches(_BATCH_ROWS, columns=names, use_threads=False)

    with pq.ParquetFile(pa.BufferReader(map_file(path))) as file:
        schema = file.schema_arrow
    return _scan(schema, read_batches)


def _scan(schema: pa.Schema, read_batches: _ReadBatches) -> pl.LazyFrame:
    """Return a lazy frame of `schema`, whose rows `read_batches` reads; it takes names of columns."""
    schema.to_string()  # a name that is no text is a ValueError here, and a panic in polars
    names = schema.names
    repeated_names = [name for name, count in Counter(names).items() if count > 1]
    if repeated_names:
        raise NotATrace(
            f"it has several columns {quoted(repeated_names[0])}, expected each name once"
        )

    def rows(
        columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, _size: int | None
    ) -> Iterator[pl.DataFrame]:
        """Yield batches with the columns and rows that polars asks for; None: all of them."""
        column_names, rows_left = names if columns is None else columns, n_rows
        for batch in read_batches(column_names):
            table = _to_frame(batch).select(column_names)
            if rows_left is not None:
                table = table.head(rows_left)
                rows_left -= table.height
            yield table if predicate is None else table.filter(predicate)
            if rows_left == 0:
                return

    empty_columns = [pa.nulls(0, field.type) for field in schema]
    empty_batch = pa.RecordBatch.from_arrays(empty_columns, schema=schema)
    return register_io_source(rows, schema=dict(_to_frame(empty_batch).schema))


def _to_frame(batch: pa.RecordBatch) -> pl.DataFrame:
    batch.validate(full=True)
    for column in batch.columns:
        _refuse_long(column)
    columns = {field.name: _simple(batch.column(index)) for index, field in enumerate(batch.schema)}
    return cast("pl.DataFrame", pl.from_arrow(pa.table(columns)))


def _refuse_long(column: pa.Array[Any]) -> None:
    """Refuse texts that are longer than any that is read.

    Raises:
        NotATrace: it is written that way.
    """
    words = column.dictionary if isinstance(column, pa.DictionaryArray) else column
    if any(is_text(words.type) for is_text in _TEXT) and words.nbytes > limit("text"):
        lengths = pc.binary_length(cast("pa.LargeStringArray", words.cast(pa.large_string())))
        refuse_beyond("text", pc.max(lengths).as_py() or 0, "a text")


def _simple(column: pa.Array[Any]) -> pa.Array[Any]:
    """Return a column in a type that polars has; nulls where it has none."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    dtype = column.type
    if isinstance(dtype, pa.DictionaryType):
        if any(is_text(dtype.value_type) for is_text in _TEXT):
            return column
        return _simple(column.cast(dtype.value_type))
    if pa.types.is_timestamp(dtype) and dtype.tz is not None:
        return column.cast(pa.timestamp(dtype.unit, "UTC"))  # the same moments
    if any(is_kind(dtype) for is_kind in _SIMPLE):
        return column
    return pa.nulls(len(column))
