"""What to draw for a window: residuals per step, the dominant category per pixel, samples, or spans.

And over them the critical path: on which row it is, from when to when.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np

from tracelens.lod import raster, viewport
from tracelens.lod.packed import parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from tracelens.arrays import Bytes, Ints
    from tracelens.lod.lanes import Lanes
    from tracelens.lod.pyramid import Pyramid
    from tracelens.lod.viewport import Band, Grid, Plan, Window


Level = Literal["residuals", "dominant", "sampled", "spans"]

COLUMNS: Final = 1200
# Below this width of a step, categories are noise to the eye; tall rows bear less. Where spans can only
# be sampled, so are they below this width of the mean span.
STEP_PX: Final = 24
SPAN_PX: Final = 1.0
PINNED: Final = 3  # times less
MOST_BARS: Final = 1500
BAR_PX: Final = 6
PATH_PX: Final = 2  # the mean width of a stay below which neighbours are joined


@dataclass(frozen=True, eq=False)
class Scene:
    """All that a timeline can show.

    `lanes` and `steps` have the same rows; the items of `steps` are whole steps, coded by residual.
    `peaks` are those of `steps`, `pyramid` that of `lanes`; either may be missing.
    """

    lanes: Lanes
    steps: Lanes
    whole: Window
    step_ns: int
    peaks: Pyramid | None = None
    pyramid: Pyramid | None = None

    @property
    def spans_a_step(self) -> float:
        """How many items a step has in a lane, on average."""
        return len(self.lanes.starts) / max(len(self.steps.starts), 1)


@dataclass(frozen=True, eq=False)
class Bars:
    """Spans to draw as shapes: `items` of the scene's lanes, in the band of the same place.

    `every`: those of all bands, not only of the pinned ones.
    """

    items: Ints
    bands: Ints
    every: bool = True


@dataclass(frozen=True, eq=False)
class Picture:
    """Pixels to lay under the axes, and the few spans to draw as shapes; `inside`: opened processes."""

    grid: Grid
    pixels: Bytes
    level: Level
    spans: int
    hidden: int
    bars: Bars | None
    inside: tuple[Picture, ...] = ()


def look(
    scene: Scene, seen: Window, plan: Plan, columns: int = COLUMNS, most_bars: int = MOST_BARS
) -> Picture:
    """Choose the level of detail for a window and draw it."""
    grid = viewport.snap(seen, scene.whole, columns)
    step_px = scene.step_ns / grid.step_ns
    colours = scene.pyramid.grid(grid.window, grid.step_ns) if scene.pyramid else None
    needed = STEP_PX if colours else max(STEP_PX, SPAN_PX * scene.spans_a_step)
    detailed = [step_px >= _share(band) * needed for band in plan.bands]
    bars = _bars(scene, grid, plan, most_bars)
    chosen = _chosen(scene, grid, plan.bands)
    if any(detailed):
        grid = colours or grid
    elif scene.peaks:
        grid = scene.peaks.grid(grid.window, grid.step_ns) or grid
    pixels, hidden = _paint(scene, seen, grid, chosen, detailed)
    whole = bars is not None and bars.every
    workers = [d for d, band in zip(detailed, plan.bands, strict=True) if band.section != "pinned"]
    inside: Level = "dominant" if grid is colours else "sampled"
    return Picture(
        grid=grid,
        pixels=raster.fill(plan, pixels, range(len(chosen))),
        level="spans" if whole else inside if any(workers) else "residuals",
        spans=scene.lanes.count(seen.start_ns, seen.end_ns),
        hidden=0 if whole else hidden,
        bars=bars,
    )


def lane_at(
    scene: Scene, seen: Window, plan: Plan, height: float, columns: int = COLUMNS
) -> int | None:
    """Return the lane that is drawn at a height: the one that represents its band."""
    band = plan.at(height)
    if band is None:
        return None
    grid = viewport.snap(seen, scene.whole, columns)
    return _chosen(scene, grid, [band])[0]


def _chosen(scene: Scene, grid: Grid, bands: Sequence[Band]) -> list[int]:
    """Return the lane that represents each band; residuals are read only where there are several."""
    groups = [band.lanes for band in bands]
    if all(len(lanes) == 1 for lanes in groups):
        return [lane for (lane,) in groups]
    return viewport.worst(groups, _severity(scene, grid))


def _share(band: Band) -> float:
    return 1 / PINNED if band.section == "pinned" else 1.0


def _paint(
    scene: Scene, seen: Window, grid: Grid, chosen: list[int], detailed: list[bool]
) -> tuple[Bytes, int]:
    """Draw a row for each chosen lane; count the spans in view that got no pixel."""
    pixels, hidden = np.zeros((len(chosen), grid.columns), np.uint8), 0
    fine = [row for row, yes in enumerate(detailed) if yes]
    coarse = [row for row, yes in enumerate(detailed) if not yes]
    if fine:
        lanes = [chosen[row] for row in fine]
        found = scene.pyramid.rows(lanes, grid) if scene.pyramid else None
        if found is None:
            found, hidden = raster.sample(scene.lanes, lanes, grid, seen)
        pixels[fine] = found
    if coarse:
        lanes = [chosen[row] for row in coarse]
        found = scene.peaks.rows(lanes, grid) if scene.peaks else None
        pixels[coarse] = raster.highest(scene.steps, lanes, grid) if found is None else found
    return pixels, hidden


def _severity(scene: Scene, grid: Grid) -> Ints:
    """Return the largest residual code of each lane in what is drawn."""
    first, last = scene.steps.bounds(grid.start_ns, grid.end_ns)
    codes = parts(scene.steps.codes, first, last)
    there, begins = last > first, np.cumsum(last - first) - (last - first)
    worst = np.zeros(len(first), np.int64)
    if there.any():
        worst[there] = np.maximum.reduceat(codes, begins[there])
    return worst


def _bars(scene: Scene, grid: Grid, plan: Plan, most: int) -> Bars | None:
    """Choose the bands that can be shapes: all but groups' if they are few spans, else the pinned."""
    every = [(row, band) for row, band in enumerate(plan.bands) if band.group is None]
    for bands in (every, [(row, b) for row, b in every if b.section == "pinned"]):
        if any(len(band.lanes) > 1 or band.height < BAR_PX for _, band in bands):
            continue
        lanes = [band.lanes[0] for _, band in bands]
        first, last = scene.lanes.bounds(grid.start_ns, grid.end_ns, lanes)
        counts = last - first
        if 0 < counts.sum() <= most:
            parts = zip(first.tolist(), last.tolist(), strict=True)
            return Bars(
                items=np.concatenate([np.arange(begin, end) for begin, end in parts]),
                bands=np.repeat([row for row, _ in bands], counts),
                every=bands is every and len(every) == len(plan.bands),
            )
    return None


class PathStretch(NamedTuple):
    """A stretch of the path on one row of the scene."""

    lane: int
    start_ns: int
    end_ns: int


def path_within(stretches: pl.DataFrame, lanes: Lanes, grid: Grid) -> list[PathStretch]:
    """Return what a grid of pixels can show; `stretches` as in `critical_path`, with processes."""
    from tracelens.analyses import critical_path  # noqa: PLC0415 - few look at the path

    rows = {lane.process: index for index, lane in enumerate(lanes.lanes) if lane.role == "worker"}
    shown = critical_path.stretches_within(
        stretches, grid.start_ns, grid.end_ns, max(grid.columns // PATH_PX, 1)
    )
    return [
        PathStretch(rows[process], start, end)
        for process, start, end in shown.iter_rows()
        if process in rows
    ]
