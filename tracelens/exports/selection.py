"""Some processes of a run, and a window of time: what is written for a viewer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Owner", "Selection", "Size"]


@dataclass(frozen=True)
class Owner:
    """A process that recorded: a worker's rank, or a shard."""

    process: int
    role: str
    rank: int
    host: str

    @property
    def name(self) -> str:
        """Name it as everywhere: ``rank 3``, ``PS 1``."""
        return f"{'PS' if self.role == 'ps' else 'rank'} {self.rank}"


@dataclass(frozen=True)
class Size:
    """How much an export will be: events exactly, bytes about."""

    events: int
    nbytes: int


@dataclass(frozen=True)
class Selection:
    """Processes and a window [start, end) in ns; `spans_of` reads one process, as in `Trace.spans`.

    Times are written from `origin_ns` on; `threads` has process, thread, name, device. `notes` are
    sentences on what was left out.
    """

    run: str
    owners: tuple[Owner, ...]
    start_ns: int
    end_ns: int
    origin_ns: int
    threads: pl.DataFrame
    spans_of: Callable[[int], pl.DataFrame]
    notes: tuple[str, ...] = ()

    def spans(self, owner: Owner) -> pl.DataFrame:
        """Return the spans of one process that touch the window."""
        still = pl.col("end_ns").is_null() | (pl.col("end_ns") > self.start_ns)
        inside = (pl.col("start_ns") < self.end_ns) & still
        return self.spans_of(owner.process).filter(inside)
