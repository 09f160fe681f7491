"""Set each constant of the analyses by runs whose truth is known, and say how much depends on it.

Of each constant whose comment says `[calibrate]` a few values are tried, all others as they are: a
share by its odds, what else there is by a factor. All values judge the same runs (`planted.py`), chosen
by the module of the constant: the straggler detector's tables of own time, those of another analysis
the labelled kinds of run that it has to tell, and the healthy ones.

A value is as good as the best one if it accuses nobody more, and if chance explains that it is right
less often (McNemar 1947, exact, of the runs in which the two differ). A constant stays as it is where
that is as good; else it is set to the middle one of the values that are. Where all are as good, nothing
can be distinguished: between half of the value and twice as much, no verdict on these runs depends on
it by more than chance.

Run: make calibrate [ARGS="--runs 1 --only MIN_STEPS_OF_BLOCK,MIN_BLOCKS_OF_RISE --dry"]. `--kept FILE`
lets it go on where it was stopped (`--minutes`).
"""

from __future__ import annotations

import argparse
import ast
import importlib
import math
import os
import sys
import time
from contextlib import contextmanager, nullcontext
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

os.environ.setdefault("POLARS_MAX_THREADS", "1")  # runs, not threads, fill the cores

from benchmarks.labelled.kept import Performer
from benchmarks.planted import Outcome, Run, labelled_runs, tables
from benchmarks.published import publish, published_rows, table
from benchmarks.quick import parse_quick
from support.constants import PAGE as CONSTANTS_PAGE
from support.constants import Constant, read_all, render_page, replace_value

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT: Final = "tests/benchmarks/calibrate.py"
PAGE: Final = "calibration.md"
TITLE: Final = "Constants and the values that were tried"
CALIBRATE: Final = "calibrate"
FACTORS: Final = (1 / 2, 2 / 3, 1.0, 3 / 2, 2.0)
CHANCE: Final = 0.05  # that values which differ by nothing are distinguished
DETECTOR: Final = (
    "analyses.stragglers.detection",
    "analyses.stragglers.evidence",
    "stats.changepoint",
    "stats.null_model",
    "stats.robust",
    "stats.window_scan",
)
# What the other modules have to tell.
VERDICTS: Final = {
    "analyses.stalls.pace": ("slow_all",),
    "analyses.stragglers.turns": ("gc_stall", "data_stall"),
    "analyses.stalls.findings": ("slow_all", "data_stall", "gc_stall"),
    "analyses.imbalance": ("load_imbalance",),
    "analyses.stage_imbalance": ("stage_imbalance", "straggler"),
    "analyses.membership": ("world_change",),
    "analyses.links.congestion": ("congestion",),
    "analyses.links.slow_links": ("slow_link",),
    "accounting.communication.call_costs": ("small_messages", "exposed_communication"),
    "analyses.servers.asynchrony": ("stale_worker",),
    "analyses.servers.bottleneck": ("ps_cpu_bound", "ps_network_bound", "ps_incast"),
    "analyses.servers.shards": ("ps_hot_shard",),
    "analyses.servers.small_messages": ("small_messages",),
    "analyses.servers.utilisation": ("ps_incast",),
    "stats.cost_line": ("small_messages", "exposed_communication"),
}
Number = int | float
Task = tuple[Run, tuple[tuple[str, Number], ...]]
_AS_IT_IS: Final = ("", 0)


def value_of(constant: Constant) -> Number:
    """Return the value that the source of a constant's module gives."""
    value: Number = ast.literal_eval(constant.value)
    return value


def grid(constant: Constant) -> tuple[Number, ...]:
    """Return the values of a constant that are tried, in order."""
    value = value_of(constant)
    return tuple(sorted({_multiplied(value, factor, constant.unit) for factor in FACTORS}))


def _multiplied(value: Number, factor: float, unit: str) -> Number:
    if isinstance(value, int):
        return max(round(value * factor), 1)
    if factor == 1.0:
        return value
    if unit.startswith("share"):
        odds = value / (1 - value) * factor
        return float(f"{odds / (1 + odds):.2g}")
    return float(f"{value * factor:.2g}")


@contextmanager
def change_constant(label: str, value: Number) -> Iterator[None]:
    """Let a constant, `package.module.NAME`, have another value where it is used."""
    path, _, name = label.rpartition(".")
    module = importlib.import_module(f"tracelens.{path}")
    old = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, old)


def is_judged(constant: Constant) -> bool:
    """Return True if there are runs to judge a constant by."""
    module = constant.module.name.removeprefix("tracelens.")
    return module.startswith(DETECTOR) or module in VERDICTS


def runs_for(constant: Constant, runs: int, kinds: int) -> list[Run]:
    """Return what a constant is judged by: tables, kinds of run, or both."""
    module = constant.module.name.removeprefix("tracelens.")
    found = tables(runs) if module.startswith(DETECTOR) else []
    verdicts = frozenset(VERDICTS.get(module, ()))
    return found + (labelled_runs(verdicts, kinds) if verdicts else [])


def judge_values(task: Task) -> dict[str, Any]:
    """Make a run, and judge it with other values of constants, each for itself."""
    run, pairs = task
    judge = run.made()
    outcomes = []
    for label, value in pairs:
        with change_constant(label, value) if label else nullcontext():
            outcomes.append(astuple(judge()))
    return {"run": astuple(run), "judged": outcomes}


@dataclass(frozen=True)
class Tried:
    """What came out for each value of a constant, in the order of its grid."""

    constant: Constant
    values: tuple[Number, ...]
    outcomes: tuple[list[Outcome], ...]

    @property
    def as_good(self) -> tuple[Number, ...]:
        """The values that cannot be distinguished from the best."""
        least = min(self.accused)
        fair = [index for index, accused in enumerate(self.accused) if accused == least]
        best = max(fair, key=lambda index: (self.right[index], -abs(index - len(self.values) // 2)))
        return tuple(
            self.values[index]
            for index in fair
            if not worse(self.outcomes[index], self.outcomes[best])
        )

    @property
    def accused(self) -> list[int]:
        """In how many runs somebody is accused wrongly, by value."""
        return [sum(one.accused for one in outcomes) for outcomes in self.outcomes]

    @property
    def right(self) -> list[int]:
        """How many runs are right, by value."""
        return [sum(one.right for one in outcomes) for outcomes in self.outcomes]

    @property
    def set_to(self) -> Number:
        """What it was, if that is as good as the best; else the middle of what is."""
        good = self.as_good
        value = value_of(self.constant)
        return value if value in good else good[len(good) // 2]


def worse(one: list[Outcome], other: list[Outcome]) -> bool:
    """Return whether chance hardly explains that `one` is right less often than `other`."""
    lost = sum(b.right and not a.right for a, b in zip(one, other, strict=True))
    won = sum(a.right and not b.right for a, b in zip(one, other, strict=True))
    differ = lost + won
    tail = sum(math.comb(differ, count) for count in range(lost, differ + 1)) / 2**differ
    return lost > won and tail <= CHANCE


def main() -> int:
    """Try all values, and write sources and pages unless it is a dry run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=4, help="tables of each size, noise and fault")
    parser.add_argument("--kinds", type=int, default=1, help="runs of each kind and level")
    parser.add_argument("--only", default="", help="some constants, with commas between")
    parser.add_argument("--first", type=int, help="only so many runs for each constant")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--kept", type=Path, help="keep outcomes there, and go on from them")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end after so many")
    parser.add_argument("--dry", action="store_true", help="print, and write nothing")
    options = parse_quick(parser, runs=1, only="MIN_STEPS_OF_BLOCK", first=4, workers=1, dry=True)
    tunable = [constant for constant in read_all() if constant.source == CALIBRATE]
    names = options.only.split(",") if options.only else [constant.name for constant in tunable]
    unknown = set(names) - {constant.name for constant in tunable}
    if unknown:
        parser.error(f"no constant to calibrate is called {', '.join(sorted(unknown))}")
    constants = [constant for constant in tunable if constant.name in names]
    until = time.monotonic() + 60 * options.minutes
    by = Performer(options.workers, options.kept, until)
    judging = {
        one.label: runs_for(one, options.runs, options.kinds)[: options.first] for one in constants
    }
    trials = _try_values(constants, judging, by)
    rows = {row[0]: row for row in map(_row, trials)}
    sys.stdout.write(_page(rows) + "\n")
    if not options.dry:
        known = {f"`{constant.label}`" for constant in tunable}
        before = {row[0]: row for row in published_rows(PAGE, SCRIPT, TITLE) if row[0] in known}
        publish(PAGE, SCRIPT, _page(before | rows))
        _write_sources(trials)
    return 0


def _write_sources(tried: list[Tried]) -> None:
    """Write each value into the module of its constant, and the page of all constants anew."""
    for trial in tried:
        path = trial.constant.module.path
        if trial.set_to != value_of(trial.constant):
            text = replace_value(trial.constant, path.read_text("utf-8"), f"{trial.set_to!r}")
            path.write_text(text, "utf-8")
    CONSTANTS_PAGE.write_text(render_page(read_all()), "utf-8")


def _try_values(
    constants: list[Constant], judging: dict[str, list[Run]], by: Performer
) -> list[Tried]:
    """Judge all values of constants by the runs of each, a run in a process at a time.

    With the constants as they are, each run is judged once for all of them.
    """
    pairs: dict[Run, list[tuple[str, Number]]] = {}
    for constant in constants:
        other = [(constant.label, value) for value in grid(constant) if value != value_of(constant)]
        for run in judging[constant.label]:
            pairs.setdefault(run, [_AS_IT_IS]).extend(other)
    outcomes: dict[tuple[Run, str, Number], Outcome] = {}
    for row in by.each(judge_values, [(run, tuple(values)) for run, values in pairs.items()]):
        run = Run(*row["run"])
        found = zip(pairs[run], row["judged"], strict=True)
        outcomes |= {(run, *pair): Outcome(*each) for pair, each in found}
    if len(outcomes) < sum(map(len, pairs.values())):
        sys.exit("Not all runs are judged yet: nothing was written; go on with the same --kept.")
    return [
        Tried(
            constant,
            grid(constant),
            tuple(_of_all(outcomes, constant, v, judging[constant.label]) for v in grid(constant)),
        )
        for constant in constants
    ]


def _of_all(
    outcomes: dict[tuple[Run, str, Number], Outcome], one: Constant, value: Number, runs: list[Run]
) -> list[Outcome]:
    """Return what came out for a value, in the order of the runs."""
    pair = _AS_IT_IS if value == value_of(one) else (one.label, value)
    return [outcomes[run, *pair] for run in runs]


def _row(trial: Tried) -> tuple[str, ...]:
    return (
        f"`{trial.constant.label}`",
        trial.constant.unit,
        _list_values(trial.values),
        str(len(trial.outcomes[0])),
        _list_values(trial.right),
        _list_values(trial.accused),
        _set(trial),
    )


def _page(rows: dict[str, tuple[str, ...]]) -> str:
    """Return the table of what was tried."""
    head = ("constant", "unit", "values tried", "runs", "right", "wrongly accused", "set to")
    return table(TITLE, head, [rows[name] for name in sorted(rows)])


def _list_values(values: tuple[Number, ...] | list[int]) -> str:
    return " / ".join(f"{value!r}" for value in values)


def _set(each: Tried) -> str:
    value, worse_values = (
        f"{each.set_to!r}",
        [one for one in each.values if one not in each.as_good],
    )
    if each.set_to != value_of(each.constant):
        return value
    why = (
        f"worse: {', '.join(map(repr, worse_values))}"
        if worse_values
        else "nothing can be distinguished"
    )
    return f"{value}, as before; {why}"


if __name__ == "__main__":
    sys.exit(main())
