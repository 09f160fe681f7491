"""Ranks that ended their training loop in good order while others went on: their inputs are uneven."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from tracelens.accounting.phases import Phases
    from tracelens.accounting.stages import Roles
    from tracelens.model.trace import Trace


@dataclass(frozen=True)
class EarlyEnd:
    """Ranks whose last training step is `last_step`, or before it; others have `others_last_step`.

    These began that step `gap_ns` after the last of the ranks had ended its own last one.
    """

    ranks: tuple[int, ...]
    last_step: int
    others_last_step: int
    gap_ns: int

    @property
    def missing_steps(self) -> int:
        """How many steps the ranks trained less."""
        return self.others_last_step - self.last_step


def find_early_end(trace: Trace, phases: Phases, roles: Roles) -> EarlyEnd | None:
    """Find ranks whose last backprop is in an earlier step than the others', and that ended in order.

    A rank that was cut off has not ended its loop: it must have lived on, or recorded its end, when the
    others began their last step. None without backprop, or with servers or masters, whose workers need
    not make equally many steps.
    """
    workers = trace.workers
    if roles.server_rank is not None or not trace.shards.is_empty():
        return None
    trained_steps = phases.pieces.windows.filter(  # a row per step of a worker
        pl.Series(phases.sum_ns_by_window("backprop") > 0)
    )
    last_steps = (
        trained_steps.group_by("process")
        .agg(pl.col("step").max())
        .join(trace.steps.drop("rank"), on=["process", "step"])
    )
    if last_steps.height < workers.height or last_steps["step"].n_unique() < 2:
        return None
    is_last = pl.col("step") == pl.col("step").max()
    others_last_step, others_begin_ns = (
        last_steps.filter(is_last).select(pl.col("step").first(), pl.col("start_ns").min()).row(0)
    )
    early_ends = last_steps.filter(~is_last).join(
        workers.select("process", "rank", "last_ns", "complete", "dropped"), on="process"
    )
    lived_on = pl.col("complete") | (pl.col("last_ns") > others_begin_ns)
    has_ended_loop = (
        lived_on & (pl.col("dropped").fill_null(0) == 0) & (pl.col("start_ns") < others_begin_ns)
    )
    if not early_ends.select(has_ended_loop.all()).item():
        return None
    last_step, ended_ns = early_ends.select(pl.col("step", "end_ns").max()).row(0)
    ranks = tuple(early_ends["rank"].sort().to_list())
    return EarlyEnd(ranks, last_step, others_last_step, gap_ns=others_begin_ns - ended_ns)
