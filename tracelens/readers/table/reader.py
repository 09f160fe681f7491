"""The reader for tables of spans, and the options that such a table may need."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from tracelens.errors import NotATrace
from tracelens.readers.table.build import build
from tracelens.readers.table.files import from_object, is_table, scan
from tracelens.readers.table.naming import Renaming

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracelens.readers.base import Progress
    from tracelens.trace import Trace

__all__ = ["TableReader"]


@dataclass(frozen=True)
class TableReader:
    """Reads one row a span; `one_clock` says that all times of the table come from one clock."""

    renaming: Renaming = field(default_factory=Renaming)
    one_clock: bool = False
    name: str = "table of spans"

    def sniff(self, path: Path) -> bool:
        """Say whether a file is a table by its name or its content."""
        return is_table(path)

    def read(self, path: Path, progress: Progress | None = None) -> Trace:
        """Read a file."""
        with _damage_named(path):
            trace = build(scan(path), self.renaming, path.name, one_clock=self.one_clock)
        if progress:
            progress(1, 1)
        return trace.with_(path=path)

    def take(self, table: Any) -> Trace:
        """Read a frame, an Arrow table or a mapping of columns."""
        return build(from_object(table), self.renaming, "", one_clock=self.one_clock)


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Turn what a damaged file makes polars raise, while its rows are read, into a sentence."""
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        reason = next(iter(str(error).strip().splitlines()), "no reason is given")
        raise NotATrace(f"'{path}' is damaged or cut off: {reason.rstrip('.')}.") from error
