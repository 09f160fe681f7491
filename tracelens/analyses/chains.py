"""Chains: from each gradient's being ready to the first use of the weights that it changed.

Tells by bucket or shard where a gradient spends its time (`_stages.py`), and how much time lies between
weight updates that background work, such as writing a checkpoint, could use without delaying anybody
(`_background.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.analyses import _background, _stages

if TYPE_CHECKING:
    from tracelens.analyses.phases import Phases
    from tracelens.analyses.result import Finding
    from tracelens.trace import Trace

__all__ = ["CHAIN_COLUMNS", "SHOWN_COLUMNS", "Chains", "run", "steps_to_write"]

MOST_ROWS: Final = 64  # in a report
CHAIN_COLUMNS: Final[dict[str, pl.DataType]] = {
    "of": pl.String(),  # bucket or shard
    "number": pl.Int32(),
    "chains": pl.Int64(),  # followed: ranks x steps
    "waiting_ns": pl.Int64(),  # medians: ready, but not all have come, or the wire or shard is not free
    "reducing_ns": pl.Int64(),
    "until_update_ns": pl.Int64(),  # reduced, but not yet being applied
    "updating_ns": pl.Int64(),
    "until_use_ns": pl.Int64(),  # until the next step's forward pass begins
    "whole_ns": pl.Int64(),  # from ready to use
    "whole_p90_ns": pl.Int64(),
}
SHOWN_COLUMNS: Final[dict[str, pl.DataType]] = CHAIN_COLUMNS | {  # what pages draw besides
    "ready_ns": pl.Int64(),  # after the first gradient of the rank and step, median
    "rank": pl.Int32(),  # of the longest chain
    "step": pl.Int32(),
}


@dataclass(frozen=True)
class Chains:
    """`chains` by bucket or shard, `background` by rank."""

    chains: pl.DataFrame
    background: pl.DataFrame
    findings: tuple[Finding, ...] = ()

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """What a report shows: the longest chains, and the ranks with least time."""
        return {
            "chains": self.chains.select(*CHAIN_COLUMNS)
            .sort("whole_ns", descending=True, nulls_last=True)
            .head(MOST_ROWS),
            "background": self.background.sort("usable_ns", "rank").head(MOST_ROWS),
        }


def run(trace: Trace, phases: Phases) -> Chains:
    """Follow all gradients, and add up the time for background work."""
    rank = trace.workers.select("process", "rank")
    rows = _stages.follow(trace).join(rank, on="process", how="left", maintain_order="left")
    first = pl.col("ready").min().over("process", "step", "of")
    rows = rows.with_columns(
        whole_ns=pl.sum_horizontal(_stages.STAGES, ignore_nulls=False),
        ready_ns=pl.col("ready") - first,
    )
    medians = pl.col("ready_ns", *_stages.STAGES, "whole_ns").median().round()
    longest = pl.col("rank", "step").get(pl.col("whole_ns").fill_null(-1).arg_max())
    table = (
        rows.group_by("of", "number")
        .agg(
            medians,
            longest,
            chains=pl.len(),
            whole_p90_ns=pl.col("whole_ns").quantile(0.9).round(),
        )
        .select(pl.col(name).cast(kind) for name, kind in SHOWN_COLUMNS.items())
        .sort("of", "number")
    )
    return Chains(table, _background.budget(trace, phases))


def steps_to_write(background: pl.DataFrame, nbytes: int, bytes_per_ns: float = 1.0) -> float:
    """Return in how many steps' free time every rank can write `nbytes`; inf where one has none.

    Args:
        background: A row a rank (`_background.BUDGET_COLUMNS`).
        nbytes: What a rank has to write, such as its share of a checkpoint.
        bytes_per_ns: How fast, in GB/s.
    """
    least = background["usable_ns"].min()
    if not isinstance(least, int) or least <= 0:
        return float("inf")
    return nbytes / bytes_per_ns / least
