"""Spans or rows of one file while they are read."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

Key = TypeVar("Key", bound="Hashable")
Thread = TypeVar("Thread", bound="Hashable")
_NO_BYTES: Final = -1


class SpanMeaning(NamedTuple):
    """Kind, operation and name of a span, in our words."""

    kind: str
    op: str | None
    name: str


@dataclass(eq=False)
class SpanBuffer(Generic[Key, Thread]):
    """Spans of a file; a `Key` is their meaning in its words, a `Thread` where they ran.

    Numbers are in arrays, and each word is held once.

    `keys` and `threads` are numbered in order of appearance; `key_of_row` and `thread_of_row` are these
    numbers, one a span.
    """

    start_ns: array[int] = field(default_factory=lambda: array("q"))
    end_ns: array[int] = field(default_factory=lambda: array("q"))
    nbytes: array[int] = field(default_factory=lambda: array("q"))
    key_of_row: array[int] = field(default_factory=lambda: array("L"))
    thread_of_row: array[int] = field(default_factory=lambda: array("L"))
    keys: dict[Key, int] = field(default_factory=dict)
    threads: dict[Thread, int] = field(default_factory=dict)

    def add(
        self, start_ns: int, end_ns: int, key: Key, thread: Thread, nbytes: int | None = None
    ) -> None:
        """Add a span, within the times that there can be."""
        self.start_ns.append(start_ns)
        self.end_ns.append(end_ns)
        self.nbytes.append(_NO_BYTES if nbytes is None else nbytes)
        self.key_of_row.append(self.keys.setdefault(key, len(self.keys)))
        self.thread_of_row.append(self.threads.setdefault(thread, len(self.threads)))

    def __len__(self) -> int:
        """Return the number of spans."""
        return len(self.start_ns)

    def frame(
        self, meaning: Callable[[Key], SpanMeaning], thread_name: Callable[[Thread], str]
    ) -> pl.DataFrame:
        """Return rows in words of `spans.build`; each key and each thread is translated once."""
        kinds, ops, names = zip(*map(meaning, self.keys), strict=True) if self.keys else ((),) * 3
        threads = [thread_name(thread) for thread in self.threads]
        return pl.DataFrame(
            {
                "start_ns": pl.Series(self.start_ns, dtype=pl.Int64),
                "end_ns": pl.Series(self.end_ns, dtype=pl.Int64),
                "kind": words_by_number(kinds, self.key_of_row),
                "op": words_by_number(ops, self.key_of_row),
                "name": words_by_number(names, self.key_of_row),
                "thread": words_by_number(threads, self.thread_of_row),
                "bytes": pl.Series(self.nbytes, dtype=pl.Int64),
            }
        ).with_columns(bytes=pl.when(pl.col("bytes") >= 0).then("bytes"))


def words_by_number(words: Sequence[str | None], numbers: array[int]) -> pl.Series:
    """Return the word of each row, given by its number in `words`."""
    categories = pl.Series(words, dtype=pl.String).cast(pl.Categorical())
    return categories.gather(pl.Series(numbers, dtype=pl.UInt32))


class RowBuffer:
    """Rows of a file in the columns of `schema`; what a row does not have is null."""

    def __init__(self, schema: Mapping[str, pl.DataType]) -> None:
        self.schema = schema
        self.cells: dict[str, list[Any]] = {name: [] for name in schema}
        self._words: dict[str, str] = {}

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(next(iter(self.cells.values())))

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row; equal texts are kept once."""
        for name, cells in self.cells.items():
            value = row.get(name)
            cells.append(self._words.setdefault(value, value) if type(value) is str else value)

    def frame(self) -> pl.DataFrame:
        """Return the rows; values that do not fit into their column are null."""
        return pl.DataFrame(
            {
                name: pl.Series(self.cells[name], dtype=dtype, strict=False)
                for name, dtype in self.schema.items()
            }
        )
