"""What ranks' steps would take if work were spread evenly over them, while noise stays.

More work makes forward and backprop longer alike, but not the update; what disturbs a whole step makes
all three longer, and what disturbs one of them is no work either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from tracelens.analyses._robust import deviation

if TYPE_CHECKING:
    from tracelens.analyses._own_time import Floats, OwnTime

TOGETHER: Final = 0.3  # of the variance is common to forward and backprop: it is the work
_TAIL: Final = 3  # deviations


def evened(own: OwnTime, rows: npt.NDArray[np.bool_]) -> Floats:
    """Return own time with even work, [step, rank], in steps that all ranks took.

    A rank's work in a step is the lesser of both deviations, less the part of their common variance that
    the update has, too. Where forward and backprop vary each by itself, everything is evened out.
    """
    total = own.total[rows]
    flat = np.broadcast_to(np.median(total, axis=1, keepdims=True), total.shape)
    phases = {name: values[rows] for name, values in zip(own.phases, own.own, strict=True)}
    if not {"forward", "backprop"} <= {*phases}:
        return flat
    forward, backprop = _apart(phases["forward"]), _apart(phases["backprop"])
    common = float(np.mean(forward * backprop))
    if common <= TOGETHER * np.sqrt(np.var(forward) * np.var(backprop)):
        return flat
    work = np.minimum(_relative(phases["forward"]), _relative(phases["backprop"]))
    more = work - work.mean(axis=1, keepdims=True)
    noise = 0.0
    if "update" in phases:
        noise = float(np.mean((forward + backprop) / 2 * _apart(phases["update"])))
    kept = np.sqrt(np.clip(noise / common, 0, 1))
    middle = _middle(phases["forward"]) + _middle(phases["backprop"])
    return np.asarray(total - (1 - kept) * more * middle)


def _middle(values: Floats) -> Floats:
    return np.asarray(np.median(values, axis=1, keepdims=True))


def _relative(values: Floats) -> Floats:
    """Return each rank's time as a multiple of the step's median; 1 where that is nothing."""
    middle = _middle(values)
    return np.divide(values, middle, out=np.ones_like(values), where=middle > 0)


def _apart(values: Floats) -> Floats:
    """Return each rank's relative deviation from the step's median, without its tails."""
    apart = _relative(values) - 1
    limit = _TAIL * deviation(apart)
    clipped = np.clip(apart, -limit, limit)
    return np.asarray(clipped - clipped.mean())
