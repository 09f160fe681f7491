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

    @property
    def over_ns(self) -> int:
        """When the last rank left; when the last one entered, if nobody has left yet."""
        return max(self.left.values(), default=self.last_ns)


def table(trace: Trace) -> pl.LazyFrame:
    """Return all calls of a trace, a row a rank, as `find` wants them."""
    return trace.arrivals.lazy().select(*COLUMNS)


def at(calls: pl.LazyFrame, rank: int, at_ns: int) -> Call | None:
    """Return the call that a rank was in at a moment: of several, what ends first."""
    inside = (pl.col("start_ns") <= at_ns) & (
        pl.col("end_ns").is_null() | (pl.col("end_ns") > at_ns)
    )
    found = calls.filter(inside, pl.col("rank") == rank).sort("end_ns", nulls_last=True)
    return _first(calls, found)


def around(calls: pl.LazyFrame, start_ns: int, end_ns: int) -> Call | None:
    """Return the call that a stretch of time is of: from its first or last arrival to its last exit."""
    touching = calls.filter(pl.col("start_ns") <= end_ns, pl.col("end_ns") >= start_ns)
    begins = [(arrival - start_ns).abs() for arrival in (pl.col("first"), pl.col("last"))]
    whole = touching.group_by("communicator", "seq").agg(
        first=pl.col("start_ns").min(), last=pl.col("start_ns").max(), over=pl.col("end_ns").max()
    )
    apart = pl.min_horizontal(begins) + (pl.col("over") - end_ns).abs()
    return _first(calls, whole.sort(apart, "communicator", "seq"))


def _first(calls: pl.LazyFrame, found: pl.LazyFrame) -> Call | None:
    rows = found.select("communicator", "seq").head(1).collect().rows()
    return find(calls, *rows[0]) if rows else None


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
