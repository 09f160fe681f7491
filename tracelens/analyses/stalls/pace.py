"""Pace: whether a run computes more slowly than it did at another time, on all ranks.

The computation of the median rank is followed over the steps. Either there are two levels, which must
be far apart and keep apart step by step, and both must last. Or it rises all along the run: in nearly
all pairs of blocks the later one is slower, and the rise is the isotonic regression of their medians
(Barlow et al. 1972). Nearly every rank must follow. Where the run begins with the slower level it warms
up, which is no fault.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting import compute_time
from tracelens.model import fmt
from tracelens.model.findings import TWO_SIDED, Finding
from tracelens.replay.edits.fixes import WorkFix
from tracelens.replay.pricing import price_less_work
from tracelens.stats.changepoint import course, greatest_run
from tracelens.stats.robust import block_edges, block_medians, medians

if TYPE_CHECKING:
    from tracelens.accounting.compute_time import ComputeTime
    from tracelens.arrays import Flags, Floats, Indices
    from tracelens.model.findings import Pattern
    from tracelens.replay.pricing import WorkPrice
    from tracelens.replay.windows import WindowedReplay
    from tracelens.stats.changepoint import Course

__all__ = ["COMPUTED", "Slowdown", "find_slowdown", "price_slowdown", "warms_up"]

# share of ranks: a step that fewer took says nothing of all [calibrate]
MIN_SHARE_OF_RANKS_IN_STEP: Final = 0.5
# steps: the run is at each of its two levels for as many [calibrate]
MIN_STEPS_OF_LEVEL: Final = 16
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
# share of a slowdown: a finding with as many of its steps is the same [calibrate]
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
    """Rows in which every rank computes longer, by `level` of a step on average.

    `share` of what it computes in each of them goes away with it; `uncertainty` is the
    relative standard error of that. `drifts` says that it grows from step to step.
    """

    rows: Indices
    share: Floats
    level: float
    uncertainty: float
    drifts: bool = False


def find_slowdown(own: ComputeTime, more_work: Floats | None = None) -> Slowdown | None:
    """Search the run for steps in which all ranks compute more slowly than in its other steps.

    `more_work` is by what share of its usual amount a rank worked through more, [step, rank]: steps are
    not slow that are longer by no more than follows from it.
    """
    computed = _compute_of_ranks(own) / own.step_ns
    slow = _find_slowdown(computed)
    if slow is None or more_work is None:
        return slow
    return _find_slowdown(computed / (1 + _fit_elasticity(computed, more_work) * more_work))


def _fit_elasticity(computed: Floats, more_work: Floats) -> float:
    """Return how much longer computation is with more work, as a share of that; from 0 to 1."""
    longer = computed / np.nanmedian(computed, axis=0) - 1
    there = ~np.isnan(longer)
    squares = np.sum(more_work[there] ** 2)
    slope = np.sum((longer * more_work)[there]) / squares if squares else 0.0
    return float(np.clip(slope, 0.0, 1.0))


def _find_slowdown(computed: Floats) -> Slowdown | None:
    """Search the computation of ranks, [step, rank] as shares of a step."""
    rows = np.flatnonzero(np.mean(~np.isnan(computed), axis=1) >= MIN_SHARE_OF_RANKS_IN_STEP)
    rows = rows[rows >= compute_time.WARM_UP]
    computed = computed[rows]
    if len(rows) < MIN_STEPS_TO_JUDGE_PACE:
        return None
    return _find_two_levels(computed, rows) or _find_drift(computed, rows)


def _find_two_levels(computed: Floats, rows: Indices) -> Slowdown | None:
    """Return the interval of steps at the upper one of two levels, [step, rank] as shares of a step."""
    typical = medians(computed, axis=1)
    shape = _upper_level(typical)
    inside = shape.inside
    if min(np.count_nonzero(inside), np.count_nonzero(~inside)) < MIN_STEPS_OF_LEVEL:
        return None
    levels = _levels_of_ranks(computed, inside)
    if levels is None:
        return None
    upper, lower = levels
    middle = float(np.median(upper) + np.median(lower)) / 2
    level = float(np.median(upper - lower))
    is_large = level >= MIN_RISE_OF_SLOWDOWN * float(np.median(lower))
    is_apart = np.mean((typical > middle) == inside) >= MIN_SHARE_OF_STEPS_APART
    is_of_all = np.mean(upper - lower > level / 2) >= MIN_SHARE_OF_RANKS_SLOWER
    if not (is_large and is_apart and is_of_all):
        return None
    share, error = _longer(typical[inside], typical[~inside])
    slow = np.arange(rows[shape.first], rows[shape.last] + 1)
    return Slowdown(slow, np.full(len(slow), share), level, error / max(share, error))


def _find_drift(computed: Floats, rows: Indices) -> Slowdown | None:
    """Return all steps of a run whose computation rises from block to block, on nearly every rank."""
    edges = block_edges(len(rows))
    blocks = block_medians(medians(computed, axis=1)[:, None], edges)[:, 0]
    later, earlier = np.triu_indices(len(blocks), 1)[::-1]
    slopes = (blocks[later] - blocks[earlier]) / (later - earlier)
    if np.mean(slopes > 0) < MIN_SHARE_OF_RISING_PAIRS:
        return None
    levels = _levels_of_ranks(computed, np.arange(len(rows)) >= len(rows) // 2)
    if levels is None:
        return None
    slower = levels[0] - levels[1]
    if np.mean(slower > np.median(slower) / 2) < MIN_SHARE_OF_RANKS_THAT_DRIFT:
        return None
    from scipy.optimize import isotonic_regression  # noqa: PLC0415 - few runs drift

    levels_of_blocks = isotonic_regression(blocks).x
    begin = float(levels_of_blocks[0])
    middles = (edges[:-1] + edges[1:] - 1) / 2
    rise = np.interp(np.arange(len(rows)), middles, levels_of_blocks) - begin
    if rise[-1] < MIN_RISE_OF_DRIFT * begin:
        return None
    uncertainty = float(np.std(slopes) / np.sqrt(len(blocks)) / np.median(slopes))
    return Slowdown(rows, rise / (begin + rise), float(rise.mean()), uncertainty, drifts=True)


def _levels_of_ranks(computed: Floats, inside: Flags) -> tuple[Floats, Floats] | None:
    """Return the usual computation of each rank inside and outside of some steps, of ranks in both."""
    there = [~np.isnan(computed[part]).all(axis=0) for part in (inside, ~inside)]
    ranks = there[0] & there[1]
    if not ranks.any():
        return None
    return medians(computed[inside][:, ranks], axis=0), medians(computed[~inside][:, ranks], axis=0)


def _upper_level(values: Floats) -> Course:
    """Return where a series is at the upper one of its levels."""
    lower, upper = np.quantile(values, [1 - QUANTILE_OF_UPPER_LEVEL, QUANTILE_OF_UPPER_LEVEL])
    run = greatest_run(values - (lower + upper) / 2)
    return course(values - lower, *run, better=MAX_DEVIATION_RATIO_IF_RUN_DRIFTS)


def _longer(inside: Floats, outside: Floats) -> tuple[float, float]:
    """Return what share of the steps inside they are longer by, and its standard error."""
    left = float(outside.mean() / inside.mean())
    errors = [part.std() / part.mean() / np.sqrt(len(part)) for part in (inside, outside)]
    return 1 - left, left * float(np.hypot(*errors))


def price_slowdown(
    own: ComputeTime,
    job_ns: int,
    known: list[Finding],
    replay: WindowedReplay | None,
    more_work: Floats | None = None,
) -> tuple[Finding, Slowdown] | None:
    """Return a slowdown of all, unless it costs too little or one of `known` is the same."""
    slow = find_slowdown(own, more_work)
    if slow is None or any(_same_steps(own, slow, finding) for finding in known):
        return None
    low, middle, high = (
        _price_speed(own, slow, 1 + by * slow.uncertainty, job_ns, replay)
        for by in (-TWO_SIDED, 0.0, TWO_SIDED)
    )
    if middle.saving < (MIN_SAVING_OF_DRIFT if slow.drifts else MIN_SAVING_OF_SLOWDOWN):
        return None
    price = replace(middle, interval=(low.saving, high.saving))
    return _finding(own, slow, price), slow


def warms_up(first: int, last: int, steps: int) -> bool:
    """Return whether rows are the run's beginning: what is slow there was not always faster."""
    return first <= compute_time.WARM_UP + MAX_STEPS_BEFORE_WARM_UP and last < steps - 1


def _price_speed(
    own: ComputeTime, slow: Slowdown, factor: float, job: int, replay: WindowedReplay | None
) -> WorkPrice:
    """Price that all ranks compute by so many times that share less in some steps."""
    less_ns = np.zeros(own.total.shape)
    computed = np.nan_to_num(_compute_of_ranks(own)[slow.rows], nan=0.0)
    less_ns[slow.rows] = np.clip(slow.share * factor, 0.0, 1.0)[:, None] * computed
    phases = tuple(own.phases[row] for row in _computed_phases(own))
    return price_less_work(replay, WorkFix(own.steps, ((phases, less_ns),)), job, own.total)


def _compute_of_ranks(own: ComputeTime) -> Floats:
    return np.asarray(own.own[_computed_phases(own)].sum(axis=0))


def _computed_phases(own: ComputeTime) -> list[int]:
    """Return the phases that compute; all, where a program such as plain MPI has none of them."""
    chosen = [row for row, phase in enumerate(own.phases) if phase in COMPUTED]
    return chosen or list(range(len(own.phases)))


def _same_steps(own: ComputeTime, slow: Slowdown, finding: Finding) -> bool:
    if finding.steps is None:
        return False
    first, last = (int(own.steps[row]) for row in slow.rows[[0, -1]])
    common = min(last, finding.steps[1]) - max(first, finding.steps[0]) + 1
    return common >= MIN_OVERLAP_OF_ONE_SLOWDOWN * (last - first + 1)


def _grown_most(own: ComputeTime, slow: Slowdown) -> str:
    """Name the phase that grew most."""
    least = np.nan_to_num(np.fmin.reduce(own.own, axis=2), nan=0.0)
    inside = np.zeros(len(own.steps), np.bool_)
    inside[slow.rows[len(slow.rows) // 2 :] if slow.drifts else slow.rows] = True
    grown = np.median(least[:, inside], axis=1) - np.median(least[:, ~inside], axis=1)
    return own.phases[int(np.argmax(grown))]


def _finding(own: ComputeTime, slow: Slowdown, price: WorkPrice) -> Finding:
    steps = (int(own.steps[slow.rows[0]]), int(own.steps[slow.rows[-1]]))
    lasts = len(slow.rows) >= MIN_SHARE_OF_STEPS_IF_PERSISTENT * len(own.steps)
    pattern: Pattern = "persistent" if lasts else "transient"
    phase = _grown_most(own, slow)
    warming = not slow.drifts and warms_up(int(slow.rows[0]), int(slow.rows[-1]), len(own.steps))
    when, cause = _GROWING if slow.drifts else _WARMING if warming else _SLOWER
    fields = {
        "ranks": str(len(own.ranks)),
        "when": when,
        "steps": fmt.steps(*steps),
        "extra": fmt.duration(slow.level * own.step_ns),
        "share": fmt.percent(slow.level),
        "step": fmt.duration(own.step_ns),
        "phase": fmt.phase(phase),
        "cause": cause,
    }
    return Finding.of(
        "slow_all",
        fields,
        category="opportunity" if warming else "fault",
        saving=price.saving,
        interval=price.interval,
        fix=price.fix,
        cost=0.0,
        ranks=own.ranks,
        phase=phase,
        pattern="drifting" if slow.drifts else pattern,
        steps=steps,
        evidence={"extra_ns": round(slow.level * own.step_ns), "share_of_step": slow.level},
    )
