"""How the ranks spent a stretch of time, exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.lod.codes import SHADE, label_of
from tracelens.lod.search import portions

if TYPE_CHECKING:
    from tracelens.lod.lanes import Lanes
    from tracelens.lod.window import Window


def spent(lanes: Lanes, seen: Window) -> dict[str, int]:
    """Return the time of all workers by category within a window, in ns, the most first."""
    workers = [i for i, lane in enumerate(lanes.lanes) if lane.role == "worker"]
    sums = np.zeros(SHADE)
    for part in portions(lanes, seen, workers):
        start = np.maximum(lanes.starts[part], seen.start_ns)
        end = np.minimum(lanes.ends[part], seen.end_ns)
        sums += np.bincount(lanes.codes[part], end - start, minlength=SHADE)
    order = np.argsort(-sums, kind="stable")
    return {label_of(int(code)): int(sums[code]) for code in order if sums[code]}
