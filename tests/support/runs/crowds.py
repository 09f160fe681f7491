"""Very many ranks of which one is late once: only what the coarsest level of detail needs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl
from support.runs.verdicts import verdict_of

from tracelens.lod import pyramid, residuals
from tracelens.lod.lanes import Lane, Lanes
from tracelens.lod.query import Scene
from tracelens.lod.run_data import Run
from tracelens.lod.step_times import CategoryTimes
from tracelens.lod.viewport import Window
from tracelens.model.result import Report, Summary
from tracelens.model.trace import Alignment

if TYPE_CHECKING:
    from tracelens.arrays import Bytes

STEP_NS: Final = 1_000_000
USUAL_NS: Final = 100_000
LATE_NS: Final = 300_000


def crowd(ranks: int, steps: int, late_rank: int, late_step: int) -> Run:
    """Return a run of whole steps in which `late_rank` is late in `late_step`, and nothing else."""
    own_ns = np.full((1, steps, ranks), USUAL_NS, np.uint32)
    own_ns[0, late_step, late_rank] = LATE_NS
    there = np.ones((steps, ranks), np.bool_)
    times = CategoryTimes(
        tuple(range(ranks)), tuple(range(steps)), ("backprop",), own_ns, there, float(STEP_NS)
    )
    late = residuals.measure(times)
    numbers, none = pl.Series(range(ranks), dtype=pl.Int32), pl.DataFrame()
    starts = STEP_NS * np.arange(steps)
    workers = pl.DataFrame({"process": numbers, "rank": numbers}).with_columns(
        host=pl.lit("host"), file=pl.lit(""), stage=0
    )
    return Run(
        name="crowd",
        report=_nothing_found(ranks, steps),
        workers=workers,
        shards=workers.clear(),
        threads=none,
        step_windows=pl.DataFrame(
            {"step": range(steps), "start_ns": starts, "end_ns": starts + STEP_NS}
        ),
        category_times=times,
        measure_residuals=lambda: late,
        shard_loads=none,
        shard_traffic=none,
        tables={},
        scene=_scene(late.palette_indices),
        clock_maps={},
        call_rows=none.lazy(),
    )


def _nothing_found(ranks: int, steps: int) -> Report:
    summary = Summary(ranks, ranks, 0, steps, ranks * steps, {})
    return Report(verdict_of(), summary, Alignment("same_clock"), None, None, (), ())


def _scene(levels: Bytes) -> Scene:
    """Make lanes of steps; the spans within them are the steps themselves."""
    ranks, steps = levels.shape
    starts = np.tile(STEP_NS * np.arange(steps), ranks)
    number = np.zeros(ranks * steps, np.int32)
    lanes = tuple(Lane(rank, "worker", rank) for rank in range(ranks))
    offsets = steps * np.arange(ranks + 1)
    whole = Window(0, steps * STEP_NS)
    items = Lanes(lanes, offsets, starts, starts + STEP_NS, levels.ravel(), number, number, ("",))
    return Scene(items, items, whole, STEP_NS)


def with_peaks(run: Run) -> Run:
    """Add the levels that an index keeps of steps."""
    scene = run.scene
    peaks = pyramid.build_peaks(scene.step_lanes, scene.run_window, scene.median_step_ns)
    return dataclasses.replace(run, scene=dataclasses.replace(scene, peak_pyramid=peaks))
