"""Ranks that ended their training loop in good order while others went on: their inputs are uneven."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from tracelens.accounting.phases import Phases
    from tracelens.accounting.stages import Roles
    from tracelens.model.trace import Trace


@dataclass(frozen=True)
class EarlyEnd:
    """Ranks whose last training step is `last_step`, or before it; others have `others_last_step`.

    These began that step `gap_ns` after the last of the ranks had ended its own last one. If
    `has_joined_later_calls`, the ranks still took part in the others' collectives, as within PyTorch's
    Join.
    """

    ranks: tuple[int, ...]
    last_step: int
    others_last_step: int
    gap_ns: int
    has_joined_later_calls: bool = False

    @property
    def missing_step_count(self) -> int:
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
    trained_steps = phases.pieces.step_windows.filter(  # a row per step of a worker
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
    joins_on = _joins_on(
        trace,
        dict(early_ends.select("process", "end_ns").iter_rows()),
        others_last_step - last_step,
    )
    return EarlyEnd(
        ranks,
        last_step,
        others_last_step,
        gap_ns=others_begin_ns - ended_ns,
        has_joined_later_calls=joins_on,
    )


def _joins_on(trace: Trace, end_ns_by_process: dict[int, int], missing_steps: int) -> bool:
    """Return True if each process, after its last step, took part in as many calls as it lacks steps."""
    for process, end_ns in end_ns_by_process.items():
        later_call_count = 0
        for grid in trace.calls:
            begins_ns = grid.start_ns[:, np.flatnonzero(grid.processes == process)]
            later_call_count += int((begins_ns >= end_ns).sum())
        if later_call_count < missing_steps:
            return False
    return True
