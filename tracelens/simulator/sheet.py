"""Gathers simulated spans, block by block, into the event table of a `Trace`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from tracelens.trace import EVENT_COLUMNS

if TYPE_CHECKING:
    from tracelens.simulator.durations import Nanoseconds

WORLD_UID = "simulated-world"


class Sheet:
    """A pile of event blocks; a block is one kind of span for many steps and processes at once.

    Array values have the shape of `start_ns` or broadcast to it.
    """

    def __init__(self) -> None:
        self._blocks: list[pl.DataFrame] = []

    def spans(self, start_ns: Nanoseconds, end_ns: Nanoseconds, **columns: Any) -> None:
        """Add spans; words (kind, name, op, role) are plain strings."""
        arrays = {"start_ns": start_ns, "end_ns": end_ns}
        self._add(start_ns.shape, arrays, {"type": "span", "status": "closed"} | columns)

    def counters(self, at_ns: Nanoseconds, value: float, **columns: Any) -> None:
        """Add counter readings."""
        arrays = {"start_ns": at_ns, "end_ns": at_ns}
        words = {"type": "counter", "status": "closed", "value": value, "kind": "step"}
        self._add(at_ns.shape, arrays, words | columns)

    def frame(self) -> pl.DataFrame:
        """Return everything gathered in the columns of a trace, by process and start."""
        missing = pl.DataFrame(schema=EVENT_COLUMNS)
        table = pl.concat([missing, *self._blocks], how="diagonal")
        return table.sort("process", "start_ns", "depth").select(*EVENT_COLUMNS)

    def _add(
        self, shape: tuple[int, ...], arrays: dict[str, Nanoseconds], columns: dict[str, Any]
    ) -> None:
        flat: dict[str, np.ndarray[Any, Any]] = {}
        words: dict[str, Any] = {"thread": 0, "depth": 0, "step": -1}
        for name, value in (arrays | columns).items():
            if isinstance(value, np.ndarray):
                flat[name] = np.broadcast_to(value, shape).ravel()
            else:
                words[name] = value
        constants = [
            pl.lit(value, dtype=EVENT_COLUMNS[name]).alias(name)
            for name, value in words.items()
            if name not in flat and value is not None
        ]
        casts = [pl.col(name).cast(EVENT_COLUMNS[name]) for name in flat]
        self._blocks.append(pl.DataFrame(flat).select(*casts, *constants))
