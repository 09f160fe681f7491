"""What a timeline has room for: windows of time, the pixel grid they snap to, rows for lanes.

Rows go from top to bottom: pinned ranks, all workers, devices' streams, shards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Ints
    from tracelens.lod.lanes import Lanes


SMALLEST_NS: Final = 1_000
OVERSCAN: Final = 0.35  # of the window's width, drawn on either side: a drag shows no blank margin
PINNED_PX: Final = 24
TALLEST_PX: Final = 40
GAP_PX: Final = 2  # between rows that are tall enough to be distinguished
GAP_FROM_PX: Final = 6
BETWEEN_SECTIONS_PX: Final = 14
WORKERS_PX: Final = 512
STREAMS_PX: Final = 384
SHARDS_PX: Final = 192
MAX_PINNED: Final = 12


@dataclass(frozen=True)
class Window:
    """What is looked at: [start_ns, end_ns)."""

    start_ns: int
    end_ns: int

    @property
    def width_ns(self) -> int:
        """How long it is."""
        return self.end_ns - self.start_ns

    def clamp(self, whole: Window) -> Window:
        """Fit it into `whole`, at least a microsecond wide, keeping its width where possible."""
        width = min(max(self.width_ns, SMALLEST_NS), max(whole.width_ns, SMALLEST_NS))
        start = max(whole.start_ns, min(self.start_ns, whole.end_ns - width))
        return Window(start, start + width)


@dataclass(frozen=True)
class Grid:
    """Pixel columns: column i covers [start_ns + i * step_ns, start_ns + (i + 1) * step_ns)."""

    start_ns: int
    step_ns: int
    columns: int

    @property
    def end_ns(self) -> int:
        """Where the last column ends."""
        return self.start_ns + self.columns * self.step_ns

    @property
    def window(self) -> Window:
        """What they cover."""
        return Window(self.start_ns, self.end_ns)

    @property
    def edges(self) -> Ints:
        """Return the borders of the columns, one more than there are columns."""
        return self.start_ns + self.step_ns * np.arange(self.columns + 1, dtype=np.int64)

    @property
    def centres(self) -> Ints:
        """Return the middle of each column."""
        return self.edges[:-1] + self.step_ns // 2


def snap(window: Window, whole: Window, columns: int) -> Grid:
    """Cover a window, and `OVERSCAN` on each side, with columns of which `columns` span the window.

    Columns start at multiples of their width: a span keeps its pixels while one pans, so that
    nothing shimmers. The grid ends where the run ends.
    """
    step = max(1, -(-window.width_ns // columns))
    beside = int(window.width_ns * OVERSCAN)
    start = max(window.start_ns - beside, whole.start_ns) // step * step
    end = -(-min(window.end_ns + beside, whole.end_ns) // step) * step
    return Grid(start, step, max(1, (end - start) // step))


Section = Literal["pinned", "workers", "streams", "shards"]


@dataclass(frozen=True)
class Band:
    """A strip of pixels, `top` to `top + height`, and the lanes that share it."""

    section: Section
    top: int
    height: int
    lanes: tuple[int, ...]

    @property
    def middle(self) -> float:
        """Where its label is drawn."""
        return self.top + self.height / 2


@dataclass(frozen=True)
class Plan:
    """All bands from top to bottom."""

    bands: tuple[Band, ...]
    height: int

    def at(self, y: float) -> Band | None:
        """Return the band at a height; None between bands."""
        found = (band for band in self.bands if band.top <= y < band.top + band.height)
        return next(found, None)

    def section(self, name: Section) -> tuple[Band, ...]:
        """Return the bands of one section."""
        return tuple(band for band in self.bands if band.section == name)


def plan(lanes: Lanes, pinned: Sequence[int] = (), order: Sequence[int] | None = None) -> Plan:
    """Assign a band to every lane; `pinned` and `order` list lanes (order: of the workers)."""
    workers = [i for i, lane in enumerate(lanes.lanes) if lane.role == "worker"]
    streams = [i for i, lane in enumerate(lanes.lanes) if lane.role == "device"]
    shards = [i for i, lane in enumerate(lanes.lanes) if lane.role == "ps"]
    bands: list[Band] = []
    top = _stack(bands, "pinned", list(pinned)[:MAX_PINNED], 0, PINNED_PX * MAX_PINNED)
    top = _stack(bands, "workers", list(order or workers), top, WORKERS_PX)
    top = _stack(bands, "streams", streams, top, STREAMS_PX)
    top = _stack(bands, "shards", shards, top, SHARDS_PX)
    return Plan(tuple(bands), max(top, 1))


def _stack(bands: list[Band], section: Section, lanes: list[int], top: int, room: int) -> int:
    """Append one section's bands below `top`; return where it ends."""
    if not lanes:
        return top
    top += BETWEEN_SECTIONS_PX if bands else 0
    tallest = PINNED_PX if section == "pinned" else TALLEST_PX
    pitch = max(1, min(tallest, room // len(lanes)))
    gap = GAP_PX if pitch >= GAP_FROM_PX else 0
    for group in np.array_split(np.array(lanes), min(len(lanes), room)):
        bands.append(Band(section, top, pitch - gap, tuple(group.tolist())))
        top += pitch
    return top


def worst(groups: Sequence[tuple[int, ...]], severity: Ints) -> list[int]:
    """Choose the lane that represents each group: the one with the greatest severity."""
    return [max(group, key=lambda lane: int(severity[lane])) for group in groups]
