"""Residuals against peers: each rank's compute time per step less that of its peers, and as lanes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.categories import OWN_CATEGORIES
from tracelens.caching import cached_property
from tracelens.lod.lanes import BLANK, FIRST_LEVEL, LEVELS, Lane, Lanes
from tracelens.stats.robust import lower_medians, medians

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracelens.arrays import Array, Bytes, Floats, Indices, Ints
    from tracelens.lod.step_times import CategoryTimes

# The ramp ends at the residual of the worst steps, leaving out a few (a first step loads libraries),
# and never below a fifth of a step: noise in a healthy run stays pale; nor beyond a whole one.
CEILING_QUANTILE: Final = 0.98
SMALLEST_CEILING: Final = 0.2
LARGEST_CEILING: Final = 1.0


@dataclass(frozen=True, eq=False)
class Residuals:
    """Compute time of every rank in every step, [rank, step] in ns; NaN where the rank was absent.

    Peers are the ranks of the same stage, `stage_numbers`, [rank] (of pipelines; elsewhere all are 0),
    as for the analyses. `peers_ns`, [stage, step], is their compute time: the lower median over those
    of a step, or, of a stage with a single rank, that rank's median over the steps.
    """

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    compute_ns: Floats
    peers_ns: Floats
    ceiling_ns: float
    stage_numbers: Ints

    @cached_property
    def residual_ns(self) -> Floats:
        """Compute time less that of the peers, [rank, step]."""
        return _subtract_peers(self.compute_ns, self.peers_ns, self.stage_numbers)

    @cached_property
    def total_delay_ns(self) -> Floats:
        """Per rank, the sum of its positive residuals."""
        return np.asarray(np.nansum(np.maximum(self.residual_ns, 0), axis=1))

    def select_ranks(self, rows: Indices) -> Residuals:
        """Return the residuals of some ranks, against the same peers."""
        return replace(
            self,
            ranks=tuple(self.ranks[row] for row in rows.tolist()),
            compute_ns=self.compute_ns[rows],
            stage_numbers=self.stage_numbers[rows],
        )

    @property
    def palette_indices(self) -> Bytes:
        """Return the residuals as palette indexes."""
        share = np.clip(np.nan_to_num(self.residual_ns) / self.ceiling_ns, 0, 1)
        levels = FIRST_LEVEL + np.rint(share * (LEVELS - 1))
        return np.where(np.isnan(self.residual_ns), BLANK, levels).astype(np.uint8)


def measure(
    times: CategoryTimes, categories: Iterable[str] = OWN_CATEGORIES, stage: Ints | None = None
) -> Residuals:
    """Compare the ranks' time in `categories`, step by step; `stage` as in `Residuals`."""
    return compare(
        times.sum_time_ns(categories), times.ranks, times.steps, times.median_step_ns, stage
    )


def compare(
    compute_ns: Floats,
    ranks: tuple[int, ...],
    steps: tuple[int, ...],
    step_ns: float = 0.0,
    stage: Ints | None = None,
) -> Residuals:
    """Compare ranks' times, [rank, step], ns, with those of their stage.

    `step_ns` is how long a step usually is; `stage` the stage's number, [rank], None = all are peers.
    """
    stage = np.zeros(len(ranks), np.int64) if stage is None else stage
    peers_ns = np.zeros((int(stage.max(initial=0)) + 1, len(steps)))
    if compute_ns.size:
        for number, stage_peers_ns in enumerate(peers_ns):
            members_ns = compute_ns[stage == number] if len(peers_ns) > 1 else compute_ns
            stage_peers_ns[:] = _find_peer_medians(members_ns)
    ceiling_ns = _find_ceiling(compute_ns, _subtract_peers(compute_ns, peers_ns, stage), step_ns)
    return Residuals(ranks, steps, compute_ns, peers_ns, ceiling_ns, stage)


def restore(times: CategoryTimes, peers_ns: Floats, ceiling_ns: float, stage: Ints) -> Residuals:
    """Restore what `measure` returned from the stored peers' times, without sorting again."""
    compute_ns = times.sum_time_ns(OWN_CATEGORIES)
    return Residuals(times.ranks, times.steps, compute_ns, peers_ns, ceiling_ns, stage)


def make_step_lanes(residuals: Residuals, steps: pl.DataFrame, lanes: Sequence[Lane]) -> Lanes:
    """Make one lane a rank whose items are its steps, coded by their residuals.

    `steps` has one row per process and step; `lanes` are those of `residuals.ranks`, in that order.
    """
    row_by_process = {lane.process: row for row, lane in enumerate(lanes)}
    process, step = (steps[name].to_numpy() for name in ("process", "step"))
    count = int(process.max(initial=-1)) + 1
    row_of_process = np.array([row_by_process.get(number, -1) for number in range(count)], np.intp)
    row = row_of_process[process]  # -1: it has no lane
    shown_rows = np.flatnonzero((row >= 0) & np.isin(step, residuals.steps))
    shown_rows = shown_rows[np.lexsort((steps["start_ns"].to_numpy()[shown_rows], row[shown_rows]))]
    step_rows, row, step = steps[shown_rows], row[shown_rows], step[shown_rows]
    return Lanes(
        owners=tuple(lanes),
        item_offsets=np.searchsorted(row, np.arange(len(lanes) + 1)),
        starts_ns=step_rows["start_ns"].to_numpy().astype(np.int64),
        ends_ns=step_rows["end_ns"].to_numpy().astype(np.int64),
        palette_codes=residuals.palette_indices[row, np.searchsorted(residuals.steps, step)],
        step_numbers=step.astype(np.int32),
        name_indices=np.zeros(step_rows.height, np.int32),
        item_names=("",),
    )


def find_step_windows(steps: pl.DataFrame) -> pl.DataFrame:
    """Return each step's usual window: the medians over the ranks, made to touch."""
    middle = steps.group_by("step").agg(pl.col("start_ns", "end_ns").median().cast(pl.Int64))
    middle = middle.filter(pl.col("step") >= 0).sort("step")
    following = pl.col("start_ns").shift(-1).fill_null(pl.col("end_ns"))
    return middle.with_columns(end_ns=following)


def make_usage_lanes(lanes: Lanes, windows: pl.DataFrame) -> Lanes:
    """Return the lanes of shards, or streams, with steps as items, coded by use beyond their peers'.

    `windows` has one row per step.
    """
    starts_ns = windows["start_ns"].to_numpy()
    busy_ns = np.array([_sum_busy_time(lanes, lane, starts_ns) for lane in range(len(lanes))])
    levels = np.zeros(busy_ns.shape, np.uint8)
    for lane_part in {lane.track_name for lane in lanes.owners}:
        rows = [row for row, lane in enumerate(lanes.owners) if lane.track_name == lane_part]
        levels[rows] = compare(busy_ns[rows], tuple(rows), tuple(windows["step"])).palette_indices
    step_count = len(starts_ns)
    return replace(
        lanes,
        item_offsets=step_count * np.arange(len(lanes) + 1),
        starts_ns=np.tile(starts_ns, len(lanes)),
        ends_ns=np.tile(windows["end_ns"].to_numpy(), len(lanes)),
        palette_codes=levels.ravel(),
        step_numbers=np.tile(windows["step"].to_numpy().astype(np.int32), len(lanes)),
        name_indices=np.zeros(len(lanes) * step_count, np.int32),
        item_names=("",),
    )


def _sum_busy_time(lanes: Lanes, lane: int, starts_ns: Array) -> Floats:
    """Sum the lengths of a lane's items by the step in which they begin, [step], ns."""
    items = slice(int(lanes.item_offsets[lane]), int(lanes.item_offsets[lane + 1]))
    step = np.searchsorted(starts_ns, lanes.starts_ns[items], side="right") - 1
    duration_ns = lanes.ends_ns[items] - lanes.starts_ns[items]
    is_in_step = step >= 0
    busy_ns = np.bincount(step[is_in_step], duration_ns[is_in_step], minlength=len(starts_ns))
    return busy_ns.astype(float)


def _find_peer_medians(peers: Floats) -> Floats:
    """Return the peers' lower median time, [step], ns; of a single rank, that of its steps, [1]."""
    return lower_medians(peers.T if len(peers) > 1 else peers)


def _subtract_peers(compute_ns: Floats, peers_ns: Floats, stage: Ints) -> Floats:
    """Subtract the peers' time, [rank, step]; broadcast where all ranks are of one stage."""
    return np.asarray(compute_ns - (peers_ns[stage] if len(peers_ns) > 1 else peers_ns))


def _find_ceiling(compute_ns: Floats, residual_ns: Floats, step_ns: float) -> float:
    """Return the residual at which the ramp of colours ends, ns; matrices are [rank, step], ns."""
    if not residual_ns.size or np.isnan(residual_ns).all():
        return 1.0
    worst_ns = np.max(np.nan_to_num(residual_ns), axis=0)
    usual_ns = max(float(medians(np.ravel(compute_ns), 0)), step_ns)
    high_ns = min(float(np.quantile(worst_ns, CEILING_QUANTILE)), LARGEST_CEILING * usual_ns)
    return max(high_ns, SMALLEST_CEILING * usual_ns, 1.0)
