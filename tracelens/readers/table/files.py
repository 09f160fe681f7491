"""Opens a table of any supported kind as a lazy frame, whole or streamed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl
import pyarrow as pa

from tracelens.errors import InvalidArgument, NotATrace
from tracelens.schema.mapped import mapped
from tracelens.schema.side import METADATA_KEY

if TYPE_CHECKING:
    import os

__all__ = ["from_object", "is_table", "scan"]

_ARROW: Final = b"ARROW1"
_PARQUET: Final = b"PAR1"
_TEXT: Final = (".csv", ".tsv")
_NAMED: Final = (".parquet", ".feather", *_TEXT)
_DELIMITERS: Final = (",", ";", "\t", "|")


def is_table(path: Path) -> bool:
    """Say whether a file is a table: by its name, or an Arrow or Parquet file that is not ours."""
    if not path.is_file():
        return False
    if path.suffix.casefold() in _NAMED:
        return True
    begin = _begin(path)
    return begin.startswith(_PARQUET) or (begin.startswith(_ARROW) and not _is_ours(path))


def scan(path: Path) -> pl.LazyFrame:
    """Open a file; nothing but its header is read.

    Raises:
        NotATrace: its content is not what its name says.
    """
    begin = _begin(path)
    try:
        if begin.startswith(_PARQUET):
            return _opened(pl.scan_parquet(_source(path), glob=False))
        if begin.startswith(_ARROW):
            return _opened(pl.scan_ipc(_source(path), glob=False))
        if path.suffix.casefold() in _TEXT:
            return _opened(_csv(path))
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else "no reason is given"
        raise NotATrace(f"'{path}' cannot be read as a table: {reason.rstrip('.')}.") from error
    raise NotATrace(
        f"'{path}' is neither an Arrow nor a Parquet file (it begins with {begin!r}): expected one, "
        "or a .csv with a header line."
    )


def from_object(table: Any) -> pl.LazyFrame:
    """Take a frame of polars or pandas, an Arrow table, or a mapping of columns.

    Raises:
        InvalidArgument: it is none of these, or its columns differ in length.
    """
    if isinstance(table, pl.LazyFrame):
        return table
    try:
        return _spelt(_frame(table)).lazy()
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InvalidArgument(
            f"a {type(table).__name__} is no table of spans ({reason.rstrip('.')}): expected a path, "
            "a polars or pandas frame, an Arrow table or a mapping of columns."
        ) from error


def _frame(table: Any) -> pl.DataFrame:
    """Take a whole frame, or column by column where one of pandas mixes objects."""
    try:
        return pl.DataFrame(table, strict=False)
    except (TypeError, ValueError):
        if not hasattr(table, "columns"):
            raise
        cells = {str(name): list(table[name]) for name in table.columns}
        return pl.DataFrame(cells, strict=False)


def _spelt(frame: pl.DataFrame) -> pl.DataFrame:
    """Turn columns of mixed Python objects into text, which says what each cell holds."""
    mixed = [name for name, kind in frame.schema.items() if kind == pl.Object]
    return frame.with_columns(
        pl.Series(name, [None if cell is None else str(cell) for cell in frame[name]], pl.String)
        for name in mixed
    )


def _opened(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Read the header, so that what is wrong with it shows here."""
    frame.collect_schema()
    return frame


def _csv(path: Path) -> pl.LazyFrame:
    """Read every cell as text: what it means is decided by column, not by its first rows."""
    with path.open(encoding="utf-8-sig", errors="strict") as file:
        head = file.readline(1 << 20)
    if not head.strip():
        raise NotATrace(f"'{path}' has no header line: expected the names of the columns.")
    delimiter = max(_DELIMITERS, key=head.count)
    return pl.scan_csv(
        _source(path),
        separator=delimiter,
        infer_schema=False,
        truncate_ragged_lines=True,
        glob=False,
    )


def _source(path: Path) -> Path | io.BytesIO:
    """Return what polars opens: a path where it is UTF-8, else the content."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return io.BytesIO(path.read_bytes())
    return path


def _begin(path: str | os.PathLike[str]) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(8)
    except OSError:
        return b""


def _is_ours(path: Path) -> bool:
    """Say whether an Arrow file is one process of a native trace, or too damaged to tell."""
    try:
        with pa.ipc.open_file(mapped(path)) as reader:
            return METADATA_KEY in (reader.schema.metadata or {})
    except (pa.ArrowException, OSError, ValueError):
        return True
