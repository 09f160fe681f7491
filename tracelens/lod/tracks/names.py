"""Names of a run's spans: how often and how long each occurs, on which process, and when.

All recorded spans are counted once, process by process, by name, kind, operation, bucket and shard; the
table is stored in the run's index. A search counts matches and processes by the table, and reads the
events of one process to find the next match.
"""

from __future__ import annotations

from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Final, Self

import polars as pl

from tracelens.distil.places import may_keep
from tracelens.lod.tracks.group import label_spans

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tracelens.lod.run_data import Run

FILE: Final = "names.arrow"
IDENTITY: Final = ("name", "kind", "op", "bucket", "shard")
# One row for what is called alike in one process.
NAME_COLUMNS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int32(),
    "label": pl.String(),
    "text": pl.String(),  # what a search looks at
    "count": pl.UInt32(),
    "total_ns": pl.Int64(),
    "longest_ns": pl.Int64(),
    "longest_at": pl.Int64(),
}


def count_names(process: int, events: pl.DataFrame) -> pl.DataFrame:
    """Count the spans of a process by what they are called, in `NAME_COLUMNS`."""
    length_ns = pl.col("end_ns") - pl.col("start_ns")
    spans = events.filter(pl.col("type") == "span").with_columns(length=length_ns.fill_null(0))
    counts = spans.group_by(*IDENTITY).agg(
        count=pl.len(),
        total_ns=pl.col("length").sum(),
        longest_ns=pl.col("length").max(),
        longest_at=pl.col("start_ns").sort_by("length").last(),
    )
    named_counts = counts.with_columns(
        label=_label_spans(), text=_build_searched_text(), process=pl.lit(process, pl.Int32)
    )
    return named_counts.select(*NAME_COLUMNS).cast(pl.Schema(NAME_COLUMNS)).sort("text")


def _label_spans() -> pl.Expr:
    """Return the label by which spans are counted: all steps have the same."""
    return label_spans(numbered=False)


def _build_searched_text() -> pl.Expr:
    """Return the text to search: label, kind, operation, bucket and shard, in lower case."""
    text_parts = [_label_spans(), pl.col("kind").cast(pl.String), pl.col("op").cast(pl.String)]
    numbered_parts = [
        pl.lit(f"{name} ") + pl.col(name).cast(pl.String) for name in ("bucket", "shard")
    ]
    server_part = [pl.lit("ps ") + pl.col("shard").cast(pl.String)]
    joined = pl.concat_str(
        [*text_parts, *numbered_parts, *server_part], separator=" ", ignore_nulls=True
    )
    return joined.str.to_lowercase()


def _contains_words(text: pl.Expr, searched_text: str) -> pl.Expr:
    """Return True where all words of the searched text occur."""
    words = searched_text.lower().split()
    return pl.all_horizontal([text.str.contains(word, literal=True) for word in words])


class Names:
    """The names of a run, counted when they are first used, or read from its index."""

    def __init__(
        self, processes: Sequence[int], read: Callable[[int], pl.DataFrame], folder: Path | None
    ) -> None:
        """Prepare to count names: `read` returns the events of a process, `folder` is the index."""
        self._processes = processes
        self._read = read
        self._file = folder / FILE if folder else None
        self._lock = Lock()
        self._table: pl.DataFrame | None = None

    @classmethod
    def from_run(cls, run: Run, read: Callable[[int], pl.DataFrame]) -> Self:
        """Count names of a run's spans, or take its index's counts; `read` gives a process's events."""
        processes = [*run.workers["process"], *run.shards["process"]]
        pyramid = run.scene.colour_pyramid
        return cls(processes, read, pyramid.folder if pyramid else None)

    @property
    def name_table(self) -> pl.DataFrame:
        """All names of all processes, in `NAME_COLUMNS`.

        Raises:
            UnusableInput: a file of the trace cannot be read any more.
        """
        with self._lock:
            if self._table is None:
                self._table = self._load_or_count()
            return self._table

    def find_names(self, search: str) -> pl.DataFrame:
        """Return the names with all words of `search`, in `NAME_COLUMNS`; none for a blank text."""
        if not search.strip():
            return pl.DataFrame(schema=NAME_COLUMNS)
        return self.name_table.filter(_contains_words(pl.col("text"), search))

    def _load_or_count(self) -> pl.DataFrame:
        """Return the kept table of names (`NAME_COLUMNS`), or count it anew and keep it."""
        if self._file and self._file.exists():
            with suppress(OSError, pl.exceptions.PolarsError):
                return pl.read_ipc(self._file)
        tables = [count_names(process, self._read(process)) for process in self._processes]
        table = pl.concat([pl.DataFrame(schema=NAME_COLUMNS), *tables])
        if self._file and may_keep():
            draft = self._file.with_name(f".{FILE}.unfinished")
            with suppress(OSError):
                table.write_ipc(draft, compression="zstd")
                draft.rename(self._file)
        return table


def find_hits(events: pl.DataFrame, search: str) -> pl.DataFrame:
    """Return the spans of a process that are called as asked: rows among its events, and begins."""
    spans = events.with_row_index("row").filter(pl.col("type") == "span")
    return (
        spans.filter(_contains_words(_build_searched_text(), search))
        .select("row", "start_ns")
        .sort("start_ns", "row")
    )
