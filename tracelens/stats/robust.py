"""Robust summaries of series by step: deviations, blocks, bootstrap.

A normal distribution's deviation is 1.4826 times its median absolute deviation (Hampel 1974).
Neighbouring steps are correlated, so levels and intervals are taken from blocks of steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.arrays import Floats, Ints

# standard deviations: a normal distribution has them per median absolute deviation [Hampel 1974]
_DEVIATIONS_PER_MEDIAN_DEVIATION: Final = 1.4826
MIN_STEPS_OF_BLOCK: Final = 4  # steps: the median of fewer neighbours is too noisy [calibrate]
MAX_BLOCKS_OF_RUN: Final = 64  # blocks: a longer run has longer blocks instead of more [calibrate]
# standard deviations: a step that is farther from its block's median counts as one that
# far off [calibrate]
Z_SCORE_TO_CLIP_STEPS_OF_BLOCK: Final = 2.0
# steps: neighbours are resampled as one block; a short run has shorter ones [chosen]
STEPS_RESAMPLED_IN_A_ROW: Final = 4
# samples: as many are drawn for the interval of a loss [policy]
BOOTSTRAP_SAMPLES_OF_LOSS: Final = 400
MAX_NUMBERS_SORTED_AT_ONCE: Final = 1 << 18  # numbers: no more are in memory for medians [policy]
# ratio: values below this much of the greatest one may be left out [chosen]
MAX_RATIO_OF_MINOR_VALUE: Final = 0.05
# share of the sum of all: smaller values that are more together stay [chosen]
MAX_SHARE_OF_MINOR_VALUES: Final = 0.05


def measure_deviation(values: Floats) -> float:
    """Return the robust standard deviation of values, [value], from zero; nan of none, or if one is."""
    distances = np.abs(values).ravel()
    if not len(distances):
        return float("nan")
    lower, upper = (len(distances) - 1) // 2, len(distances) // 2  # the middle ones
    distances.partition((lower, upper, -1))  # np.median takes five times as long for a few values
    if np.isnan(distances[-1]):
        return float("nan")
    return _DEVIATIONS_PER_MEDIAN_DEVIATION * float((distances[lower] + distances[upper]) / 2)


def drop_minor_values(values: Floats) -> Floats:
    """Return values of 0 and more, [value]; those far below the greatest become 0.

    A loss of seconds is not a loss in several steps, of a part of that each. Small values stay where
    together they are a good part of all.
    """
    is_minor = values < MAX_RATIO_OF_MINOR_VALUE * values.max(initial=0.0)
    is_little = values[is_minor].sum() <= MAX_SHARE_OF_MINOR_VALUES * values.sum()
    return np.where(is_minor, 0.0, values) if is_little else values


def measure_step_deviation(values: Floats) -> float:
    """Return the deviation of a row from step to step, without lasting changes."""
    return measure_deviation(np.diff(values)) / 2**0.5 if len(values) > 1 else 0.0


def block_edges(step_count: int) -> Ints:
    """Return the row at which each block of steps begins, and the end, [block + 1].

    A remainder that fills no block belongs to the last one.
    """
    size = max(MIN_STEPS_OF_BLOCK, step_count // MAX_BLOCKS_OF_RUN)
    begins = np.arange(0, max(step_count - size, 0) + 1, size)
    return np.append(begins, step_count)


def medians(values: Floats, axis: int) -> Floats:
    """Return the medians along an axis of any array, without what is nan; nan where all is.

    What `np.nanmedian` returns, in a quarter of its time: sorting rows that lie together is quicker than
    to partition them, or to mask what is missing.
    """
    last_axis = np.moveaxis(values, axis, -1)
    if last_axis.ndim == 1 or last_axis.size <= MAX_NUMBERS_SORTED_AT_ONCE:
        return _medians_of_rows(last_axis)
    row_count = max(MAX_NUMBERS_SORTED_AT_ONCE * len(last_axis) // last_axis.size, 1)
    row_blocks = (
        last_axis[first : first + row_count] for first in range(0, len(last_axis), row_count)
    )
    return np.concatenate([_medians_of_rows(part) for part in row_blocks])


def lower_medians(values: Floats) -> Floats:
    """Return the medians along the last axis without nan; of two in the middle the lower one.

    So of two ranks the slower one is not taken for usual. A row of nan alone has none.
    """
    ordered = np.sort(values, axis=-1)  # nan last
    middle = np.maximum(np.count_nonzero(~np.isnan(ordered), axis=-1, keepdims=True) - 1, 0) // 2
    return np.asarray(np.take_along_axis(ordered, middle, axis=-1)[..., 0])


def _medians_of_rows(values: Floats) -> Floats:
    """Return the medians along the last axis, without what is nan; nan where all is."""
    ordered = np.sort(np.ascontiguousarray(values), axis=-1)  # nan at the end
    size = ordered.shape[-1]
    if not size:
        return np.full(ordered.shape[:-1], np.nan)
    if not np.isnan(ordered[..., -1]).any():
        return np.asarray((ordered[..., (size - 1) // 2] + ordered[..., size // 2]) / 2)
    known_count = np.count_nonzero(~np.isnan(ordered), axis=-1)[..., None]
    lower, upper = np.maximum(known_count - 1, 0) // 2, np.minimum(known_count // 2, size - 1)
    sums = np.take_along_axis(ordered, lower, -1) + np.take_along_axis(ordered, upper, -1)
    return np.asarray(sums[..., 0] / 2)


def block_medians(values: Floats, edges: Ints) -> Floats:
    """Condense each block of rows to its median."""
    return _condense_blocks(values, edges, medians)


def block_levels(values: Floats, edges: Ints) -> Floats:
    """Return the mean of each block of rows, [block, ...]; rows far from its median count less.

    Nearly as sharp as a mean where noise is normal, and as deaf to single spikes as a median (the
    first step of Huber's M-estimator, 1964).
    """
    medians_of_blocks = block_medians(values, edges)
    residuals = np.repeat(medians_of_blocks, np.diff(edges), axis=0)
    np.subtract(values, residuals, out=residuals)
    limit = Z_SCORE_TO_CLIP_STEPS_OF_BLOCK * measure_deviation(residuals)
    np.clip(residuals, -limit, limit, out=residuals)
    return medians_of_blocks + _condense_blocks(residuals, edges, np.mean)


def _condense_blocks(
    values: Floats, edges: Ints, condense: Callable[[Floats, int], Floats]
) -> Floats:
    """Condense each block of rows, by `condense` (a function of values and an axis): [block, ...].

    Blocks lie between `edges`; all but the last are equally long, and so go together.
    """
    last_begin = int(edges[-2])
    condensed = [condense(values[last_begin:], 0)[None]]
    if last_begin:
        blocks = values[:last_begin].reshape(len(edges) - 2, -1, *values.shape[1:])
        condensed.insert(0, condense(blocks, 1))
    return np.concatenate(condensed)


def bootstrap_interval(lost_ns: Floats, job_ns: float, seed: int = 0) -> tuple[float, float]:
    """Return the 95 % interval of a loss, ns, [step], as a share of the job; blocks are resampled."""
    step_count = len(lost_ns)
    if not step_count:
        return 0.0, 0.0
    block_size = min(STEPS_RESAMPLED_IN_A_ROW, max(step_count // STEPS_RESAMPLED_IN_A_ROW, 1))
    shape = BOOTSTRAP_SAMPLES_OF_LOSS, -(-step_count // block_size), 1
    first_rows = np.random.default_rng(seed).integers(0, step_count, shape)  # [sample, block, 1]
    rows = ((first_rows + np.arange(block_size)) % step_count).reshape(len(first_rows), -1)
    sums_ns = lost_ns[rows[:, :step_count]].sum(axis=1)
    low, high = np.quantile(sums_ns / job_ns, [0.025, 0.975])
    return float(low), float(high)


def join_intervals(
    saving: float, first: tuple[float, float], second: tuple[float, float]
) -> tuple[float, float]:
    """Return the interval of a share of the job, of two that come from doubts of different kinds."""
    below_saving = np.hypot(saving - first[0], saving - second[0])
    above_saving = np.hypot(first[1] - saving, second[1] - saving)
    return max(saving - float(below_saving), 0.0), min(saving + float(above_saving), 1.0)
