"""One table with a row an event, in the columns of docs/tables.md: as Parquet, or as CSV.

Rows are in order of rank and begin. A table has one process a rank and role, so only main processes are
in it, and no samples of stacks. Processes whose times are on the common clock have the same `clock`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from tracelens.exports.output import open_new_file
from tracelens.model.csv_cells import cells
from tracelens.schema.side import CONVERSION_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tracelens.exports.content import Content, Saved

_WORD: Final = pa.dictionary(pa.int32(), pa.string())
_COLUMNS: Final[dict[str, Any]] = {
    "rank": pa.int32(),
    "start_ns": pa.int64(),
    "end_ns": pa.int64(),  # null = still open
    "host": _WORD,
    "role": _WORD,
    "thread": pa.int32(),
    "kind": _WORD,
    "name": _WORD,
    "step": pa.int32(),
    "op": _WORD,
    "bytes": pa.int64(),
    "communicator": _WORD,
    "seq": pa.int64(),
    "peer": pa.int32(),
    "shard": pa.int32(),
    "type": _WORD,
    "status": _WORD,
    "value": pa.float64(),
    "request": pa.uint64(),
    "queue_depth": pa.int32(),
    "bucket": pa.int32(),
    "key": pa.int32(),
    "micro_step": pa.int32(),
    "algorithm": _WORD,
    "device_start_ns": pa.int64(),
    "device_duration_ns": pa.int64(),
    "stream": pa.int32(),
    "clock": _WORD,
    "world": pa.int32(),
}
SCHEMA: Final = pa.schema([pa.field(name, kind) for name, kind in _COLUMNS.items()])
_ROWS_PER_GROUP: Final = 1 << 20
_ROWS_PER_CSV_BATCH: Final = 1 << 16


@dataclass(frozen=True)
class Table:
    """A kind of file for tables.

    `write` writes tables in `SCHEMA` to a file, and then, where the file has a place for them, the facts
    on all rows, which are known when the last table was made.
    """

    SUFFIX: str
    write: Callable[[Path, Iterator[pa.Table], dict[str, Any]], None]
    OPEN_WITH: str = "tracelens analyze {place}"

    def save(self, content: Content, target: Path) -> Saved:
        """Write a table, a rank at a time.

        Raises:
            InvalidArgument: there is something at `target`, it cannot be written, or nothing is chosen.
        """
        main = content.processes.filter("main")
        left_out_notes = _describe_left_out(content, content.processes.height - main.height)
        facts: dict[str, Any] = dict.fromkeys(("events", "summed_up", "sums"), 0)
        facts["window_ns"] = 2 * content.trace.alignment.uncertainty_ns
        facts["notes"] = (*content.notes, *left_out_notes)

        def make_tables() -> Iterator[pa.Table]:
            for _, processes in main.sort("rank", "role").group_by("rank", maintain_order=True):
                events = pl.concat(
                    [content.read_events(process) for process in processes["process"]]
                )
                facts["events"] += events.height
                yield _to_arrow(_select_rows(events, processes))
            if not facts["events"]:
                raise content.make_empty_error()
            for recorded_count, sum_count in content.sum_counts_by_process.values():
                facts["summed_up"] += recorded_count
                facts["sums"] += sum_count

        with open_new_file(target) as file:
            self.write(file, make_tables(), facts)
        return content.describe_saved(facts["events"], target, left_out_notes)


def _describe_left_out(content: Content, other_count: int) -> tuple[str, ...]:
    """Describe the data that a table cannot hold, a sentence for each kind."""
    processes = f"A table has one process a rank: {other_count} other processes are not in it."
    samples = "A table of spans has no samples of stacks: convert to native to keep them."
    sampled = content.trace.samples.height > 0
    return tuple([processes] * (other_count > 0) + [samples] * sampled)


def _select_rows(events: pl.DataFrame, processes: pl.DataFrame) -> pl.DataFrame:
    """Add to events what their rows say of their process."""
    main = processes.select(
        "process", "host", clock="clock_domain", world="world", own_shard="shard"
    )
    return (
        events.join(main, on="process", maintain_order="left")
        .with_columns(shard=pl.coalesce("shard", "own_shard"))
        .sort("start_ns", "depth", maintain_order=True)
        .select(*_COLUMNS)
    )


def _to_arrow(events: pl.DataFrame) -> pa.Table:
    """Return events, one row each, as an Arrow table in `SCHEMA`."""
    arrays = [
        events[field.name].cast(pl.String).to_arrow().cast(pa.string()).dictionary_encode()
        if field.type == _WORD
        else events[field.name].to_arrow().cast(field.type)
        for field in SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _write_parquet(file: Path, tables: Iterator[pa.Table], facts: dict[str, Any]) -> None:
    order = [pq.SortingColumn(SCHEMA.get_field_index(name)) for name in ("rank", "start_ns")]
    with pq.ParquetWriter(file, SCHEMA, compression="zstd", sorting_columns=order) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=_ROWS_PER_GROUP)
        writer.add_key_value_metadata({CONVERSION_KEY.decode(): json.dumps(facts)})


def _write_csv(file: Path, tables: Iterator[pa.Table], _facts: object) -> None:
    """Write rows alone: a CSV has no place for facts, which the terminal shows."""
    with file.open("wb") as out:
        out.write(",".join(SCHEMA.names).encode() + b"\n")
        for table in tables:
            for rows in pl.DataFrame(table).iter_slices(_ROWS_PER_CSV_BATCH):
                out.write(cells(rows).write_csv(include_header=False).encode())


PARQUET: Final = Table(".parquet", _write_parquet)
CSV: Final = Table(".csv", _write_csv)
