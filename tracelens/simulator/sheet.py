"""Gathers simulated spans, block by block, into the event table of a `Trace`, process by process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from tracelens.model.trace import EVENT_COLUMNS

if TYPE_CHECKING:
    from tracelens.arrays import Array, Ints

WORLD_UID = "simulated-world"


class Sheet:
    """A pile of event blocks; a block holds one kind of span for many steps and processes.

    Array values have the shape of `start_ns` or broadcast to it. Rows are made one process at a time,
    so a large run never needs all of them together.
    """

    def __init__(self) -> None:
        self._blocks: list[_Block] = []

    @property
    def last_ns(self) -> int:
        """When the last span ends."""
        return max(int(block.arrays["end_ns"].max()) for block in self._blocks)

    def add_spans(self, start_ns: Ints, end_ns: Ints, **columns: Any) -> None:
        """Add spans, mostly [step, rank]; words (kind, name, op, role) are plain strings."""
        times_ns = {"start_ns": start_ns, "end_ns": end_ns}
        self._add_block(times_ns, {"type": "span", "status": "closed"} | columns)

    def add_counters(self, at_ns: Ints, value: float, **columns: Any) -> None:
        """Add readings of a counter, all of one value."""
        times_ns = {"start_ns": at_ns, "end_ns": at_ns}
        constants = {"type": "counter", "status": "closed", "value": value, "kind": "step"}
        self._add_block(times_ns, constants | columns)

    def make_events(self, process: int) -> pl.DataFrame:
        """Return the events of one process in the columns of a trace, sorted by begin."""
        blocks = (block for block in self._blocks if block.has_process(process))
        block_columns = [block.take_process(process) for block in blocks]
        row_counts = [len(columns["start_ns"]) for columns in block_columns]
        columns = {
            name: _make_column(dtype, [columns.get(name) for columns in block_columns], row_counts)
            for name, dtype in EVENT_COLUMNS.items()
        }
        return pl.DataFrame(columns).sort("start_ns", "depth", maintain_order=True)

    def _add_block(self, times_ns: dict[str, Ints], columns: dict[str, Any]) -> None:
        """Add a block; columns are arrays of one shape, or values that all rows share (None: none)."""
        values = {"thread": 0, "depth": 0, "step": -1} | times_ns | columns
        per_event = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        constants = {
            name: value
            for name, value in values.items()
            if name not in per_event and value is not None
        }
        self._blocks.append(_Block(times_ns["start_ns"].shape, per_event, constants))


@dataclass(frozen=True, eq=False)
class _Block:
    """The columns of a block by name: arrays that broadcast to `shape`, and what all rows share."""

    shape: tuple[int, ...]
    arrays: dict[str, Array]
    constants: dict[str, Any]

    def has_process(self, process: int) -> bool:
        """Return True if a row belongs to a process."""
        owner = self.arrays.get("process")
        if owner is None:
            return bool(self.constants["process"] == process)
        return bool((owner == process).any())

    def take_process(self, process: int) -> dict[str, Any]:
        """Return the rows of one process: by column an array, or what is the same in all rows."""
        cells = self._find_cells(process)
        flat = {
            name: np.broadcast_to(values, self.shape)[cells].ravel()
            for name, values in self.arrays.items()
        }
        return flat | self.constants

    def _find_cells(self, process: int) -> tuple[Any, ...]:
        """Return the cells of one process; of a block by step and rank its columns, at no cost.

        The first axis of `process` is that of ranks: [rank], or [rank, 1] of a block by piece, too.
        """
        owner = self.arrays.get("process")
        if owner is None:
            return ()
        return (..., np.flatnonzero(owner == process), *(slice(None),) * (owner.ndim - 1))


def _make_column(dtype: pl.DataType, values: list[Any], row_counts: list[int]) -> pl.Series:
    """Join the values of several blocks, each an array or one value for all rows, into a column."""
    if not any(isinstance(value, np.ndarray) for value in values):
        return pl.Series(values, dtype=dtype)[np.repeat(np.arange(len(values)), row_counts)]
    if dtype.is_numeric():
        blocks = [
            value if isinstance(value, np.ndarray) else np.full(length, value or 0)
            for value, length in zip(values, row_counts, strict=True)
        ]
        is_known = np.repeat([value is not None for value in values], row_counts)
        column = pl.Series(np.concatenate(blocks), dtype=dtype)
        known_column = pl.select(pl.when(pl.Series(is_known)).then(column)).to_series()
        return column if is_known.all() else known_column
    block_series = [
        pl.Series(value, dtype=dtype)
        if isinstance(value, np.ndarray)
        else pl.Series([value], dtype=dtype).new_from_index(0, length)
        for value, length in zip(values, row_counts, strict=True)
    ]
    return pl.concat(block_series)
