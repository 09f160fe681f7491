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
from tracelens.replay.delays import price_delay
from tracelens.replay.edits.fixes import WorkFix
from tracelens.replay.pricing import WorkPrice, price_less_work
from tracelens.stats.changepoint import course, greatest_run
from tracelens.stats.robust import deviation, medians

if TYPE_CHECKING:
    from tracelens.accounting.compute_time import ComputeTime
    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Floats, Indices
    from tracelens.facts import Facts
    from tracelens.model.findings import Pattern
    from tracelens.model.trace import Trace
    from tracelens.replay.windows import WindowedReplay
    from tracelens.stats.changepoint import Course


MIN_STEPS_FOR_STALL_TEST: Final = 30  # steps: fewer are not judged [calibrate]
# of a step's usual compute time: loading of data that takes longer by less is no stall [calibrate]
MIN_DELAY_OF_DATA: Final = 0.25
# of a step's usual compute time: another phase that takes longer by less is no stall [calibrate]
MIN_DELAY_OF_OTHER_PHASES: Final = 0.5
# standard deviations: a step that is less far out is not slow [calibrate]
MIN_Z_SCORE_OF_SLOW_STEP: Final = 6.0
MAX_SLOW_STEPS_BY_CHANCE: Final = 3  # steps: as few slow ones are no stall [calibrate]
# share of steps: if more are slow, that is how the run is [calibrate]
MAX_SHARE_OF_SLOW_STEPS: Final = 0.5
MIN_SAVING_OF_STALL: Final = 0.03  # of the job: a stall of less is not reported [policy]
# ratio: a rising line may leave at most this much of the deviation of two levels [calibrate]
MAX_DEVIATION_RATIO_IF_STALL_DRIFTS: Final = 0.9
# share of steps: an interval that is longer is how the run is [calibrate]
MAX_SHARE_OF_STEPS_OF_LASTING_STALL: Final = 0.5
MIN_STEPS_OF_LASTING_STALL: Final = 4  # steps: a shorter interval does not last [calibrate]
# of the job: loading data that takes or costs all ranks less is not reported [policy]
MIN_SHARE_OF_JOB_LOADING: Final = 0.2
# share of steps: pauses are plain if some rank makes one in as many [calibrate]
MIN_SHARE_OF_STEPS_WITH_PAUSE: Final = 0.5
MIN_LENGTH_OF_PLAIN_PAUSES: Final = 0.10  # of a step: plain pauses are as long [calibrate]
# of the job: plain pauses of less are not reported [policy]
MIN_SAVING_OF_PLAIN_PAUSES: Final = 0.003
MIN_SAVING_OF_PAUSES: Final = 0.03  # of the job: other pauses of less are not reported [policy]
# share of all pauses: if one rank makes more, that rank is a straggler [calibrate]
MAX_SHARE_OF_PAUSES_OF_ONE_RANK: Final = 0.5
# share of ranks: a step that fewer took says nothing of all [calibrate]
MIN_SHARE_OF_RANKS_IN_STEP: Final = 0.5
# steps: the run is at each of its two levels for as many [calibrate]
MIN_STEPS_OF_LEVEL: Final = 16
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
MIN_SAVING_OF_SLOWDOWN: Final = 0.03  # of the job: a slowdown of less is not reported [policy]
# steps after the usual warm-up: what is slow from later on does not warm up [calibrate]
MAX_STEPS_BEFORE_WARM_UP: Final = 4
# share of a slowdown: a finding with as many of its steps is the same [calibrate]
MIN_OVERLAP_OF_ONE_SLOWDOWN: Final = 0.5
# share of steps: a slowdown of fewer is transient [calibrate]
MIN_SHARE_OF_STEPS_IF_PERSISTENT: Final = 0.6

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
    if len(own.ranks) < 2 or len(own.steps) < MIN_STEPS_FOR_STALL_TEST or not own.step_ns:
        return Stalls()
    job = job_ns(trace)
    found: list[_Found] = []
    for phase, name in enumerate(own.phases):
        found += _slow(own, name, own.own[phase], job, facts.replay)
        if name == "data":
            found += _loading(own, own.own[phase], job, facts.replay)
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


def _price(
    own: ComputeTime,
    phases: tuple[str, ...],
    less_ns: Floats,
    job: int,
    replay: WindowedReplay | None,
) -> WorkPrice:
    """Price work that all ranks do in some phases, ns, [step, rank]."""
    return price_less_work(replay, WorkFix(own.steps, ((phases, less_ns),)), job, own.total)


def _find_least(spent: Floats) -> Floats:
    """Return what the rank with the least of a phase spent in it, ns, [step]; 0 where none was there."""
    return np.asarray(np.nan_to_num(np.fmin.reduce(spent, axis=1), nan=0.0))


def _slow(
    own: ComputeTime, phase: str, spent: Floats, job: int, replay: WindowedReplay | None
) -> list[_Found]:
    """Return an interval, or scattered steps, in which the phase takes all ranks longer.

    That is seen from the rank with the least of it in each step. What is `spent`, ns, [step, rank],
    beyond a rank's median in the other steps would be saved.
    """
    least = _find_least(spent)
    rows = np.arange(compute_time.WARM_UP, len(least))
    values = least[rows] / own.step_ns
    residual = values - np.median(values)
    spread = deviation(residual)
    usual = own.usual_ns / own.step_ns
    least_delay = MIN_DELAY_OF_DATA if phase == "data" else MIN_DELAY_OF_OTHER_PHASES
    level = max(least_delay * usual, MIN_Z_SCORE_OF_SLOW_STEP * spread)
    chosen, pattern = _lasting(residual, level) or (np.flatnonzero(residual > level), "sparse")
    slow = _Slow(rows[chosen], residual[chosen], pattern)
    overrun_ns = np.maximum(slow.residual, 0.0) * own.step_ns
    most = MAX_SHARE_OF_SLOW_STEPS * len(residual)
    is_stall = MAX_SLOW_STEPS_BY_CHANCE < len(chosen) <= most
    if not is_stall or overrun_ns.sum() < MIN_SAVING_OF_STALL * job:
        return []
    less_ns = np.zeros(own.total.shape)
    others = np.setdiff1d(rows, slow.rows)
    whole = np.nan_to_num(spent, nan=0.0)
    less_ns[slow.rows] = np.maximum(whole[slow.rows] - np.median(whole[others], axis=0), 0.0)
    price = _price(own, (phase,), less_ns, job, replay)
    if price.saving < MIN_SAVING_OF_STALL:
        return []
    extra = float(slow.residual.mean()) * own.step_ns
    return [_Found(_finding(own, phase, slow, price), slow.rows, extra)]


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
        saving=price.saving,
        interval=price.interval,
        fix=price.fix,
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
    own: ComputeTime, spent: Floats, job: int, replay: WindowedReplay | None
) -> list[_Found]:
    """Return the opportunity of loading data ahead, where every rank always waits for it.

    All that ranks have `spent`, ns, [step, rank], would be saved.
    """
    least = _find_least(spent)
    usual = float(np.median(least))
    if usual * len(least) < MIN_SHARE_OF_JOB_LOADING * job:
        return []
    price = _price(own, ("data",), np.nan_to_num(spent, nan=0.0), job, replay)
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


def pause_findings(
    own: ComputeTime, job_ns: int, replay: WindowedReplay | None = None
) -> list[Finding]:
    """Report garbage collection that the ranks do out of step."""
    if "gc" not in own.phases:
        return []
    paused = np.nan_to_num(own.own[own.phases.index("gc")], nan=0.0)
    by_rank = paused.sum(axis=0)
    cost = price_delay(
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
    is_common = len(hit) >= MIN_SHARE_OF_STEPS_WITH_PAUSE * len(own.steps)
    is_plain = is_common and length >= MIN_LENGTH_OF_PLAIN_PAUSES * own.step_ns
    least = MIN_SAVING_OF_PLAIN_PAUSES if is_plain else MIN_SAVING_OF_PAUSES
    if by_rank.max() > MAX_SHARE_OF_PAUSES_OF_ONE_RANK * by_rank.sum() or cost.saving < least:
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
    rows = np.flatnonzero(np.mean(~np.isnan(computed), axis=1) >= MIN_SHARE_OF_RANKS_IN_STEP)
    rows = rows[rows >= compute_time.WARM_UP]
    computed = computed[rows]
    if len(rows) < 2 * MIN_STEPS_OF_LEVEL:
        return None
    typical = medians(computed, axis=1)
    shape = _upper_level(typical)
    inside = shape.inside
    if min(np.count_nonzero(inside), np.count_nonzero(~inside)) < MIN_STEPS_OF_LEVEL:
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
    is_large = level >= MIN_RISE_OF_SLOWDOWN * float(np.median(lower))
    is_apart = apart >= MIN_SHARE_OF_STEPS_APART
    if not (is_large and is_apart and combined >= MIN_SHARE_OF_RANKS_SLOWER):
        return None
    share, uncertain = _longer(typical[inside], typical[~inside])
    return Slowdown(int(rows[shape.first]), int(rows[shape.last]), level, share, uncertain)


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
    if middle.saving < MIN_SAVING_OF_SLOWDOWN:
        return []
    rows = np.arange(slow.first, slow.last + 1)
    price = replace(middle, interval=(low.saving, high.saving))
    finding = _slowdown_finding(own, slow, price)
    return [_Found(finding, rows, slow.level * own.step_ns)]


def warms_up(first: int, last: int, steps: int) -> bool:
    """Return whether rows are the run's beginning: what is slow there was not always faster."""
    return first <= compute_time.WARM_UP + MAX_STEPS_BEFORE_WARM_UP and last < steps - 1


def _price_speed(
    own: ComputeTime, slow: Slowdown, share: float, job: int, replay: WindowedReplay | None
) -> WorkPrice:
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
    return common >= MIN_OVERLAP_OF_ONE_SLOWDOWN * (last - first + 1)


def _grown_most(own: ComputeTime, slow: Slowdown) -> str:
    """Name the phase that grew most."""
    inside = np.zeros(len(own.steps), np.bool_)
    inside[slow.first : slow.last + 1] = True
    least = np.nan_to_num(np.fmin.reduce(own.own, axis=2), nan=0.0)
    grown = np.median(least[:, inside], axis=1) - np.median(least[:, ~inside], axis=1)
    return own.phases[int(np.argmax(grown))]


def _slowdown_finding(own: ComputeTime, slow: Slowdown, price: WorkPrice) -> Finding:
    steps = (int(own.steps[slow.first]), int(own.steps[slow.last]))
    share = (slow.last - slow.first + 1) / len(own.steps)
    pattern: Pattern = "persistent" if share >= MIN_SHARE_OF_STEPS_IF_PERSISTENT else "transient"
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
        saving=price.saving,
        interval=price.interval,
        fix=price.fix,
        cost=0.0,
        ranks=own.ranks,
        phase=phase,
        pattern=pattern,
        steps=steps,
        evidence={"extra_ns": round(slow.level * own.step_ns), "share_of_step": slow.level},
    )
