"""Ranks that are late in turns: each at another time, and all wait for each of them.

No comparison over the run sees this, as no rank is slower than the others by more than it is at other
times. So single steps of single ranks are looked for that take clearly longer than they take the usual
rank in the same step, in any phase. Work that varies in every step and on every rank is no such delay:
it raises the noise that a delay must exceed, and makes forward and backprop longer alike
(`imbalance.py` tells it). Garbage collection counts as it
was recorded: ranks that collect in the same steps wait for nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from tracelens.accounting.compute_time import COMPUTING, find_more_work
from tracelens.accounting.phases import job_ns
from tracelens.model import fmt
from tracelens.model.findings import Finding
from tracelens.model.shown import Shown
from tracelens.replay.delays import price_delay
from tracelens.replay.edits.fixes import WorkFix
from tracelens.stats.robust import deviation, lower_medians

if TYPE_CHECKING:
    from tracelens.accounting.compute_time import ComputeTime
    from tracelens.arrays import Flags, Floats
    from tracelens.facts import Facts
    from tracelens.replay.windows import WindowedReplay

MIN_STEPS_FOR_TEST_OF_TURNS: Final = 30  # steps: fewer are not judged [chosen]
# of a step: a rank that takes as much longer than the usual rank is late in it [chosen]
MIN_LENGTH_OF_DELAY: Final = 0.10
# share of steps: a rank is in time in as many, or it is a straggler [chosen]
QUANTILE_OF_STEPS_IN_TIME: Final = 0.25
# standard deviations of a rank's change from step to step: a smaller delay is noise [chosen]
MIN_Z_SCORE_OF_DELAY: Final = 6.0
# share of the delay of the latest rank: if no other rank has as much, that rank is a straggler [chosen]
MIN_SHARE_OF_SECOND_RANK: Final = 0.25
# steps: in fewer of them half of the ranks or less are late, which may be one event [chosen]
MIN_STEPS_WITH_DELAY: Final = 3
# steps in a row, on average: longer delays of three ranks or more migrate, as stragglers do [chosen]
MAX_STEPS_OF_DELAY: Final = 5
# share of steps: pauses are plain if some rank makes one in as many [calibrate]
MIN_SHARE_OF_STEPS_WITH_PAUSE: Final = 0.5
MIN_LENGTH_OF_PLAIN_PAUSES: Final = 0.10  # of a step: plain pauses are as long [calibrate]
# of the job: plain pauses of less are not reported [policy]
MIN_SAVING_OF_PLAIN_PAUSES: Final = 0.003
MIN_SAVING_OF_TURNS: Final = 0.03  # of the job: delays in turns of less are not reported [policy]
# of the job: delays in turns of less may be how equal ranks differ [policy]
MIN_SAVING_OF_TURNS_IF_FAULT: Final = 0.10

_KINDS: Final = {"data": "data_stall", "checkpoint": "checkpoint_stall", "gc": "gc_stall"}


@dataclass(frozen=True)
class Turns(Shown):
    """A finding for each phase in which ranks are late in turns."""

    findings: tuple[Finding, ...] = ()


def run(facts: Facts) -> Turns:
    """Look for ranks that are late in turns, phase by phase."""
    own = facts.compute_time
    is_short = len(own.steps) < MIN_STEPS_FOR_TEST_OF_TURNS
    if len(own.ranks) < 2 or own.server is not None or is_short or not own.step_ns:
        return Turns()
    found = find_turns(own, job_ns(facts.trace), facts.replay)
    return Turns(tuple(found))


def find_turns(
    own: ComputeTime, job_ns: float, replay: WindowedReplay | None = None
) -> list[Finding]:
    """Return a finding for each phase in which ranks are late in turns, and others wait for them.

    Args:
        own: Compute time of all workers.
        job_ns: How long the job took.
        replay: Of the run; None if it cannot be replayed.
    """
    level = own.levelled
    has_more_work = find_more_work(level)
    found = []
    for phase, values in zip(own.phases, level.own, strict=True):
        spent = np.nan_to_num(values, nan=0.0)
        delay_ns = spent if phase == "gc" else _find_delays(spent, own.step_ns)
        if phase in COMPUTING:
            delay_ns = np.where(has_more_work, 0.0, delay_ns)
        if _is_in_turns(delay_ns, is_pause=phase == "gc"):
            found += _price(own, phase, delay_ns, job_ns, replay)
    return found


def _find_delays(spent: Floats, step_ns: float) -> Floats:
    """Return by how much longer each rank took in the steps in which it is late, ns, [step, rank]."""
    beyond = spent - lower_medians(spent)[:, None]
    # A rank that is always slower is a straggler.
    beyond -= np.quantile(beyond, QUANTILE_OF_STEPS_IN_TIME, axis=0)
    noise = deviation(np.diff(beyond, axis=0)) / np.sqrt(2) if len(beyond) > 1 else 0.0
    least = max(MIN_LENGTH_OF_DELAY * step_ns, MIN_Z_SCORE_OF_DELAY * noise)
    return np.where(beyond > least, beyond, 0.0)


def _is_in_turns(delay_ns: Floats, *, is_pause: bool) -> bool:
    """Return whether several ranks are late, each at another time, and not for so long as to migrate."""
    by_rank = np.sort(delay_ns.sum(axis=0))
    if by_rank[-2] <= MIN_SHARE_OF_SECOND_RANK * by_rank[-1]:
        return False
    is_delayed = delay_ns > 0
    ranks = is_delayed[is_delayed.any(axis=1)].sum(axis=1)
    alone = np.count_nonzero(ranks <= is_delayed.shape[1] // 2)
    if alone < max(MIN_STEPS_WITH_DELAY, len(ranks) / 2):
        return False
    return is_pause or is_delayed.shape[1] == 2 or _mean_run(is_delayed) < MAX_STEPS_OF_DELAY


def _mean_run(is_delayed: Flags) -> float:
    """Return for how many steps in a row a rank is late, on average."""
    begins = int(
        np.count_nonzero(is_delayed[1:] & ~is_delayed[:-1]) + np.count_nonzero(is_delayed[0])
    )
    return float(np.count_nonzero(is_delayed) / begins) if begins else 0.0


def _price(
    own: ComputeTime, phase: str, delay_ns: Floats, job_ns: float, replay: WindowedReplay | None
) -> list[Finding]:
    """Return what the delays cost, if others wait for them and it is worth a sentence."""
    cost = price_delay(
        own.total,
        delay_ns,
        own.wait,
        job_ns,
        waits_known=not own.parted,
        length=own.length,
        replay=None
        if replay is None
        else partial(replay.measure_savings, (phase,), steps=own.steps),
    )
    hit = np.flatnonzero(delay_ns.any(axis=1))
    length = float(delay_ns[delay_ns > 0].mean()) if hit.size else 0.0
    is_plain = (
        phase == "gc"
        and len(hit) >= MIN_SHARE_OF_STEPS_WITH_PAUSE * len(own.steps)
        and length >= MIN_LENGTH_OF_PLAIN_PAUSES * own.step_ns
    )
    least = MIN_SAVING_OF_PLAIN_PAUSES if is_plain else MIN_SAVING_OF_TURNS
    is_awaited = cost.waiting or cost.communicating or own.parted
    if not is_awaited or cost.saving < least:
        return []
    columns = np.flatnonzero(delay_ns.any(axis=0))
    ranks = tuple(own.ranks[column] for column in columns.tolist())
    return [
        Finding.of(
            _KINDS.get(phase, "straggler"),
            {
                "who": fmt.capital(fmt.listing("rank", ranks)),
                "phase": fmt.phase(phase),
                "late": str(len(hit)),
                "steps": str(len(own.steps)),
                "extra": fmt.duration(length),
            },
            case="in turn",
            category=_categorize(phase, cost.saving),
            saving=cost.saving,
            interval=cost.interval,
            cost=cost.cost,
            fix=WorkFix(own.steps, (((phase,), delay_ns),)) if cost.is_replayed else None,
            ranks=ranks,
            phase=phase,
            pattern="migrating",
            steps=(int(own.steps[hit[0]]), int(own.steps[hit[-1]])),
            evidence={"extra_ns": round(length), "steps_late": len(hit)},
        )
    ]


def _categorize(phase: str, saving: float) -> Literal["fault", "opportunity"]:
    if phase == "checkpoint":
        return "opportunity"
    is_fault = phase == "gc" or saving >= MIN_SAVING_OF_TURNS_IF_FAULT
    return "fault" if is_fault else "opportunity"
