"""Spans or rows of one file while they are read."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import polars as pl

from tracelens.readers.json_values import make_column

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
    """Spans of a file in arrays, one item a span; keys and threads are numbered as they appear.

    A `Key` is the meaning of a span in the file's words, a `Thread` where it ran.
    """

    start_ns: array[int] = field(default_factory=lambda: array("q"))
    end_ns: array[int] = field(default_factory=lambda: array("q"))
    nbytes: array[int] = field(default_factory=lambda: array("q"))
    key_numbers: array[int] = field(default_factory=lambda: array("L"))
    thread_numbers: array[int] = field(default_factory=lambda: array("L"))
    number_by_key: dict[Key, int] = field(default_factory=dict)
    number_by_thread: dict[Thread, int] = field(default_factory=dict)

    def add(
        self, start_ns: int, end_ns: int, key: Key, thread: Thread, nbytes: int | None = None
    ) -> None:
        """Add a span, within the times that there can be."""
        self.start_ns.append(start_ns)
        self.end_ns.append(end_ns)
        self.nbytes.append(_NO_BYTES if nbytes is None else nbytes)
        self.key_numbers.append(self.number_by_key.setdefault(key, len(self.number_by_key)))
        new_number = len(self.number_by_thread)
        self.thread_numbers.append(self.number_by_thread.setdefault(thread, new_number))

    def __len__(self) -> int:
        """Return the number of spans."""
        return len(self.start_ns)

    def to_frame(
        self, translate_key: Callable[[Key], SpanMeaning], name_thread: Callable[[Thread], str]
    ) -> pl.DataFrame:
        """Return one row per span in words of `spans.build`.

        `translate_key` and `name_thread` are called once for each key and thread of the format.
        """
        meanings = [translate_key(key) for key in self.number_by_key]
        thread_names = [name_thread(thread) for thread in self.number_by_thread]
        return pl.DataFrame(
            {
                "start_ns": pl.Series(self.start_ns, dtype=pl.Int64),
                "end_ns": pl.Series(self.end_ns, dtype=pl.Int64),
                "kind": gather_words([meaning.kind for meaning in meanings], self.key_numbers),
                "op": gather_words([meaning.op for meaning in meanings], self.key_numbers),
                "name": gather_words([meaning.name for meaning in meanings], self.key_numbers),
                "thread": gather_words(thread_names, self.thread_numbers),
                "bytes": pl.Series(self.nbytes, dtype=pl.Int64),
            }
        ).with_columns(bytes=pl.when(pl.col("bytes") >= 0).then("bytes"))


def gather_words(words: Sequence[str | None], indices: array[int]) -> pl.Series:
    """Return the word of each row, given by its index in `words`."""
    word_column = pl.Series(words, dtype=pl.String).cast(pl.Categorical())
    return word_column.gather(pl.Series(indices, dtype=pl.UInt32))


class RowBuffer:
    """Rows of a file in the columns of `schema`; what a row does not have is null."""

    def __init__(self, schema: Mapping[str, pl.DataType]) -> None:
        self.schema = schema
        self.cells: dict[str, list[Any]] = {name: [] for name in schema}  # by column, one a row
        self._texts: dict[str, str] = {}  # the first of each equal ones

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(next(iter(self.cells.values())))

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row; equal texts are kept once."""
        for name, cells in self.cells.items():
            value = row.get(name)
            cells.append(self._texts.setdefault(value, value) if type(value) is str else value)

    def to_frame(self) -> pl.DataFrame:
        """Return the rows; values that do not fit into their column are null."""
        return pl.DataFrame(
            {
                name: make_column(name, self.cells[name], dtype)
                for name, dtype in self.schema.items()
            }
        )
