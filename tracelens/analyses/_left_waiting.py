"""Who stood in a collective when the recording ended, and who never came."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracelens import words
from tracelens.analyses.result import Finding

if TYPE_CHECKING:
    from tracelens.trace import Trace


@dataclass(frozen=True)
class Waiting:
    """`ranks` were left in call number `seq` of an `op` in `step`, which `absent` never entered."""

    absent: int
    ranks: tuple[int, ...]
    op: str
    seq: int
    step: int

    def told(self) -> str:
        """Say it, to follow what became of the absent rank."""
        verb = "was" if len(self.ranks) == 1 else "were"
        return (
            f"{words.listing('rank', self.ranks)} {verb} in {self.op} waiting for it "
            f"(call {self.seq} never came)"
        )


def left_waiting(trace: Trace) -> list[Waiting]:
    """Return one entry for each rank that others were left waiting for, its first missed call."""
    left = (
        trace.arrivals.filter(
            pl.col("end_ns").is_null()
            & pl.col("last_arrival_ns").is_null()
            & pl.col("last_rank").is_not_null()
        )
        .sort("seq", "rank")
        .group_by("last_rank", "communicator", "seq", maintain_order=True)
        .agg("rank", pl.col("op").cast(pl.String).first(), pl.col("step").max())
        .unique("last_rank", keep="first", maintain_order=True)
        .sort("last_rank")
    )
    return [
        Waiting(row["last_rank"], tuple(row["rank"]), row["op"], row["seq"], row["step"])
        for row in left.iter_rows(named=True)
    ]


def hangs(trace: Trace) -> list[Finding]:
    """Report ranks that ended in good order while others stood in a collective without them."""
    ended = set(trace.workers.filter("complete")["rank"])
    return [
        Finding(
            kind="hang",
            category="fault",
            ranks=(waiting.absent,),
            steps=(waiting.step, waiting.step) if waiting.step >= 0 else None,
            sentence=(
                f"Rank {waiting.absent} ended its recording in good order, but "
                f"{waiting.told()}: ranks do not make the same calls."
            ),
            evidence={"waiting": list(waiting.ranks), "call": waiting.seq},
        )
        for waiting in left_waiting(trace)
        if waiting.absent in ended
    ]
