"""Runs whose truth is known, for `calibrate.py`: tables of own time, and labelled runs of some kinds.

Tables have four families of noise (normal, AR(1) of 0.8, spikes with a Pareto tail, Student's t of 3
degrees of freedom) and nobody late, or a rank for the whole run, for a while, on and off, by stalls, or
each rank in turn. A table is right if the ranks are and no other is named.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

import numpy as np
from benchmarks.labelled.endtoend import report
from benchmarks.labelled.kinds import KINDS
from benchmarks.labelled.label import HEALTHY
from benchmarks.labelled.score import outcome
from benchmarks.labelled.setting import FIRST_SEED, LEVELS, TUNED_FAMILY, setting
from support.runs.matrices import PHASES, own_time

from tracelens import load
from tracelens.accounting import phases
from tracelens.analyses.stragglers import detection
from tracelens.verdicts.report import analyze

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.labelled.label import Case
    from support.runs.matrices import Floats

    from tracelens.model.result import Report

__all__ = ["Outcome", "Run", "labelled_runs", "tables"]

RANKS: Final = (3, 8)
STEPS: Final = 160
LATE: Final = 1  # the rank
RANKS_OF_A_KIND: Final = 8
_SIGMA: Final = 0.03


@dataclass(frozen=True)
class Outcome:
    """Whether the verdict is right, and whether somebody is accused who is not to blame."""

    right: bool
    accused: bool


@dataclass(frozen=True)
class Run:
    """A run that can be judged again and again: a table (family, fault), or a kind of run (level)."""

    kind: int
    variant: int
    ranks: int
    seed: int
    table: bool

    def made(self) -> Callable[[], Outcome]:
        """Draw it, and return how it is judged with the constants as they are then."""
        judge = self._table() if self.table else self._recorded()

        def judged() -> Outcome:
            try:
                return judge()
            except (ArithmeticError, LookupError, ValueError):
                return Outcome(right=False, accused=True)  # a value that the code cannot bear

        return judged

    def _table(self) -> Callable[[], Outcome]:
        draw = np.random.default_rng([self.ranks, self.variant, self.seed])
        noise = FAMILIES[self.variant]
        matrices = [share * (1 + noise(draw, (STEPS, self.ranks))) for share in PHASES]
        truth = FAULTS[self.kind](matrices[-1])

        def judge() -> Outcome:
            found = detection.find_episodes(own_time(matrices))
            named = {rank for late in found for rank in late.rank_columns}
            return Outcome(named == truth, bool(named - truth))

        return judge

    def _recorded(self) -> Callable[[], Outcome]:
        place = setting(self.ranks, LEVELS[self.variant], TUNED_FAMILY, self.seed)
        case = KINDS[self.kind].make(place)
        reported = partial(report, case) if case.through_files else _accounted(case)

        def judge() -> Outcome:
            found = outcome(reported().findings, case.label)
            return Outcome(bool(found["right"]), bool(found["false"]))

        return judge


def _accounted(case: Case) -> Callable[[], Report]:
    """Return how a run is analyzed whose time is accounted for once: that rests on no constant."""
    trace = load.prepare(case.recording.trace())
    accounted = phases.run(trace)

    def reported() -> Report:
        # A copy is another key of what analyses keep beside it.
        with patch.object(phases, "run", lambda *_, **__: replace(accounted)):
            return analyze(trace)

    return reported


def tables(runs: int) -> list[Run]:
    """Return so many tables of each size, family of noise, and fault."""
    return [
        Run(fault, family, ranks, seed, table=True)
        for seed in range(runs)
        for ranks in RANKS
        for family in range(len(FAMILIES))
        for fault in range(len(FAULTS))
    ]


def labelled_runs(verdicts: frozenset[str], runs: int) -> list[Run]:
    """Return so many runs, of each level, of the kinds with one of these verdicts, and healthy ones."""
    first = FIRST_SEED["tuning"]
    return [
        Run(kind, level, RANKS_OF_A_KIND, first + seed, table=False)
        for seed in range(runs)
        for kind in range(len(KINDS))
        for level in range(len(LEVELS))
        if _verdict(kind) in verdicts | {HEALTHY}
    ]


def _verdict(kind: int) -> str:
    verdict = _VERDICTS.get(kind)
    if verdict is None:
        place = setting(RANKS_OF_A_KIND, LEVELS[0], TUNED_FAMILY, FIRST_SEED["tuning"])
        verdict = _VERDICTS[kind] = KINDS[kind].make(place).label.verdict
    return verdict


_VERDICTS: Final[dict[int, str]] = {}


def _normal(draw: np.random.Generator, shape: tuple[int, int]) -> Floats:
    return _SIGMA * draw.standard_normal(shape)


def _correlated(draw: np.random.Generator, shape: tuple[int, int]) -> Floats:
    from scipy.signal import lfilter  # noqa: PLC0415 - takes a second

    white = draw.standard_normal(shape)
    white[1:] *= 0.6
    alike: Floats = lfilter([1.0], [1.0, -0.8], white, axis=0)
    return _SIGMA * alike


def _spiky(draw: np.random.Generator, shape: tuple[int, int]) -> Floats:
    spikes = np.minimum(0.1 * (1 + draw.pareto(2.2, shape)), 2.0)
    return _normal(draw, shape) + (draw.random(shape) < 0.05) * spikes


def _student(draw: np.random.Generator, shape: tuple[int, int]) -> Floats:
    return _SIGMA * draw.standard_t(3, shape) / 3**0.5


FAMILIES: Final = (_normal, _correlated, _spiky, _student)


def _healthy(_values: Floats) -> set[int]:
    return set()


def _persistent(values: Floats) -> set[int]:
    values[:, LATE] += 0.1
    return {LATE}


def _transient(values: Floats) -> set[int]:
    values[50:100, LATE] += 0.15
    return {LATE}


def _intermittent(values: Floats) -> set[int]:
    for first in range(20, STEPS, 50):
        values[first : first + 25, LATE] += 0.3
    return {LATE}


def _stalls(values: Floats) -> set[int]:
    values[8::11, LATE] += 1.0
    return {LATE}


def _migrating(values: Floats) -> set[int]:
    ranks = values.shape[1]
    visits = [(first, (first // 8) % ranks) for first in range(8, STEPS - 8, 8)]
    for first, rank in visits:
        values[first : first + 8, rank] += 0.5
    return {rank for _, rank in visits}


FAULTS: Final[tuple[Callable[[Floats], set[int]], ...]] = (
    _healthy,
    _persistent,
    _transient,
    _intermittent,
    _stalls,
    _migrating,
)
