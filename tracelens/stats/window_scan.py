"""Scans for windows of steps in which a rank is beyond its peers: of three ranks or more, and of two.

Of many ranks each step is compared across ranks (so what all share cancels), blocks of steps are
condensed to a robust mean (so single spikes cancel), and windows of all lengths and places are scanned.
A window is compared with the peers meanwhile and, as far as ranks differ permanently, with the same rank
outside. The null model is learnt from the peers alone, and the p-value pays for every window tried. A
sign test guards against noise with heavy tails: in a late window nearly every step is late.

With two ranks there is no majority, so only a large effect counts: 10 % of the step. Chance is
what exchanging the two ranks gives: if they are equal, doing so within any block of steps (blocks,
because neighbouring steps are alike) changes nothing but the sign of their difference there. What is
exchanged is the difference without the delay in question, so a large one is not its own noise; and the
greatest window of each such permutation counts, so the p-value pays for all windows tried.
docs/analyses/confidence-and-statistics.md gives formulas and sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tracelens.caching import cached_property
from tracelens.stats.changepoint import fit_course
from tracelens.stats.null_model import NullModel, median_of_others
from tracelens.stats.robust import (
    block_edges,
    block_levels,
    measure_deviation,
    measure_step_deviation,
    medians,
)
from tracelens.stats.tails import binomial_tail, student_tail

if TYPE_CHECKING:
    from tracelens.arrays import Flags, Floats, Ints


MAX_RESIDUALS_AT_ONCE: Final = 1 << 18  # numbers: no more are in memory at once [policy]
# of a step: a smaller delay of one rank among many is not reported [calibrate]
MIN_DELAY_AMONG_MANY_RANKS: Final = 0.015
# of a step: a smaller delay of one of two ranks is not reported [calibrate; one decision in
# choose_min_effect, _scan_second_of_pair]
MIN_DELAY_OF_TWO_RANKS: Final = 0.10
# ranks: among more, a rank hardly moves the peers' median, and counts as a peer [calibrate]
MAX_RANKS_JUDGED_ONE_BY_ONE: Final = 16
# share: the whole run has as much of the error rate; windows have the rest [calibrate]
SHARE_OF_ERROR_RATE_FOR_WHOLE_RUN: Final = 0.25
MIN_Z_SCORE_TO_COMPUTE_P_VALUE: Final = 3  # standard errors: below, the p-value is 1 [calibrate]
MAX_P_VALUE_OF_WINDOW: Final = 0.003  # probability: a window above is no candidate [calibrate]
# steps: outside of a window; fewer do not tell how often the rank is above its level [calibrate]
MIN_STEPS_OUTSIDE_FOR_RATE: Final = 4
# steps: as many neighbours count as one, since they are correlated [calibrate]
CORRELATED_STEPS_IN_SIGN_TEST: Final = 3
# steps: two ranks that differ for fewer are not judged [calibrate]
MIN_STEPS_OF_WINDOW_OF_PAIR: Final = 40
# share: two ranks must differ for as much of a short run [calibrate]
MIN_SHARE_OF_RUN_OF_WINDOW_OF_PAIR: Final = 0.25
# of a step: two equal ranks differ by as much at least [calibrate]
MIN_SCALE_OF_PAIR: Final = 0.003
# correlation: neighbouring steps have it where a pair's scale is computed [calibrate]
CORRELATION_OF_STEPS_OF_PAIR: Final = 0.75
# ratio: a rising line may leave at most this much of the deviation of two levels [calibrate]
MAX_DEVIATION_RATIO_IF_PAIR_DRIFTS: Final = 0.75
MAX_BLOCKS_OF_PAIR: Final = 64  # blocks: a longer run has longer blocks instead of more [calibrate]
# share of a window's steps: a window counts if as many have half of the delay or more [calibrate]
MIN_SHARE_OF_STEPS_DELAYED_IN_PAIR: Final = 0.75
# times: a window must exceed scores by chance this much [calibrate]
FACTOR_OF_NULL_SCORES: Final = 2.0
# standard deviations: a step of a pair that is farther out counts as one that far off [calibrate]
Z_SCORE_TO_CLIP_SPIKES_OF_PAIR: Final = 3
# standard deviations: a step that is farther out counts as one that far off in
# the correlation [calibrate]
Z_SCORE_TO_CLIP_FOR_CORRELATION: Final = 3
# correlation: neighbouring steps of a pair are taken as no more alike [calibrate]
MAX_CORRELATION_OF_STEPS: Final = 0.75
# steps: blocks in which two ranks are exchanged are no shorter [calibrate]
MIN_STEPS_EXCHANGED: Final = 4
EXCHANGES_OF_PAIR: Final = 4999  # exchanges: as many of two ranks are drawn at random [policy]
MAX_SCORES_AT_ONCE: Final = 1 << 18  # numbers: no more are in memory at once [policy]


class Windows(NamedTuple):
    """Windows of steps, `first_rows` to `last_rows` (rows, [window]), and what is measured in each.

    All else is [window, rank]; all but `p_values` are shares of a step.
    """

    first_rows: Ints
    last_rows: Ints
    residuals: Floats  # mean residual of the rank, beyond what it is compared with
    delayed_levels: Floats  # halfway from that to the rank's mean: a step above it is delayed
    standard_errors: Floats  # standard error of the residual by chance
    p_values: Floats


@dataclass(frozen=True, eq=False)
class Scan:
    """The least likely window of every rank, `first_rows` to `last_rows` (rows); all [rank].

    `residuals` are means in it, `standard_errors` those of it by chance; shares of a step.
    """

    p_values: Floats
    residuals: Floats
    standard_errors: Floats
    first_rows: Ints
    last_rows: Ints


def measure_peer_residuals(compute_ns: Floats, step_ns: float) -> Floats:
    """Return each rank's own time beyond the step's median rank, as a share of `step_ns`.

    Both are [step, rank]; where a rank lacks a step (nan) it counts as the median. `step_ns` counts as 1
    at least.
    """
    residuals = np.empty(compute_ns.shape)
    rows_at_once = max(MAX_RESIDUALS_AT_ONCE // max(compute_ns.shape[1], 1), 1)
    for first_row in range(0, len(compute_ns), rows_at_once):
        rows = slice(first_row, first_row + rows_at_once)
        residuals[rows] = _peer_residuals(compute_ns[rows], step_ns)
    return residuals


def _peer_residuals(compute_ns: Floats, step_ns: float) -> Floats:
    is_absent = np.isnan(compute_ns).all(axis=1, keepdims=True)  # a step in which the job broke off
    compute_ns = np.where(is_absent, 0.0, compute_ns)
    residuals: Floats = (compute_ns - medians(compute_ns, axis=1)[:, None]) / max(step_ns, 1.0)
    return residuals if np.isfinite(residuals).all() else np.nan_to_num(residuals, nan=0.0)


def choose_min_effect(rank_count: int) -> float:
    """Return the smallest delay worth reporting, as a share of the step: more for few ranks."""
    more_of_pair = MIN_DELAY_OF_TWO_RANKS - MIN_DELAY_AMONG_MANY_RANKS
    return MIN_DELAY_AMONG_MANY_RANKS + more_of_pair * (2 / rank_count) ** 2


def scan_ranks(residuals: Floats, is_straggler: Flags | None = None) -> Scan:
    """Search every rank's excess, [step, rank], for the window that chance explains worst.

    `is_straggler` ranks are stragglers already: no rank is compared with them.
    """
    ranks = np.arange(residuals.shape[1])
    is_peer = np.ones(len(ranks), np.bool_) if is_straggler is None else ~is_straggler
    windows = _judge_windows(residuals, is_peer)
    steps = _Steps(residuals, is_peer)
    rows_and_p_values = [_find_least_likely(steps, windows, rank) for rank in range(len(ranks))]
    window_rows, p_values = zip(*rows_and_p_values, strict=True)
    rows = np.array(window_rows)
    return Scan(
        p_values=np.array(p_values),
        residuals=windows.residuals[rows, ranks],
        standard_errors=windows.standard_errors[rows, ranks],
        first_rows=windows.first_rows[rows],
        last_rows=windows.last_rows[rows],
    )


def _judge_windows(residuals: Floats, is_peer: Flags) -> Windows:
    """Judge every rank's excess, [step, rank], by its peers (flags), in windows of steps.

    Among many ranks a rank may count as its own peer.
    """
    edges = block_edges(len(residuals))
    blocks = block_levels(residuals, edges)
    ranks = np.arange(residuals.shape[1])
    if len(ranks) > MAX_RANKS_JUDGED_ONE_BY_ONE:
        return _judge_by_peers(edges, blocks, blocks[:, is_peer])
    windows_of_ranks = [
        _judge_by_peers(edges, blocks[:, [rank]], blocks[:, is_peer & (ranks != rank)])
        for rank in ranks
    ]
    (first_rows, *_), (last_rows, *_), *by_rank = zip(
        *windows_of_ranks, strict=True
    )  # the same for all ranks
    return Windows(first_rows, last_rows, *(np.concatenate(columns, axis=1) for columns in by_rank))


def _judge_by_peers(edges: Ints, blocks: Floats, peers: Floats) -> Windows:
    """Try windows of all lengths (2, 3, 4, 6, 8 ... blocks, and everything) at every quarter length.

    `edges` bound blocks of steps; `blocks` are levels of the judged ranks, and `peers` of their peers,
    both [block, rank].
    """
    peer_residuals = peers - median_of_others(peers)
    null_model = NullModel.from_peers(peer_residuals)
    peer_median = medians(peers, axis=1)[:, None]
    sums = (
        _Sums.from_blocks(blocks - peer_median),
        _Sums.from_blocks(peer_residuals),
        _Sums.from_blocks(peer_median),
    )
    lengths = _list_lengths(len(blocks))
    windows = [_judge_length(edges, sums, null_model, length, len(lengths)) for length in lengths]
    return Windows(*map(np.concatenate, zip(*windows, strict=True)))


def _judge_length(
    edges: Ints,
    sums: tuple[_Sums, _Sums, _Sums],
    null_model: NullModel,
    length: int,
    length_count: int,
) -> Windows:
    """Judge the windows of `length` blocks, one of `length_count`: residuals, and their p-values.

    `edges` are the blocks' bounds, rows of steps; `sums` are of ranks, peers, and the peers' median.
    """
    ranks, peers, peer_median = sums
    stride = max(1, length // 4)
    first_blocks = np.arange(0, null_model.block_count - length + 1, stride)
    lasting_share = null_model.predict_lasting_share(length)
    residual = ranks.residuals_of_windows(length, stride, lasting_share)
    scale, freedom = null_model.measure_scale(
        length, peers.residuals_of_windows(length, stride, lasting_share)
    )
    level = ranks.window_means(length, stride) + peer_median.window_means(length, stride)
    whole_run_share = SHARE_OF_ERROR_RATE_FOR_WHOLE_RUN
    tried_windows = 2 * null_model.block_count / length * (length_count - 1) / (1 - whole_run_share)
    if length == null_model.block_count:
        tried_windows = 1 / whole_run_share
    p = np.ones_like(residual)
    is_far = residual > MIN_Z_SCORE_TO_COMPUTE_P_VALUE * scale
    if is_far.any():
        p[is_far] = np.minimum(student_tail(residual[is_far] / scale, freedom) * tried_windows, 1.0)
    first, last = edges[first_blocks], edges[first_blocks + length] - 1
    scales = np.full_like(residual, scale)
    return Windows(
        first_rows=first,
        last_rows=last,
        residuals=residual,
        delayed_levels=level - residual / 2,
        standard_errors=scales,
        p_values=p,
    )


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums of the blocks before each, [block + 1, rank], so that every window's mean costs the same."""

    sums_before: Floats

    @classmethod
    def from_blocks(cls, blocks: Floats) -> _Sums:
        return cls(np.concatenate([np.zeros((1, blocks.shape[1])), np.cumsum(blocks, axis=0)]))

    def window_means(self, length: int, stride: int) -> Floats:
        """Return the means of windows of `length` blocks, one from every `stride` on, [window, rank]."""
        return np.asarray(
            (self.sums_before[length::stride] - self.sums_before[:-length:stride]) / length
        )

    def residuals_of_windows(self, length: int, stride: int, lasting: float) -> Floats:
        """Return by how much windows are above what the blocks outside of them predict, [window, rank].

        A window has `length` blocks, and begins `stride` blocks after the one before. Prediction is
        `lasting`, a share, of the mean outside of the window.
        """
        mean_by_window = self.window_means(length, stride)
        blocks_outside = max(len(self.sums_before) - 1 - length, 1)
        return np.asarray(
            mean_by_window
            - lasting * (self.sums_before[-1] - mean_by_window * length) / blocks_outside
        )


def _list_lengths(count: int) -> list[int]:
    """Return lengths of windows in blocks: each about the root of two times the one before."""
    half_powers = {round(2 ** (half / 2)) for half in range(2, 2 * count.bit_length())}
    return [*sorted(length for length in half_powers if length < count), count]


@dataclass(frozen=True, eq=False)
class _Steps:
    """All steps, [step, rank], and who are the peers."""

    residuals: Floats
    is_peer: Flags

    @cached_property
    def residuals_of_peers(self) -> Floats:
        """The steps of all peers."""
        return self.residuals if self.is_peer.all() else self.residuals[:, self.is_peer]

    def count_above(self, rank: int, level: float) -> tuple[int, int]:
        """Return in how many steps the peers of a rank are above `level`, and of how many."""
        rank_steps = self.residuals[:, rank] if self.is_peer[rank] else self.residuals[:0, rank]
        count = np.count_nonzero(self.residuals_of_peers > level) - np.count_nonzero(
            rank_steps > level
        )
        return int(count), self.residuals_of_peers.size - len(rank_steps)


def _find_least_likely(steps: _Steps, windows: Windows, rank: int) -> tuple[np.intp, float]:
    """Return the row and the p-value of a rank's least likely window, by its blocks and its steps."""
    p = windows.p_values[:, rank]
    if p.min() >= MAX_P_VALUE_OF_WINDOW:
        return np.argmin(p), 1.0
    by_p_value = np.argsort(p, kind="stable")
    best_row, least_p = by_p_value[0], 1.0
    for row in by_p_value:
        if p[row] >= min(least_p, MAX_P_VALUE_OF_WINDOW):
            break
        first_step, last_step = int(windows.first_rows[row]), int(windows.last_rows[row])
        sign_p = _find_sign_probability(
            steps, rank, slice(first_step, last_step + 1), windows.delayed_levels[row, rank]
        )
        tried_windows = 2 * len(steps.residuals) / (last_step + 1 - first_step)
        combined_p = max(float(p[row]), sign_p * tried_windows)
        if combined_p < least_p:
            best_row, least_p = row, combined_p
    return best_row, least_p


def _find_sign_probability(steps: _Steps, rank: int, window: slice, level: float) -> float:
    """Return the probability of that many steps of a rank above a level in a window (rows).

    The usual rate is that of the rank outside of the window, or of its peers. A few neighbours count as
    one, since they are correlated.
    """
    rank_residuals = steps.residuals[:, rank]
    window_residuals = rank_residuals[window]
    count_above = np.count_nonzero(window_residuals > level)
    peers_above, peer_steps = steps.count_above(rank, level)
    steps_outside = len(rank_residuals) - len(window_residuals)
    above_outside = np.count_nonzero(rank_residuals > level) - count_above
    has_enough = steps_outside >= MIN_STEPS_OUTSIDE_FOR_RATE
    rate_outside = above_outside / steps_outside if has_enough else 0.0
    rate = max((peers_above + 1) / (peer_steps + 2), rate_outside)
    steps_alike = CORRELATED_STEPS_IN_SIGN_TEST
    trials = len(window_residuals) / steps_alike
    return float(binomial_tail(count_above / steps_alike, trials, rate))


def find_discoveries(p: Floats, rate: float) -> Flags:
    """Find which p-values hold if the chance that any of them is wrong may be `rate` (Holm 1979)."""
    order = np.argsort(p, kind="stable")
    fails = np.flatnonzero(p[order] * np.arange(p.size, 0, -1) > rate)
    holds = np.zeros(p.size, np.bool_)
    holds[order[: fails[0] if fails.size else p.size]] = True
    return holds


def scan_pair(difference: Floats, seed: int = 0) -> Scan:
    """Search the difference of two ranks, [step] (second minus first, as a share of a step).

    Returns one entry for each rank: its worst window, and how likely chance gives one as bad.
    """
    windows = [_scan_second_of_pair(sign * difference, seed) for sign in (-1.0, 1.0)]
    p, mean, first_steps, last_steps = (np.array(column) for column in zip(*windows, strict=True))
    spread = measure_step_deviation(difference)
    steps_alike = _count_alike_steps(CORRELATION_OF_STEPS_OF_PAIR)
    scale = spread * np.sqrt(steps_alike / (last_steps - first_steps + 1))
    return Scan(
        p_values=p,
        residuals=mean,
        standard_errors=np.maximum(scale, MIN_SCALE_OF_PAIR),
        first_rows=first_steps,
        last_rows=last_steps,
    )


def min_window_of_pair(step_count: int) -> int:
    """Return for how many steps two ranks must differ; shorter, any third program may be the cause."""
    step_share = int(MIN_SHARE_OF_RUN_OF_WINDOW_OF_PAIR * step_count)
    return min(MIN_STEPS_OF_WINDOW_OF_PAIR, max(step_share, 1))


def _scan_second_of_pair(difference: Floats, seed: int) -> tuple[float, float, int, int]:
    """Return p-value, effect (share of a step), first and last row where the second rank is latest.

    `difference`, [step], is what it takes beyond the first, as a share of a step.
    """
    whole_run = (0, len(difference) - 1)
    fitted_course = fit_course(difference, *whole_run, max_ratio=MAX_DEVIATION_RATIO_IF_PAIR_DRIFTS)
    residual = _clip_spikes(difference - fitted_course.delays)
    difference = fitted_course.delays + residual
    steps_of_block = max(_find_correlation_length(residual), len(difference) // MAX_BLOCKS_OF_PAIR)
    first_blocks, last_blocks = _list_windows_of_pair(
        len(difference) // steps_of_block, -(-min_window_of_pair(len(difference)) // steps_of_block)
    )
    if not len(first_blocks):
        return 1.0, 0.0, *whole_run
    (scores,) = _score_windows(
        _average_blocks(difference, steps_of_block)[None, :], first_blocks, last_blocks
    )
    best_window = int(np.argmax(scores))
    first_row, last_row = (
        int(first_blocks[best_window]) * steps_of_block,
        int(last_blocks[best_window] + 1) * steps_of_block - 1,
    )
    window_difference = difference[first_row : last_row + 1]
    effect = float(np.median(window_difference))
    share_delayed = np.mean(window_difference > effect / 2)
    if effect < MIN_DELAY_OF_TWO_RANKS or share_delayed < MIN_SHARE_OF_STEPS_DELAYED_IN_PAIR:
        return 1.0, effect, first_row, last_row
    residual_means = _average_blocks(residual, steps_of_block)
    null_scores = _draw_null_scores(residual_means, first_blocks, last_blocks, seed)
    higher_count = np.count_nonzero(FACTOR_OF_NULL_SCORES * null_scores >= scores[best_window])
    return (1 + higher_count) / (1 + len(null_scores)), effect, first_row, last_row


def _clip_spikes(residual: Floats) -> Floats:
    """Cut what is far out: a few stalls of the machine must not hide what lasts."""
    middle = np.median(residual)
    limit = Z_SCORE_TO_CLIP_SPIKES_OF_PAIR * measure_deviation(residual - middle)
    return np.clip(residual, middle - limit, middle + limit)


def _find_correlation_length(residual: Floats) -> int:
    """Return the number of steps of a residual, [step], that count as one, from their correlation."""
    centred = residual - np.median(residual)
    limit = Z_SCORE_TO_CLIP_FOR_CORRELATION * measure_deviation(centred)
    centred = np.clip(centred, -limit, limit)
    squares = float(centred @ centred)
    correlation = float(centred[1:] @ centred[:-1]) / squares if squares else 0.0
    correlation += (1 + 4 * correlation) / len(residual)  # Kendall's correction
    correlation = min(max(correlation, 0.0), MAX_CORRELATION_OF_STEPS)
    return max(MIN_STEPS_EXCHANGED, _count_alike_steps(correlation))


def _count_alike_steps(rho: float) -> int:
    """Count how many neighbours count as one if they are so correlated."""
    return round((1 + rho) / (1 - rho))


def _average_blocks(values: Floats, size: int) -> Floats:
    count = len(values) // size
    return np.asarray(values[: count * size].reshape(count, size).mean(axis=1))


def _list_windows_of_pair(count: int, min_length: int) -> tuple[Ints, Ints]:
    """Return first and last of `count` blocks, [window]: lengths grow by the root of 2, at quarters."""
    half_powers = range(2 * count.bit_length())
    lengths = {round(min_length * 2 ** (half / 2)) for half in half_powers} | {count}
    windows = [
        (first_block, first_block + length - 1)
        for length in sorted(lengths)
        if min_length <= length <= count
        for first_block in range(0, count - length + 1, max(1, length // 4))
    ]
    first_blocks, last_blocks = np.array(windows, np.int64).reshape(-1, 2).T
    return first_blocks, last_blocks


def _score_windows(blocks: Floats, first: Ints, last: Ints) -> Floats:
    """Return sum / sqrt(length) of every window, [sample, window]; `blocks` is [sample, block].

    `first` and `last` are the windows' first and last blocks, inclusive.
    """
    sums = np.concatenate([np.zeros((len(blocks), 1)), np.cumsum(blocks, axis=1)], axis=1)
    return np.asarray((sums[:, last + 1] - sums[:, first]) / np.sqrt(last - first + 1))


def _draw_null_scores(blocks: Floats, first_block: Ints, last_block: Ints, seed: int) -> Floats:
    """Return the greatest score of any window, [exchange], if ranks are exchanged at random by [block].

    `blocks`, [block], are differences between two ranks; windows lie between `first_block` and
    `last_block`, [window].
    """
    signs = np.random.default_rng(seed).choice((-1.0, 1.0), (EXCHANGES_OF_PAIR, len(blocks)))
    part_count = 1 + EXCHANGES_OF_PAIR * len(first_block) // MAX_SCORES_AT_ONCE
    batches = np.array_split(signs * blocks, part_count)
    return np.concatenate(
        [np.abs(_score_windows(part, first_block, last_block)).max(axis=1) for part in batches]
    )
