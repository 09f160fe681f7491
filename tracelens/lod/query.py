"""What to draw for a window: residuals per step, the dominant category per pixel, samples, or spans.

And over them the critical path: on which row it is, from when to when.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np

from tracelens.lod import raster, viewport
from tracelens.lod.block_columns import take_ranges

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

    `span_lanes` and `step_lanes` have the same rows; the items of `step_lanes` are whole steps, coded
    by residual. `peak_pyramid` is of `step_lanes`, `colour_pyramid` of `span_lanes`; None: not built.
    """

    span_lanes: Lanes
    step_lanes: Lanes
    run_window: Window
    median_step_ns: int
    peak_pyramid: Pyramid | None = None
    colour_pyramid: Pyramid | None = None

    @property
    def spans_per_step(self) -> float:
        """How many items a step has in a lane, on average."""
        return len(self.span_lanes.starts_ns) / max(len(self.step_lanes.starts_ns), 1)


@dataclass(frozen=True, eq=False)
class Bars:
    """Spans to draw as shapes, [span]: indices of items of the scene's lanes, and of a plan's bands.

    Where `covers_all_bands` is False, some bands have no shapes.
    """

    item_indices: Ints
    band_indices: Ints
    covers_all_bands: bool = True


@dataclass(frozen=True, eq=False)
class Picture:
    """Pixels (palette indexes, [row, column]) to lay under the axes, and the few spans drawn as shapes.

    `span_count` spans lie in the window, and `hidden_count` of them got no pixel. `opened_pictures` are
    those of opened processes.
    """

    grid: Grid
    palette_pixels: Bytes
    detail_level: Level
    span_count: int
    hidden_count: int
    bars: Bars | None
    opened_pictures: tuple[Picture, ...] = ()


def draw_picture(
    scene: Scene, window: Window, plan: Plan, columns: int = COLUMNS, most_bars: int = MOST_BARS
) -> Picture:
    """Choose the level of detail for a window and draw it.

    Args:
        scene: What can be shown.
        window: The time to show.
        plan: The rows of the picture.
        columns: How many pixels it is wide.
        most_bars: How many spans may be drawn as shapes.
    """
    grid = viewport.snap_to_grid(window, scene.run_window, columns)
    step_px = scene.median_step_ns / grid.column_ns
    colour_grid = (
        scene.colour_pyramid.find_grid(grid.window, grid.column_ns)
        if scene.colour_pyramid
        else None
    )
    min_step_px = STEP_PX if colour_grid else max(STEP_PX, SPAN_PX * scene.spans_per_step)
    is_detailed = [step_px >= _share_of_min_width(band) * min_step_px for band in plan.bands]
    bars = _choose_bars(scene, grid, plan, most_bars)
    drawn_lanes = _choose_lanes(scene, grid, plan.bands)
    if any(is_detailed):
        grid = colour_grid or grid
    elif scene.peak_pyramid:
        grid = scene.peak_pyramid.find_grid(grid.window, grid.column_ns) or grid
    pixels, hidden_count = _paint(scene, window, grid, drawn_lanes, is_detailed)
    shows_all_spans = bars is not None and bars.covers_all_bands
    bands = zip(plan.bands, is_detailed, strict=True)
    shows_spans = any(is_fine and band.section != "pinned" for band, is_fine in bands)
    level: Level = "dominant" if grid is colour_grid else "sampled"
    level = level if shows_spans else "residuals"
    return Picture(
        grid=grid,
        palette_pixels=raster.stretch_rows(plan, pixels, range(len(drawn_lanes))),
        detail_level="spans" if shows_all_spans else level,
        span_count=scene.span_lanes.count_items(window.start_ns, window.end_ns),
        hidden_count=0 if shows_all_spans else hidden_count,
        bars=bars,
    )


def find_lane_at(
    scene: Scene, window: Window, plan: Plan, height_px: float, columns: int = COLUMNS
) -> int | None:
    """Return the lane that is drawn at a height: the one that represents its band."""
    band = plan.find_band(height_px)
    if band is None:
        return None
    grid = viewport.snap_to_grid(window, scene.run_window, columns)
    return _choose_lanes(scene, grid, [band])[0]


def _choose_lanes(scene: Scene, grid: Grid, bands: Sequence[Band]) -> list[int]:
    """Return the lane that represents each band; residuals are read only where there are several."""
    groups = [band.lane_indices for band in bands]
    if all(len(lanes) == 1 for lanes in groups):
        return [lane for (lane,) in groups]
    return viewport.find_most_severe_lanes(groups, _find_severity(scene, grid))


def _share_of_min_width(band: Band) -> float:
    """Return the share of the least width of a step that a band needs: tall pinned rows need less."""
    return 1 / PINNED if band.section == "pinned" else 1.0


def _paint(
    scene: Scene, window: Window, grid: Grid, drawn_lanes: list[int], is_detailed: list[bool]
) -> tuple[Bytes, int]:
    """Draw lanes of the scene, by index, as palette codes, [lane drawn, column].

    Those that are detailed show spans, others residuals. Also return how many spans in the window got
    no pixel.
    """
    pixels, hidden_count = np.zeros((len(drawn_lanes), grid.column_count), np.uint8), 0
    fine_rows = [row for row, is_fine in enumerate(is_detailed) if is_fine]
    coarse_rows = [row for row, is_fine in enumerate(is_detailed) if not is_fine]
    if fine_rows:
        lanes = [drawn_lanes[row] for row in fine_rows]
        rows = scene.colour_pyramid.read_rows(lanes, grid) if scene.colour_pyramid else None
        if rows is None:
            rows, hidden_count = raster.draw_samples(scene.span_lanes, lanes, grid, window)
        pixels[fine_rows] = rows
    if coarse_rows:
        lanes = [drawn_lanes[row] for row in coarse_rows]
        rows = scene.peak_pyramid.read_rows(lanes, grid) if scene.peak_pyramid else None
        pixels[coarse_rows] = (
            raster.draw_highest(scene.step_lanes, lanes, grid) if rows is None else rows
        )
    return pixels, hidden_count


def _find_severity(scene: Scene, grid: Grid) -> Ints:
    """Return the largest residual code of each lane in the time that is drawn, [lane]."""
    first_items, end_items = scene.step_lanes.find_item_ranges(grid.start_ns, grid.end_ns)
    codes = take_ranges(scene.step_lanes.palette_codes, first_items, end_items)
    counts = end_items - first_items
    has_items, code_offsets = counts > 0, np.cumsum(counts) - counts
    highest_codes = np.zeros(len(first_items), np.int64)
    if has_items.any():
        highest_codes[has_items] = np.maximum.reduceat(codes, code_offsets[has_items])
    return highest_codes


def _choose_bars(scene: Scene, grid: Grid, plan: Plan, max_bars: int) -> Bars | None:
    """Return the spans to draw as shapes: of all bands but groups, or else of the pinned bands.

    None if they are more than `max_bars`, or a band is low, or shared by several lanes.
    """
    ungrouped = [(row, band) for row, band in enumerate(plan.bands) if band.group is None]
    pinned = [(row, band) for row, band in ungrouped if band.section == "pinned"]
    for bands in (ungrouped, pinned):
        if any(len(band.lane_indices) > 1 or band.height_px < BAR_PX for _, band in bands):
            continue
        lanes = [band.lane_indices[0] for _, band in bands]
        first_items, end_items = scene.span_lanes.find_item_ranges(
            grid.start_ns, grid.end_ns, lanes
        )
        counts = end_items - first_items
        if 0 < counts.sum() <= max_bars:
            item_ranges = zip(first_items.tolist(), end_items.tolist(), strict=True)
            return Bars(
                item_indices=np.concatenate([np.arange(begin, end) for begin, end in item_ranges]),
                band_indices=np.repeat([row for row, _ in bands], counts),
                covers_all_bands=bands is ungrouped and len(ungrouped) == len(plan.bands),
            )
    return None


class PathStretch(NamedTuple):
    """A stretch of the path on one row of the scene."""

    lane_index: int
    start_ns: int
    end_ns: int


def find_path_stretches(stretches: pl.DataFrame, lanes: Lanes, grid: Grid) -> list[PathStretch]:
    """Return the stretches of the critical path (one a row, as in `critical_path`) on a pixel grid."""
    from tracelens.analyses import critical_path  # noqa: PLC0415 - few look at the path

    workers = [(row, lane) for row, lane in enumerate(lanes.owners) if lane.role == "worker"]
    row_by_process = {lane.process: row for row, lane in workers}
    visible_stretches = critical_path.stretches_within(
        stretches, grid.start_ns, grid.end_ns, max(grid.column_count // PATH_PX, 1)
    )
    return [
        PathStretch(row_by_process[process], start_ns, end_ns)
        for process, start_ns, end_ns in visible_stretches.iter_rows()
        if process in row_by_process
    ]
