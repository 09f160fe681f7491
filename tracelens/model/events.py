"""The events of a run, process by process: read when they are asked for, and then forgotten.

A reader, the simulator or a table offer a `Part` a process. What alignment finds out later (the common
clock, the step that an event is in) is a list of `Change`s, which are applied on each read. So a run of
any size takes no more memory than its largest process.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from tracelens.caching import cached_property
from tracelens.memory import BoundedCache
from tracelens.model.columns import MISSING, NULL, Columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tracelens.arrays import Array, Indices
    from tracelens.model.packed_columns import PackedColumns

_Value = TypeVar("_Value")
_ROW: Final = "row"
_CHANGEABLE: Final = ("start_ns", "end_ns", "step", "device_start_ns", "device_duration_ns")


class Part(Protocol):
    """The events of one process as they were recorded, in order of begin, outer spans first."""

    def read_columns(self, names: Sequence[str], cache: BoundedCache) -> Columns:
        """Read some columns; more may come with them. `cache` is of a pass over several processes.

        Raises:
            UnusableInput: they cannot be read (any more).
        """

    def read_frame(self) -> pl.DataFrame:
        """Read all columns, as `tracelens.model.trace.EVENT_COLUMNS` names them; empty ones may lack.

        Raises:
            UnusableInput: they cannot be read (any more).
        """

    def detach(self) -> Part:
        """Return it without what it shares with other processes, to be sent to where it is read."""

    def trim_to(self, first_ns: int, last_ns: int) -> Part:
        """Return it without what is surely outside of a time on its own clock; more may come with it."""


class Change(Protocol):
    """What alignment makes of the events of a process, each time that they are read."""

    @property
    def needed_columns(self) -> tuple[str, ...]:
        """Columns that it looks at, or changes."""

    def __call__(self, process: int, columns: Columns) -> Columns:
        """Return the columns with other times, steps or order."""

    def limit_to(self, process: int) -> Change:
        """Return the part that concerns one process, to send it to the process that reads it."""


def select_process(by_process: Mapping[int, _Value], process: int) -> dict[int, _Value]:
    """Return the entry of `process` as a mapping of its own; empty if it has no entry."""
    return {process: by_process[process]} if process in by_process else {}


@dataclass(frozen=True, eq=False)
class Source:
    """The parts of a run by process, and what is changed in them, in order.

    `packed_by_process` are columns that an earlier pass read: the next read takes them from here.
    """

    part_by_process: Mapping[int, Part]
    changes: tuple[Change, ...] = ()
    packed_by_process: dict[int, PackedColumns] = field(default_factory=dict)

    def with_change(self, change: Change) -> Source:
        """Return it with one more change."""
        return replace(self, changes=(*self.changes, change))

    def limit_to(self, process: int) -> Source:
        """Return the part that is needed to read one process."""
        part_by_process = {process: self.part_by_process[process].detach()}
        changes = tuple(change.limit_to(process) for change in self.changes)
        packed = self.packed_by_process.pop(process, None)
        return Source(part_by_process, changes, {} if packed is None else {process: packed})

    def read_columns(
        self, process: int, names: Sequence[str], cache: BoundedCache | None = None
    ) -> Columns:
        """Read some columns of a process; who reads several processes gives the same `cache` for all."""
        needed_names = list(dict.fromkeys([*names, *self._list_needed()]))
        columns = self._read_unchanged(process, needed_names, cache or BoundedCache())
        for change in self.changes:
            columns = change(process, columns)
        return columns

    def read_frame(self, process: int) -> pl.DataFrame:
        """Read all columns of a process."""
        frame = self.part_by_process[process].read_frame()
        if not self.changes or frame.is_empty():
            return frame
        columns = self.part_by_process[process].read_columns(self._list_needed(), BoundedCache())
        rows = np.arange(columns.row_count)  # their column shows which are left, in which order
        changed_columns = columns.with_numbers(**{_ROW: rows})
        for change in self.changes:
            changed_columns = change(process, changed_columns)
        order = changed_columns.number_column(_ROW)
        if not np.array_equal(order, rows):
            frame, columns = frame[order], columns.take(order)
        return frame.with_columns(_list_changed_columns(frame, columns, changed_columns))

    def _list_needed(self) -> list[str]:
        return [name for change in self.changes for name in change.needed_columns]

    def _read_unchanged(self, process: int, names: list[str], cache: BoundedCache) -> Columns:
        packed = self.packed_by_process.get(process)
        if packed is None or not packed.names.issuperset(names):
            return self.part_by_process[process].read_columns(names, cache)
        del self.packed_by_process[process]
        return packed.restore(cache)

    def scan(self, schema: Mapping[str, pl.DataType]) -> pl.LazyFrame:
        """Return all events as a frame that is read process by process when it is collected."""

        def frames() -> Iterator[pl.DataFrame]:
            for process in self.part_by_process:
                yield complete_columns(self.read_frame(process), schema)

        return make_lazy_frame(frames, schema)


def make_lazy_frame(
    frames: Callable[[], Iterable[pl.DataFrame]], schema: Mapping[str, pl.DataType]
) -> pl.LazyFrame:
    """Return a lazy frame of the parts that `frames` yields each time that it is collected."""

    def read(
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        _batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        """Yield the frames with the columns and rows that polars asks for; None: all of them."""
        rows_left = n_rows
        for frame in frames():
            selected_columns = frame if with_columns is None else frame.select(with_columns)
            selected_rows = (
                selected_columns if predicate is None else selected_columns.filter(predicate)
            )
            if rows_left is not None:
                selected_rows = selected_rows.head(rows_left)
                rows_left -= selected_rows.height
            yield selected_rows
            if rows_left == 0:
                return

    return register_io_source(read, schema=pl.Schema(schema), is_pure=True)


def complete_columns(events: pl.DataFrame, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Return events with all columns; those that a frame lacks are null, and take no memory."""
    nulls = [
        pl.lit(None, kind).alias(name)
        for name, kind in schema.items()
        if name not in events.columns
    ]
    return events.with_columns(nulls).select(*schema)


@dataclass(frozen=True, eq=False)
class FramePart:
    """The rows of one process in a frame of several."""

    all_events: WholeFrame
    process: int

    def read_columns(self, _names: Sequence[str], _cache: BoundedCache) -> Columns:
        """Return all columns."""
        return self.all_events.columns.take(self.all_events.rows_of(self.process))

    def read_frame(self) -> pl.DataFrame:
        """Return all columns."""
        return self.all_events.frame[self.all_events.rows_of(self.process)]

    def detach(self) -> Part:
        """Return it as it is: within this process all parts share one frame."""
        return self

    def __reduce__(self) -> tuple[type[FramePart], tuple[WholeFrame, int]]:
        """Send the same rows in a frame of their own."""
        return FramePart, (WholeFrame(self.read_frame().lazy()), self.process)

    def trim_to(self, _first_ns: int, _last_ns: int) -> Part:
        """Return it as it is: it is held anyway."""
        return self


@dataclass(frozen=True)
class Renumbered:
    """A part under another process number, as in a run that several traces make up."""

    part: Part
    process: int

    def read_columns(self, names: Sequence[str], cache: BoundedCache) -> Columns:
        """Read some columns; more may come with them."""
        return self.part.read_columns(names, cache)

    def read_frame(self) -> pl.DataFrame:
        """Read all columns."""
        return self.part.read_frame().with_columns(process=pl.lit(self.process, pl.Int32))

    def detach(self) -> Part:
        """Return it without what it shares with other processes."""
        return Renumbered(self.part.detach(), self.process)

    def trim_to(self, first_ns: int, last_ns: int) -> Part:
        """Return it without what is surely outside of a time."""
        return Renumbered(self.part.trim_to(first_ns, last_ns), self.process)


@dataclass(frozen=True, eq=False)
class WholeFrame:
    """The events of all processes, taken apart by process when they are first asked for."""

    events: pl.LazyFrame

    @cached_property
    def frame(self) -> pl.DataFrame:
        """All events, by process, in order of begin, outer spans first."""
        events = self.events.collect()
        process, start = pl.col("process").diff(), pl.col("start_ns").diff()
        deeper = pl.col("depth").cast(pl.Int32).diff() >= 0
        is_ordered = (process > 0) | ((process == 0) & ((start > 0) | ((start == 0) & deeper)))
        if events.select(is_ordered.fill_null(value=True).all()).item():
            return events
        return events.sort("process", "start_ns", "depth", maintain_order=True)

    @cached_property
    def columns(self) -> Columns:
        """The same as arrays."""
        return Columns.from_frame(self.frame)

    @cached_property
    def _row_bounds(self) -> dict[int, tuple[int, int]]:
        """The first row of each process in the frame, and the one after its last."""
        process = self.frame["process"].to_numpy()
        processes, first_rows = np.unique(process, return_index=True)
        end_rows = np.append(first_rows, len(process))[1:]
        row_bounds = zip(first_rows.tolist(), end_rows.tolist(), strict=True)
        return dict(zip(processes.tolist(), row_bounds, strict=True))

    @property
    def processes(self) -> list[int]:
        """The processes that have events."""
        return list(self._row_bounds)

    def rows_of(self, process: int) -> slice:
        """Return the rows of a process."""
        return slice(*self._row_bounds.get(process, (0, 0)))


def make_source(events: pl.LazyFrame, processes: Sequence[int]) -> Source:
    """Take a frame of all events; processes without any have none."""
    all_events = WholeFrame(events)
    all_processes = dict.fromkeys([*processes, *all_events.processes])
    return Source({process: FramePart(all_events, process) for process in all_processes})


def _list_changed_columns(
    frame: pl.DataFrame, old_columns: Columns, new_columns: Columns
) -> list[pl.Series]:
    """Return the columns of a frame that changes have changed, with their new values."""
    changed_series = []
    for name in _CHANGEABLE:
        numbers = new_columns.number_columns.get(name)
        if numbers is not None and numbers is not old_columns.number_columns.get(name):
            dtype = frame.schema.get(name, pl.Int64())
            changed_series.append(_to_series(name, numbers, dtype))
    status = new_columns.word_columns.get("status")
    if status is not None and status is not old_columns.word_columns.get("status"):
        words_and_null = pl.Series([*status.vocabulary, None], dtype=pl.String)
        changed_series.append(
            words_and_null[_to_indices(status.codes)].cast(frame.schema["status"]).alias("status")
        )
    return changed_series


def _to_indices(codes: Array) -> Indices:
    return np.where(codes < 0, -1, codes).astype(np.intp)


def _to_series(name: str, numbers: Array, dtype: pl.DataType) -> pl.Series:
    """Return a column, with null where a number means a missing value."""
    missing = MISSING.get(name, NULL)
    series = pl.Series(name, numbers).cast(dtype)
    if name == "step" or not (numbers == missing).any():
        return series
    return series.to_frame().select(pl.when(pl.Series(numbers != missing)).then(name)).to_series()
