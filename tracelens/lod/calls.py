"""One collective call: when every rank entered it, who came last, and when they left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.trace import Trace

COLUMNS: Final = ("communicator", "seq", "rank", "op", "start_ns", "end_ns")


@dataclass(frozen=True)
class Call:
    """When each rank that took part entered and left; who is still inside has not left."""

    op: str
    seq: int
    entered: Mapping[int, int]
    left: Mapping[int, int]

    @property
    def first_ns(self) -> int:
        """When the first rank entered."""
        return min(self.entered.values())

    @property
    def last_rank(self) -> int:
        """Who entered last."""
        return max(self.entered, key=lambda rank: self.entered[rank])

    @property
    def last_ns(self) -> int:
        """When the last rank entered."""
        return self.entered[self.last_rank]


def table(trace: Trace) -> pl.LazyFrame:
    """Return all calls of a trace, a row a rank, as `find` wants them."""
    return trace.arrivals.lazy().select(*COLUMNS)


def find(calls: pl.LazyFrame, communicator: str, seq: int) -> Call | None:
    """Return a call by its communicator and number; None where there is none."""
    wanted = (pl.col("seq") == seq) & (pl.col("communicator") == communicator)
    found = calls.filter(wanted).collect()
    if found.is_empty():
        return None
    over = found.drop_nulls("end_ns")
    return Call(
        op=str(found["op"][0]),
        seq=seq,
        entered=dict(found.select("rank", "start_ns").iter_rows()),
        left=dict(over.select("rank", "end_ns").iter_rows()),
    )
