"""Two ranks: is one later than the other, for a while, by more than chance would give?

With two ranks nobody says what is normal, so only a large effect counts: 10 % of the step. Chance is
what exchanging the two ranks gives: if they are alike, doing so within any block of steps (blocks,
because neighbouring steps are alike) changes nothing but the sign of their difference there. What is
exchanged is the difference without the lateness in question, so a large one is not its own noise; and
the greatest window of each such permutation counts, so the p-value pays for all windows tried.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from tracelens.analyses._blocks import LEAST_BLOCK, MOST_BLOCKS
from tracelens.analyses._detector import Rows, Scan
from tracelens.analyses._interval import course
from tracelens.analyses._normal import NATURAL_SPREAD
from tracelens.analyses._robust import deviation, deviation_of_steps

Floats = npt.NDArray[np.float64]

LEAST_EFFECT: Final = 0.10  # of the step
LEAST_WINDOW: Final = (8, 40)  # steps: a quarter of the run, but no less and no more
PERMUTATIONS: Final = 4999
CONSISTENT: Final = 0.75  # of a window's steps are late, else single spikes made it
_CLEARLY_BETTER: Final = 0.75  # before a line is taken away as what is no noise
_LONGEST_MEMORY: Final = 10  # steps
_FAR_OUT: Final = 4.0  # robust standard deviations
_TAKEN_AWAY: Final = 2.0  # a fitted lateness takes noise with it, and noise drifts
_AT_ONCE: Final = 2_000_000  # numbers


def scan(difference: Floats, seed: int = 0) -> Scan:
    """Search the difference of two ranks (second minus first, as a share of the step).

    Returns one entry for each rank: its worst window, and how likely chance gives one as bad.
    """
    sides = [_scan_second(sign * difference, seed) for sign in (-1.0, 1.0)]
    p, mean, first, last = (np.array(column) for column in zip(*sides, strict=True))
    spread = deviation_of_steps(difference)
    scale = np.maximum(spread * np.sqrt(_LONGEST_MEMORY / (last - first + 1)), NATURAL_SPREAD)
    return Scan(p, mean, scale, first, last)


def least_window(steps: int) -> int:
    """Return how long two ranks must differ; shorter, any third program may be the cause."""
    shortest, longest = LEAST_WINDOW
    return max(shortest, min(longest, steps // 4))


def _scan_second(difference: Floats, seed: int) -> tuple[float, float, int, int]:
    """Return p-value, effect and window (first and last row) in which the second rank is latest."""
    whole = (0, len(difference) - 1)
    fitted = course(difference, *whole, better=_CLEARLY_BETTER)
    residual = _without_spikes(difference - fitted.effect)
    difference = fitted.effect + residual
    size = max(_memory(residual), len(difference) // MOST_BLOCKS)
    first, last = _windows(len(difference) // size, -(-least_window(len(difference)) // size))
    if not len(first):
        return 1.0, 0.0, *whole
    scores = _scores(_blocks(difference, size)[None, :], first, last)[0]
    row = int(np.argmax(scores))
    edges = int(first[row]) * size, int(last[row] + 1) * size - 1
    inside = difference[edges[0] : edges[1] + 1]
    effect = float(np.median(inside))
    if effect < LEAST_EFFECT or np.mean(inside > effect / 2) < CONSISTENT:
        return 1.0, effect, *edges
    null = _TAKEN_AWAY * _null(_blocks(residual, size), first, last, seed)
    return (1 + np.count_nonzero(null >= scores[row])) / (1 + len(null)), effect, *edges


def _without_spikes(residual: Floats) -> Floats:
    """Cut what is far out: a few stalls of the machine must not hide what lasts."""
    middle = np.median(residual)
    limit = _FAR_OUT * deviation(residual - middle)
    return np.clip(residual, middle - limit, middle + limit)


def _memory(residual: Floats) -> int:
    """Return after how many steps the difference has forgotten, from its lag-1 correlation."""
    centred = residual - np.median(residual)
    limit = 3 * deviation(centred)
    centred = np.clip(centred, -limit, limit)
    power = float(centred @ centred)
    rho = float(centred[1:] @ centred[:-1]) / power if power else 0.0
    rho = min(max(rho + (1 + 4 * rho) / len(residual), 0.0), 0.95)  # Kendall's correction
    return min(max(LEAST_BLOCK, round((1 + rho) / (1 - rho))), _LONGEST_MEMORY)


def _blocks(values: Floats, size: int) -> Floats:
    count = len(values) // size
    return np.asarray(values[: count * size].reshape(count, size).mean(axis=1))


def _windows(count: int, least: int) -> tuple[Rows, Rows]:
    """Return windows of blocks, inclusive: lengths grow by the root of 2, at quarter lengths."""
    lengths = {round(least * 2 ** (half / 2)) for half in range(40)} | {count}
    pairs = [
        (start, start + length - 1)
        for length in sorted(lengths)
        if least <= length <= count
        for start in range(0, count - length + 1, max(1, length // 4))
    ]
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _scores(blocks: Floats, first: Rows, last: Rows) -> Floats:
    """Return sum / sqrt(length) of every window, [sample, window]."""
    sums = np.concatenate([np.zeros((len(blocks), 1)), np.cumsum(blocks, axis=1)], axis=1)
    return np.asarray((sums[:, last + 1] - sums[:, first]) / np.sqrt(last - first + 1))


def _null(blocks: Floats, first: Rows, last: Rows, seed: int) -> Floats:
    """Return the greatest score, of either rank, under random exchanges of the ranks in each block."""
    signs = np.random.default_rng(seed).choice((-1.0, 1.0), (PERMUTATIONS, len(blocks)))
    parts = np.array_split(signs * blocks, 1 + PERMUTATIONS * len(first) // _AT_ONCE)
    return np.concatenate([np.abs(_scores(part, first, last)).max(axis=1) for part in parts])
