"""One table with a row an event, in the columns of docs/tables.md: as Parquet, or as CSV.

Rows are in order of rank and begin. A table has one process a rank and role, so only main processes are
in it, and no samples of stacks. Processes whose times are on the common clock have the same `clock`.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from tracelens.exports.content import Saved
from tracelens.exports.output import new_file, size_of
from tracelens.model.csv_cells import cells
from tracelens.schema.side import CONVERSION_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tracelens.exports.content import Content

__all__ = ["CSV", "PARQUET", "Table"]

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
_GROUP_ROWS: Final = 1 << 20
_CSV_ROWS: Final = 1 << 16


class _Writer(Protocol):
    """Takes tables in `SCHEMA`, and at the end what to say of all."""

    def write(self, table: pa.Table) -> None:
        """Append rows."""

    def end(self, facts: dict[str, Any]) -> None:
        """Append facts on all rows."""


@dataclass(frozen=True)
class Table:
    """A kind of file for tables; `opened` yields what writes one."""

    SUFFIX: str
    opened: Callable[[Path], AbstractContextManager[_Writer]]
    OPEN_WITH: str = "tracelens analyze {place}"

    def save(self, content: Content, place: Path) -> Saved:
        """Write a table, a rank at a time.

        Raises:
            InvalidArgument: there is something at `place`, it cannot be written, or nothing is chosen.
        """
        events = summed_up = sums = 0
        main = content.processes.filter("main")
        others = content.processes.height - main.height
        with new_file(place) as file, self.opened(file) as writer:
            for _, rows in main.sort("rank", "role").group_by("rank", maintain_order=True):
                parts = [content.part(process) for process in rows["process"]]
                found = _rows(pl.concat([part.events for part in parts]), rows)
                events += found.height
                summed_up += sum(part.summed_up for part in parts)
                sums += sum(part.sums for part in parts)
                writer.write(_table(found))
            if not events:
                raise content.nothing()
            notes = (*content.notes, *_left_out(content, others))
            counts = {"events": events, "summed_up": summed_up, "sums": sums}
            window_ns = 2 * content.trace.alignment.uncertainty_ns
            writer.end(counts | {"window_ns": window_ns, "notes": notes})
        return Saved(events, size_of(place), summed_up, sums, _left_out(content, others))


def _left_out(content: Content, others: int) -> tuple[str, ...]:
    """Return what a table cannot hold, a sentence each."""
    processes = f"A table has one process a rank: {others} other processes are not in it."
    samples = "A table of spans has no samples of stacks: convert to native to keep them."
    sampled = content.trace.samples.height > 0
    return tuple([processes] * (others > 0) + [samples] * sampled)


def _rows(events: pl.DataFrame, processes: pl.DataFrame) -> pl.DataFrame:
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


def _table(rows: pl.DataFrame) -> pa.Table:
    arrays = [
        rows[field.name].cast(pl.String).to_arrow().cast(pa.string()).dictionary_encode()
        if field.type == _WORD
        else rows[field.name].to_arrow().cast(field.type)
        for field in SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


class _Parquet:
    def __init__(self, writer: pq.ParquetWriter) -> None:
        self._writer = writer

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table, row_group_size=_GROUP_ROWS)

    def end(self, facts: dict[str, Any]) -> None:
        self._writer.add_key_value_metadata({CONVERSION_KEY.decode(): json.dumps(facts)})


@contextmanager
def _parquet(file: Path) -> Iterator[_Writer]:
    order = [pq.SortingColumn(SCHEMA.get_field_index(name)) for name in ("rank", "start_ns")]
    with pq.ParquetWriter(file, SCHEMA, compression="zstd", sorting_columns=order) as writer:
        yield _Parquet(writer)


class _Csv:
    def __init__(self, file: Any) -> None:
        self._file = file
        self._file.write(",".join(SCHEMA.names).encode() + b"\n")

    def write(self, table: pa.Table) -> None:
        frame = pl.DataFrame(table)
        for part in frame.iter_slices(_CSV_ROWS):
            self._file.write(cells(part).write_csv(include_header=False).encode())

    def end(self, facts: dict[str, Any]) -> None:
        """Leave the facts to the terminal: a CSV has no place for them."""


@contextmanager
def _csv(file: Path) -> Iterator[_Writer]:
    with file.open("wb") as out:
        yield _Csv(out)


PARQUET: Final = Table(".parquet", _parquet)
CSV: Final = Table(".csv", _csv)
