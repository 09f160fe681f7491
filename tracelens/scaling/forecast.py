"""How long steps will take on more ranks: work, communication and the rest, forecast each by itself.

Work of N ranks whose times vary independently ends with the slowest of them, after mean x
exp(sigma E[max z_N]), z normal (Blom 1958, "Statistical estimates and transformed beta-variables").
Communication grows as its algorithm does: not at all, as (N - 1) / N (a ring's bytes), as log2 N (a
tree), or as N (one server, or a ring's messages). Of that a part is hidden: the share that may be, as
long as backprop lasts for it. The rest of a step grows in one of these ways, too, or shrinks by a
constant. Sums of growths are fitted by non-negative least squares, and count as much as they would have
predicted the sizes that are known from the smaller ones. One curve for the whole step predicts worse,
and its resampled interval misses the truth (docs/scaling.md).

Servers that workers share are busy at some size, and no curve through smaller sizes tells which: so a
run with servers is replayed with more workers, as `tracelens whatif --what ranks=N` does.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import combinations, product
from statistics import NormalDist
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np

from tracelens.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.arrays import Floats
    from tracelens.replay.whatif import Replay

__all__ = [
    "MAX_FACTOR_VALIDATED",
    "MIN_SIZES_TO_FORECAST",
    "Forecast",
    "Sizes",
    "forecast",
    "forecast_by_replay",
]

MIN_SIZES_TO_FORECAST: Final = 4  # sizes: fewer fit any curve [chosen]
# times the largest size: forecasts of larger runs were not validated [chosen; one decision in
# forecast, forecast_by_replay]
MAX_FACTOR_VALIDATED: Final = 4
MIN_ERROR_OF_FORECAST: Final = 0.01  # of a step: no forecast is better [chosen]
# sizes: the first forecast of a known size is fitted to as many [chosen]
MIN_SIZES_FITTED: Final = 3
# ratio: no more can be hidden if the largest run hides less of the largest share [chosen]
MAX_RATIO_OF_HIDDEN_IF_FULL: Final = 0.95
# standard deviations: of a normal distribution [definition]
_DEVIATIONS_OF_95_PERCENT: Final = 1.96
_GROWTH: Final[dict[str, Callable[[Floats], Floats]]] = {
    "constant": np.ones_like,
    "ring": lambda sizes: (sizes - 1) / sizes,
    "logarithmic": np.log2,
    "linear": lambda sizes: sizes,
}


@dataclass(frozen=True, eq=False)
class Sizes:
    """What was measured at each number of ranks, ascending; times are a step's, nanoseconds.

    `work` is the mean over the ranks, `slowest` that of each step's slowest rank, `step` all of it;
    `communication` is what a rank transfers, on average, of which `hidden` goes on beside work, and
    `backprop` what it could go on beside.
    """

    ranks: Floats
    work: Floats
    slowest: Floats
    step: Floats
    communication: Floats
    hidden: Floats
    backprop: Floats

    def first(self, count: int) -> Sizes:
        """Return the smallest so many."""
        return Sizes(*(getattr(self, one.name)[:count] for one in fields(self)))


@dataclass(frozen=True)
class Forecast:
    """A step on so many `ranks`, ns, with its 95 % interval, by fitted `sizes` or a `replay`.

    `slowest_ns` of it is work; None where it was replayed.
    """

    ranks: int
    step_ns: float
    interval: tuple[float, float]
    slowest_ns: float | None
    validated: bool
    method: Literal["sizes", "replay"] = "sizes"


def forecast(known: Sizes, ranks: int, *, strong: bool) -> Forecast | None:
    """Forecast a step; None where fewer than `MIN_SIZES_TO_FORECAST` sizes are known.

    Args:
        known: What was measured.
        ranks: At what size.
        strong: All ranks share the same work, of which each has less the more they are.
    """
    if len(known.ranks) < MIN_SIZES_TO_FORECAST:
        return None
    at = np.array([float(ranks)])
    slowest = float(_slowest(known, at, strong=strong)[0])
    rests, misses = _rests(known, at, strong=strong)
    weights = 1 / (misses + MIN_ERROR_OF_FORECAST**2) ** 2
    weights /= weights.sum()
    rest = float(weights @ rests)
    step = slowest + rest
    doublings = max(float(np.log2(ranks / known.ranks[-1])), 1.0)
    missed = float(weights @ misses) * doublings**2 + MIN_ERROR_OF_FORECAST**2
    error = float(np.sqrt(weights @ (rests - rest) ** 2 + missed * step**2))
    return Forecast(
        ranks,
        step,
        (
            max(step - _DEVIATIONS_OF_95_PERCENT * error, slowest),
            step + _DEVIATIONS_OF_95_PERCENT * error,
        ),
        slowest,
        validated=ranks <= MAX_FACTOR_VALIDATED * known.ranks[-1],
    )


def forecast_by_replay(run: Replay, workers: int, step_ns: float, ranks: int) -> Forecast | None:
    """Forecast a step by replaying a run with more ranks; None where that is not reliable.

    Args:
        run: The largest run that is known.
        workers: How many it has.
        step_ns: How long its mean step took.
        ranks: At what size.
    """
    try:
        (answer,) = run.asked(f"ranks={ranks}").answers
    except InvalidArgument:
        return None
    if answer.doubt or run.identity.doubt or answer.before_ns <= 0:
        return None
    longer = step_ns / answer.before_ns
    low, high = sorted(answer.after_interval_ns)
    return Forecast(
        ranks,
        answer.after_ns * longer,
        (low * longer, high * longer),
        None,
        validated=ranks <= MAX_FACTOR_VALIDATED * workers,
        method="replay",
    )


def expected_largest(counts: Floats) -> Floats:
    """Return the mean of the largest of so many standard normal numbers."""
    inverse = NormalDist().inv_cdf
    return np.array([inverse((n - 0.375) / (n + 0.25)) for n in counts.tolist()])


def _slowest(known: Sizes, at: Floats, *, strong: bool) -> Floats:
    """Return the work of the slowest rank."""
    of_size = _shares(known.ranks, strong=strong)
    shares = _fitted(of_size / known.work[:, None], np.ones(len(known.work)))
    work = _shares(at, strong=strong) @ shares
    deviations = np.log(np.maximum(known.slowest / known.work, 1.0))
    expected = expected_largest(known.ranks)
    squares = float(np.square(expected).sum())  # not 0: sizes differ
    sigma = max(float(deviations @ expected) / squares, 0.0)
    return np.asarray(work * np.exp(sigma * expected_largest(at)))


def _shares(sizes: Floats, *, strong: bool) -> Floats:
    """Return what a rank's work is made of, [size, part]: what each does, and its share of the rest."""
    each = np.ones_like(sizes)
    return np.stack([each, 1 / sizes], axis=1) if strong else each[:, None]


def _rests(known: Sizes, at: Floats, *, strong: bool) -> tuple[Floats, Floats]:
    """Return what each pair of growths says of the time beyond work, and how far it was wrong.

    That is the mean square of the relative error of each known size, predicted from those before it.
    """
    sums = [
        names for count in (1, 2) for names in combinations(_GROWTH, count) if _is_distinct(names)
    ]
    moves = [(), *sums] if known.communication.any() else [()]
    predicted, misses = [], []
    for pair in product(moves, sums):
        errors = [
            _whole(known.first(count), known.ranks[count : count + 1], pair, strong=strong)[0]
            / known.step[count]
            - 1
            for count in range(MIN_SIZES_FITTED, len(known.ranks))
        ]
        predicted.append(_rest(known, at, pair, strong=strong)[0])
        misses.append(np.mean(np.square(errors)))
    return np.array(predicted), np.array(misses)


def _is_distinct(names: tuple[str, ...]) -> bool:
    """Return whether a few sizes can tell the parts from each other: a ring's is nearly constant."""
    return names != ("constant", "ring")


_Pair: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]


def _whole(known: Sizes, at: Floats, pair: _Pair, *, strong: bool) -> Floats:
    return _slowest(known, at, strong=strong) + _rest(known, at, pair, strong=strong)


def _rest(known: Sizes, at: Floats, pair: _Pair, *, strong: bool) -> Floats:
    """Return exposed communication, and all else that is no work; both at once, without its growth."""
    moves, others = pair
    beyond = known.step - known.slowest
    if not moves:
        return np.maximum(_grown_to(known, at, others, beyond, shrinks=True), 0.0)
    exposed = known.communication - known.hidden
    other = _grown_to(known, at, others, beyond - exposed, shrinks=True)
    moved = _grown_to(known, at, moves, known.communication)
    left = moved - np.minimum(_hideable(known, at, moved, strong=strong), moved)
    return np.asarray(np.maximum(other + left, 0.0))


def _hideable(known: Sizes, at: Floats, moved: Floats, *, strong: bool) -> Floats:
    """Return how much communication is hidden: a share of it, and no more than there is room for.

    Where the share fell on the largest run the room was used up, so that it is known; else it is taken
    for as large a share of backprop.
    """
    shares = known.hidden / np.maximum(known.communication, 1.0)
    most = float(shares.max())
    is_full = shares[-1] < MAX_RATIO_OF_HIDDEN_IF_FULL * most
    room = known.hidden[-1] if is_full else most * known.backprop[-1]
    shrunk = known.ranks[-1] / at if strong else np.ones_like(at)
    return np.asarray(np.minimum(most * moved, room * shrunk))


def _grown_to(
    known: Sizes, at: Floats, names: tuple[str, ...], values: Floats, *, shrinks: bool = False
) -> Floats:
    """Fit growths to values of the known sizes, and return their sum elsewhere.

    Misfits count relative to steps, and those of larger sizes more: small ones may hide what grows.
    """
    weights = np.sqrt(known.ranks / known.ranks[-1]) / known.step
    columns = _grown(known.ranks, names, shrinks=shrinks) * weights[:, None]
    return np.asarray(_grown(at, names, shrinks=shrinks) @ _fitted(columns, values * weights))


def _grown(sizes: Floats, names: tuple[str, ...], *, shrinks: bool) -> Floats:
    """Return how parts grow, [size, part]; a constant is also taken off, where it may be."""
    columns = [_GROWTH[name](sizes) for name in names]
    if shrinks and "constant" in names:
        columns.append(-_GROWTH["constant"](sizes))
    return np.stack(columns, axis=1)


def _fitted(columns: Floats, values: Floats) -> Floats:
    """Fit a sum of columns without a negative part (Lawson & Hanson 1974)."""
    from scipy.optimize import nnls  # noqa: PLC0415 - a forecast is seldom asked for

    return np.asarray(nnls(columns, values)[0])
