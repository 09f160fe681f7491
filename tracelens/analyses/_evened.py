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
_LEAST: Final = 0.01  # of the mean: nobody has less to do


def evened(own: OwnTime, rows: npt.NDArray[np.bool_]) -> Floats:
    """Return own time with even work, [step, rank], in steps that all ranks took.

    A rank's work in a step is what forward and backprop take, as a multiple of the median rank's; the
    lesser of both where one is disturbed. They are divided by it, to a power below 1 that leaves them as
    noisy as noise is. Where they vary each by itself, everything is evened out.
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
    both = phases["forward"] + phases["backprop"]
    work = _work(phases["forward"], phases["backprop"])
    work = np.maximum(work / work.mean(axis=1, keepdims=True), _LEAST)
    kept = np.sqrt(np.clip(_noise(phases, forward, backprop) / common, 0, 1))
    even = both * work ** (kept - 1)
    as_much = both.sum(axis=1, keepdims=True) / np.maximum(even.sum(axis=1, keepdims=True), 1.0)
    return np.asarray(total - both + as_much * even)


def _work(forward: Floats, backprop: Floats) -> Floats:
    """Return how much work each rank had, as a multiple of the median rank's."""
    first, second = _relative(forward), _relative(backprop)
    apart = first - second
    disturbed = np.abs(apart) > _TAIL * deviation(apart)
    return np.where(disturbed, np.minimum(first, second), _relative(forward + backprop))


def _noise(phases: dict[str, Floats], forward: Floats, backprop: Floats) -> float:
    """Return the variance by noise of forward and backprop together, relative to their length.

    What disturbs whole steps is seen in the update, too; what disturbs one of both, in their difference.
    """
    parts = np.array([np.median(phases[name]) for name in ("forward", "backprop")])
    single = deviation(forward - backprop) ** 2 / 2 * float((parts**2).sum() / parts.sum() ** 2)
    if "update" not in phases:
        return single
    return single + float(np.mean((forward + backprop) / 2 * _apart(phases["update"])))


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
