"""Differences between two runs: step by step since their begins, on the ranks of both.

Steps are matched by their place since the run's begin, as two runs rarely number, or end, alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Floats
    from tracelens.lod.residuals import Residuals
    from tracelens.lod.run_data import Run
    from tracelens.lod.step_times import Times
    from tracelens.model.findings import Finding

RESAMPLES: Final = 400
LONGEST: Final = 4_000  # steps that are resampled; of longer runs every n-th
_TAILS: Final = (2.5, 97.5)


@dataclass(frozen=True)
class Change:
    """How much shorter (-) or longer (+) a usual step is, as a share, with its 95 % interval.

    `mean` is the same of the mean step, which single long steps move as well.
    """

    before_ns: float
    after_ns: float
    share: float
    low: float
    high: float
    mean: float

    @property
    def clear(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Difference:
    """Own time here less that of the other run, ns, [rank, place]; NaN where one was not there.

    `steps` are what this run calls its steps at these places, `others` what the other one does.
    """

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    others: tuple[int, ...]
    compute_ns: Floats


def difference(one: Residuals, other: Residuals) -> Difference:
    """Compare every rank's compute time in the steps that both runs reached."""
    ranks = tuple(rank for rank in one.ranks if rank in set(other.ranks))
    count = min(len(one.steps), len(other.steps))
    mine = one.compute_ns[[one.ranks.index(rank) for rank in ranks], :count]
    theirs = other.compute_ns[[other.ranks.index(rank) for rank in ranks], :count]
    return Difference(ranks, one.steps[:count], other.steps[:count], np.asarray(mine - theirs))


def step_change(one: Run, other: Run) -> Change | None:
    """Compare the medians of the steps' lengths; null where one of the runs has no step."""
    mine, theirs = _lengths(one), _lengths(other)
    if not len(mine) or not len(theirs):
        return None
    before, after = float(np.median(theirs)), float(np.median(mine))
    random = np.random.default_rng(0)
    ratios = _medians(mine, random) / np.maximum(_medians(theirs, random), 1.0)
    low, high = np.percentile(ratios - 1, _TAILS)
    mean = float(mine.mean()) / max(float(theirs.mean()), 1.0) - 1
    return Change(before, after, after / max(before, 1.0) - 1, float(low), float(high), mean)


def category_means(times: Times) -> dict[str, float]:
    """Return what a rank spends on each category in a step, on average, ns."""
    steps = max(int(times.sums.there.sum()), 1)
    means = times.sums.ns.sum(axis=1) / steps
    return dict(zip(times.categories, means.tolist(), strict=True))


def moved(one: Times, other: Times) -> list[tuple[str, float, float]]:
    """List (category, mean ns a step here, mean there), what changed most first."""
    mine, theirs = category_means(one), category_means(other)
    names = dict.fromkeys([*mine, *theirs])
    rows = [(name, mine.get(name, 0.0), theirs.get(name, 0.0)) for name in names]
    return sorted(rows, key=lambda row: -abs(row[1] - row[2]))


def only_in(findings: Sequence[Finding], others: Sequence[Finding]) -> list[Finding]:
    """Return the findings that the other run lacks: those of the same kind on the same ranks."""
    known = {_likeness(finding) for finding in others}
    return [finding for finding in findings if _likeness(finding) not in known]


def _likeness(finding: Finding) -> tuple[Any, ...]:
    where = finding.ranks or finding.shards or finding.hosts
    return finding.kind, finding.phase, tuple(sorted(where))


def _lengths(run: Run) -> Floats:
    lengths = (run.windows["end_ns"] - run.windows["start_ns"]).to_numpy()
    return np.asarray(lengths[:: max(-(-len(lengths) // LONGEST), 1)], float)


def _medians(lengths: Floats, random: np.random.Generator) -> Floats:
    """Resample blocks of neighbouring steps, which are correlated (Künsch 1989), for medians."""
    count = len(lengths)
    block = max(round(count ** (1 / 3)), 1)
    begins = random.integers(0, count - block + 1, (RESAMPLES, -(-count // block)))
    places = (begins[:, :, None] + np.arange(block)).reshape(RESAMPLES, -1)[:, :count]
    return np.asarray(np.median(lengths[places], axis=1))
