"""What something takes by its size: latency + bytes / bandwidth, fitted to what was measured.

The model is Hockney's (1994, "The communication challenge for MPP"). It is fitted to the median time of
each size, by least absolute *relative* errors (iteratively reweighted least squares), since times vary
by a share of themselves: small messages then decide the latency, large ones the bandwidth, and a few
disturbed sizes decide nothing. The interval resamples the calls of every size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from tracelens.arrays import Floats, Ints

MIN_CALLS_FOR_COST_MODEL: Final = 16  # calls: a line through fewer tells nothing [calibrate]
# sizes: neighbours are joined if there are more [calibrate]
MAX_SIZES_FITTED_ONE_BY_ONE: Final = 64
SIZE_CLASSES_PER_DOUBLING: Final = 16  # classes: sizes that are joined fall into as many [chosen]
MAX_CALLS_RESAMPLED_OF_SIZE: Final = 256  # calls: as many stand for all of one size [policy]
# samples: as many are drawn for the interval of a line [policy]
BOOTSTRAP_SAMPLES_OF_COST_MODEL: Final = 400
ROUNDS_OF_LINE_FIT: Final = 40  # rounds: a line is fitted as often [policy]
MIN_ERROR_IN_WEIGHTS: Final = 1e-3  # share of a time: a smaller error weighs no more [policy]


@dataclass(frozen=True)
class CostModel:
    """`latency_ns` + bytes x `ns_per_byte`, each with its 95 % interval.

    `misfit` is the median relative error of a size; `smallest` and `largest` bound what was seen.
    """

    latency_ns: float
    ns_per_byte: float
    latency_interval: tuple[float, float]
    ns_per_byte_interval: tuple[float, float]
    deviation: float
    smallest: int
    largest: int

    def predicted(self, nbytes: float) -> float:
        """Predict the duration of a call by its bytes, ns."""
        return self.latency_ns + nbytes * self.ns_per_byte

    @property
    def half_bandwidth_bytes(self) -> float:
        """The size at which latency takes as long as the bytes: smaller messages are latency-bound."""
        return self.latency_ns / self.ns_per_byte if self.ns_per_byte > 0 else np.inf


def fit_cost_model(nbytes: Ints, ns: Ints) -> CostModel | None:
    """Fit the line; None where too few calls, or too little difference in size, tell it.

    Args:
        nbytes: Payload of each call, positive.
        ns: What each took.
    """
    if len(nbytes) < MIN_CALLS_FOR_COST_MODEL or nbytes.max() < 2 * nbytes.min():
        return None
    sizes, groups = _by_size(nbytes, ns)
    middles = np.array([np.median(group) for group in groups])
    latency, slope = (float(part[0]) for part in _lines(sizes, middles[None]))
    latencies, slopes = _lines(sizes, _bootstrap_medians(groups))
    errors = np.abs(latency + slope * sizes - middles) / np.maximum(middles, 1)
    return CostModel(
        latency_ns=latency,
        ns_per_byte=slope,
        latency_interval=_quantile_interval(latency, latencies),
        ns_per_byte_interval=_quantile_interval(slope, slopes),
        deviation=float(np.median(errors)),
        smallest=int(nbytes.min()),
        largest=int(nbytes.max()),
    )


def _by_size(nbytes: Ints, ns: Ints) -> tuple[Floats, list[Floats]]:
    """Put calls of one size together; of very many sizes, those of one class."""
    keys = nbytes
    if len(np.unique(nbytes)) > MAX_SIZES_FITTED_ONE_BY_ONE:
        keys = np.round(np.log2(nbytes) * SIZE_CLASSES_PER_DOUBLING).astype(np.int64)
    order = np.argsort(keys, kind="stable")
    cuts = np.flatnonzero(np.diff(keys[order])) + 1
    groups = np.split(ns[order].astype(np.float64), cuts)
    sizes = np.array([part.mean() for part in np.split(nbytes[order], cuts)])
    return sizes, groups


def _bootstrap_medians(groups: list[Floats]) -> Floats:
    """Return medians of resampled calls, [sample, size]."""
    random = np.random.default_rng(0)
    thinned = [group[:: -(-len(group) // MAX_CALLS_RESAMPLED_OF_SIZE)] for group in groups]
    samples = BOOTSTRAP_SAMPLES_OF_COST_MODEL
    drawn = [
        np.median(group[random.integers(0, len(group), (samples, len(group)))], axis=1)
        for group in thinned
    ]
    return np.stack(drawn, axis=1)


def _lines(sizes: Floats, times: Floats) -> tuple[Floats, Floats]:
    """Fit a line with no negative part to each row of times: latencies, and ns per byte."""
    scale = np.maximum(times, 1.0)
    weight = 1 / scale**2
    latency = slope = np.zeros(len(times))
    for _ in range(ROUNDS_OF_LINE_FIT):
        latency, slope = _weighted(sizes, times, weight)
        error = np.abs(latency[:, None] + slope[:, None] * sizes - times) / scale
        weight = 1 / scale**2 / np.maximum(error, MIN_ERROR_IN_WEIGHTS)
    return latency, slope


def _weighted(sizes: Floats, times: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Return the weighted least-squares line of each row, with neither part below zero."""
    total = weight.sum(axis=1)
    x, y = (weight * sizes).sum(axis=1) / total, (weight * times).sum(axis=1) / total
    away = sizes - x[:, None]
    slope = (weight * away * times).sum(axis=1) / (weight * away**2).sum(axis=1)
    latency = y - slope * x
    through_zero = (weight * sizes * times).sum(axis=1) / (weight * sizes**2).sum(axis=1)
    slope = np.where(latency < 0, through_zero, slope)
    flat = slope < 0
    return np.where(flat, y, np.maximum(latency, 0)), np.maximum(slope, 0)


def _quantile_interval(value: float, drawn: Floats) -> tuple[float, float]:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return min(float(low), value), max(float(high), value)
