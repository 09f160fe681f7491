"""Stalls of all: when every rank is slow at the same time, in a phase or in all that it computes.

No comparison between ranks sees this, so each phase is compared with itself over the run: what counts
is the rank that suffers least. A slowdown of all is a change point in the run itself: two levels are
fitted to the computation of the median rank over the steps. They must be far apart and keep apart step
by step, both must last, and nearly every rank must follow. Where the run begins with the slower one it
warms up, which is no fault. Also here: pauses that all ranks make, each at another time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting import compute_time, sampled_code
from tracelens.accounting.core_waits import core_wait_of_all
from tracelens.accounting.phases import job_ns
from tracelens.model import fmt
from tracelens.model.findings import TWO_SIDED, Finding
from tracelens.model.shown import Shown
from tracelens.replay.counterfactual import price
from tracelens.replay.edits.fixes import WorkFix
from tracelens.replay.pricing import price_less_work
from tracelens.stats.changepoint import course, greatest_run
from tracelens.stats.constants import (
    BLOCK,
    BOUND,
    ENOUGH,
    FAR_OUT,
    FEW,
    FEWEST_STEPS,
    LARGE_DELAY,
    MAJORITY,
    MANY,
    NEARLY_ALL,
    NOTICEABLE,
    PERSISTENT,
    WORTH_WITH_PEERS,
)
from tracelens.stats.robust import bootstrap_interval, deviation, medians

if TYPE_CHECKING:
    from tracelens.accounting.compute_time import ComputeTime
    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Floats, Indices
    from tracelens.facts import Facts
    from tracelens.model.findings import Pattern
    from tracelens.model.trace import Trace
    from tracelens.replay.windows import WindowedReplay
    from tracelens.stats.changepoint import Course


_KINDS: Final[dict[str, str]] = {
    "data": "data_stall",
    "checkpoint": "checkpoint_stall",
    "gc": "gc_stall",
}


@dataclass(frozen=True)
class Stalls(Shown):
    """Findings on all ranks combined."""

    findings: tuple[Finding, ...] = ()


def run(facts: Facts) -> Stalls:
    """Compare every phase with itself over the run."""
    trace, phases = facts.trace, facts.phases
    own = facts.compute_time
    if len(own.ranks) < 2 or len(own.steps) < FEWEST_STEPS or not own.step_ns:
        return Stalls()
    job = job_ns(trace)
    found: list[_Found] = []
    for phase, name in enumerate(own.phases):
        least = np.nan_to_num(np.fmin.reduce(own.own[phase], axis=1), nan=0.0)
        found += _slow(own, name, least, job, facts.replay)
        if name == "data":
            found += _loading(own, least, job, facts.replay)
    known = [one.finding for one in found]
    found += slowdown_findings(own, job, known, facts.replay)
    explained = (_with_code(trace, phases, own, one) for one in found)
    return Stalls((*explained, *pause_findings(own, job, facts.replay)))


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
    wait = core_wait_of_all(trace, own, slice(int(rows[0]), int(rows[-1]) + 1), found.extra_ns)
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


@dataclass(frozen=True)
class _Saving:
    """What a fix saves as a share of the job, with its 95 % interval; `fix` is what was replayed."""

    share: float
    interval: tuple[float, float]
    fix: WorkFix | None


def _price(
    own: ComputeTime,
    phases: tuple[str, ...],
    less_ns: Floats,
    job: int,
    replay: WindowedReplay | None,
) -> _Saving:
    """Price work that all ranks do in some phases, ns, [step, rank]."""
    fix = WorkFix(own.steps, ((phases, less_ns),))
    total = np.nan_to_num(own.total, nan=0.0)
    side_by_side = total.max(axis=1) - (total - less_ns).max(axis=1)
    saved_ns, replayed = price_less_work(replay, fix, side_by_side)
    saved_ns = np.maximum(saved_ns, 0.0)
    return _Saving(float(saved_ns.sum()) / job, bootstrap_interval(saved_ns, job), replayed)


def _slow(
    own: ComputeTime, phase: str, least: Floats, job: int, replay: WindowedReplay | None
) -> list[_Found]:
    """Return an interval, or scattered steps, in which the phase takes all ranks longer."""
    rows = np.arange(compute_time.WARM_UP, len(least))
    values = least[rows] / own.step_ns
    residual = values - np.median(values)
    spread = deviation(residual)
    usual = own.usual_ns / own.step_ns
    level = max((ENOUGH if phase == "data" else MAJORITY) * usual, FAR_OUT * spread)
    chosen, pattern = _lasting(residual, level) or (np.flatnonzero(residual > level), "sparse")
    slow = _Slow(rows[chosen], residual[chosen], pattern)
    overrun_ns = np.maximum(slow.residual, 0.0) * own.step_ns
    few = not FEW < len(chosen) <= MAJORITY * len(residual)
    if few or overrun_ns.sum() < NOTICEABLE * job:
        return []
    less_ns = np.zeros(own.total.shape)
    less_ns[slow.rows] = overrun_ns[:, None]
    saving = _price(own, (phase,), less_ns, job, replay)
    if saving.share < NOTICEABLE:
        return []
    extra = float(slow.residual.mean()) * own.step_ns
    return [_Found(_finding(own, phase, slow, saving), slow.rows, extra)]


def _lasting(residual: Floats, level: float) -> tuple[Indices, Pattern] | None:
    """Return the interval in which nearly all steps are slow, if there is one."""
    shape = course(residual, *greatest_run(residual - level / 2), better=NEARLY_ALL)
    steps = np.arange(shape.first, shape.last + 1)
    usual = len(steps) > MAJORITY * len(residual)
    return None if usual or len(steps) < BLOCK or shape.level < level else (steps, shape.pattern)


def _finding(own: ComputeTime, phase: str, slow: _Slow, saving: _Saving) -> Finding:
    steps = (int(own.steps[slow.rows[0]]), int(own.steps[slow.rows[-1]]))
    when = fmt.steps(*steps)
    if slow.pattern == "sparse":
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
        saving=saving.share,
        interval=saving.interval,
        fix=saving.fix,
        cost=0.0,
        ranks=own.ranks,
        phase=phase,
        pattern=slow.pattern,
        steps=steps,
        evidence={"extra_ns": round(extra * own.step_ns), "steps_slow": len(slow.rows)},
    )


def _is_usual(own: ComputeTime, phase: str, slow: _Slow) -> bool:
    """Return whether nothing is wrong: a checkpoint, or computation that warms up."""
    first, last = int(slow.rows[0]), int(slow.rows[-1])
    warming = slow.pattern != "sparse" and warms_up(first, last, len(own.steps))
    return phase == "checkpoint" or (phase in COMPUTED and warming)


def _loading(
    own: ComputeTime, least: Floats, job: int, replay: WindowedReplay | None
) -> list[_Found]:
    """Return the opportunity of loading data ahead, where every rank always waits for it."""
    usual = float(np.median(least))
    if usual * len(least) < BOUND * job:
        return []
    saving = _price(own, ("data",), np.full(own.total.shape, usual), job, replay)
    if saving.share < BOUND:
        return []
    finding = Finding.of(
        "data_stall",
        {"share": fmt.percent(usual / own.step_ns)},
        category="opportunity",
        saving=saving.share,
        interval=saving.interval,
        fix=saving.fix,
        ranks=own.ranks,
        phase="data",
        pattern="persistent",
        steps=(int(own.steps[0]), int(own.steps[-1])),
        evidence={"data_ns": round(usual), "share_of_step": usual / own.step_ns},
    )
    return [_Found(finding, None, usual)]


def pause_findings(
    own: ComputeTime, job_ns: int, replay: WindowedReplay | None = None
) -> list[Finding]:
    """Report garbage collection that the ranks do out of step."""
    if "gc" not in own.phases:
        return []
    paused = np.nan_to_num(own.own[own.phases.index("gc")], nan=0.0)
    by_rank = paused.sum(axis=0)
    cost = price(
        own.total,
        paused,
        own.wait,
        job_ns,
        waits_known=not own.parted,
        length=own.length,
        replay=None
        if replay is None
        else partial(replay.measure_savings, ("gc",), steps=own.steps),
    )
    if not (cost.waiting or cost.communicating or own.parted):
        return []  # no rank waits for another
    hit = np.flatnonzero(paused.any(axis=1))
    length = float(paused[paused > 0].mean()) if hit.size else 0.0
    plain = len(hit) >= MAJORITY * len(own.steps) and length >= LARGE_DELAY * own.step_ns
    least = WORTH_WITH_PEERS if plain else NOTICEABLE
    if by_rank.max() > MAJORITY * by_rank.sum() or cost.saving < least:
        return []
    ranks = tuple(rank for rank, ns in zip(own.ranks, by_rank, strict=True) if ns > 0)
    fields = {
        "who": fmt.capital(fmt.listing("rank", ranks)),
        "paused": str(len(hit)),
        "steps": str(len(own.steps)),
        "pause": fmt.duration(length),
    }
    return [
        Finding.of(
            "gc_stall",
            fields,
            case="in turn",
            category="fault",
            saving=cost.saving,
            interval=cost.interval,
            cost=cost.cost,
            fix=WorkFix(own.steps, ((("gc",), paused),)) if cost.is_replayed else None,
            ranks=ranks,
            phase="gc",
            pattern="migrating",
            steps=(int(own.steps[hit[0]]), int(own.steps[hit[-1]])),
            evidence={"pause_ns": round(length), "steps_paused": len(hit)},
        )
    ]


COMPUTED: Final = ("forward", "backprop", "update", "user")
_SLOWER: Final = (
    "at the same time",
    "look for what they share, such as power, cooling, or what was changed then",
)
_WARMING: Final = ("at first", "what they share warms up, such as caches, clocks or autotuning")


@dataclass(frozen=True)
class Slowdown:
    """Rows `first` to `last`, inclusive, in which every rank computes longer by `level` of a step.

    `share` of what it computes there goes away with it; `unsure` is the standard error of that.
    """

    first: int
    last: int
    level: float
    share: float
    uncertain: float


def find_slowdown(own: ComputeTime) -> Slowdown | None:
    """Search the run for an interval in which all ranks compute more slowly."""
    computed = _compute_of_ranks(own) / own.step_ns
    rows = np.flatnonzero(np.mean(~np.isnan(computed), axis=1) >= MAJORITY)
    rows = rows[rows >= compute_time.WARM_UP]
    computed = computed[rows]
    if len(rows) < 2 * MANY:
        return None
    typical = medians(computed, axis=1)
    shape = _upper_level(typical)
    inside = shape.inside
    if min(np.count_nonzero(inside), np.count_nonzero(~inside)) < MANY:
        return None
    there = [~np.isnan(computed[part]).all(axis=0) for part in (inside, ~inside)]
    ranks = there[0] & there[1]
    if not ranks.any():
        return None
    upper, lower = (medians(computed[part][:, ranks], axis=0) for part in (inside, ~inside))
    middle = float(np.median(upper) + np.median(lower)) / 2
    apart = np.mean((typical > middle) == inside)
    level = float(np.median(upper - lower))
    combined = np.mean(upper - lower > level / 2)
    if level < LARGE_DELAY * float(np.median(lower)) or apart < NEARLY_ALL or combined < NEARLY_ALL:
        return None
    share, uncertain = _longer(typical[inside], typical[~inside])
    return Slowdown(int(rows[shape.first]), int(rows[shape.last]), level, share, uncertain)


def _upper_level(values: Floats) -> Course:
    """Return where a series is at the upper one of its levels."""
    lower, upper = np.quantile(values, [1 - NEARLY_ALL, NEARLY_ALL])
    run = greatest_run(values - (lower + upper) / 2)
    return course(values - lower, *run, better=NEARLY_ALL)


def _longer(inside: Floats, outside: Floats) -> tuple[float, float]:
    """Return what share of the steps inside they are longer by, and its standard error."""
    left = float(outside.mean() / inside.mean())
    errors = [part.std() / part.mean() / np.sqrt(len(part)) for part in (inside, outside)]
    return 1 - left, left * float(np.hypot(*errors))


def slowdown_findings(
    own: ComputeTime, job_ns: int, known: list[Finding], replay: WindowedReplay | None
) -> list[_Found]:
    """Report a slowdown of all, unless one of `known` is the same."""
    slow = find_slowdown(own)
    if slow is None or any(_same_steps(own, slow, finding) for finding in known):
        return []
    low, middle, high = (
        _price_speed(own, slow, slow.share + by * slow.uncertain, job_ns, replay)
        for by in (-TWO_SIDED, 0.0, TWO_SIDED)
    )
    if middle.share < NOTICEABLE:
        return []
    rows = np.arange(slow.first, slow.last + 1)
    saving = replace(middle, interval=(low.share, high.share))
    finding = _slowdown_finding(own, slow, saving)
    return [_Found(finding, rows, slow.level * own.step_ns)]


def warms_up(first: int, last: int, steps: int) -> bool:
    """Return whether rows are the run's beginning: what is slow there was not always faster."""
    return first <= compute_time.WARM_UP + BLOCK and last < steps - 1


def _price_speed(
    own: ComputeTime, slow: Slowdown, share: float, job: int, replay: WindowedReplay | None
) -> _Saving:
    """Price that all ranks compute by a share less in some steps."""
    rows = slice(slow.first, slow.last + 1)
    less_ns = np.zeros(own.total.shape)
    less_ns[rows] = share * np.nan_to_num(_compute_of_ranks(own)[rows], nan=0.0)
    phases = tuple(name for name in own.phases if name in COMPUTED)
    return _price(own, phases, less_ns, job, replay)


def _compute_of_ranks(own: ComputeTime) -> Floats:
    chosen = [row for row, phase in enumerate(own.phases) if phase in COMPUTED]
    return np.asarray(own.own[chosen].sum(axis=0))


def _same_steps(own: ComputeTime, slow: Slowdown, finding: Finding) -> bool:
    if finding.steps is None:
        return False
    first, last = (int(own.steps[row]) for row in (slow.first, slow.last))
    common = min(last, finding.steps[1]) - max(first, finding.steps[0]) + 1
    return common >= MAJORITY * (last - first + 1)


def _grown_most(own: ComputeTime, slow: Slowdown) -> str:
    """Name the phase that grew most."""
    inside = np.zeros(len(own.steps), np.bool_)
    inside[slow.first : slow.last + 1] = True
    least = np.nan_to_num(np.fmin.reduce(own.own, axis=2), nan=0.0)
    grown = np.median(least[:, inside], axis=1) - np.median(least[:, ~inside], axis=1)
    return own.phases[int(np.argmax(grown))]


def _slowdown_finding(own: ComputeTime, slow: Slowdown, saving: _Saving) -> Finding:
    steps = (int(own.steps[slow.first]), int(own.steps[slow.last]))
    lasting = slow.last - slow.first + 1
    pattern: Pattern = "persistent" if lasting >= PERSISTENT * len(own.steps) else "transient"
    phase = _grown_most(own, slow)
    warming = warms_up(slow.first, slow.last, len(own.steps))
    when, cause = _WARMING if warming else _SLOWER
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
        saving=saving.share,
        interval=saving.interval,
        fix=saving.fix,
        cost=0.0,
        ranks=own.ranks,
        phase=phase,
        pattern=pattern,
        steps=steps,
        evidence={"extra_ns": round(slow.level * own.step_ns), "share_of_step": slow.level},
    )
