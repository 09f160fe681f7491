"""Keeps the events of very large runs in a mapped file: the system caches what is used.

Up to `IN_MEMORY` events nothing is written. What exceeds that goes, uncompressed, into a temporary file
without a name (in TMPDIR, else in /var/tmp, which seldom is memory itself): frames made of it take no
memory of this process, and the file is gone with it. Where there is no room for it, memory serves.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, cast

import polars as pl
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "IN_MEMORY",
    "Spill",
]

IN_MEMORY: Final = 20_000_000  # events: about 1.5 GB
_ALIGNED: Final = 64  # bytes: where Arrow wants columns to begin
_ROOMY: Final = Path("/var/tmp")  # noqa: S108 - the file has no name that others could know


class Spill:
    """Takes frames one after the other, and returns them in that order."""

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self._in_memory = in_memory
        self._rows = 0
        self._kept: list[pl.DataFrame | _Written] = []
        self._file: IO[bytes] | None = None
        self._words = pl.Series(
            [], dtype=pl.Categorical
        )  # while it lives, words keep their numbers

    def put(self, frame: pl.DataFrame) -> None:
        """Append a frame, which the caller should release."""
        self._rows += frame.height
        kept: pl.DataFrame | _Written = frame
        if self._rows > self._in_memory:
            with suppress(OSError):
                kept = self._written(frame)
        self._kept.append(kept)

    def frames(self) -> Iterator[pl.DataFrame]:
        """Return the frames, and keep none; those in the file are mapped."""
        content, self._kept = self._mapped(), self._kept[::-1]
        while self._kept:
            kept = self._kept.pop()
            yield kept.read(content) if isinstance(kept, _Written) else kept

    def _written(self, frame: pl.DataFrame) -> _Written:
        """Append a frame to the file."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=_place())  # noqa: SIM115 - closed with the shelf
            weakref.finalize(self, self._file.close)
        begin = -(-self._file.seek(0, os.SEEK_END) // _ALIGNED) * _ALIGNED
        self._file.seek(begin)
        numbers = (pl.col(name).to_physical() for name in _words(frame.schema))
        table = frame.with_columns(numbers).to_arrow()
        with pa.ipc.new_stream(cast("Any", self._file), table.schema) as stream:
            stream.write_table(table)
        return _Written(begin, self._file.tell(), dict(frame.schema))

    def _mapped(self) -> pa.Buffer | None:
        if self._file is None or not any(isinstance(kept, _Written) for kept in self._kept):
            return None
        self._file.flush()
        return pa.py_buffer(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))


class _Written:
    """The place of a frame in the file; words are their numbers there."""

    def __init__(self, begin: int, end: int, schema: dict[str, pl.DataType]) -> None:
        self._place = slice(begin, end)
        self._schema = schema

    def read(self, content: Any) -> pl.DataFrame:
        """Map it."""
        stream = content[self._place]
        table = cast("pl.DataFrame", pl.from_arrow(pa.ipc.open_stream(stream).read_all()))
        return table.with_columns(
            pl.col(name).cat.to(self._schema[name]) for name in _words(self._schema)
        )


def _words(schema: Mapping[str, pl.DataType]) -> list[str]:
    return [name for name, kind in schema.items() if isinstance(kind, (pl.Categorical, pl.Enum))]


def _place() -> Path | None:
    return _ROOMY if "TMPDIR" not in os.environ and _ROOMY.is_dir() else None
