"""Windows of time, and the pixel grid that a window is snapped to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from tracelens.lod.lanes import Integers

SMALLEST_NS: Final = 1_000
OVERSCAN: Final = 0.35  # of the window's width, drawn on either side: a drag shows no blank margin


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
    def edges(self) -> Integers:
        """Return the borders of the columns, one more than there are columns."""
        return self.start_ns + self.step_ns * np.arange(self.columns + 1, dtype=np.int64)

    @property
    def centres(self) -> Integers:
        """Return the middle of each column."""
        return self.edges[:-1] + self.step_ns // 2


def snap(window: Window, whole: Window, columns: int) -> Grid:
    """Cover a window, and `OVERSCAN` beside it, with columns of which `columns` span the window.

    Columns start at multiples of their width: a span keeps its pixels while one pans, so that
    nothing shimmers. The grid ends where the run ends.
    """
    step = max(1, -(-window.width_ns // columns))
    beside = int(window.width_ns * OVERSCAN)
    start = max(window.start_ns - beside, whole.start_ns) // step * step
    end = -(-min(window.end_ns + beside, whole.end_ns) // step) * step
    return Grid(start, step, max(1, (end - start) // step))
