"""Writes a process's events as its recorder would: the way back from a `Trace` to docs/format.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from tracelens.conversion.arrow_file import write_events
from tracelens.errors import InvalidArgument
from tracelens.model.trace import EVENT_COLUMNS
from tracelens.schema.arrow import EVENT_SCHEMA

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.schema.side import SideTables


def write_process(path: Path, events: pl.DataFrame, side: SideTables) -> None:
    """Write the events of one process; communicators become indexes into its side table.

    Args:
        path: The file, which appears when it is whole.
        events: Rows of that process, in the columns of `EVENT_COLUMNS`.
        side: Its side tables; a communicator that they lack becomes null.

    Raises:
        InvalidArgument: a column has more different words than the format can number.
        OSError: the file cannot be written.
    """
    index_by_uid = {row.uid: row.index for row in side.communicators}
    table = events.with_columns(
        duration_ns=pl.col("end_ns") - pl.col("start_ns"),
        communicator=pl.col("communicator")
        .cast(pl.String)
        .replace_strict(index_by_uid, return_dtype=pl.Int32, default=None),
    )
    columns = [_column(table[field.name], field.type) for field in EVENT_SCHEMA]
    write_events(path, pa.Table.from_arrays(columns, schema=EVENT_SCHEMA), side)


def _column(column: pl.Series, kind: pa.DataType) -> pa.Array[Any]:
    if not isinstance(kind, pa.DictionaryType):
        return column.to_arrow().cast(kind)
    word_column = column.cast(pl.String).to_arrow().cast(pa.string()).dictionary_encode()
    try:
        return word_column.cast(kind)
    except pa.ArrowInvalid as error:
        raise InvalidArgument(
            f"Column '{column.name}' has {len(word_column.dictionary)} different words, and a trace "
            f"folder numbers them as {kind.index_type}: convert to parquet or csv instead."
        ) from error


assert {field.name for field in EVENT_SCHEMA} - {"duration_ns"} <= set(EVENT_COLUMNS)
