"""The interval of a predicted saving: what is not known of it beside the noise of the run.

A saving is what a run that was not made would take less. Where fixes were really made, what came of them
differed from what was predicted by about a tenth, more than the noise of a run explains: who is no longer
late finds caches and cores otherwise.
"""

from __future__ import annotations

from math import hypot
from typing import Final

__all__ = ["PREDICTION_ERROR", "TWO_SIDED", "predicted"]

TWO_SIDED: Final = 1.96  # standard deviations: 95 % of a normal distribution
# Of a saving, a standard deviation: 1.48 times the median error of `make bench-whatif` (docs/whatif.md).
PREDICTION_ERROR: Final = 0.09


def predicted(saving: float, interval: tuple[float, float]) -> tuple[float, float]:
    """Return the 95 % interval of what fixing something saves, from that which the run's noise leaves.

    Both are shares, or both are of one unit.
    """
    low, high = interval
    error = TWO_SIDED * PREDICTION_ERROR * saving
    return saving - hypot(saving - low, error), saving + hypot(high - saving, error)
