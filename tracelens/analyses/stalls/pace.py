"""Pace: whether a run computes more slowly than it did at another time, on all ranks.

The computation of the median rank has two levels, far apart in nearly every step, or it rises all along
the run, by the isotonic regression of its blocks (Barlow et al. 1972). Nearly every rank must follow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting.compute_time import WARM_UP
from tracelens.model import fmt
from tracelens.model.findings import TWO_SIDED, Finding
from tracelens.replay.edits.fixes import WorkFix
from tracelens.replay.pricing import price_less_work
from tracelens.stats.changepoint import find_greatest_run, fit_course
from tracelens.stats.robust import block_edges, block_medians, medians

if TYPE_CHECKING:
    from tracelens.accounting.compute_time import ComputeTime
    from tracelens.arrays import Flags, Floats, Indices
    from tracelens.model.findings import Pattern
    from tracelens.replay.pricing import WorkPrice
    from tracelens.replay.windows import WindowedReplay

# share of ranks: a step that fewer took says nothing of all [calibrate]
MIN_SHARE_OF_RANKS_IN_STEP: Final = 0.5
MIN_STEPS_OF_LEVEL: Final = 16  # steps: the run is at each of two levels for as many [calibrate]
MIN_STEPS_TO_JUDGE_PACE: Final = 32  # steps: the pace of a shorter run is not judged [calibrate]
# of the lower level: ranks whose levels differ by less are not slowed down [calibrate]
MIN_RISE_OF_SLOWDOWN: Final = 0.10
# share of steps: as many must be on the side of the middle where their level is [calibrate]
MIN_SHARE_OF_STEPS_APART: Final = 0.9
# share of ranks: as many must be slower by half of the rise or more [calibrate]
MIN_SHARE_OF_RANKS_SLOWER: Final = 0.9
# share of steps: levels are searched from these quantiles, from below and from above [calibrate]
QUANTILE_OF_UPPER_LEVEL: Final = 0.9
# ratio: a rising line may leave at most this much of the deviation of two levels [calibrate]
MAX_DEVIATION_RATIO_IF_RUN_DRIFTS: Final = 0.9
# of the first steps: a run that rises by less from its begin to its end does not drift [chosen]
MIN_RISE_OF_DRIFT: Final = 0.15
# share of pairs of blocks: the later one must be slower in as many [chosen]
MIN_SHARE_OF_RISING_PAIRS: Final = 0.85
# share of ranks: as many must be slower by half as much as the median rank [chosen]
MIN_SHARE_OF_RANKS_THAT_DRIFT: Final = 0.9
MIN_SAVING_OF_SLOWDOWN: Final = 0.03  # of the job: a slowdown of less is not reported [policy]
MIN_SAVING_OF_DRIFT: Final = 0.05  # of the job: a drift of less is not reported [chosen]
# steps after the usual warm-up: what is slow from later on does not warm up [calibrate]
MAX_STEPS_BEFORE_WARM_UP: Final = 4
# share of a slowdown's steps: a finding with as many of them is the same [calibrate]
MIN_OVERLAP_OF_ONE_SLOWDOWN: Final = 0.5
# share of steps: a slowdown of fewer is transient [calibrate]
MIN_SHARE_OF_STEPS_IF_PERSISTENT: Final = 0.6

COMPUTED: Final = ("forward", "backprop", "update", "user")
_SLOWER: Final = (
    "at the same time",
    "look for what they share, such as power, cooling, or what was changed then",
)
_WARMING: Final = ("at first", "what they share warms up, such as caches, clocks or autotuning")
_GROWING: Final = (
    "as the run goes on",
    "look for what grows with it, such as memory, logs, caches, or the size of samples",
)


@dataclass(frozen=True, eq=False)
class Slowdown:
    """Rows in which every rank computes longer, by `extra_share_of_step` of a step on average.

    `less_share`, [row], of their computation goes away with it, with a relative error; `is_drift`: it
    grows from step to step.
    """

    slow_rows: Indices
    less_share: Floats
    extra_share_of_step: float
    relative_error: float
    is_drift: bool = False


def find_slowdown(times: ComputeTime, more_work: Floats | None = None) -> Slowdown | None:
    """Find steps in which all ranks compute more slowly than in the run's other steps.

    `more_work`, [step, rank], is the additional share of its usual amount that a rank worked through: it
    may explain longer steps.
    """
    computed = _sum_computation(times) / times.typical_step_ns  # [step, rank] as shares of a step
    slowdown = _search_slowdown(computed)
    if slowdown is None or more_work is None:
        return slowdown
    work_ratio = 1 + _fit_elasticity(computed, more_work) * more_work
    return _search_slowdown(computed / work_ratio)


def _fit_elasticity(compute_shares: Floats, more_work: Floats) -> float:
    """Return by how much longer computation is with more work, as a share of that; from 0 to 1.

    Both are [step, rank]; `more_work` is a share of the usual work.
    """
    longer_share = compute_shares / medians(compute_shares, 0) - 1
    is_known = ~np.isnan(longer_share)
    squares = np.sum(more_work[is_known] ** 2)
    slope = np.sum((longer_share * more_work)[is_known]) / squares if squares else 0.0
    return float(np.clip(slope, 0.0, 1.0))


def _search_slowdown(compute_shares: Floats) -> Slowdown | None:
    """Search the computation of ranks, [step, rank] as shares of a step, for two levels, or a drift."""
    rows = np.flatnonzero(np.mean(~np.isnan(compute_shares), axis=1) >= MIN_SHARE_OF_RANKS_IN_STEP)
    rows = rows[rows >= WARM_UP]
    if len(rows) < MIN_STEPS_TO_JUDGE_PACE:
        return None
    return _find_two_levels(compute_shares[rows], rows) or _find_drift(compute_shares[rows], rows)


def _find_two_levels(compute_shares: Floats, step_rows: Indices) -> Slowdown | None:
    """Find the interval of steps at the upper one of two levels; None if there is no such one.

    `compute_shares` is what ranks compute, [row, rank] as shares of a step; `step_rows` are those of the
    run, [row].
    """
    median = medians(compute_shares, axis=1)  # of ranks, [row]
    low, high = np.quantile(median, [1 - QUANTILE_OF_UPPER_LEVEL, QUANTILE_OF_UPPER_LEVEL])
    run = find_greatest_run(median - (low + high) / 2)
    course = fit_course(median - low, *run, max_ratio=MAX_DEVIATION_RATIO_IF_RUN_DRIFTS)
    is_upper = course.is_upper  # [row]
    if min(np.count_nonzero(is_upper), np.count_nonzero(~is_upper)) < MIN_STEPS_OF_LEVEL:
        return None
    levels = _measure_levels(compute_shares, is_upper)
    if levels is None:
        return None
    upper, lower = levels  # [rank]
    middle = float(np.median(upper) + np.median(lower)) / 2
    rise = float(np.median(upper - lower))
    is_large = rise >= MIN_RISE_OF_SLOWDOWN * float(np.median(lower))
    is_apart = np.mean((median > middle) == is_upper) >= MIN_SHARE_OF_STEPS_APART
    is_of_all = np.mean(upper - lower > rise / 2) >= MIN_SHARE_OF_RANKS_SLOWER
    if not (is_large and is_apart and is_of_all):
        return None
    slow_medians, usual_medians = median[is_upper], median[~is_upper]
    ratio = float(usual_medians.mean() / slow_medians.mean())
    relative_errors = [
        values.std() / values.mean() / np.sqrt(len(values))
        for values in (slow_medians, usual_medians)
    ]
    error = ratio * float(np.hypot(*relative_errors))
    slow_rows = np.arange(step_rows[course.first_row], step_rows[course.last_row] + 1)
    less_share = 1 - ratio
    return Slowdown(
        slow_rows,
        less_share=np.full(len(slow_rows), less_share),
        extra_share_of_step=rise,
        relative_error=error / max(less_share, error),
    )


def _find_drift(compute_shares: Floats, step_rows: Indices) -> Slowdown | None:
    """Return all rows if computation, [row, rank], rises from block to block, on nearly every rank.

    `compute_shares` are shares of a step; `step_rows` are the rows of the run.
    """
    edges = block_edges(len(step_rows))
    blocks = block_medians(medians(compute_shares, axis=1)[:, None], edges)[:, 0]
    later, earlier = np.triu_indices(len(blocks), 1)[::-1]  # all pairs of blocks
    slopes = (blocks[later] - blocks[earlier]) / (later - earlier)
    if np.mean(slopes > 0) < MIN_SHARE_OF_RISING_PAIRS:
        return None
    levels = _measure_levels(compute_shares, np.arange(len(step_rows)) >= len(step_rows) // 2)
    if levels is None:
        return None
    later_level, earlier_level = levels
    growth = later_level - earlier_level  # [rank]
    if np.mean(growth > np.median(growth) / 2) < MIN_SHARE_OF_RANKS_THAT_DRIFT:
        return None
    from scipy.optimize import isotonic_regression  # noqa: PLC0415 - few runs drift

    block_levels = isotonic_regression(blocks).x
    first_level = float(block_levels[0])
    block_middles = (edges[:-1] + edges[1:] - 1) / 2
    rise = np.interp(np.arange(len(step_rows)), block_middles, block_levels) - first_level  # [row]
    if rise[-1] < MIN_RISE_OF_DRIFT * first_level:
        return None
    relative_error = float(np.std(slopes) / np.sqrt(len(blocks)) / np.median(slopes))
    return Slowdown(
        slow_rows=step_rows,
        less_share=rise / (first_level + rise),
        extra_share_of_step=float(rise.mean()),
        relative_error=relative_error,
        is_drift=True,
    )


def _measure_levels(compute_shares: Floats, is_upper: Flags) -> tuple[Floats, Floats] | None:
    """Return the median of each rank in some steps, and in the others, of ranks that are in both.

    `compute_shares` is [row, rank], `is_upper` [row]. None where no rank is in both.
    """
    groups = compute_shares[is_upper], compute_shares[~is_upper]
    is_in_both = ~(np.isnan(groups[0]).all(axis=0) | np.isnan(groups[1]).all(axis=0))
    if not is_in_both.any():
        return None
    upper, lower = (medians(values[:, is_in_both], axis=0) for values in groups)
    return upper, lower


def report_slowdown(
    times: ComputeTime,
    job_ns: int,
    known_findings: list[Finding],
    replay: WindowedReplay | None,
    more_work: Floats | None = None,
) -> tuple[Finding, Slowdown] | None:
    """Report a slowdown of all; None if too cheap or known. `more_work`: share, [step, rank]."""
    slowdown = find_slowdown(times, more_work)
    if slowdown is None or any(_is_same(times, slowdown, finding) for finding in known_findings):
        return None
    margin = TWO_SIDED * slowdown.relative_error
    least_price, price, greatest_price = (
        _price_speed(times, slowdown, slowdown.less_share * factor, job_ns, replay)
        for factor in (1 - margin, 1.0, 1 + margin)
    )
    if price.saving_share < (MIN_SAVING_OF_DRIFT if slowdown.is_drift else MIN_SAVING_OF_SLOWDOWN):
        return None
    price = replace(price, saving_interval=(least_price.saving_share, greatest_price.saving_share))
    return _report(times, slowdown, price), slowdown


def is_warm_up(first_row: int, last_row: int, step_count: int) -> bool:
    """Return True if rows are the run's beginning: what is slow there was not always faster."""
    return first_row <= WARM_UP + MAX_STEPS_BEFORE_WARM_UP and last_row < step_count - 1


def _price_speed(
    times: ComputeTime,
    slow: Slowdown,
    less_share: Floats,
    job_ns: int,
    replay: WindowedReplay | None,
) -> WorkPrice:
    """Price that all ranks compute by a share (0 to 1) less in each slow row, [slow row]."""
    less_ns = np.zeros(times.total_compute_ns.shape)
    computed_ns = np.nan_to_num(_sum_computation(times)[slow.slow_rows], nan=0.0)
    less_ns[slow.slow_rows] = np.clip(less_share, 0.0, 1.0)[:, None] * computed_ns
    phases = tuple(times.phase_names[row] for row in _find_computed_phases(times))
    return price_less_work(
        replay,
        WorkFix(times.step_numbers, phases_and_effects_ns=((phases, less_ns),)),
        job_ns,
        times.total_compute_ns,
    )


def _sum_computation(times: ComputeTime) -> Floats:
    """Return for how long ranks compute, ns, [step, rank]."""
    return np.asarray(times.compute_ns[_find_computed_phases(times)].sum(axis=0))


def _find_computed_phases(times: ComputeTime) -> list[int]:
    """Return the rows of phases that compute; all, where a program such as plain MPI has none."""
    computed = [row for row, phase in enumerate(times.phase_names) if phase in COMPUTED]
    return computed or list(range(len(times.phase_names)))


def _is_same(times: ComputeTime, slowdown: Slowdown, finding: Finding) -> bool:
    """Return True if a finding is about most steps of a slowdown."""
    if finding.steps is None:
        return False
    first, last = times.step_numbers[slowdown.slow_rows[[0, -1]]].tolist()
    steps_of_both = min(last, finding.steps[1]) - max(first, finding.steps[0]) + 1
    return bool(steps_of_both >= MIN_OVERLAP_OF_ONE_SLOWDOWN * (last - first + 1))


def _name_grown_phase(times: ComputeTime, slowdown: Slowdown) -> str:
    """Name the phase that grew most on the rank with the least of it."""
    least_ns = np.nan_to_num(np.fmin.reduce(times.compute_ns, axis=2), nan=0.0)
    is_slow = np.zeros(len(times.step_numbers), np.bool_)
    is_slow[slowdown.slow_rows[len(slowdown.slow_rows) // 2 if slowdown.is_drift else 0 :]] = True
    growth_ns = np.median(least_ns[:, is_slow], axis=1) - np.median(least_ns[:, ~is_slow], axis=1)
    return times.phase_names[int(np.argmax(growth_ns))]


def _report(times: ComputeTime, slowdown: Slowdown, price: WorkPrice) -> Finding:
    """Report that all ranks are slower at the same time, at first, or as the run goes on."""
    rows, phase = slowdown.slow_rows, _name_grown_phase(times, slowdown)
    first_step, last_step = times.step_numbers[rows[[0, -1]]].tolist()
    lasts = len(rows) >= MIN_SHARE_OF_STEPS_IF_PERSISTENT * len(times.step_numbers)
    pattern: Pattern = "persistent" if lasts else "transient"
    warms_up = not slowdown.is_drift and is_warm_up(
        int(rows[0]), int(rows[-1]), len(times.step_numbers)
    )
    when_text, cause = _GROWING if slowdown.is_drift else _WARMING if warms_up else _SLOWER
    return Finding.of(
        "slow_all",
        {
            "ranks": fmt.all_ranks(len(times.ranks)),
            "when": when_text,
            "steps": fmt.steps(first_step, last_step),
            "extra": fmt.duration(slowdown.extra_share_of_step * times.typical_step_ns),
            "share": fmt.percent(slowdown.extra_share_of_step),
            "step": fmt.duration(times.typical_step_ns),
            "phase": fmt.phase(phase),
            "cause": cause,
        },
        category="opportunity" if warms_up else "fault",
        saving=price.saving_share,
        interval=price.saving_interval,
        fix=price.fix,
        cost=0.0,
        ranks=times.ranks,
        phase=phase,
        pattern="drifting" if slowdown.is_drift else pattern,
        steps=(first_step, last_step),
        evidence={
            "extra_ns": round(slowdown.extra_share_of_step * times.typical_step_ns),
            "share_of_step": slowdown.extra_share_of_step,
        },
    )
