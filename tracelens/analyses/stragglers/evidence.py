"""Evidence of stragglers: windows of steps and scattered stalls in which a rank is beyond its peers.

Windows are judged by `stats/window_scan.py`. Stalls are single late steps, too scattered for a window: a
rank has too many of them in the whole run, or in a stretch of it (docs/analyses/stragglers.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.stats import window_scan
from tracelens.stats.changepoint import find_greatest_run
from tracelens.stats.robust import medians
from tracelens.stats.tails import binomial_tail

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.arrays import Flags, Floats, Indices, Ints
    from tracelens.stats.window_scan import Scan

_ONE_SIGMA: Final = NormalDist().cdf(1.0)
_STEPS_OFF_PERIOD: Final = range(2)  # by which stalls may miss their period

# probability: any rank of a healthy run is accused of stalls with half of it [calibrate]
MAX_P_VALUE_OF_STALLS: Final = 0.003
# ranks for each late rank: among more, the late ones hardly move what is normal [calibrate]
MAX_RANKS_PER_LATE_RANK: Final = 16
MIN_RANKS_LEFT: Final = 3  # ranks: fewer that are not late do not show what is normal [calibrate]
# share of ranks: fewer that are not late do not show what is normal [calibrate]
MIN_SHARE_OF_RANKS_LEFT: Final = 0.5
# probability: any rank of a healthy run of three or more is accused with it [calibrate]
MAX_P_VALUE_AMONG_MANY_RANKS: Final = 0.003
# probability: one of two ranks is not reported if chance is likelier [calibrate]
MAX_P_VALUE_OF_PAIR: Final = 0.003
MIN_LENGTH_OF_STALL: Final = 0.10  # of a step: a shorter delay is no stall [calibrate]
# standard deviations: a step that is less far out is no stall [calibrate]
MIN_Z_SCORE_OF_STALL: Final = 6.0
# stalls of a rank: as few are no evidence [calibrate; one decision in find_stalls, _judge_stalls,
# _find_dense_stretch]
MAX_STALLS_BY_CHANCE: Final = 3
# steps: a stall that begins sooner after another one belongs to it [calibrate]
MIN_STEPS_BETWEEN_STALLS: Final = 4
# share of peers: as many stall no more often than usual [calibrate]
QUANTILE_OF_USUAL_STALLS: Final = 0.75
# stalls: no more beyond the usual number are counted of a peer [calibrate]
MAX_STALLS_COUNTED_BEYOND_USUAL: Final = 3
# of a step: equal ranks lose as much to stalls, on average, before any is seen [calibrate]
LOSS_OF_EQUAL_RANKS_TO_STALLS: Final = 0.015


@dataclass(frozen=True, eq=False)
class Evidence:
    """Steps in which a rank (column) is late, and how likely chance explains them.

    `comparable_indices` are indices among the comparable rows. `series_index` is the phase, an index of
    `ComputeTime.phase_names`, or one more for all phases together; `relative_error` is the delay's
    standard error as a share of it; `is_of_stalls`: the steps are single ones.
    """

    rank_column: int
    comparable_indices: Indices
    p_value: float
    series_index: int = 0
    relative_error: float = 0.0
    is_of_stalls: bool = False


def find_evidence(residuals: list[Floats], step_numbers: Indices) -> list[Evidence]:
    """Search each series of residuals, [step, rank] as shares of a step; the last is of all phases.

    `step_numbers` are those of the rows: nothing is known of the steps between them.
    """
    max_p_value = MAX_P_VALUE_OF_STALLS / 2 / len(residuals)
    is_active = residuals[-1] != 0
    stall_evidence = [
        replace(item, series_index=series)
        for series, residual in enumerate(residuals)
        for item in find_stalls(residual, step_numbers, max_p_value, is_active)
    ]
    return [*_find_windows(residuals), *stall_evidence]


def _find_windows(residuals: list[Floats]) -> list[Evidence]:
    """Find windows of steps with late ranks; each series of residuals is [step, rank], shares."""
    judge = _judge_many_ranks if residuals[0].shape[1] > 2 else _judge_pair
    scans, p_values, is_late = judge(residuals)  # flags and p-values are [series, rank]
    return [
        Evidence(
            rank_column=int(column),
            comparable_indices=np.arange(
                scans[series].first_rows[column], scans[series].last_rows[column] + 1
            ),
            p_value=float(p_values[series, column]),
            series_index=int(series),
            relative_error=float(
                scans[series].standard_errors[column] / scans[series].residuals[column]
            ),
        )
        for series, column in np.argwhere(is_late)
    ]


def _judge_many_ranks(residuals: list[Floats]) -> tuple[list[Scan], Floats, Flags]:
    """Judge three ranks or more: scans by series, p-values and late flags, [series, rank].

    Late ranks are no peers: all are judged again without these, as long as a majority is left (step
    down: Marcus, Peritz & Gabriel 1976).
    """
    is_known_late = np.zeros(residuals[0].shape[1], np.bool_)  # [rank]
    while True:
        scans, p_values, is_late = _judge_by_peers(residuals, is_known_late)
        is_any_late = np.asarray(is_known_late | is_late.any(axis=0))
        is_final = (is_any_late == is_known_late).all()
        if is_final or not _is_worth_repeating(is_any_late):
            return scans, p_values, is_late
        is_known_late = is_any_late


def _is_worth_repeating(is_late: Flags) -> bool:
    """Return True if late ranks (flags) matter to what is normal, and enough others can show it."""
    rank_count, late_count = len(is_late), np.count_nonzero(is_late)
    peer_count = rank_count - late_count
    matters = late_count * MAX_RANKS_PER_LATE_RANK >= rank_count
    return bool(matters and peer_count >= max(MIN_RANKS_LEFT, MIN_SHARE_OF_RANKS_LEFT * rank_count))


def _judge_by_peers(
    residuals: list[Floats], is_known_late: Flags
) -> tuple[list[Scan], Floats, Flags]:
    """Judge every rank by those that are not known to be late, [rank].

    `residuals` are by series, [step, rank] as shares of a step. Return the scan of each series, p-values
    and late flags, both [series, rank].
    """
    scans = [window_scan.scan_ranks(residual, is_known_late) for residual in residuals]
    # How many searches a p-value is one of: half of the chance is for the last series, all phases.
    phase_count = len(scans) - 1
    search_counts = np.array([[2.0 * phase_count]] * phase_count + [[2.0 if phase_count else 1.0]])
    p_values = np.minimum(np.stack([scan.p_values for scan in scans]) * search_counts, 1.0)
    mean_delays = np.stack([scan.residuals for scan in scans])
    is_large = mean_delays >= window_scan.choose_min_effect(mean_delays.shape[1])
    least_p_values = np.where(is_large, p_values, 1.0).min(axis=0)  # [rank]
    is_late = window_scan.find_discoveries(least_p_values, MAX_P_VALUE_AMONG_MANY_RANKS)
    max_p_value = least_p_values[is_late].max(initial=0.0)
    return scans, p_values, is_large & is_late & (p_values <= max_p_value)


def _judge_pair(residuals: list[Floats]) -> tuple[list[Scan], Floats, Flags]:
    """Judge two ranks: scans by series, p-values and late flags, [series, rank].

    Each series of residuals is [step, rank], shares of a step.
    """
    scans = [window_scan.scan_pair(values[:, 1]) for values in residuals]
    p_values = np.minimum(np.stack([scan.p_values for scan in scans]) * len(scans), 1.0)
    is_large = np.stack([scan.residuals for scan in scans]) >= window_scan.choose_min_effect(
        rank_count=2
    )
    return scans, p_values, (p_values < MAX_P_VALUE_OF_PAIR) & is_large


def find_stalls(
    residuals: Floats, step_numbers: Indices, max_p_value: float, is_active: Flags | None = None
) -> list[Evidence]:
    """Find ranks that stall clearly more often than any but a quarter of their peers.

    Residuals are [step, rank], shares of a step; `step_numbers` are those of the rows. Any rank is
    accused wrongly with `max_p_value`. `is_active` says where ranks did anything, None = where residuals
    are not 0: in a phase that one rank alone has, the others' zeros are usual.
    """
    is_active = residuals != 0 if is_active is None else is_active
    deviations = residuals - medians(residuals, axis=0)
    sigma = float(np.quantile(deviations[is_active], _ONE_SIGMA)) if is_active.any() else 0.0
    length_of_stall = max(MIN_LENGTH_OF_STALL, MIN_Z_SCORE_OF_STALL * sigma)
    least_likely_by_column: dict[int, Evidence] = {}
    while (is_stalled := residuals > length_of_stall).sum(axis=0).max() > MAX_STALLS_BY_CHANCE:
        for item in _judge_stalls(is_stalled, step_numbers, max_p_value, length_of_stall):
            if item.p_value < least_likely_by_column.setdefault(item.rank_column, item).p_value:
                least_likely_by_column[item.rank_column] = item
        length_of_stall *= 2
    return [
        item for _, item in sorted(least_likely_by_column.items()) if item.p_value < max_p_value
    ]


def _judge_stalls(
    is_stalled: Flags, step_numbers: Indices, max_p_value: float, stall_share: float
) -> Iterator[Evidence]:
    """Yield evidence of each rank with more stalls than chance explains, likely or not.

    A rank that stalls often is judged by the number of its stalls and by their period. If that does not
    show it, only the stretch of steps in which it stalls most densely is.

    Args:
        is_stalled: True where a rank stalled, [step, rank].
        step_numbers: Of the rows of `is_stalled`.
        max_p_value: A rank with a smaller p-value, times the number of ranks, is shown.
        stall_share: The least length of these stalls, as a share of a step: longer ones are rarer.
    """
    step_count, rank_count = is_stalled.shape
    is_begin = _mark_begins(is_stalled)
    stall_counts = is_begin.sum(axis=0)  # [rank]
    usual_counts = _find_usual_counts(stall_counts)  # [rank]
    is_scattered = is_stalled.sum(axis=0) < step_count / 2
    is_often = (stall_counts > np.maximum(MAX_STALLS_BY_CHANCE, usual_counts)) & is_scattered
    p_values = _judge_counts(stall_counts, usual_counts, step_count, is_often, stall_share)
    for column in np.flatnonzero(stall_counts > MAX_STALLS_BY_CHANCE).tolist():
        rows, begins = np.flatnonzero(is_stalled[:, column]), np.flatnonzero(is_begin[:, column])
        p_value = 1.0
        if is_often[column]:
            p_value = _join_with_period(float(p_values[column]), step_numbers[begins])
        if p_value * rank_count >= max_p_value:
            peers_count = float(np.delete(stall_counts, column).mean())
            usual_rate = (peers_count + 1) / (step_count + 1)
            rows, p_value = _find_dense_stretch(rows, begins, usual_rate, step_count)
        yield Evidence(
            rank_column=column,
            comparable_indices=rows,
            p_value=p_value * rank_count,
            is_of_stalls=True,
        )


def _join_with_period(p_value: float, step_numbers: Indices) -> float:
    """Join the p-value of a number of stalls with that of their steps' period (Fisher 1932)."""
    gaps = np.diff(step_numbers)
    period = max(float(np.median(gaps)), 1.0)
    steps_off = np.abs(gaps - np.rint(gaps / period) * period)
    # For each allowed deviation: the gaps that keep the period, and their share by chance.
    counts = [np.count_nonzero(steps_off <= allowed) for allowed in _STEPS_OFF_PERIOD]
    rates = [min((2 * allowed + 1) / period, 1.0) for allowed in _STEPS_OFF_PERIOD]
    p_values = binomial_tail(np.array(counts) - 1, len(gaps) - 1, rates)
    product = p_value * (len(_STEPS_OFF_PERIOD) * float(p_values.min()))  # of both p-values
    return min(2 * product * (1 - math.log(product)), p_value) if product > 0 else p_value


def _mark_begins(is_stalled: Flags) -> Flags:
    """Flag stalls, [step, rank], four steps or more apart: a disturbance may last longer than one."""
    is_begin = np.zeros_like(is_stalled)
    last_row = np.full(is_stalled.shape[1], -MIN_STEPS_BETWEEN_STALLS)  # of a begin, [rank]
    for row in np.flatnonzero(is_stalled.any(axis=1)):
        is_begin[row] = is_stalled[row] & (row - last_row >= MIN_STEPS_BETWEEN_STALLS)
        last_row[is_begin[row]] = row
    return is_begin


def _find_dense_stretch(
    stalled_rows: Ints, stall_begin_rows: Ints, usual_rate: float, step_count: int
) -> tuple[Ints, float]:
    """Return the rows of stalls in the stretch where a rank stalls most strikingly, and their p-value.

    Rows are those of steps. For each number of stalls the shortest stretch that holds them is tried, at
    the rate per step of the peers (`usual_rate`) or of the rank at other times. Chernoff's bound
    says quickly which is most striking.
    """
    counts = np.arange(MAX_STALLS_BY_CHANCE + 1, len(stall_begin_rows) + 1)
    if not len(counts):
        return stalled_rows[:0], 1.0
    # For each number of stalls: how many steps they are apart, by the first one of them.
    stretches = [
        stall_begin_rows[count - 1 :] - stall_begin_rows[: len(stall_begin_rows) - count + 1]
        for count in counts
    ]
    lengths = np.array([steps_apart.min() for steps_apart in stretches])
    own_rates = (len(stall_begin_rows) - counts + 1) / np.maximum(step_count - lengths, 1)
    rates = np.maximum(own_rates, usual_rate)
    bounds = _bound_tail(counts - 1, lengths, rates) * rates * step_count * len(stall_begin_rows)
    densest = int(np.argmin(bounds))
    if bounds[densest] >= 1:
        return stalled_rows[:0], 1.0
    first_row = int(stall_begin_rows[int(np.argmin(stretches[densest]))])
    length, rate = int(lengths[densest]), float(rates[densest])
    p_value = (
        float(binomial_tail(counts[densest] - 1, length, rate))
        * rate
        * step_count
        * len(stall_begin_rows)
    )
    if p_value >= 1:
        return stalled_rows[:0], 1.0
    count = int(
        np.count_nonzero((stalled_rows >= first_row) & (stalled_rows <= first_row + length))
    )
    dense_rate = count / (length + 2)  # never certain
    log_likelihood_gains = np.full(int(stalled_rows[-1]) + 1, np.log((1 - dense_rate) / (1 - rate)))
    log_likelihood_gains[stalled_rows] = np.log(dense_rate / rate)
    begin, end = find_greatest_run(log_likelihood_gains)
    return stalled_rows[(stalled_rows >= begin) & (stalled_rows <= end)], p_value


def _bound_tail(counts: Ints, trials: Ints, rates: Floats) -> Floats:
    """Return an upper bound of P(X >= count) for a binomial X of trials with a rate (Chernoff 1952)."""
    shares = np.clip(counts / trials, 1e-9, 1 - 1e-9)
    rates = np.clip(rates, 1e-9, 1 - 1e-9)
    divergence = shares * np.log(shares / rates) + (1 - shares) * np.log((1 - shares) / (1 - rates))
    return np.where(shares > rates, np.exp(-trials * divergence), 1.0)


def _find_usual_counts(counts: Ints) -> Floats:
    """Return for each rank how many stalls are usual: its peers' upper quartile, [rank]."""
    ordered = np.sort(counts)
    index = np.ceil(QUANTILE_OF_USUAL_STALLS * (len(counts) - 2)).astype(int)
    # Without itself, a rank at or below that index has the next one there.
    usual = np.where(counts <= ordered[index], ordered[index + 1], ordered[index])
    return np.asarray(usual, np.float64)


def _judge_counts(
    counts: Ints, usual_counts: Floats, step_count: int, is_often: Flags, stall_share: float
) -> Floats:
    """Return the p-value of the number of stalls, [rank] as all; 1 for ranks that do not stall often.

    They must be too many for the usual rate, and too large a share of all stalls of this rank and its
    peers, since that rate is itself known from few of them. Equal ranks lose little time to stalls, so
    stalls of a `stall_share` of a step are rare (Markov): with an exponential prior of the rate, that
    counts as further peers without a stall (negative binomial).
    """
    p_values = np.ones(len(counts))
    if not is_often.any():
        return p_values
    own_counts, usual_counts = counts[is_often], usual_counts[is_often]
    limits = usual_counts + MAX_STALLS_COUNTED_BEYOND_USUAL  # of the stalls counted of each rank
    sum_by_limit = {limit: np.minimum(counts, limit).sum() for limit in set(limits.tolist())}
    all_stalls = np.array([sum_by_limit[limit] for limit in limits.tolist()])
    peer_stalls = all_stalls - np.minimum(own_counts, limits)
    peers, silent_peers = (
        len(counts) - 1,
        stall_share / (LOSS_OF_EQUAL_RANKS_TO_STALLS * step_count),
    )
    peer_rates = (peer_stalls + 1) / ((peers + silent_peers) * step_count + 2)
    rates = np.maximum(usual_counts / step_count, peer_rates)
    by_rate = binomial_tail(own_counts, step_count, rates)
    own_share = 1 / (1 + peers + silent_peers)
    by_share = binomial_tail(own_counts, own_counts + peer_stalls, own_share)
    p_values[is_often] = np.maximum(by_rate, by_share)
    return p_values
