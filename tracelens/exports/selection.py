"""Some processes of a run, and a window of time: what an export holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.model.fmt import shown_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.model.trace import Trace

__all__ = ["Owner", "Selection", "Size", "of_trace"]

_NAME: Final = ("process", "role", "rank", "host")


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

    Times are written from `origin_ns` on; `threads` has process, thread, name, device.
    """

    run: str
    owners: tuple[Owner, ...]
    start_ns: int
    end_ns: int
    origin_ns: int
    threads: pl.DataFrame
    spans_of: Callable[[int], pl.DataFrame]

    def spans(self, owner: Owner) -> pl.DataFrame:
        """Return the spans of one process that touch the window."""
        still = pl.col("end_ns").is_null() | (pl.col("end_ns") > self.start_ns)
        inside = (pl.col("start_ns") < self.end_ns) & still
        return self.spans_of(owner.process).filter(inside)


def of_trace(
    trace: Trace, ranks: frozenset[int] | None = None, window: tuple[int, int] | None = None
) -> Selection:
    """Choose ranks of a trace (all workers and shards if null), and a window (all of it if null)."""
    main = pl.concat([trace.workers, trace.shards])
    owners = tuple(
        Owner(*row)
        for row in main.select(_NAME).iter_rows()
        if ranks is None or (row[1] == "worker" and row[2] in ranks)
    )
    start = _begin(trace)
    return Selection(
        run=shown_name(trace.path.resolve().name) if trace.path else "run",
        owners=owners,
        start_ns=window[0] if window else -(1 << 62),
        end_ns=window[1] if window else 1 << 62,
        origin_ns=start,
        threads=trace.threads.select("process", "thread", "name", "device"),
        spans_of=lambda process: trace.spans.filter(pl.col("process") == process).collect(),
    )


def _begin(trace: Trace) -> int:
    """Where time begins: with the first step, as on every page; without one, with the first event."""
    starts = (trace.steps["start_ns"], trace.processes["first_ns"])
    found = (times.min() for times in starts if times.count())
    first = next(found, 0)
    return first if isinstance(first, int) else 0
