"""The estimator that aligns clocks by the exits of full collectives (methods: docs/clocks.md).

Nobody leaves a full collective before the last has come, so all leave at about the same time however
late somebody entered: exits tie clocks together, entries would absorb stragglers. Against a virtual
reference (the median clock), each clock gets a straight line fitted through medians of blocks, and
pieces where a line does not hold: one jump, or a slow wander.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

BLOCKS: Final = 64
ROUNDS: Final = 3
MIN_FOR_SLOPE: Final = 16  # with fewer points a line follows the noise
GATE: Final = 3.0
GATE_BLOCK: Final = 8  # collectives that say what a clock shows for a while
MAD_TO_SIGMA: Final = 1.4826
SMALLEST_PIECE_NS: Final = 1_000.0
MIN_COLLECTIVES: Final = 3
PLAUSIBLE_DRIFT: Final = 1e-4  # no quartz drifts more than 100 ppm
VISIBLE: Final = 5.0
FAR: Final = 1e16  # beyond any run, from its start, in nanoseconds


@dataclass(frozen=True)
class Correction:
    """What to take off a clock at its times: a piecewise straight line through knots.

    Two knots a nanosecond apart are a jump. `sigma` is the uncertainty of the line, `spread` how far
    single exits scatter around it, `jumps` the times and heights of jumps.
    """

    knots_t: Floats
    knots: Floats
    sigma: float = 0.0
    spread: float = 0.0
    jumps: tuple[tuple[float, float], ...] = ()

    def at(self, t: Floats) -> Floats:
        """Return the correction at times of this clock."""
        return np.interp(t, self.knots_t, self.knots)


@dataclass(frozen=True)
class Line:
    """``intercept + slope * t``."""

    intercept: float = 0.0
    slope: float = 0.0

    def at(self, t: Floats) -> Floats:
        """Return the line's values."""
        return self.intercept + self.slope * t

    def corrected_by(self, more: Line) -> Line:
        """Return the line that takes off this one and then `more`."""
        return Line(
            self.intercept + more.intercept - more.slope * self.intercept,
            self.slope + more.slope - more.slope * self.slope,
        )


def fit(exits: Floats) -> list[Correction] | None:
    """Fit each clock against the first; `exits` is [collective, clock], in order of time.

    Null when too few collectives remain to say anything.
    """
    aligned = exits.copy()
    lines = [Line()] * exits.shape[1]
    for _ in range(ROUNDS):
        kept = _gate(aligned)
        if len(kept) < MIN_COLLECTIVES:
            return None
        x, y, _ = _blocks(aligned[kept])
        found = [_line(x, y[:, clock]) for clock in range(exits.shape[1])]
        aligned = np.stack(
            [aligned[:, clock] - line.at(aligned[:, clock]) for clock, line in enumerate(found)], 1
        )
        lines = [line.corrected_by(more) for line, more in zip(lines, found, strict=True)]
    synchronised = _Kept.of(aligned[_gate(aligned)])
    left = [_left(synchronised, clock) for clock in range(exits.shape[1])]
    return [_against_first(lines, left, clock) for clock in range(exits.shape[1])]


def _line(x: Floats, y: Floats) -> Line:
    """Fit a line; a level one where the run is too short for a drift to stand out of the noise."""
    noise = MAD_TO_SIGMA * float(np.median(np.abs(np.diff(y)))) / np.sqrt(2) if len(y) > 1 else 0.0
    visible = np.ptp(x) * PLAUSIBLE_DRIFT > VISIBLE * noise
    return theil_sen(x, y) if visible else Line(float(np.median(y)))


def _reference(aligned: Floats) -> Floats:
    """Return the virtual clock: the median one; of two, the first, for nobody knows who is right."""
    return np.asarray(np.median(aligned, axis=1) if aligned.shape[1] > 2 else aligned[:, 0])


def _gate(aligned: Floats) -> npt.NDArray[np.intp]:
    """Choose collectives that did synchronise: their exits lie as close together as in others.

    What a clock lastingly shows more than the reference is taken off by blocks first, so that a jump
    or a wandering clock is not mistaken for collectives that let ranks leave early.
    """
    rest = aligned - _reference(aligned)[:, None]
    blocks = min(max(len(rest) // GATE_BLOCK, 1), BLOCKS)
    for part in np.array_split(np.arange(len(rest)), blocks):
        rest[part] -= np.median(rest[part], axis=0)
    low, high = np.quantile(rest, [0.1, 0.9], axis=1)
    spread = high - low
    return np.flatnonzero(spread <= GATE * np.median(spread))


def _blocks(aligned: Floats) -> tuple[Floats, Floats, list[npt.NDArray[np.intp]]]:
    """Return each block's median time and the clocks' median differences, and its collectives."""
    reference = _reference(aligned)
    parts = np.array_split(np.arange(len(aligned)), min(BLOCKS, len(aligned)))
    x = np.array([np.median(reference[part]) for part in parts])
    y = np.array([np.median(aligned[part] - reference[part, None], axis=0) for part in parts])
    return x, y, parts


def theil_sen(x: Floats, y: Floats, at_least: int = MIN_FOR_SLOPE) -> Line:
    """Fit a line by the median of all slopes; too few points give a level one."""
    if len(x) < at_least:
        return Line(float(np.median(y)))
    i, j = np.triu_indices(len(x), 1)
    apart = x[j] > x[i]
    slope = float(np.median((y[j] - y[i])[apart] / (x[j] - x[i])[apart])) if apart.any() else 0.0
    return Line(float(np.median(y - slope * x)), slope)


@dataclass(frozen=True)
class _Left:
    """What a clock's line leaves, at aligned times; jumps are (time, height)."""

    knots_s: Floats
    knots: Floats
    sigma: float
    spread: float
    jumps: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class _Kept:
    """Exits of collectives that did synchronise, [collective, clock]; `levels` are medians by block."""

    aligned: Floats
    reference: Floats
    levels: Floats
    parts: list[npt.NDArray[np.intp]]

    @classmethod
    def of(cls, aligned: Floats) -> _Kept:
        _, levels, parts = _blocks(aligned)
        return cls(aligned, _reference(aligned), levels, parts)


def _left(kept: _Kept, clock: int) -> _Left:
    """Follow what a clock's line leaves against the reference: nothing, a jump, or wander."""
    rest = kept.aligned[:, clock] - kept.reference
    own, parts = kept.levels[:, clock], kept.parts
    spread = _scatter(rest, own, parts)
    sigma = 1.25 * spread / float(np.sqrt(len(rest) / len(parts)))
    knots_s, knots = np.array([-FAR, FAR]), np.zeros(2)
    jumps: tuple[tuple[float, float], ...] = ()
    if len(own) >= MIN_FOR_SLOPE and np.ptp(own) > max(6 * sigma, SMALLEST_PIECE_NS):
        knots_s, knots, jumps = _pieces(kept.aligned[:, clock], rest, own, parts)
    return _Left(knots_s, knots, sigma, spread, jumps)


def _against_first(lines: list[Line], left: list[_Left], clock: int) -> Correction:
    """Return what to take off a clock to make it the first one, which may jump and wander itself."""
    line, first = lines[clock], lines[0]
    own, firsts = left[clock], left[0]
    knots_s = np.unique(np.concatenate([own.knots_s, firsts.knots_s]))
    apart = np.interp(knots_s, own.knots_s, own.knots) - np.interp(
        knots_s, firsts.knots_s, firsts.knots
    )
    t = (knots_s + line.intercept) / (1 - line.slope)
    total = (line.at(t) + apart - first.at(t)) / (1 - first.slope)
    if clock == 0:
        total = np.zeros_like(t)
    found = tuple(((at + line.intercept) / (1 - line.slope), height) for at, height in own.jumps)
    return Correction(t, total, own.sigma, own.spread, found)


def _scatter(rest: Floats, levels: Floats, parts: list[npt.NDArray[np.intp]]) -> float:
    """Return how far single exits lie from their block's level, as a standard deviation."""
    if len(rest) < 4 * len(parts):
        return MAD_TO_SIGMA * float(np.median(np.abs(rest - np.median(rest))))
    within = np.concatenate([rest[part] - level for part, level in zip(parts, levels, strict=True)])
    return MAD_TO_SIGMA * float(np.median(np.abs(within)))


def _pieces(
    t: Floats, rest: Floats, levels: Floats, parts: list[npt.NDArray[np.intp]]
) -> tuple[Floats, Floats, tuple[tuple[float, float], ...]]:
    """Return knots for what is left of a clock: one jump, if it is one, else wander."""
    steps = np.abs(np.diff(levels))
    at = int(steps.argmax())
    if steps[at] > np.ptp(levels) / 2 and steps[at] > 8 * np.median(steps):
        near = np.concatenate(parts[max(at - 1, 0) : at + 3])
        return _jump(t, rest, _split(rest, near))
    middle = np.array([np.median(t[part]) for part in parts])
    return (
        np.concatenate([[-FAR], middle, [FAR]]),
        np.concatenate([levels[:1], levels, levels[-1:]]),
        (),
    )


def _split(rest: Floats, near: npt.NDArray[np.intp]) -> int:
    """Return the first collective after the jump: where two levels fit best, by absolute deviation."""
    part = rest[near]
    low, high = np.median(part[: len(part) // 4]), np.median(part[-(len(part) // 4) :])
    before = np.concatenate([[0.0], np.cumsum(np.abs(part - low))])
    after = np.concatenate([[0.0], np.cumsum(np.abs(part - high))])
    return int(near[0] + np.argmin(before + after[-1] - after))


def _jump(
    t: Floats, rest: Floats, split: int
) -> tuple[Floats, Floats, tuple[tuple[float, float], ...]]:
    """Fit a line on each side; the jump itself lies between two collectives."""
    split = min(max(split, 1), len(t) - 1)
    left, right = _side(t[:split], rest[:split]), _side(t[split:], rest[split:])
    at = (t[split - 1] + t[split]) / 2
    knots_s = np.array([-FAR, at - 0.5, at + 0.5, FAR])  # within a nanosecond
    knots = np.concatenate([left.at(knots_s[:2]), right.at(knots_s[2:])])
    return knots_s, knots, ((float(at), float(knots[2] - knots[1])),)


def _side(t: Floats, rest: Floats) -> Line:
    parts = np.array_split(np.arange(len(t)), min(BLOCKS, len(t)))
    x = np.array([np.median(t[part]) for part in parts])
    return theil_sen(x, np.array([np.median(rest[part]) for part in parts]))
