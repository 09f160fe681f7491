"""Standard deviations that single far values hardly move: from medians of absolute values.

A normal distribution's deviation is 1.4826 times its median absolute deviation (Hampel 1974).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_TO_SIGMA: Final = 1.4826


def deviation(values: Floats) -> float:
    """Return the deviation of values from zero."""
    return _TO_SIGMA * float(np.median(np.abs(values)))


def deviation_of_steps(values: Floats) -> float:
    """Return the deviation of a row from step to step, whatever lasts."""
    return deviation(np.diff(values)) / 2**0.5 if len(values) > 1 else 0.0
