"""Stalls of all: when every rank is slow in the same phase at the same time.

No comparison between ranks sees this, so each phase is compared with itself over the run: what counts
is the rank that suffers least. Also here: pauses that all ranks make, each at another time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from tracelens import words
from tracelens.analyses import _all_slow, _own_time, _pauses
from tracelens.analyses._interval import course, greatest_run
from tracelens.analyses._job import job_ns
from tracelens.analyses._robust import deviation
from tracelens.analyses.result import Finding

if TYPE_CHECKING:
    from tracelens.analyses._own_time import OwnTime
    from tracelens.analyses.phases import Phases
    from tracelens.analyses.result import FindingKind, Pattern
    from tracelens.trace import Trace

Floats = npt.NDArray[np.float64]

LEAST_STEPS: Final = 30
SHORTEST: Final = 8  # steps in an interval
FEWEST: Final = 4  # scattered steps
LONGEST: Final = 0.6  # of the run: beyond, it is how the run is
SLOW: Final = {"data": 0.2}  # of own time; other phases drift with the machine
SLOW_OTHERWISE: Final = 0.5
NOTICEABLE: Final = 0.03  # of the job
LOADING: Final = 0.15  # of the job: all ranks load data that long
_DEVIATIONS: Final = 6
_STEADY: Final = 0.8  # of the interval's steps are slow
_KINDS: Final[dict[str, FindingKind]] = {
    "data": "data_stall",
    "checkpoint": "checkpoint_stall",
    "gc": "gc_stall",
}


@dataclass(frozen=True)
class Stalls:
    """Findings on all ranks together."""

    findings: tuple[Finding, ...] = ()


def run(trace: Trace, phases: Phases) -> Stalls:
    """Compare every phase with itself over the run."""
    own = _own_time.measure(trace, phases)
    if len(own.ranks) < 2 or len(own.steps) < LEAST_STEPS or not own.step_ns:
        return Stalls()
    job = job_ns(trace)
    found = []
    for phase, name in enumerate(own.phases):
        least = np.nan_to_num(np.fmin.reduce(own.own[phase], axis=1), nan=0.0)
        found += _slow(own, name, least, job)
        if name == "data":
            found += _loading(own, least, job)
    found += _pauses.findings(own, job)
    found += _all_slow.findings(own, job, found)
    return Stalls(tuple(found))


@dataclass(frozen=True)
class _Slow:
    """Rows in which all ranks are slow, and by what share of a step."""

    rows: npt.NDArray[np.intp]
    excess: Floats
    pattern: Pattern
    saving: float


def _slow(own: OwnTime, phase: str, least: Floats, job: int) -> list[Finding]:
    """Return an interval, or scattered steps, in which the phase takes all ranks longer."""
    rows = np.arange(_own_time.WARM_UP, len(least))
    values = least[rows] / own.step_ns
    excess = values - np.median(values)
    spread = deviation(excess)
    usual = float(np.nanmedian(own.total[own.settled])) / own.step_ns
    level = max(SLOW.get(phase, SLOW_OTHERWISE) * usual, _DEVIATIONS * spread)
    chosen, pattern = _lasting(excess, level) or (np.flatnonzero(excess > level), "sparse")
    saving = float(np.maximum(excess[chosen], 0).sum() * own.step_ns / job)
    if not FEWEST <= len(chosen) <= LONGEST * len(excess) or saving < NOTICEABLE:
        return []
    return [_finding(own, phase, _Slow(rows[chosen], excess[chosen], pattern, saving))]


def _lasting(excess: Floats, level: float) -> tuple[npt.NDArray[np.intp], Pattern] | None:
    """Return the interval in which nearly all steps are slow, if there is one."""
    shape = course(excess, *greatest_run(excess - level / 2))
    inside = excess[shape.first : shape.last + 1]
    fits = SHORTEST <= len(inside) <= LONGEST * len(excess)
    if fits and shape.level >= level and np.mean(inside > level / 2) >= _STEADY:
        return np.arange(shape.first, shape.last + 1), shape.pattern
    return None


def _finding(own: OwnTime, phase: str, slow: _Slow) -> Finding:
    steps = (int(own.steps[slow.rows[0]]), int(own.steps[slow.rows[-1]]))
    when = words.steps(*steps)
    if slow.pattern == "sparse":
        when = f"in {len(slow.rows)} of the {when}"
    extra = float(slow.excess.mean())
    sentence = (
        f"All {len(own.ranks)} ranks are slow in {words.phase(phase)} at the same time, {when}: "
        f"+{words.duration(extra * own.step_ns)} a step ({words.percent(extra)} of a step), so no "
        f"rank is to blame. Without it the job would be {words.percent(slow.saving)} shorter."
    )
    return Finding(
        kind=_KINDS.get(phase, "slow_all"),
        category="opportunity" if _is_usual(own, phase, slow) else "fault",
        sentence=sentence,
        saving=slow.saving,
        cost=0.0,
        ranks=own.ranks,
        phase=phase,
        pattern=slow.pattern,
        steps=steps,
        evidence={"extra_ns": round(extra * own.step_ns), "steps_slow": len(slow.rows)},
    )


def _is_usual(own: OwnTime, phase: str, slow: _Slow) -> bool:
    """Say whether nothing is wrong: a checkpoint, or computation that warms up."""
    first, last = int(slow.rows[0]), int(slow.rows[-1])
    warming = slow.pattern != "sparse" and _all_slow.warms_up(first, last, len(own.steps))
    return phase == "checkpoint" or (phase in _all_slow.COMPUTED and warming)


def _loading(own: OwnTime, least: Floats, job: int) -> list[Finding]:
    """Return the opportunity of loading data ahead, where every rank always waits for it."""
    usual = float(np.median(least))
    saving = usual * len(least) / job
    if saving < LOADING:
        return []
    sentence = (
        f"Every rank loads data for {words.percent(usual / own.step_ns)} of each step. Loaded while "
        f"the step before computes, it would make the job up to {words.percent(saving)} shorter."
    )
    finding = Finding(
        kind="data_stall",
        category="opportunity",
        sentence=sentence,
        saving=saving,
        ranks=own.ranks,
        phase="data",
        pattern="persistent",
        steps=(int(own.steps[0]), int(own.steps[-1])),
        evidence={"data_ns": round(usual), "share_of_step": usual / own.step_ns},
    )
    return [finding]
