"""Some processes of a run, and a window of time: what is written for a viewer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from tracelens.model.trace import SAMPLE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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

    event_count: int
    size_bytes: int


@dataclass(frozen=True, eq=False)
class Selection:
    """Processes and a window [start, end) in ns.

    `read_process_events` reads one process, as in `Trace.events`, `read_process_samples` its stacks;
    None: none are wanted. Times are written from `origin_ns` on, or from the first event if that is
    earlier; `threads` has process, thread, name, device. `notes` are sentences on what was left out,
    `facts` what else is known of the run.
    """

    run_name: str
    owners: tuple[Owner, ...]
    start_ns: int
    end_ns: int
    origin_ns: int
    threads: pl.DataFrame
    read_process_events: Callable[[int], pl.DataFrame]
    read_process_samples: Callable[[int], pl.DataFrame] | None = None
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def read_events(self, owner: Owner) -> pl.DataFrame:
        """Return the events of one process that touch the window."""
        until = pl.when(pl.col("type") == "span").then("end_ns").otherwise("start_ns")
        return self.read_process_events(owner.process).filter(
            pl.col("start_ns") < self.end_ns, until.is_null() | (until > self.start_ns)
        )

    def read_samples(self, owner: Owner) -> pl.DataFrame:
        """Return the samples of one process's stacks that touch the window."""
        if self.read_process_samples is None:
            return pl.DataFrame(schema=SAMPLE_COLUMNS)
        touching = (pl.col("start_ns") < self.end_ns) & (pl.col("end_ns") > self.start_ns)
        return self.read_process_samples(owner.process).filter(touching)
