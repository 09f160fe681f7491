"""Stalls of all: every rank is slow at the same time, in a phase or in all that it computes.

Each phase is compared with itself over the run, as the rank has it that suffers least. That the run
itself gets slower is reported by `pace.py` (docs/analyses/stalls-and-slow-phases.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting import compute_time, sampled_code
from tracelens.accounting.compute_time import WARM_UP
from tracelens.accounting.core_waits import measure_core_wait_of_all
from tracelens.accounting.phases import job_ns
from tracelens.analyses.stalls.pace import COMPUTED, is_warm_up, report_slowdown
from tracelens.model import fmt
from tracelens.model.display import DisplayMixin
from tracelens.model.findings import Finding
from tracelens.replay.edits.fixes import WorkFix
from tracelens.replay.pricing import price_less_work
from tracelens.stats.changepoint import find_greatest_run, fit_course
from tracelens.stats.robust import drop_minor_values, measure_deviation, medians

if TYPE_CHECKING:
    from tracelens.accounting.compute_time import ComputeTime
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
# share of steps: if more are slow, that is the pace of the run [calibrate]
MAX_SHARE_OF_SLOW_STEPS: Final = 0.5
MIN_SAVING_OF_STALL: Final = 0.03  # of the job: a stall of less is not reported [policy]
# ratio: a rising line may leave at most this much of the deviation of two levels [calibrate]
MAX_DEVIATION_RATIO_IF_STALL_DRIFTS: Final = 0.9
# share of steps: a longer interval is the pace of the run [calibrate]
MAX_SHARE_OF_STEPS_OF_LASTING_STALL: Final = 0.5
MIN_STEPS_OF_LASTING_STALL: Final = 4  # steps: a shorter interval does not last [calibrate]
# share of the loss in slow steps: an interval with less is scattered steps that are neighbours [chosen]
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


@dataclass(frozen=True, eq=False)
class _Stall:
    """A finding, the rows (steps) in which all ranks are slow, None = all, and by how much."""

    finding: Finding
    slow_rows: Indices | None
    extra_ns_per_step: float


def run(facts: Facts) -> Stalls:
    """Compare every phase with itself over the run."""
    times = facts.compute_time
    if len(times.ranks) < 2 or len(times.step_numbers) < MIN_STEPS_FOR_STALL_TEST:
        return Stalls()
    run_ns = job_ns(facts.trace)
    stalls: list[_Stall] = []
    workload = compute_time.measure_workload(facts.phases, times)
    more_work = compute_time.measure_more_work(workload)
    has_more_work = _find_steps_with_more_work(times, more_work)
    for row, phase in enumerate(times.phase_names):
        stalls += find_slow_steps(times, row, has_more_work, run_ns, facts.replay)
        if phase == "data":
            stalls += _report_loading(times, times.compute_ns[row], run_ns, facts.replay)
    known_findings = [stall.finding for stall in stalls]
    finding_and_slowdown = report_slowdown(times, run_ns, known_findings, facts.replay, more_work)
    if finding_and_slowdown is not None:
        finding, slowdown = finding_and_slowdown
        stalls.append(
            _Stall(
                finding,
                slowdown.slow_rows,
                extra_ns_per_step=slowdown.extra_share_of_step * times.typical_step_ns,
            )
        )
    return Stalls(tuple(_add_clues(facts, stall) for stall in stalls))


def _add_clues(facts: Facts, stall: _Stall) -> Finding:
    """Add to a finding the code sampled more than in other steps, and waits for cores, if any.

    A stall whose `slow_rows` are None is in all steps; `extra_ns_per_step` is one number, a mean.
    """
    trace, phases, times = facts.trace, facts.phases, facts.compute_time
    finding, rows, extra_ns = stall.finding, stall.slow_rows, stall.extra_ns_per_step
    phase = finding.phase or ""
    if rows is None:
        culprit = sampled_code.find_in_phase(
            trace, phases, phase, step_numbers=times.step_numbers, extra_ns=extra_ns
        )
        return sampled_code.add_code(finding, culprit)
    if phase == "user":
        span_name = _find_longest_span(facts.trace, times.step_numbers[rows])
        finding = replace(finding, evidence={**finding.evidence, "span": span_name})
    other_steps = times.step_numbers[
        np.setdiff1d(np.arange(WARM_UP, len(times.step_numbers)), rows)
    ]
    culprit = sampled_code.find_in_steps(
        trace,
        phases,
        phase,
        step_numbers=times.step_numbers[rows],
        other_steps=other_steps,
        extra_ns=extra_ns,
    )
    core_wait = (
        measure_core_wait_of_all(trace, times, rows, extra_ns)
        if finding.kind == "slow_all"
        else None
    )
    if core_wait is not None:
        sentences = core_wait.describe("all ranks", "in the whole run")
        finding = replace(
            finding,
            category="opportunity" if core_wait.may_be_cause else finding.category,
            sentence=" ".join([finding.sentence, *sentences]),
            evidence={**finding.evidence, "core_wait": core_wait.to_evidence()},
        )
    return sampled_code.add_code(finding, culprit)


def _find_longest_span(trace: Trace, step_numbers: Ints) -> str | None:
    """Return the name of the program's own spans that take most time in some steps."""
    is_own = (pl.col("kind").cast(pl.String) == "user") & pl.col("step").is_in(step_numbers)
    length_ns = (pl.col("end_ns") - pl.col("start_ns")).sum()
    spans = trace.events.filter(is_own).group_by("name").agg(length_ns=length_ns)
    names = spans.sort("length_ns", descending=True).select("name").collect().to_series()
    return None if names.is_empty() else str(names[0])


def _find_least(spent_ns: Floats) -> Floats:
    """Return the least time of a rank, [step]; 0 without ranks. `spent_ns` is [step, rank]."""
    return np.asarray(np.nan_to_num(np.fmin.reduce(spent_ns, axis=1), nan=0.0))


def _find_steps_with_more_work(times: ComputeTime, more_work: Floats | None) -> Flags:
    """Return in which steps the rank with the least compute time has more work than usual, [step].

    There forward and backprop are longer alike, or all work is longer by about the share `more_work` of
    additional tokens or samples, [step, rank].
    """
    shortest_rank = np.nan_to_num(times.total_compute_ns, nan=np.inf).argmin(axis=1)
    has_more_work = compute_time.find_proportional_delays(times)
    if more_work is not None:
        longer_share = times.total_compute_ns / medians(times.total_compute_ns, 0) - 1
        has_more_work |= compute_time.is_in_proportion(more_work, longer_share)
    return np.asarray(has_more_work[np.arange(len(times.step_numbers)), shortest_rank])


@dataclass(frozen=True, eq=False)
class _SlowSteps:
    """Rows in which all ranks are slow, and by what share of a step, [row]."""

    slow_rows: Indices
    extra_shares_of_step: Floats
    pattern: Pattern


def find_slow_steps(
    times: ComputeTime,
    phase_row: int,
    has_more_work: Flags,
    job_ns: int,
    replay: WindowedReplay | None,
) -> list[_Stall]:
    """Find an interval, or scattered steps, in which a phase (row) takes all ranks longer.

    Fixing it saves what a rank spends beyond its median in the other steps. Scattered steps with more
    work, [step], do not count.
    """
    phase, spent_ns = times.phase_names[phase_row], times.compute_ns[phase_row]  # [step, rank]
    rows = np.arange(WARM_UP, len(spent_ns))
    least_share = _find_least(spent_ns)[rows] / times.typical_step_ns
    residual = least_share - np.median(least_share)  # share of a step, [row]
    min_delay = MIN_DELAY_OF_DATA if phase == "data" else MIN_DELAY_OF_OTHER_PHASES
    min_delay *= times.typical_compute_ns / times.typical_step_ns
    level = max(min_delay, MIN_Z_SCORE_OF_SLOW_STEP * measure_deviation(residual))
    is_slow = residual > level
    if phase in compute_time.COMPUTING:
        is_slow &= ~has_more_work[rows]
    slow_indices, pattern = _choose_steps(residual, level, is_slow)
    slow_steps = _SlowSteps(rows[slow_indices], residual[slow_indices], pattern)
    overrun_ns = np.maximum(slow_steps.extra_shares_of_step, 0.0) * times.typical_step_ns
    max_steps = MAX_SHARE_OF_SLOW_STEPS * len(residual)
    if not 0 < len(slow_indices) <= max_steps or overrun_ns.sum() < MIN_SAVING_OF_STALL * job_ns:
        return []
    known_ns = np.nan_to_num(spent_ns, nan=0.0)
    usual_ns = np.median(known_ns[np.setdiff1d(rows, slow_steps.slow_rows)], axis=0)  # [rank]
    less_ns = np.zeros(times.total_compute_ns.shape)
    less_ns[slow_steps.slow_rows] = np.maximum(known_ns[slow_steps.slow_rows] - usual_ns, 0.0)
    fix = WorkFix(times.step_numbers, phases_and_effects_ns=(((phase,), less_ns),))
    price = price_less_work(replay, fix, job_ns, times.total_compute_ns)
    if price.saving_share < MIN_SAVING_OF_STALL:
        return []
    extra_ns = float(slow_steps.extra_shares_of_step.mean()) * times.typical_step_ns
    return [
        _Stall(
            finding=_report_slow_steps(times, phase, slow_steps, price),
            slow_rows=slow_steps.slow_rows,
            extra_ns_per_step=extra_ns,
        )
    ]


def _choose_steps(residual: Floats, level: float, is_slow: Flags) -> tuple[Indices, Pattern]:
    """Return the rows of the interval where most is lost, or else all slow ones, and their pattern.

    `residual`, [row], and the `level` of a slow row are shares of a step.
    """
    scattered_rows = np.flatnonzero(drop_minor_values(np.where(is_slow, residual, 0.0)))
    course = fit_course(
        residual,
        *find_greatest_run(residual - level / 2),
        max_ratio=MAX_DEVIATION_RATIO_IF_STALL_DRIFTS,
    )
    interval_rows = np.arange(course.first_row, course.last_row + 1)
    max_steps = MAX_SHARE_OF_STEPS_OF_LASTING_STALL * len(residual)
    lasts = (
        MIN_STEPS_OF_LASTING_STALL <= len(interval_rows) <= max_steps and course.mean_delay >= level
    )
    min_loss = MIN_SHARE_OF_LOSS_OF_LASTING_STALL * residual[scattered_rows].sum()
    if lasts and residual[interval_rows].sum() >= min_loss:
        return interval_rows, course.pattern
    return scattered_rows, "sparse"


def _report_slow_steps(
    times: ComputeTime, phase: str, slow: _SlowSteps, price: WorkPrice
) -> Finding:
    """Report a phase that takes all ranks longer in slow steps; usual causes are an opportunity."""
    slow_steps, is_sparse = times.step_numbers[slow.slow_rows], slow.pattern == "sparse"
    first_and_last = (int(slow_steps[0]), int(slow_steps[-1]))
    steps_text = fmt.steps(*first_and_last)
    if is_sparse:
        is_short = len(slow_steps) <= fmt.MOST_LISTED
        steps_listed = fmt.listing("step", slow_steps.tolist()) if is_short else ""
        steps_text = steps_listed or f"in {len(slow_steps)} of the {steps_text}"
    mean_share = float(slow.extra_shares_of_step.mean())
    first_row, last_row = int(slow.slow_rows[0]), int(slow.slow_rows[-1])
    warms_up = not is_sparse and is_warm_up(first_row, last_row, len(times.step_numbers))
    # A checkpoint, the program's own spans, or a run that warms up.
    is_usual = phase in {"checkpoint", "user"} or (phase in COMPUTED and warms_up)
    return Finding.of(
        _KINDS.get(phase, "slow_all"),
        {
            "ranks": fmt.all_ranks(len(times.ranks)),
            "phase": fmt.phase(phase),
            "steps": steps_text,
            "extra": fmt.duration(mean_share * times.typical_step_ns),
            "share": fmt.percent(mean_share),
            "step": fmt.duration(times.typical_step_ns),
        },
        case="phase",
        category="opportunity" if is_usual else "fault",
        saving=price.saving_share,
        interval=price.saving_interval,
        fix=price.fix,
        cost=0.0,
        ranks=times.ranks,
        phase=phase,
        pattern=slow.pattern,
        steps=first_and_last,
        evidence={
            "extra_ns": round(mean_share * times.typical_step_ns),
            "steps_slow": len(slow_steps),
            "first_slow_steps": slow_steps[:MAX_SLOW_STEPS_LISTED].tolist(),
            "period": _find_period(slow_steps) if is_sparse else None,
        },
    )


def _find_period(step_numbers: Ints) -> int | None:
    """Return the number of steps between slow ones, if about as many lie between each two of them."""
    gaps = np.diff(step_numbers)
    if len(gaps) < MIN_GAPS_OF_PERIOD:
        return None
    period = int(np.median(gaps))
    return period if (np.abs(gaps - period) <= MAX_DEVIATION_OF_PERIOD).all() else None


def _report_loading(
    times: ComputeTime, spent_ns: Floats, job_ns: int, replay: WindowedReplay | None
) -> list[_Stall]:
    """Report the opportunity of loading data ahead, where every rank always waits for it.

    `spent_ns` is the time of loading, [step, rank].
    """
    least_ns = _find_least(spent_ns)
    usual_ns = float(np.median(least_ns))
    if usual_ns * len(least_ns) < MIN_SHARE_OF_JOB_LOADING * job_ns:
        return []
    fix = WorkFix(
        times.step_numbers, phases_and_effects_ns=((("data",), np.nan_to_num(spent_ns, nan=0.0)),)
    )
    price = price_less_work(replay, fix, job_ns, times.total_compute_ns)
    if price.saving_share < MIN_SHARE_OF_JOB_LOADING:
        return []
    share = usual_ns / times.typical_step_ns
    finding = Finding.of(
        "data_stall",
        {"share": fmt.percent(share)},
        category="opportunity",
        saving=price.saving_share,
        interval=price.saving_interval,
        fix=price.fix,
        ranks=times.ranks,
        phase="data",
        pattern="persistent",
        steps=(int(times.step_numbers[0]), int(times.step_numbers[-1])),
        evidence={"data_ns": round(usual_ns), "share_of_step": share},
    )
    return [_Stall(finding, slow_rows=None, extra_ns_per_step=usual_ns)]
