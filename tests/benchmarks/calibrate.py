"""How false alarms and recall of the detector of stragglers depend on each of its constants.

Every number that the detector rests on is made 30 % less and 30 % more, each alone (counts by one at
least), and the same generated runs are judged again: healthy ones with four families of noise (normal,
AR(1) of 0.8, spikes with a Pareto tail, Student's t of 3 degrees of freedom), and ones with a rank late
for the whole run, for a while, on and off, by stalls, or each rank in turn. A run counts as found if the
ranks are right and no other is named.

Run: make calibrate [PUBLISH=1] [ARGS="--runs 4"]
"""

from __future__ import annotations

import argparse
import importlib
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from benchmarks.published import publish, table
from scipy.signal import lfilter
from support.runs.matrices import PHASES, own_time

from tracelens.analyses.stragglers import detection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.runs.matrices import Floats

SCRIPT: Final = "tests/benchmarks/calibrate.py"
PAGE: Final = "calibration.md"
MODULES: Final = (
    "tracelens.analyses.stragglers.detection",
    "tracelens.analyses.stragglers.evidence",
    "tracelens.stats.changepoint",
    "tracelens.stats.null_model",
    "tracelens.stats.robust",
    "tracelens.stats.window_scan",
)
FACTORS: Final = (0.7, 1.3)
RANKS: Final = (3, 8)
STEPS: Final = 160
LATE: Final = 1  # the rank
# What is known (how many rows are handled at once, variances of medians) is no choice.
NO_CHOICE: Final = ("_AT_ONCE", "_MEDIANS", "_TO_SIGMA", "BINS_PER_DECADE", "_MEDIAN", "_ONE_SIGMA")
# Of two ranks, which are not drawn here, and of intervals.
NOT_ASKED: Final = (
    "LEAST_EFFECT_OF_PAIR",
    "LEAST_WINDOW_OF_PAIR",
    "PERMUTATIONS",
    "CONSISTENT",
    "_CLEARLY_BETTER",
    "_LONGEST_CORRELATION",
    "_TAKEN_AWAY",
    "_BOOTSTRAP_BLOCK",
    "_FEWEST_BLOCKS",
    "_BOOTSTRAP_SAMPLES",
)
_SIGMA: Final = 0.03


def _normal(draw: np.random.Generator, shape: tuple[int, int]) -> Floats:
    return _SIGMA * draw.standard_normal(shape)


def _correlated(draw: np.random.Generator, shape: tuple[int, int]) -> Floats:
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


@dataclass(frozen=True)
class Change:
    """A constant of a module with another value."""

    module: str
    name: str
    value: Any

    @contextmanager
    def made(self) -> Iterator[None]:
        """Put it into every module that uses the constant."""
        before = getattr(importlib.import_module(self.module), self.name)
        users = [
            module
            for module in map(importlib.import_module, MODULES)
            if getattr(module, self.name, None) is before
        ]
        for module in users:
            setattr(module, self.name, self.value)
        try:
            yield
        finally:
            for module in users:
                setattr(module, self.name, before)


def constants() -> list[tuple[str, str, Any]]:
    """Return module, name and value of every number that was chosen, where it is defined."""
    found = []
    for path in MODULES:
        module = importlib.import_module(path)
        annotated = module.__annotations__
        found += [
            (path, name, getattr(module, name))
            for name in annotated
            if name.isupper()
            and name not in NO_CHOICE + NOT_ASKED
            and _is_number(getattr(module, name))
        ]
    return found


def _is_number(value: object) -> bool:
    parts = value if isinstance(value, tuple) else (value,)
    return all(isinstance(part, int | float) for part in parts)


def changed(value: Any, factor: float) -> Any:
    """Return a value, or each of several, by a factor; what counts moves by one at least."""
    if isinstance(value, tuple):
        return tuple(changed(part, factor) for part in value)
    if isinstance(value, int):
        return (
            max(round(value * factor), 0)
            if value > 3
            else max(value + (1 if factor > 1 else -1), 0)
        )
    return min(value * factor, 1.0) if value < 1 else value * factor


def judged(task: tuple[Change | None, int]) -> tuple[int, int, int, int]:
    """Return healthy runs, of these accused, runs with a fault, of these right."""
    change, runs = task
    if change is None:
        return _counts(runs)
    with change.made():
        return _counts(runs)


def _counts(runs: int) -> tuple[int, int, int, int]:
    healthy = accused = faulty = right = 0
    for ranks in RANKS:
        for number, family in enumerate(FAMILIES):
            for plant in FAULTS:
                for seed in range(runs):
                    truth, found = _run(ranks, (number, seed), family, plant)
                    healthy, faulty = healthy + (not truth), faulty + bool(truth)
                    accused += bool(not truth and found)
                    right += bool(truth and found == truth)
    return healthy, accused, faulty, right


def _run(
    ranks: int,
    seed: tuple[int, int],
    family: Callable[[np.random.Generator, tuple[int, int]], Floats],
    plant: Callable[[Floats], set[int]],
) -> tuple[set[int], set[int]]:
    """Return which ranks are late, and which are said to be."""
    draw = np.random.default_rng([ranks, *seed])
    matrices = [share * (1 + family(draw, (STEPS, ranks))) for share in PHASES]
    truth = plant(matrices[-1])
    try:
        found = detection.find_episodes(own_time(matrices))
    except (ArithmeticError, LookupError, ValueError):
        return truth, {-1}  # a value that the code cannot bear
    return truth, {rank for late in found for rank in late.ranks}


def main() -> int:
    """Judge with all changes, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2, help="of each kind, size and family")
    parser.add_argument("--publish", action="store_true", help="write docs/calibration.md")
    given = parser.parse_args()
    numbers = constants()
    changes = [
        Change(path, name, changed(value, factor))
        for path, name, value in numbers
        for factor in FACTORS
    ]
    with ProcessPoolExecutor() as pool:
        now, *rest = pool.map(judged, [(change, given.runs) for change in (None, *changes)])
    text = tables(numbers, now, rest)
    sys.stdout.write(text + "\n")
    if given.publish:
        publish(PAGE, SCRIPT, text)
    return 0


def tables(
    numbers: list[tuple[str, str, Any]],
    now: tuple[int, int, int, int],
    rest: list[tuple[int, int, int, int]],
) -> str:
    """Return a row for each constant: false alarms and recall with less, as it is, and with more."""
    rows = []
    for (path, name, value), less, more in zip(numbers, rest[::2], rest[1::2], strict=True):
        alarms = " / ".join(str(one[1]) for one in (less, now, more))
        recall = " / ".join(f"{one[3] / one[2]:.0%}" for one in (less, now, more))
        rows.append((path.removeprefix("tracelens."), name, str(value).strip("()"), alarms, recall))
    rows.sort(key=lambda row: row[:2])
    head = (
        "module",
        "constant",
        "value",
        "false alarms: less / now / more",
        "right: less / now / more",
    )
    title = (
        f"{len(numbers)} constants, {now[0]} healthy runs and {now[2]} with a fault for each value"
    )
    return table(title, head, rows)


if __name__ == "__main__":
    sys.exit(main())
