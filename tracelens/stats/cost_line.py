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

    `relative_error` is the median over the sizes, which lie from `smallest_bytes` to `largest_bytes`.
    """

    latency_ns: float
    ns_per_byte: float
    latency_interval_ns: tuple[float, float]
    ns_per_byte_interval: tuple[float, float]
    relative_error: float
    smallest_bytes: int
    largest_bytes: int

    def predict_ns(self, nbytes: float) -> float:
        """Predict the duration of a call by its bytes, ns."""
        return self.latency_ns + nbytes * self.ns_per_byte

    @property
    def half_bandwidth_bytes(self) -> float:
        """The size at which latency takes as long as the bytes: smaller messages are latency-bound."""
        return self.latency_ns / self.ns_per_byte if self.ns_per_byte > 0 else np.inf


def fit_cost_model(nbytes: Ints, ns: Ints) -> CostModel | None:
    """Fit what calls take by their bytes; None where too few, or too little difference, tell it.

    Args:
        nbytes: Payload of each call, positive, [call].
        ns: What each took, [call].
    """
    if len(nbytes) < MIN_CALLS_FOR_COST_MODEL or nbytes.max() < 2 * nbytes.min():
        return None
    sizes_bytes, times_of_sizes = _group_by_size(nbytes, ns)
    medians_ns = np.array([np.median(times_ns) for times_ns in times_of_sizes])
    ((latency_ns,), (ns_per_byte,)) = _fit_lines(sizes_bytes, medians_ns[None])
    sampled_latencies, sampled_slopes = _fit_lines(sizes_bytes, _bootstrap_medians(times_of_sizes))
    errors_ns = np.abs(latency_ns + ns_per_byte * sizes_bytes - medians_ns)
    return CostModel(
        latency_ns=float(latency_ns),
        ns_per_byte=float(ns_per_byte),
        latency_interval_ns=_quantile_interval(float(latency_ns), sampled_latencies),
        ns_per_byte_interval=_quantile_interval(float(ns_per_byte), sampled_slopes),
        relative_error=float(np.median(errors_ns / np.maximum(medians_ns, 1))),
        smallest_bytes=int(nbytes.min()),
        largest_bytes=int(nbytes.max()),
    )


def _group_by_size(nbytes: Ints, ns: Ints) -> tuple[Floats, list[Floats]]:
    """Return sizes of groups of calls, bytes, [group], and each one's times, ns: by (class of) size."""
    size_class = nbytes
    if len(np.unique(nbytes)) > MAX_SIZES_FITTED_ONE_BY_ONE:
        size_class = np.round(np.log2(nbytes) * SIZE_CLASSES_PER_DOUBLING).astype(np.int64)
    order = np.argsort(size_class, kind="stable")
    cuts = np.flatnonzero(np.diff(size_class[order])) + 1
    times_of_sizes = np.split(ns[order].astype(np.float64), cuts)
    sizes_bytes = np.array([sizes.mean() for sizes in np.split(nbytes[order], cuts)])
    return sizes_bytes, times_of_sizes


def _bootstrap_medians(times_of_sizes: list[Floats]) -> Floats:
    """Return medians of resampled times of calls, ns, [sample, size], from the times of each size."""
    random = np.random.default_rng(0)
    medians_ns = []
    for all_ns in times_of_sizes:
        times_ns = all_ns[:: -(-len(all_ns) // MAX_CALLS_RESAMPLED_OF_SIZE)]
        shape = BOOTSTRAP_SAMPLES_OF_COST_MODEL, len(times_ns)
        medians_ns.append(np.median(times_ns[random.integers(0, len(times_ns), shape)], axis=1))
    return np.stack(medians_ns, axis=1)


def _fit_lines(sizes_bytes: Floats, times_ns: Floats) -> tuple[Floats, Floats]:
    """Fit a line with no negative part to times, ns, [sample, size]: latencies, and ns per byte."""
    scale_ns = np.maximum(times_ns, 1.0)
    weight = 1 / scale_ns**2
    latency_ns = ns_per_byte = np.zeros(len(times_ns))
    for _ in range(ROUNDS_OF_LINE_FIT):
        latency_ns, ns_per_byte = _fit_weighted(sizes_bytes, times_ns, weight)
        predicted_ns = latency_ns[:, None] + ns_per_byte[:, None] * sizes_bytes
        relative_error = np.abs(predicted_ns - times_ns) / scale_ns
        weight = 1 / scale_ns**2 / np.maximum(relative_error, MIN_ERROR_IN_WEIGHTS)
    return latency_ns, ns_per_byte


def _fit_weighted(sizes_bytes: Floats, times_ns: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Return latency, ns, and ns per byte of the weighted least-squares line of each row, [sample].

    `times_ns` and their weights are [sample, size]; neither part of a line is below zero.
    """
    total_weight = weight.sum(axis=1)
    mean_bytes = (weight * sizes_bytes).sum(axis=1) / total_weight
    mean_ns = (weight * times_ns).sum(axis=1) / total_weight
    centred_bytes = sizes_bytes - mean_bytes[:, None]
    covariance = (weight * centred_bytes * times_ns).sum(axis=1)
    ns_per_byte = covariance / (weight * centred_bytes**2).sum(axis=1)
    latency_ns = mean_ns - ns_per_byte * mean_bytes
    slope_through_zero = (weight * sizes_bytes * times_ns).sum(axis=1) / (
        weight * sizes_bytes**2
    ).sum(axis=1)
    ns_per_byte = np.where(latency_ns < 0, slope_through_zero, ns_per_byte)
    return np.where(ns_per_byte < 0, mean_ns, np.maximum(latency_ns, 0)), np.maximum(ns_per_byte, 0)


def _quantile_interval(value: float, drawn: Floats) -> tuple[float, float]:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return min(float(low), value), max(float(high), value)
