"""Writes one process of a `Trace` as a native trace file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from tracelens.schema.arrow import EVENT_SCHEMA, write_events

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.schema.side import SideTables


def write_process(path: Path, events: pl.DataFrame, side: SideTables) -> None:
    """Write the events of one process; communicators become indexes into its side table."""
    indexes = {row.uid: row.index for row in side.communicators}
    table = events.with_columns(
        duration_ns=pl.col("end_ns") - pl.col("start_ns"),
        communicator=pl.col("communicator")
        .cast(pl.String)
        .replace_strict(indexes, return_dtype=pl.Int32, default=None),
    )
    columns = [_column(table[field.name], field.type) for field in EVENT_SCHEMA]
    write_events(path, pa.Table.from_arrays(columns, schema=EVENT_SCHEMA), side)


def _column(column: pl.Series, kind: pa.DataType) -> pa.Array[Any]:
    if pa.types.is_dictionary(kind):
        return column.cast(pl.String).to_arrow().cast(pa.string()).dictionary_encode().cast(kind)
    return column.to_arrow().cast(kind)
