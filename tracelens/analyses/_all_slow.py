"""When all ranks slow down at once: a change point in the run itself, which no comparison of ranks sees.

Two levels are fitted to the computation of the median rank over the steps. They must be far apart and
keep apart step by step, both must last, and nearly every rank must follow. Where the run begins with the
slower one it warms up, which is no fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens import words
from tracelens.analyses import _own_time
from tracelens.analyses._interval import PERSISTENT, greatest_run
from tracelens.analyses.result import Finding

if TYPE_CHECKING:
    from tracelens.analyses._own_time import Floats, OwnTime
    from tracelens.analyses.result import Pattern

COMPUTED: Final = ("forward", "backprop", "update", "user")
FASTER: Final = 0.12  # of the faster one: how far the levels are apart, at least
SHORTEST: Final = 0.15  # of the run: both levels last as long
FEWEST: Final = 16  # steps of each level
APART: Final = 0.9  # of the steps of each level are on its side of the middle
PRESENT: Final = 0.5  # of the ranks took a step, or it tells nothing of all
TOGETHER: Final = 0.9  # of the ranks are slower by half of it, or more
NOTICEABLE: Final = 0.03  # of the job
_EXTREMES: Final = (0.1, 0.9)
_SLOWER: Final = (
    "at the same time",
    "look for what they share, such as power, cooling, or what was changed then",
)
_WARMING: Final = ("at first", "what they share warms up, such as caches, clocks or autotuning")
_AT_ONCE: Final = 4  # steps after those that are never judged


@dataclass(frozen=True)
class Slowdown:
    """Rows `first` to `last`, inclusive, in which every rank computes longer by `level` of a step.

    `share` of what it computes there goes away with it; `unsure` is the standard error of that.
    """

    first: int
    last: int
    level: float
    share: float
    unsure: float


def find(own: OwnTime) -> Slowdown | None:
    """Search the run for an interval in which all ranks compute more slowly."""
    computed = _computed(own) / own.step_ns
    rows = np.flatnonzero(np.mean(~np.isnan(computed), axis=1) >= PRESENT)
    rows = rows[rows >= _own_time.WARM_UP]
    computed = computed[rows]
    fewest = max(FEWEST, SHORTEST * len(rows))
    if len(rows) < 2 * fewest:
        return None
    typical = np.nanmedian(computed, axis=1)
    first, last = greatest_run(typical - np.mean(np.quantile(typical, _EXTREMES)))
    inside = np.zeros(len(rows), np.bool_)
    inside[first : last + 1] = True
    if min(np.count_nonzero(inside), np.count_nonzero(~inside)) < fewest:
        return None
    there = [~np.isnan(computed[part]).all(axis=0) for part in (inside, ~inside)]
    ranks = there[0] & there[1]
    if not ranks.any():
        return None
    upper, lower = (np.nanmedian(computed[part][:, ranks], axis=0) for part in (inside, ~inside))
    middle = float(np.median(upper) + np.median(lower)) / 2
    above, below = np.mean(typical[inside] > middle), np.mean(typical[~inside] < middle)
    level = float(np.median(upper - lower))
    together = np.mean(upper - lower > level / 2)
    if level < FASTER * float(np.median(lower)) or min(above, below) < APART or together < TOGETHER:
        return None
    share, unsure = _longer(typical[inside], typical[~inside])
    return Slowdown(int(rows[first]), int(rows[last]), level, share, unsure)


def _longer(inside: Floats, outside: Floats) -> tuple[float, float]:
    """Return what share of the steps inside they are longer by, and its standard error."""
    left = float(outside.mean() / inside.mean())
    errors = [part.std() / part.mean() / np.sqrt(len(part)) for part in (inside, outside)]
    return 1 - left, left * float(np.hypot(*errors))


def findings(own: OwnTime, job_ns: int, told: list[Finding]) -> list[Finding]:
    """Report a slowdown of all, unless one of `told` is the same."""
    slow = find(own)
    if slow is None or any(_same(own, slow, finding) for finding in told):
        return []
    low, saving, high = (
        _saving(own, slow, slow.share + by * slow.unsure) / job_ns for by in (-1.96, 0.0, 1.96)
    )
    return [_finding(own, slow, saving, (low, high))] if saving >= NOTICEABLE else []


def warms_up(first: int, last: int, steps: int) -> bool:
    """Say whether rows are the run's beginning: what is slow there was not always faster."""
    return first <= _own_time.WARM_UP + _AT_ONCE and last < steps - 1


def _saving(own: OwnTime, slow: Slowdown, share: float) -> float:
    """Return by how much the steps' slowest ranks are earlier if all compute by a share less."""
    rows = slice(slow.first, slow.last + 1)
    total = np.nan_to_num(own.total[rows], nan=0.0)
    mended = total - share * np.nan_to_num(_computed(own)[rows], nan=0.0)
    return float((total.max(axis=1) - mended.max(axis=1)).sum())


def _computed(own: OwnTime) -> Floats:
    chosen = [row for row, phase in enumerate(own.phases) if phase in COMPUTED]
    return np.asarray(own.own[chosen].sum(axis=0))


def _same(own: OwnTime, slow: Slowdown, finding: Finding) -> bool:
    if finding.steps is None:
        return False
    first, last = (int(own.steps[row]) for row in (slow.first, slow.last))
    common = min(last, finding.steps[1]) - max(first, finding.steps[0]) + 1
    return common >= 0.5 * (last - first + 1)


def _phase(own: OwnTime, slow: Slowdown) -> str:
    """Name the phase that grew most."""
    inside = np.zeros(len(own.steps), np.bool_)
    inside[slow.first : slow.last + 1] = True
    least = np.nan_to_num(np.fmin.reduce(own.own, axis=2), nan=0.0)
    grown = np.median(least[:, inside], axis=1) - np.median(least[:, ~inside], axis=1)
    return own.phases[int(np.argmax(grown))]


def _finding(own: OwnTime, slow: Slowdown, saving: float, interval: tuple[float, float]) -> Finding:
    steps = (int(own.steps[slow.first]), int(own.steps[slow.last]))
    lasting = slow.last - slow.first + 1
    pattern: Pattern = "persistent" if lasting >= PERSISTENT * len(own.steps) else "transient"
    phase = _phase(own, slow)
    warming = warms_up(slow.first, slow.last, len(own.steps))
    when, cause = _WARMING if warming else _SLOWER
    sentence = (
        f"All {len(own.ranks)} ranks compute more slowly {when}, {words.steps(*steps)}: "
        f"+{words.duration(slow.level * own.step_ns)} a step ({words.percent(slow.level)} of a "
        f"step, most of it in {words.phase(phase)}), so no rank is to blame: {cause}. Without it the "
        f"job would be {words.percent(saving)} shorter."
    )
    return Finding(
        kind="slow_all",
        category="opportunity" if warming else "fault",
        sentence=sentence,
        saving=saving,
        interval=interval,
        cost=0.0,
        ranks=own.ranks,
        phase=phase,
        pattern=pattern,
        steps=steps,
        evidence={"extra_ns": round(slow.level * own.step_ns), "share_of_step": slow.level},
    )
