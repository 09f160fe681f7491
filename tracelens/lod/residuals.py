"""Residuals against peers: each rank's compute time per step less that of its peers, and as lanes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.categories import OWN_CATEGORIES
from tracelens.caching import cached_property
from tracelens.lod.lanes import BLANK, FIRST_LEVEL, LEVELS, Lane, Lanes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracelens.arrays import Array, Bytes, Floats, Indices, Ints
    from tracelens.lod.step_times import Times

# The ramp ends at the residual of the worst steps, leaving out a few (a first step loads libraries),
# and never below a fifth of a step: noise in a healthy run stays pale; nor beyond a whole one.
CEILING_QUANTILE: Final = 0.98
SMALLEST_CEILING: Final = 0.2
LARGEST_CEILING: Final = 1.0


@dataclass(frozen=True, eq=False)
class Residuals:
    """Compute time of every rank in every step, [rank, step] in ns; NaN where the rank was absent.

    Peers are the ranks of the same `stage`, [rank] (of pipelines; elsewhere all are of stage 0), as for
    the analyses. `peers_ns`, [stage, step], is their compute time: the lower median over those of a
    step, or, of a stage with a single rank, that rank's median over the steps.
    """

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    compute_ns: Floats
    peers_ns: Floats
    ceiling_ns: float
    stage: Ints

    @cached_property
    def residual_ns(self) -> Floats:
        """Compute time less that of the peers, [rank, step]."""
        return _subtract_peers(self.compute_ns, self.peers_ns, self.stage)

    @cached_property
    def total_ns(self) -> Floats:
        """Per rank, the sum of its positive residuals."""
        return np.asarray(np.nansum(np.maximum(self.residual_ns, 0), axis=1))

    def of_rows(self, rows: Indices) -> Residuals:
        """Return those of some ranks, against the same peers."""
        return replace(
            self,
            ranks=tuple(self.ranks[row] for row in rows.tolist()),
            compute_ns=self.compute_ns[rows],
            stage=self.stage[rows],
        )

    @property
    def levels(self) -> Bytes:
        """Return the residuals as palette indexes."""
        share = np.clip(np.nan_to_num(self.residual_ns) / self.ceiling_ns, 0, 1)
        levels = FIRST_LEVEL + np.rint(share * (LEVELS - 1))
        return np.where(np.isnan(self.residual_ns), BLANK, levels).astype(np.uint8)


def measure(
    times: Times, categories: Iterable[str] = OWN_CATEGORIES, stage: Ints | None = None
) -> Residuals:
    """Compare the ranks' time in `categories`, step by step; `stage` as in `Residuals`."""
    return compare(times.time_in(categories), times.ranks, times.steps, times.usual_ns, stage)


def compare(
    compute: Floats,
    ranks: tuple[int, ...],
    steps: tuple[int, ...],
    step_ns: float = 0.0,
    stage: Ints | None = None,
) -> Residuals:
    """Compare rows of time, [rank, step], with each other; `step_ns` is how long a step usually is."""
    stage = np.zeros(len(ranks), np.int64) if stage is None else stage
    peers = np.zeros((int(stage.max(initial=0)) + 1, len(steps)))
    if compute.size:
        for one, row in enumerate(peers):
            row[:] = _peer_medians(compute[stage == one] if len(peers) > 1 else compute)
    ceiling = _ceiling(compute, _subtract_peers(compute, peers, stage), step_ns)
    return Residuals(ranks, steps, compute, peers, ceiling, stage)


def restore(times: Times, peers_ns: Floats, ceiling_ns: float, stage: Ints) -> Residuals:
    """Restore what `measure` returned from the stored peers' times, without sorting again."""
    compute = times.time_in(OWN_CATEGORIES)
    return Residuals(times.ranks, times.steps, compute, peers_ns, ceiling_ns, stage)


def step_lanes(residuals: Residuals, steps: pl.DataFrame, lanes: Sequence[Lane]) -> Lanes:
    """Make one lane a rank whose items are its steps, coded by their residuals.

    `steps` as in `Trace.steps`; `lanes` are the workers' of the same order as `residuals.ranks`.
    """
    row_of = {lane.process: row for row, lane in enumerate(lanes)}
    process, step = (steps[name].to_numpy() for name in ("process", "step"))
    row = np.array(
        [row_of.get(one, -1) for one in range(int(process.max(initial=-1)) + 1)], np.intp
    )
    owner = row[process]
    known_rows = np.flatnonzero((owner >= 0) & np.isin(step, residuals.steps))
    known_rows = known_rows[
        np.lexsort((steps["start_ns"].to_numpy()[known_rows], owner[known_rows]))
    ]
    table, owner, step = steps[known_rows], owner[known_rows], step[known_rows]
    return Lanes(
        lanes=tuple(lanes),
        offsets=np.searchsorted(owner, np.arange(len(lanes) + 1)),
        starts=table["start_ns"].to_numpy().astype(np.int64),
        ends=table["end_ns"].to_numpy().astype(np.int64),
        codes=residuals.levels[owner, np.searchsorted(residuals.steps, step)],
        steps=step.astype(np.int32),
        names=np.zeros(table.height, np.int32),
        words=("",),
    )


def boundaries(steps: pl.DataFrame) -> pl.DataFrame:
    """Return each step's usual window: the medians over the ranks, made to touch."""
    middle = steps.group_by("step").agg(pl.col("start_ns", "end_ns").median().cast(pl.Int64))
    middle = middle.filter(pl.col("step") >= 0).sort("step")
    following = pl.col("start_ns").shift(-1).fill_null(pl.col("end_ns"))
    return middle.with_columns(end_ns=following)


def shard_lanes(lanes: Lanes, windows: pl.DataFrame) -> Lanes:
    """Turn lanes of shards, or of streams, into lanes of steps, coded by use beyond their peers'."""
    starts = windows["start_ns"].to_numpy()
    busy = np.array([_busy(lanes, lane, starts) for lane in range(len(lanes))])
    levels = np.zeros(busy.shape, np.uint8)
    for part in {lane.part for lane in lanes.lanes}:
        rows = [row for row, lane in enumerate(lanes.lanes) if lane.part == part]
        levels[rows] = compare(busy[rows], tuple(rows), tuple(windows["step"])).levels
    count = len(starts)
    return replace(
        lanes,
        offsets=count * np.arange(len(lanes) + 1),
        starts=np.tile(starts, len(lanes)),
        ends=np.tile(windows["end_ns"].to_numpy(), len(lanes)),
        codes=levels.ravel(),
        steps=np.tile(windows["step"].to_numpy().astype(np.int32), len(lanes)),
        names=np.zeros(len(lanes) * count, np.int32),
        words=("",),
    )


def _busy(lanes: Lanes, lane: int, starts: Array) -> Floats:
    part = slice(int(lanes.offsets[lane]), int(lanes.offsets[lane + 1]))
    step = np.searchsorted(starts, lanes.starts[part], side="right") - 1
    duration = lanes.ends[part] - lanes.starts[part]
    within = step >= 0
    return np.bincount(step[within], duration[within], minlength=len(starts)).astype(float)


def _peer_medians(peers: Floats) -> Floats:
    """Return the peers' median time, [step]; of a single rank, that of its own other steps."""
    return np.asarray(_lower_median(peers, axis=0 if len(peers) > 1 else 1)[0])


def _subtract_peers(compute: Floats, peers: Floats, stage: Ints) -> Floats:
    """Subtract the peers' time, [rank, step]; broadcast where all ranks are of one stage."""
    return np.asarray(compute - (peers[stage] if len(peers) > 1 else peers))


def _lower_median(values: Floats, axis: int) -> Floats:
    """Return the lower of the two middle values: with two ranks, that of the faster one."""
    ordered = np.sort(values, axis=axis)  # NaN last
    present = np.sum(~np.isnan(values), axis=axis, keepdims=True)
    return np.take_along_axis(ordered, np.maximum(present - 1, 0) // 2, axis=axis)


def _ceiling(compute: Floats, residual: Floats, step_ns: float) -> float:
    if not residual.size or np.isnan(residual).all():
        return 1.0
    worst = np.max(np.nan_to_num(residual), axis=0)
    usual = max(float(np.nanmedian(compute)), step_ns)
    most = min(float(np.quantile(worst, CEILING_QUANTILE)), LARGEST_CEILING * usual)
    return max(most, SMALLEST_CEILING * usual, 1.0)
