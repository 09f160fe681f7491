"""The levels of all lanes: in memory, or in files that are mapped when a level is first looked at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.lod import levels, raster
from tracelens.lod.columns import mapped
from tracelens.lod.window import Grid

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.lod.lanes import Bytes, Integers, Lanes
    from tracelens.lod.levels import Bins
    from tracelens.lod.window import Window

COLOURS: Final = "level"
PEAKS: Final = "peaks"
WIDEST: Final = 3  # columns of a screen that a bin may take
BINS_A_STEP: Final = 4  # of the finest peaks: below, steps are few enough to be drawn themselves
MOST_CELLS: Final = 1 << 26  # of the finest peaks of all lanes


@dataclass(frozen=True)
class Pyramid:
    """Rows of coded bins, [lane, bin], for each rung of a ladder (the finest first).

    Its `kind` is colours, what most of a bin was, or peaks, the highest code in a bin. Levels that are
    not built yet are missing; they are looked for in `folder` each time.
    """

    kind: str
    ladder: tuple[Bins, ...]
    folder: Path | None = None
    found: dict[int, Bytes] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether all levels are there."""
        return all(self._level(rung) is not None for rung in self.ladder)

    def grid(self, seen: Window, step_ns: int) -> Grid | None:
        """Return bins of the narrowest level that are no narrower than `step_ns`, over a window.

        None where that level is not there (yet), or finer than all.
        """
        rung = next((rung for rung in self.ladder if rung.width_ns >= step_ns), self.ladder[-1])
        width = rung.width_ns
        if not step_ns <= width <= WIDEST * step_ns or self._level(rung) is None:
            return None
        first = max(0, (seen.start_ns - rung.origin_ns) // width)
        last = min(rung.count, -(-(seen.end_ns - rung.origin_ns) // width))
        return Grid(rung.origin_ns + first * width, width, max(1, last - first))

    def rows(self, lanes: list[int], grid: Grid) -> Bytes | None:
        """Return the bins of a grid, a row a lane; None where they are not bins of a level."""
        rung = next((rung for rung in self.ladder if rung.width_ns == grid.step_ns), None)
        level = self._level(rung) if rung else None
        if rung is None or level is None or (grid.start_ns - rung.origin_ns) % rung.width_ns:
            return None
        first = (grid.start_ns - rung.origin_ns) // rung.width_ns
        return np.asarray(level[lanes, first : first + grid.columns])

    def _level(self, rung: Bins) -> Bytes | None:
        if rung.width_ns not in self.found and self.folder:
            file = file_of(self.folder, self.kind, rung)
            if file.exists():
                self.found[rung.width_ns] = mapped(file)
        return self.found.get(rung.width_ns)


def file_of(folder: Path, kind: str, rung: Bins) -> Path:
    """Return where a level is kept."""
    return folder / f"{kind}-{rung.width_ns}.npy"


def peaks(steps: Lanes, whole: Window, step_ns: int) -> Pyramid:
    """Build the peaks of lanes whose items are steps, so usually long."""
    most = max(MOST_CELLS // max(len(steps), 1), levels.FEWEST_BINS)
    finest_ns = max(step_ns // BINS_A_STEP, whole.width_ns // most, 1)
    finest, *coarser = rungs = levels.rungs(whole.start_ns, whole.end_ns, finest_ns)
    grid = Grid(finest.origin_ns, finest.width_ns, finest.count)
    level = raster.highest(steps, range(len(steps)), grid)
    found = {finest.width_ns: level}
    for rung in coarser:
        level = np.pad(level, ((0, 0), (0, level.shape[1] % 2)))
        level = found[rung.width_ns] = np.maximum(level[:, 0::2], level[:, 1::2])
    return Pyramid(PEAKS, tuple(rungs), found=found)


def colours(lanes: Lanes, whole: Window) -> Pyramid:
    """Build all levels of some lanes."""
    rungs = ladder_of(lanes.offsets, whole)
    rows = [list(of_lane(lanes, lane, rungs)) for lane in range(len(lanes))]
    widths = [rung.width_ns for rung in rungs]
    stacked = [np.array(level) for level in zip(*rows, strict=True)]
    return Pyramid(COLOURS, tuple(rungs), found=dict(zip(widths, stacked, strict=False)))


def ladder_of(offsets: Integers, whole: Window) -> list[Bins]:
    """Choose the levels of lanes with so many items."""
    a_lane = int(offsets[-1]) / max(len(offsets) - 1, 1)
    return levels.ladder(whole.start_ns, whole.end_ns, a_lane)


def of_lane(lanes: Lanes, lane: int, rungs: list[Bins]) -> list[Bytes]:
    """Build the rows of one lane; what lies outside the run is left out."""
    first, end = rungs[0].origin_ns, rungs[0].origin_ns + rungs[0].count * rungs[0].width_ns
    part = lanes.between(lane, first, end)
    starts = np.maximum(lanes.starts[part], first)
    ends = np.minimum(lanes.ends[part], end)
    return list(levels.build(starts, ends, lanes.codes[part], rungs))
