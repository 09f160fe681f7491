"""Units for axes: one that suits the largest value of all that stand on one axis."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np

Units: TypeAlias = tuple[tuple[float, str], ...]

BYTES: Final[Units] = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
TIMES: Final[Units] = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns"))


def scaled(values: np.ndarray[Any, Any], units: Units) -> tuple[str, np.ndarray[Any, Any]]:
    """Return the unit, and the values in it."""
    largest = float(np.nanmax(values, initial=0))
    factor, unit = next((pair for pair in units if largest >= pair[0]), units[-1])
    return unit, values / factor
