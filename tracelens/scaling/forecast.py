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
    """What was measured at each number of ranks, ascending, [size]; times are a step's, nanoseconds.

    `work_ns` is the mean over ranks, `slowest_work_ns` that of each step's slowest rank, `step_ns` the
    whole step; `communication_ns` is the mean transfer time of a rank, `hidden_communication_ns` its
    overlap with work, and `backprop_ns` the time that it could overlap with.
    """

    rank_counts: Floats
    work_ns: Floats
    slowest_work_ns: Floats
    step_ns: Floats
    communication_ns: Floats
    hidden_communication_ns: Floats
    backprop_ns: Floats

    def take_smallest(self, count: int) -> Sizes:
        """Return the `count` smallest sizes."""
        return Sizes(*(getattr(self, one.name)[:count] for one in fields(self)))


@dataclass(frozen=True)
class Forecast:
    """A step on `rank_count` ranks, ns, with its 95 % interval, by fitted `sizes` or by a `replay`.

    `slowest_work_ns` of it is work; None where it was replayed. `is_validated` is false for a size far
    beyond those that forecasts were compared with.
    """

    rank_count: int
    step_ns: float
    interval_ns: tuple[float, float]
    slowest_work_ns: float | None
    is_validated: bool
    method: Literal["sizes", "replay"] = "sizes"


def forecast(sizes: Sizes, ranks: int, *, is_strong_scaling: bool) -> Forecast | None:
    """Forecast a step on `ranks`; None if fewer than `MIN_SIZES_TO_FORECAST` sizes are known.

    With `is_strong_scaling` all ranks share the same work, so that each has less on more ranks.
    """
    if len(sizes.rank_counts) < MIN_SIZES_TO_FORECAST:
        return None
    target_ranks = np.array([float(ranks)])
    slowest_work_ns = float(
        _forecast_slowest_work(sizes, target_ranks, is_strong_scaling=is_strong_scaling)[0]
    )
    rests_ns, squared_errors = _forecast_rests(
        sizes, target_ranks, is_strong_scaling=is_strong_scaling
    )
    weights = 1 / (squared_errors + MIN_ERROR_OF_FORECAST**2) ** 2  # [pair of growths]
    weights /= weights.sum()
    rest_ns = float(weights @ rests_ns)
    step_ns = slowest_work_ns + rest_ns
    doublings = max(float(np.log2(ranks / sizes.rank_counts[-1])), 1.0)
    squared_error = float(weights @ squared_errors) * doublings**2 + MIN_ERROR_OF_FORECAST**2
    error_ns = float(np.sqrt(weights @ (rests_ns - rest_ns) ** 2 + squared_error * step_ns**2))
    margin_ns = _DEVIATIONS_OF_95_PERCENT * error_ns
    return Forecast(
        ranks,
        step_ns,
        interval_ns=(max(step_ns - margin_ns, slowest_work_ns), step_ns + margin_ns),
        slowest_work_ns=slowest_work_ns,
        is_validated=ranks <= MAX_FACTOR_VALIDATED * sizes.rank_counts[-1],
    )


def forecast_by_replay(
    replay: Replay, known_workers: int, known_step_ns: float, ranks: int
) -> Forecast | None:
    """Forecast a step on `ranks` by a replay of the largest run; None where it is not reliable.

    That run has `known_workers`, and its mean step took `known_step_ns`.
    """
    try:
        (answer,) = replay.answer(f"ranks={ranks}").answers
    except InvalidArgument:
        return None
    if answer.doubt or replay.identity.doubt or answer.before_ns <= 0:
        return None
    # The run's step is its job's length over its steps, which a replay's mean step may differ from.
    scale_ratio = known_step_ns / answer.before_ns
    low_ns, high_ns = sorted(answer.after_interval_ns)
    return Forecast(
        ranks,
        answer.after_ns * scale_ratio,
        interval_ns=(low_ns * scale_ratio, high_ns * scale_ratio),
        slowest_work_ns=None,
        is_validated=ranks <= MAX_FACTOR_VALIDATED * known_workers,
        method="replay",
    )


def expected_largest(counts: Floats) -> Floats:
    """Return the expected maximum of n standard normal numbers, for each n of `counts`."""
    inverse = NormalDist().inv_cdf
    return np.array([inverse((n - 0.375) / (n + 0.25)) for n in counts.tolist()])


def _forecast_slowest_work(
    sizes: Sizes, target_ranks: Floats, *, is_strong_scaling: bool
) -> Floats:
    """Forecast the work of the slowest rank at each target size, ns, [size]."""
    columns = _make_work_columns(sizes.rank_counts, is_strong_scaling=is_strong_scaling)
    # Misfits count relative to the work.
    parts_ns = _fit_non_negative(columns / sizes.work_ns[:, None], np.ones(len(sizes.work_ns)))
    work_ns = _make_work_columns(target_ranks, is_strong_scaling=is_strong_scaling) @ parts_ns
    log_ratios = np.log(np.maximum(sizes.slowest_work_ns / sizes.work_ns, 1.0))
    maxima = expected_largest(sizes.rank_counts)
    squared_sum = float(np.square(maxima).sum())  # not 0: sizes differ
    sigma = max(float(log_ratios @ maxima) / squared_sum, 0.0)
    return np.asarray(work_ns * np.exp(sigma * expected_largest(target_ranks)))


def _make_work_columns(ranks: Floats, *, is_strong_scaling: bool) -> Floats:
    """Return the columns of a rank's work, [size, part]: constant, and with strong scaling 1 / ranks."""
    ones = np.ones_like(ranks)
    return np.stack([ones, 1 / ranks], axis=1) if is_strong_scaling else ones[:, None]


def _forecast_rests(
    sizes: Sizes, target_ranks: Floats, *, is_strong_scaling: bool
) -> tuple[Floats, Floats]:
    """Forecast the time beyond work by each pair of growths, ns, with its mean squared error, [pair].

    It is that at the first target size; the error is the relative one of steps of known sizes, each
    predicted from the smaller sizes. A growth is how a time depends on the number of ranks; a pair is
    that of communication and of the rest.
    """
    growths = [
        names for count in (1, 2) for names in combinations(_GROWTH, count) if _is_distinct(names)
    ]
    communication_growths = [(), *growths] if sizes.communication_ns.any() else [()]
    rests_ns, squared_errors = [], []
    for pair in product(communication_growths, growths):
        errors = []
        for count in range(MIN_SIZES_FITTED, len(sizes.rank_counts)):
            smaller, next_ranks = sizes.take_smallest(count), sizes.rank_counts[count : count + 1]
            (step_ns,) = _forecast_step(
                smaller, next_ranks, pair, is_strong_scaling=is_strong_scaling
            )
            errors.append(step_ns / sizes.step_ns[count] - 1)
        rests_ns.append(
            _forecast_rest(sizes, target_ranks, pair, is_strong_scaling=is_strong_scaling)[0]
        )
        squared_errors.append(np.mean(np.square(errors)))
    return np.array(rests_ns), np.array(squared_errors)


def _is_distinct(names: tuple[str, ...]) -> bool:
    """Return True if a few sizes can separate growths (names): a ring's growth is nearly constant."""
    return names != ("constant", "ring")


_Pair: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]  # growths of communication, of the rest


def _forecast_step(
    sizes: Sizes, target_ranks: Floats, pair: _Pair, *, is_strong_scaling: bool
) -> Floats:
    """Forecast a step of each target size, ns, [size]."""
    return _forecast_slowest_work(
        sizes, target_ranks, is_strong_scaling=is_strong_scaling
    ) + _forecast_rest(sizes, target_ranks, pair, is_strong_scaling=is_strong_scaling)


def _forecast_rest(
    sizes: Sizes, target_ranks: Floats, pair: _Pair, *, is_strong_scaling: bool
) -> Floats:
    """Forecast the time that is no work, ns, [size]: exposed communication, and the rest.

    `pair` names the growths of communication and of the rest; without the former both are one.
    """
    call_names, other_names = pair
    known_other_ns = sizes.step_ns - sizes.slowest_work_ns  # of the known sizes
    if call_names:
        known_other_ns = known_other_ns - (sizes.communication_ns - sizes.hidden_communication_ns)
    other_ns = _extrapolate(sizes, target_ranks, other_names, known_other_ns, shrinks=True)
    if not call_names:
        return np.maximum(other_ns, 0.0)
    communication_ns = _extrapolate(sizes, target_ranks, call_names, sizes.communication_ns)
    hidden_ns = _forecast_hidden(
        sizes, target_ranks, communication_ns, is_strong_scaling=is_strong_scaling
    )
    exposed_ns = communication_ns - np.minimum(hidden_ns, communication_ns)
    return np.asarray(np.maximum(other_ns + exposed_ns, 0.0))


def _forecast_hidden(
    sizes: Sizes, target_ranks: Floats, communication_ns: Floats, *, is_strong_scaling: bool
) -> Floats:
    """Forecast the hidden communication, ns, [size], of that at target sizes, `communication_ns`.

    It is a share of it, limited by the time it can overlap with: with `is_strong_scaling` ranks
    have ever less of that. Where the share fell on the largest run, that time was used up, so it is
    known; else it is taken for as large a share of backprop.
    """
    shares = sizes.hidden_communication_ns / np.maximum(sizes.communication_ns, 1.0)
    max_share = float(shares.max())
    is_used_up = shares[-1] < MAX_RATIO_OF_HIDDEN_IF_FULL * max_share
    limit_ns = max_share * sizes.backprop_ns[-1]
    if is_used_up:
        limit_ns = sizes.hidden_communication_ns[-1]
    limit_ratio = (
        sizes.rank_counts[-1] / target_ranks if is_strong_scaling else np.ones_like(target_ranks)
    )
    return np.asarray(np.minimum(max_share * communication_ns, limit_ns * limit_ratio))


def _extrapolate(
    sizes: Sizes,
    target_ranks: Floats,
    names: tuple[str, ...],
    values_ns: Floats,
    *,
    shrinks: bool = False,
) -> Floats:
    """Fit a sum of growths (names) to times of the known sizes; return it at `target_ranks` ranks.

    Times are ns, [size] and [target]. Misfits count relative to steps, and those of larger sizes more:
    small ones may hide what grows. With `shrinks` a constant may also be negative.
    """
    weights = np.sqrt(sizes.rank_counts / sizes.rank_counts[-1]) / sizes.step_ns
    columns = _make_growth_columns(sizes.rank_counts, names, shrinks=shrinks) * weights[:, None]
    factors = _fit_non_negative(columns, values_ns * weights)  # [part]
    return np.asarray(_make_growth_columns(target_ranks, names, shrinks=shrinks) @ factors)


def _make_growth_columns(ranks: Floats, names: tuple[str, ...], *, shrinks: bool) -> Floats:
    """Return the columns of growths, [size, part]; with `shrinks` a constant may also be negative."""
    columns = [_GROWTH[name](ranks) for name in names]
    if shrinks and "constant" in names:
        columns.append(-_GROWTH["constant"](ranks))
    return np.stack(columns, axis=1)


def _fit_non_negative(columns: Floats, values: Floats) -> Floats:
    """Fit a sum of columns, [size, part], to values, [size]; return factors, [part], none below 0.

    After Lawson & Hanson 1974.
    """
    from scipy.optimize import nnls  # noqa: PLC0415 - a forecast is seldom asked for

    return np.asarray(nnls(columns, values)[0])
