"""What most of each bin of time was, from fine bins to coarse ones, for all lanes.

The time of every code in every finest bin is summed up exactly, also where spans overlap; a coarser
level adds neighbours up. A bin becomes the code with the most time, fainter if the lane was busy
for a part of the bin only (see `lanes`). Levels are in memory, or in files that are mapped when a
level is first looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.lod import raster
from tracelens.lod.block_columns import map_array
from tracelens.lod.lanes import BLANK, SHADE, SHADES
from tracelens.lod.viewport import Grid

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracelens.arrays import Bytes, Floats, Ints
    from tracelens.lod.lanes import Lanes
    from tracelens.lod.viewport import Window

FEWEST_BINS: Final = 512  # no screen is narrower
SPANS_A_BIN: Final = 1.0  # of the finest level: below, spans are sampled, few to a pixel
COLOURS: Final = "level"
PEAKS: Final = "peaks"
WIDEST: Final = 3  # columns of a screen that a bin may take
BINS_A_STEP: Final = 4  # of the finest peaks: below, steps are few enough to be drawn themselves
MOST_CELLS: Final = 1 << 26  # of the finest peaks of all lanes


@dataclass(frozen=True)
class Bins:
    """A level: bin i covers [origin + i * width, origin + (i + 1) * width)."""

    origin_ns: int
    width_ns: int
    count: int

    @classmethod
    def from_window(cls, start_ns: int, end_ns: int, width_ns: int) -> Bins:
        """Cover [start, end)."""
        return cls(start_ns, width_ns, max(1, -(-(end_ns - start_ns) // width_ns)))


def choose_levels_over(start_ns: int, end_ns: int, spans_per_lane: float) -> list[Bins]:
    """Choose the levels for a run, the finest first, by how many spans a lane has on average."""
    finest_count = max(spans_per_lane / SPANS_A_BIN, FEWEST_BINS)
    return list_levels(start_ns, end_ns, int((end_ns - start_ns) / finest_count) + 1)


def list_levels(start_ns: int, end_ns: int, finest_ns: int) -> list[Bins]:
    """Return the levels from that with bins of `finest_ns` upwards; each next has bins twice as wide."""
    levels = [Bins.from_window(start_ns, end_ns, finest_ns)]
    while levels[-1].count > FEWEST_BINS:
        levels.append(Bins.from_window(start_ns, end_ns, 2 * levels[-1].width_ns))
    return levels


def build_levels(starts: Ints, ends: Ints, codes: Bytes, levels: list[Bins]) -> Iterator[Bytes]:
    """Yield a lane's coded bins, [bin], of each level; `levels` are neighbours, the finest first.

    The lane's items (begin and end in ns, palette code, all [item]) have a length and are within the
    bins; they may be in any order, and overlap.
    """
    present_codes, sums_ns = sum_busy_time(starts, ends, codes, levels[0])
    for level in levels:
        if level is not levels[0]:
            sums_ns = _add_neighbours(sums_ns)
        yield _find_dominant_codes(present_codes, sums_ns, level.width_ns)


def sum_busy_time(starts: Ints, ends: Ints, codes: Bytes, bins: Bins) -> tuple[Bytes, Floats]:
    """Return the codes that occur in a lane's items, and the time of each in each bin, [code, bin], ns.

    Starts and ends are in ns; they and codes are [item]. Sums are exact up to 2**53 ns, 104 days.
    """
    present_codes = np.flatnonzero(np.bincount(codes, minlength=SHADE)).astype(np.uint8)
    first_cells = np.zeros(SHADE, np.int64)  # of each code, in the sums as one row
    first_cells[present_codes] = bins.count * np.arange(len(present_codes))
    row_begins, size = first_cells[codes], bins.count * len(present_codes)
    begins_ns, ends_ns = starts - bins.origin_ns, ends - bins.origin_ns  # since the first bin
    width_ns = bins.width_ns
    first_bins, last_bins = begins_ns // width_ns, (ends_ns - 1) // width_ns
    # An item's time in its first bin, in its last one (tail), and in the whole bins between them.
    head_ns = np.minimum(ends_ns, (first_bins + 1) * width_ns) - begins_ns
    flat_sums_ns: Floats = np.bincount(first_bins + row_begins, head_ns, size).astype(np.float64)
    wide_items = np.flatnonzero(last_bins > first_bins)
    first_bins, last_bins, row_begins = (
        first_bins[wide_items],
        last_bins[wide_items],
        row_begins[wide_items],
    )
    tail_ns = ends_ns[wide_items] - last_bins * width_ns
    flat_sums_ns += np.bincount(last_bins + row_begins, tail_ns, size)
    sums_ns = flat_sums_ns.reshape(len(present_codes), bins.count)
    long_items = np.flatnonzero(last_bins > first_bins + 1)
    for code_row in np.unique(row_begins[long_items]) // bins.count if len(long_items) else ():
        rows = long_items[row_begins[long_items] == code_row * bins.count]
        sums_ns[code_row] += _sum_whole_bins(first_bins[rows] + 1, last_bins[rows], bins)
    return present_codes, sums_ns


def _sum_whole_bins(first_bins: Ints, end_bins: Ints, bins: Bins) -> Floats:
    """Return the time of items in the bins that they fill, [bin], ns: up to before `end_bins`."""
    bins_begun = np.bincount(first_bins, minlength=bins.count)
    bins_ended = np.bincount(end_bins, minlength=bins.count)
    return np.asarray(np.cumsum(bins_begun - bins_ended) * float(bins.width_ns))


def _add_neighbours(sums_ns: Floats) -> Floats:
    """Add neighbouring bins up: from [code, bin] to half as many bins."""
    if sums_ns.shape[1] % 2:
        sums_ns = np.pad(sums_ns, ((0, 0), (0, 1)))
    return np.asarray(sums_ns[:, 0::2] + sums_ns[:, 1::2])


def _find_dominant_codes(codes: Bytes, sums_ns: Floats, width_ns: int) -> Bytes:
    """Return the code with the most time in each bin, shaded by how full it is; of equals the first.

    `sums_ns` is the time of each code that is present, [code, bin], ns.
    """
    if not len(codes):
        return np.full(sums_ns.shape[1], BLANK, np.uint8)
    most_ns, dominant_codes = sums_ns[0].copy(), np.full(sums_ns.shape[1], codes[0], np.uint8)
    for code, code_ns in zip(codes[1:], sums_ns[1:], strict=True):
        dominant_codes[code_ns > most_ns] = code
        np.maximum(most_ns, code_ns, out=most_ns)
    busy_ns = sums_ns.sum(axis=0)
    shade = np.minimum(busy_ns * (SHADES / width_ns), SHADES - 1).astype(np.uint8)
    dominant_codes |= (SHADES - 1 - shade) * np.uint8(SHADE)
    dominant_codes[busy_ns == 0] = BLANK
    return dominant_codes


@dataclass(frozen=True)
class Pyramid:
    """Rows of coded bins, [lane, bin], for each of some levels, the finest first.

    Its `kind` is colours, what most of a bin was, or peaks, the highest code in a bin. Levels that are
    not built yet are missing; they are looked for in `folder` each time.
    """

    kind: str
    levels: tuple[Bins, ...]
    folder: Path | None = None
    rows_by_width: dict[int, Bytes] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether all levels exist."""
        return all(self._load_level(level) is not None for level in self.levels)

    def find_grid(self, window: Window, column_ns: int) -> Grid | None:
        """Return the bins over a window of the narrowest level whose bins have at least `column_ns`.

        None where that level is not there (yet), or where none is about as fine.
        """
        level = next(
            (level for level in self.levels if level.width_ns >= column_ns), self.levels[-1]
        )
        width_ns = level.width_ns
        if not column_ns <= width_ns <= WIDEST * column_ns or self._load_level(level) is None:
            return None
        first_bin = max(0, (window.start_ns - level.origin_ns) // width_ns)
        end_bin = min(level.count, -(-(window.end_ns - level.origin_ns) // width_ns))
        return Grid(level.origin_ns + first_bin * width_ns, width_ns, max(1, end_bin - first_bin))

    def read_rows(self, lanes: list[int], grid: Grid) -> Bytes | None:
        """Return the coded bins of a grid, [lane, column]; None where they are not bins of a level."""
        bins = next((bins for bins in self.levels if bins.width_ns == grid.column_ns), None)
        level_rows = self._load_level(bins) if bins else None
        if bins is None or level_rows is None or (grid.start_ns - bins.origin_ns) % bins.width_ns:
            return None
        first_bin = (grid.start_ns - bins.origin_ns) // bins.width_ns
        return np.asarray(level_rows[lanes, first_bin : first_bin + grid.column_count])

    def _load_level(self, level: Bins) -> Bytes | None:
        if level.width_ns not in self.rows_by_width and self.folder:
            file = make_level_path(self.folder, self.kind, level)
            if file.exists():
                self.rows_by_width[level.width_ns] = map_array(file)
        return self.rows_by_width.get(level.width_ns)


def make_level_path(folder: Path, kind: str, level: Bins) -> Path:
    """Return the path of a level's file."""
    return folder / f"{kind}-{level.width_ns}.npy"


def build_peaks(steps: Lanes, run_window: Window, median_step_ns: int) -> Pyramid:
    """Build the levels of the highest palette code in each bin, of lanes whose items are steps.

    `median_step_ns` is the length of a usual step.
    """
    max_bins = max(MOST_CELLS // max(len(steps), 1), FEWEST_BINS)
    finest_ns = max(median_step_ns // BINS_A_STEP, run_window.width_ns // max_bins, 1)
    finest, *coarser = levels = list_levels(run_window.start_ns, run_window.end_ns, finest_ns)
    grid = Grid(finest.origin_ns, finest.width_ns, finest.count)
    codes = raster.draw_highest(steps, range(len(steps)), grid)
    rows_by_width = {finest.width_ns: codes}
    for level in coarser:
        codes = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
        codes = rows_by_width[level.width_ns] = np.maximum(codes[:, 0::2], codes[:, 1::2])
    return Pyramid(PEAKS, tuple(levels), rows_by_width=rows_by_width)


def build_colours(lanes: Lanes, run_window: Window) -> Pyramid:
    """Build all levels of some lanes."""
    levels = choose_levels(lanes.item_offsets, run_window)
    rows_of_lanes = [list(build_lane_rows(lanes, lane, levels)) for lane in range(len(lanes))]
    widths_ns = [level.width_ns for level in levels]
    stacked = [np.array(level_rows) for level_rows in zip(*rows_of_lanes, strict=True)]
    return Pyramid(
        COLOURS, tuple(levels), rows_by_width=dict(zip(widths_ns, stacked, strict=False))
    )


def choose_levels(item_offsets: Ints, run_window: Window) -> list[Bins]:
    """Choose the levels of lanes by their mean number of items; `item_offsets` as in `Lanes`."""
    items_per_lane = int(item_offsets[-1]) / max(len(item_offsets) - 1, 1)
    return choose_levels_over(run_window.start_ns, run_window.end_ns, items_per_lane)


def build_lane_rows(lanes: Lanes, lane: int, levels: list[Bins]) -> list[Bytes]:
    """Build a lane's row of coded bins, [bin], for each of `levels`, the finest first."""
    finest = levels[0]
    first_ns, end_ns = finest.origin_ns, finest.origin_ns + finest.count * finest.width_ns
    items = lanes.find_lane_items(lane, first_ns, end_ns)
    starts_ns = np.maximum(lanes.starts_ns[items], first_ns)
    ends_ns = np.minimum(lanes.ends_ns[items], end_ns)
    return list(build_levels(starts_ns, ends_ns, lanes.palette_codes[items], levels))
