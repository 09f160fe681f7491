"""Stalls of all: when every rank is slow at the same time, in a phase or in all that it computes.

No comparison between ranks sees this, so each phase is compared with itself over the run: what counts
is the rank that suffers least. What is lost is weighed, whether in one long pause or in many short ones.
Scattered steps whose forward and backprop are longer alike have more work, which is no fault. That the
run itself gets slower is told by `pace.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting import compute_time, sampled_code
from tracelens.accounting.core_waits import core_wait_of_all
from tracelens.accounting.phases import job_ns
from tracelens.analyses.stalls.pace import COMPUTED, price_slowdown, warms_up
from tracelens.model import fmt
from tracelens.model.display import DisplayMixin
from tracelens.model.findings import Finding
from tracelens.replay.edits.fixes import WorkFix
from tracelens.replay.pricing import price_less_work
from tracelens.stats.changepoint import course, greatest_run
from tracelens.stats.robust import deviation

if TYPE_CHECKING:
    from tracelens.accounting.compute_time import ComputeTime
    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Flags, Floats, Indices, Ints
    from tracelens.facts import Facts
    from tracelens.model.findings import Pattern
    from tracelens.model.trace import Trace
    from tracelens.replay.pricing import WorkPrice
    from tracelens.replay.windows import WindowedReplay


MIN_STEPS_FOR_STALL_TEST: Final = 30  # steps: fewer are not judged [calibrate]
# of a step's usual compute time: loading of data that takes longer by less is no stall [calibrate]
MIN_DELAY_OF_DATA: Final = 0.25
# of a step's usual compute time: another phase that takes longer by less is no stall [calibrate]
MIN_DELAY_OF_OTHER_PHASES: Final = 0.5
# standard deviations: a step that is less far out is not slow [calibrate]
MIN_Z_SCORE_OF_SLOW_STEP: Final = 6.0
# share of steps: if more are slow, that is how the run is [calibrate]
MAX_SHARE_OF_SLOW_STEPS: Final = 0.5
MIN_SAVING_OF_STALL: Final = 0.03  # of the job: a stall of less is not reported [policy]
# ratio: a rising line may leave at most this much of the deviation of two levels [calibrate]
MAX_DEVIATION_RATIO_IF_STALL_DRIFTS: Final = 0.9
# share of steps: an interval that is longer is how the run is [calibrate]
MAX_SHARE_OF_STEPS_OF_LASTING_STALL: Final = 0.5
MIN_STEPS_OF_LASTING_STALL: Final = 4  # steps: a shorter interval does not last [calibrate]
# share of what slow steps lose: an interval with less is a few scattered steps side by side [chosen]
MIN_SHARE_OF_LOSS_OF_LASTING_STALL: Final = 0.5
MIN_GAPS_OF_PERIOD: Final = 2  # gaps between slow steps: fewer show no period [chosen]
MAX_DEVIATION_OF_PERIOD: Final = 1  # steps: gaps that differ by more keep no period [chosen]
MAX_SLOW_STEPS_LISTED: Final = 6  # steps: the evidence lists no more [policy]
# of the job: loading data that takes or costs all ranks less is not reported [policy]
MIN_SHARE_OF_JOB_LOADING: Final = 0.2

_KINDS: Final[dict[str, str]] = {
    "data": "data_stall",
    "checkpoint": "checkpoint_stall",
    "gc": "gc_stall",
}


@dataclass(frozen=True)
class Stalls(DisplayMixin):
    """Findings on all ranks combined."""

    findings: tuple[Finding, ...] = ()


def run(facts: Facts) -> Stalls:
    """Compare every phase with itself over the run."""
    trace, phases = facts.trace, facts.phases
    own = facts.compute_time
    if len(own.ranks) < 2 or len(own.steps) < MIN_STEPS_FOR_STALL_TEST or not own.step_ns:
        return Stalls()
    job = job_ns(trace)
    found: list[_Found] = []
    more_work = compute_time.measure_more_work(compute_time.measure_workload(phases, own))
    has_more_work = _find_steps_with_more_work(own, more_work)
    for phase, name in enumerate(own.phases):
        found += _slow(own, phase, has_more_work, job, facts.replay)
        if name == "data":
            found += _loading(own, own.own[phase], job, facts.replay)
    slower = price_slowdown(own, job, [one.finding for one in found], facts.replay, more_work)
    if slower:
        finding, slow = slower
        found.append(_Found(finding, slow.rows, slow.level * own.step_ns))
    return Stalls(tuple(_with_code(trace, phases, own, one) for one in found))


@dataclass(frozen=True, eq=False)
class _Found:
    """A finding, the rows in which all ranks are slow (null: in all), and by how much."""

    finding: Finding
    rows: Indices | None
    extra_ns: float


def _with_code(trace: Trace, phases: Phases, own: ComputeTime, found: _Found) -> Finding:
    """Add in which code the time is, where stacks were sampled: beside the other steps, if there are."""
    phase, extra = found.finding.phase or "", found.extra_ns
    if found.rows is None:
        seen = sampled_code.of_always(trace, phases, phase, steps=own.steps, extra_ns=extra)
    else:
        settled = np.arange(compute_time.WARM_UP, len(own.steps))
        steps, others = own.steps[found.rows], own.steps[np.setdiff1d(settled, found.rows)]
        seen = sampled_code.of_steps(
            trace, phases, phase, steps=steps, others=others, extra_ns=extra
        )
    return sampled_code.with_code(_with_machine(trace, own, found), seen)


def _with_machine(trace: Trace, own: ComputeTime, found: _Found) -> Finding:
    """Add for how long ranks waited for cores, where all that they compute is slow."""
    finding, rows = found.finding, found.rows
    if finding.kind != "slow_all" or rows is None:
        return finding
    wait = core_wait_of_all(trace, own, rows, found.extra_ns)
    if wait is None:
        return finding
    more = wait.sentences("all ranks", "in the whole run")
    return replace(
        finding,
        category="opportunity" if wait.may_be_cause else finding.category,
        sentence=" ".join([finding.sentence, *more]),
        evidence={**finding.evidence, "core_wait": wait.evidence()},
    )


@dataclass(frozen=True, eq=False)
class _Slow:
    """Rows in which all ranks are slow, and by what share of a step."""

    rows: Indices
    residual: Floats
    pattern: Pattern


def _find_least(spent: Floats) -> Floats:
    """Return what the rank with the least of a phase spent in it, ns, [step]; 0 where none was there."""
    return np.asarray(np.nan_to_num(np.fmin.reduce(spent, axis=1), nan=0.0))


def _find_steps_with_more_work(own: ComputeTime, recorded: Floats | None) -> Flags:
    """Return in which steps the rank with the least work has more of it than usual, [step].

    Either forward and backprop are longer alike, or all that it computes is longer by what it `recorded`
    of its work, [step, rank].
    """
    shortest = np.nan_to_num(own.total, nan=np.inf).argmin(axis=1)
    has_more = compute_time.find_more_work(own)
    if recorded is not None:
        longer = own.total / np.nanmedian(own.total, axis=0) - 1
        has_more |= compute_time.is_in_proportion(recorded, longer)
    return np.asarray(has_more[np.arange(len(own.steps)), shortest])


def _slow(
    own: ComputeTime, row: int, more_work: Flags, job: int, replay: WindowedReplay | None
) -> list[_Found]:
    """Return an interval, or scattered steps, in which the phase takes all ranks longer.

    `row` is the phase's number. It is seen from the rank with the least of it in each step; what a rank
    spends beyond its median in the other steps would be saved. Scattered steps with `more_work` do not
    count.
    """
    phase, spent = own.phases[row], own.own[row]
    least = _find_least(spent)
    rows = np.arange(compute_time.WARM_UP, len(least))
    values = least[rows] / own.step_ns
    residual = values - np.median(values)
    spread = deviation(residual)
    usual = own.usual_ns / own.step_ns
    least_delay = MIN_DELAY_OF_DATA if phase == "data" else MIN_DELAY_OF_OTHER_PHASES
    level = max(least_delay * usual, MIN_Z_SCORE_OF_SLOW_STEP * spread)
    is_slow = residual > level
    if phase in compute_time.COMPUTING:
        is_slow &= ~more_work[rows]
    chosen, pattern = _choose_steps(residual, level, is_slow)
    slow = _Slow(rows[chosen], residual[chosen], pattern)
    overrun_ns = np.maximum(slow.residual, 0.0) * own.step_ns
    most = MAX_SHARE_OF_SLOW_STEPS * len(residual)
    if not 0 < len(chosen) <= most or overrun_ns.sum() < MIN_SAVING_OF_STALL * job:
        return []
    less_ns = np.zeros(own.total.shape)
    others = np.setdiff1d(rows, slow.rows)
    whole = np.nan_to_num(spent, nan=0.0)
    less_ns[slow.rows] = np.maximum(whole[slow.rows] - np.median(whole[others], axis=0), 0.0)
    fix = WorkFix(own.steps, (((phase,), less_ns),))
    price = price_less_work(replay, fix, job, own.total)
    if price.saving < MIN_SAVING_OF_STALL:
        return []
    extra = float(slow.residual.mean()) * own.step_ns
    return [_Found(_finding(own, phase, slow, price), slow.rows, extra)]


def _choose_steps(residual: Floats, level: float, is_slow: Flags) -> tuple[Indices, Pattern]:
    """Return the interval in which most is lost, or else all slow steps, as scattered ones."""
    scattered = np.flatnonzero(is_slow)
    interval = _lasting(residual, level)
    least = MIN_SHARE_OF_LOSS_OF_LASTING_STALL * residual[scattered].sum()
    if interval and residual[interval[0]].sum() >= least:
        return interval
    return scattered, "sparse"


def _lasting(residual: Floats, level: float) -> tuple[Indices, Pattern] | None:
    """Return the interval in which nearly all steps are slow, if there is one."""
    run = greatest_run(residual - level / 2)
    shape = course(residual, *run, better=MAX_DEVIATION_RATIO_IF_STALL_DRIFTS)
    steps = np.arange(shape.first, shape.last + 1)
    most = MAX_SHARE_OF_STEPS_OF_LASTING_STALL * len(residual)
    lasts = MIN_STEPS_OF_LASTING_STALL <= len(steps) <= most
    return (steps, shape.pattern) if lasts and shape.level >= level else None


def _finding(own: ComputeTime, phase: str, slow: _Slow, price: WorkPrice) -> Finding:
    steps = (int(own.steps[slow.rows[0]]), int(own.steps[slow.rows[-1]]))
    when = fmt.steps(*steps)
    if len(slow.rows) <= fmt.MOST_LISTED and slow.pattern == "sparse":
        when = fmt.listing("step", own.steps[slow.rows].tolist())
    elif slow.pattern == "sparse":
        when = f"in {len(slow.rows)} of the {when}"
    extra = float(slow.residual.mean())
    fields = {
        "ranks": str(len(own.ranks)),
        "phase": fmt.phase(phase),
        "steps": when,
        "extra": fmt.duration(extra * own.step_ns),
        "share": fmt.percent(extra),
        "step": fmt.duration(own.step_ns),
    }
    return Finding.of(
        _KINDS.get(phase, "slow_all"),
        fields,
        case="phase",
        category="opportunity" if _is_usual(own, phase, slow) else "fault",
        saving=price.saving,
        interval=price.interval,
        fix=price.fix,
        cost=0.0,
        ranks=own.ranks,
        phase=phase,
        pattern=slow.pattern,
        steps=steps,
        evidence={
            "extra_ns": round(extra * own.step_ns),
            "steps_slow": len(slow.rows),
            "first_slow_steps": own.steps[slow.rows[:MAX_SLOW_STEPS_LISTED]].tolist(),
            "period": _find_period(own.steps[slow.rows]) if slow.pattern == "sparse" else None,
        },
    )


def _find_period(steps: Ints) -> int | None:
    """Return how many steps lie between slow ones, if about as many lie between each two of them."""
    gaps = np.diff(steps)
    if len(gaps) < MIN_GAPS_OF_PERIOD:
        return None
    period = int(np.median(gaps))
    is_kept = np.abs(gaps - period) <= MAX_DEVIATION_OF_PERIOD
    return period if is_kept.all() else None


def _is_usual(own: ComputeTime, phase: str, slow: _Slow) -> bool:
    """Return whether nothing is wrong: a checkpoint, the program's own spans, or a run that warms up."""
    first, last = int(slow.rows[0]), int(slow.rows[-1])
    warming = slow.pattern != "sparse" and warms_up(first, last, len(own.steps))
    return phase in {"checkpoint", "user"} or (phase in COMPUTED and warming)


def _loading(
    own: ComputeTime, spent: Floats, job: int, replay: WindowedReplay | None
) -> list[_Found]:
    """Return the opportunity of loading data ahead, where every rank always waits for it.

    All that ranks have `spent`, ns, [step, rank], would be saved.
    """
    least = _find_least(spent)
    usual = float(np.median(least))
    if usual * len(least) < MIN_SHARE_OF_JOB_LOADING * job:
        return []
    fix = WorkFix(own.steps, ((("data",), np.nan_to_num(spent, nan=0.0)),))
    price = price_less_work(replay, fix, job, own.total)
    if price.saving < MIN_SHARE_OF_JOB_LOADING:
        return []
    finding = Finding.of(
        "data_stall",
        {"share": fmt.percent(usual / own.step_ns)},
        category="opportunity",
        saving=price.saving,
        interval=price.interval,
        fix=price.fix,
        ranks=own.ranks,
        phase="data",
        pattern="persistent",
        steps=(int(own.steps[0]), int(own.steps[-1])),
        evidence={"data_ns": round(usual), "share_of_step": usual / own.step_ns},
    )
    return [_Found(finding, None, usual)]
