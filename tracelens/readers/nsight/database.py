"""Columns of SQLite files that others wrote: of plain tables only, within what their size allows."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tracelens.containment import end_out_of_memory
from tracelens.errors import NotATrace
from tracelens.readers.links import check_inside
from tracelens.schema import gate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

MAGIC: Final = b"SQLite format 3\x00"
_PLAIN: Final = "create table"
_INSTRUCTIONS_BETWEEN_CHECKS: Final = 10_000  # of SQLite's machine
_LEAST_ALLOWED_INSTRUCTIONS: Final = 1 << 24
_INSTRUCTIONS_PER_BYTE: Final = 64  # of the file


@dataclass(frozen=True)
class Database:
    """An open file; a query that takes more than `max_instructions` of SQLite is interrupted."""

    connection: sqlite3.Connection
    columns_by_table: Mapping[str, tuple[str, ...]]
    max_instructions: int

    def read_columns(self, name: str, /, **schema: pl.DataType) -> pl.DataFrame:
        """Read the columns of `schema` of a table; what it lacks, and cells of another type, are null.

        Raises:
            sqlite3.Error: the file is damaged there.
        """
        table_columns = self.columns_by_table.get(name, ())
        present_names = [column for column in schema if column in table_columns]
        if not present_names:
            return pl.DataFrame(schema=schema)
        quoted_names = ", ".join(f'"{column}"' for column in present_names)
        rows = self._fetch(f'select {quoted_names} from "{name}"')  # noqa: S608 - names are constants of ours
        cells_of_columns = zip(*rows, strict=True) if rows else [()] * len(present_names)
        cells_by_name = dict(zip(present_names, cells_of_columns, strict=True))
        absent_cells = (None,) * len(rows)
        return pl.DataFrame(
            [
                pl.Series(
                    column, _null_other_types(cells_by_name.get(column, absent_cells), kind), kind
                )
                for column, kind in schema.items()
            ]
        )

    def count_rows(self, name: str) -> int:
        """Count the rows of a table; 0 without a table of that name."""
        if name not in self.columns_by_table:
            return 0
        ((count,),) = self._fetch(f'select count(*) from "{name}"')  # noqa: S608 - as above
        return int(count)

    def _fetch(self, query: str) -> list[tuple[Any, ...]]:
        """Run a query that may take up to `max_instructions`; return its rows."""
        checks_left = self.max_instructions // _INSTRUCTIONS_BETWEEN_CHECKS

        def must_interrupt() -> int:
            nonlocal checks_left
            checks_left -= 1
            return int(checks_left < 0)

        self.connection.set_progress_handler(must_interrupt, _INSTRUCTIONS_BETWEEN_CHECKS)
        return self.connection.execute(query).fetchall()


def _null_other_types(values: tuple[Any, ...], kind: pl.DataType) -> list[Any]:
    """Replace cells of another type by null: SQLite lets a column hold any."""
    if kind == pl.String:
        return [value if isinstance(value, str) else None for value in values]
    return [value if isinstance(value, int) else None for value in values]


@contextmanager
def open_database(path: Path, trace: Path | None = None) -> Iterator[Database]:
    """Open a file for reading; nothing is written near it, and no code of its schema is trusted.

    Raises:
        NotATrace: it is a link out of `trace`, no database, beyond the limit of a file, or damaged
            where it was read.
    """
    try:
        check_inside(path, trace or path)
        real_path = gate.check_path(path).resolve()
    except NotATrace as error:
        raise NotATrace(f"'{path}' is not read: {error}.") from error
    address = f"{real_path.as_uri()}?mode=ro&immutable=1"
    try:
        connection = sqlite3.connect(address, uri=True)
    except sqlite3.Error as error:
        raise _damaged(path, error) from error
    try:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, gate.limit("text"))
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        connection.execute("pragma trusted_schema = off")
        connection.execute("pragma cell_size_check = on")
        max_instructions = (
            _LEAST_ALLOWED_INSTRUCTIONS + _INSTRUCTIONS_PER_BYTE * path.stat().st_size
        )
        yield Database(connection, _list_plain_tables(connection), max_instructions)
    except (sqlite3.Error, UnicodeDecodeError, OverflowError, MemoryError) as error:
        if isinstance(error, MemoryError):
            end_out_of_memory()
        raise _damaged(path, error) from error
    finally:
        connection.close()


def _list_plain_tables(connection: sqlite3.Connection) -> dict[str, tuple[str, ...]]:
    """Return the columns of each plain table; views and virtual tables may run anything."""
    query = "select name, sql from sqlite_master where type = 'table'"
    table_names = [
        name
        for name, sql in connection.execute(query).fetchall()
        if isinstance(name, str)
        and isinstance(sql, str)
        and sql.lower().startswith(_PLAIN)
        and '"' not in name
    ]
    return {
        name: tuple(column for _, column, *_ in connection.execute(f'pragma table_info("{name}")'))
        for name in table_names
    }


def _damaged(path: Path, error: Exception) -> NotATrace:
    reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return NotATrace(
        f"'{path}' is no whole SQLite file ({reason}): export it again with 'nsys export --type sqlite'."
    )
