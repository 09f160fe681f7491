"""Set each constant of the analyses by runs whose truth is known, and say how much depends on it.

Of each constant of `tracelens/stats/constants.py` that is no policy a few values are tried, the others
as they are: a share by its odds, what else there is by a factor. All values judge the same runs
(`planted.py`): the straggler detector's constants tables of own time, those of another analysis the
labelled kinds of run that it has to tell, and the healthy ones.

A value is as good as the best one if it accuses nobody more, and if chance explains that it is right
less often (McNemar 1947, exact, of the runs in which the two differ). A constant stays as it is where
that is as good; else it is set to the middle one of the values that are. Where all are as good, nothing
can be distinguished: between half of the value and twice as much, no verdict on these runs depends on
it by more than chance.

Run: make bench NAME=calibrate [ARGS="--runs 1 --only BLOCK,CUT --dry"]. `--kept FILE` lets it go on
where it was stopped (`--minutes`).
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import pkgutil
import re
import sys
import time
from contextlib import contextmanager, nullcontext
from dataclasses import astuple, dataclass
from functools import cache
from inspect import get_annotations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

os.environ.setdefault("POLARS_MAX_THREADS", "1")  # runs, not threads, fill the cores

from benchmarks.labelled.kept import Performer
from benchmarks.planted import Outcome, Run, labelled_runs, tables
from benchmarks.published import publish, table
from benchmarks.quick import parse_quick

import tracelens.accounting
import tracelens.analyses
import tracelens.stats
import tracelens.verdicts
from tracelens.stats import constants

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

SCRIPT: Final = "tests/benchmarks/calibrate.py"
PAGE: Final = "calibration.md"
PAGES: Final = Path(__file__).parents[2] / "docs" / "analyses"
POLICY: Final = "Policy"
FACTORS: Final = (1 / 2, 2 / 3, 1.0, 3 / 2, 2.0)
CHANCE: Final = 0.05  # that values which differ by nothing are distinguished
DETECTOR: Final = ("stragglers.", "changepoint", "null_model", "window_scan", "robust")
# What the other analyses have to tell, by module.
VERDICTS: Final = {
    "stalls": ("slow_all", "data_stall", "gc_stall"),
    "imbalance": ("load_imbalance",),
    "stage_imbalance": ("stage_imbalance", "straggler"),
    "membership": ("world_change",),
    "links.congestion": ("congestion",),
    "links.slow_links": ("slow_link",),
    "communication": ("small_messages",),
    "communication.call_costs": ("small_messages", "exposed_communication"),
    "interleaving": ("exposed_communication", "update_gap"),
    "servers.asynchrony": ("stale_worker",),
    "servers.bottleneck": ("ps_cpu_bound", "ps_network_bound", "ps_incast"),
    "servers.shards": ("ps_hot_shard",),
    "servers.small_messages": ("small_messages",),
    "servers.utilisation": ("ps_incast",),
}
Number = int | float
Task = tuple[Run, tuple[tuple[str, Number], ...]]
_AS_IT_IS: Final = ("", 0)
_ROOM: Final = re.compile(r"tracelens\.(stats|accounting|analyses|verdicts)\.")


@dataclass(frozen=True)
class Constant:
    """A line of the table: name, value, unit, what it means, and whether it is policy."""

    name: str
    value: Number
    unit: str
    meaning: str
    policy: bool

    def grid(self) -> tuple[Number, ...]:
        """Return the values that are tried, in order."""
        return tuple(sorted({self._times(factor) for factor in FACTORS}))

    def _times(self, factor: float) -> Number:
        if isinstance(self.value, int):
            return max(round(self.value * factor), 1)
        if factor == 1.0:
            return self.value
        if self.unit == "share":
            odds = self.value / (1 - self.value) * factor
            return float(f"{odds / (1 + odds):.2g}")
        return float(f"{self.value * factor:.2g}")


_LINE: Final = re.compile(r"([A-Z_]+): Final = (\S+(?: << \d+)?)  # ([^:]+): (.*)")


def read(text: str) -> list[Constant]:
    """Return the table as its source has it; a heading says what is policy."""
    found, policy = [], False
    for line in text.splitlines():
        if line.startswith("# "):
            policy = line.startswith(f"# {POLICY}")
        row = _LINE.fullmatch(line)
        if row:
            name, unit, meaning = row[1], row[3], row[4]
            found.append(Constant(name, getattr(constants, name), unit, meaning, policy))
    return found


def written(text: str, name: str, value: Number) -> str:
    """Return the table with another value of a constant."""
    return re.sub(
        rf"^({name}: Final = )\S+(?: << \d+)?", rf"\g<1>{value!r}", text, flags=re.MULTILINE
    )


@cache
def modules() -> tuple[ModuleType, ...]:
    """Return all modules that may have the constants by name."""
    found: list[ModuleType] = [constants]
    for package in (tracelens.stats, tracelens.accounting, tracelens.analyses, tracelens.verdicts):
        walked = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        found += [importlib.import_module(one.name) for one in walked]
    return (*dict.fromkeys(found), tracelens.analyses)


def users(name: str) -> list[ModuleType]:
    """Return the modules that import a constant of the table."""
    return [
        module
        for module in modules()
        if hasattr(module, name) and name not in get_annotations(module)
    ]


@contextmanager
def changed(name: str, value: Number) -> Iterator[None]:
    """Let a constant have another value wherever it is used."""
    before, places = getattr(constants, name), users(name)
    for module in places:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module in places:
            setattr(module, name, before)


def runs_for(name: str, runs: int, kinds: int) -> list[Run]:
    """Return what a constant is judged by: tables, kinds of run, or both."""
    used_by = [_ROOM.sub("", module.__name__) for module in users(name)]
    found = tables(runs) if any(each.startswith(DETECTOR) for each in used_by) else []
    verdicts = frozenset(verdict for each in used_by for verdict in VERDICTS.get(each, ()))
    return found + (labelled_runs(verdicts, kinds) if verdicts else [])


def judged(task: Task) -> dict[str, Any]:
    """Make a run, and judge it with other values of constants, each for itself."""
    run, pairs = task
    judge = run.made()
    found = []
    for name, value in pairs:
        with changed(name, value) if name else nullcontext():
            found.append(astuple(judge()))
    return {"run": astuple(run), "judged": found}


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
        fair = [at for at, accused in enumerate(self.accused) if accused == least]
        best = max(fair, key=lambda at: (self.right[at], -abs(at - len(self.values) // 2)))
        return tuple(
            self.values[at] for at in fair if not worse(self.outcomes[at], self.outcomes[best])
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
        return self.constant.value if self.constant.value in good else good[len(good) // 2]


def worse(one: list[Outcome], other: list[Outcome]) -> bool:
    """Return whether chance hardly explains that `one` is right less often than `other`."""
    lost = sum(b.right and not a.right for a, b in zip(one, other, strict=True))
    won = sum(a.right and not b.right for a, b in zip(one, other, strict=True))
    differ = lost + won
    tail = sum(math.comb(differ, count) for count in range(lost, differ + 1)) / 2**differ
    return lost > won and tail <= CHANCE


def main() -> int:
    """Try all values, and write the table and the page unless it is a dry run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=4, help="tables of each size, noise and fault")
    parser.add_argument("--kinds", type=int, default=1, help="runs of each kind and level")
    parser.add_argument("--only", default="", help="some constants, with commas between")
    parser.add_argument("--first", type=int, help="only so many runs for each constant")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--kept", type=Path, help="keep outcomes there, and go on from them")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end after so many")
    parser.add_argument("--dry", action="store_true", help="print, and write nothing")
    given = parse_quick(parser, runs=1, only="BLOCK", first=4, workers=1, dry=True)
    path = Path(constants.__file__)
    text = path.read_text(encoding="utf-8")
    rows = read(text)
    asked = [
        one for one in rows if given.only in ("", one.name) or one.name in given.only.split(",")
    ]
    until = time.monotonic() + 60 * given.minutes
    by = Performer(given.workers, given.kept, until)
    judging = {
        one.name: runs_for(one.name, given.runs, given.kinds)[: given.first]
        for one in asked
        if not one.policy
    }
    tried = _tried([one for one in asked if judging.get(one.name)], judging, by)
    for each in tried:
        if each.set_to != each.constant.value:
            text = written(text, each.constant.name, each.set_to)
    page = _page(tried, [one for one in rows if one.policy], given.runs, given.kinds)
    sys.stdout.write(page + "\n")
    if not given.dry:
        path.write_text(text, encoding="utf-8")
        publish(PAGE, SCRIPT, page)
        _into_pages(tried)
    return 0


def _tried(asked: list[Constant], judging: dict[str, list[Run]], by: Performer) -> list[Tried]:
    """Judge all values of constants by the runs of each, a run in a process at a time.

    With the constants as they are, each run is judged once for all of them.
    """
    pairs: dict[Run, list[tuple[str, Number]]] = {}
    for one in asked:
        other = [(one.name, value) for value in one.grid() if value != one.value]
        for run in judging[one.name]:
            pairs.setdefault(run, [_AS_IT_IS]).extend(other)
    outcomes: dict[tuple[Run, str, Number], Outcome] = {}
    for row in by.each(judged, [(run, tuple(values)) for run, values in pairs.items()]):
        run = Run(*row["run"])
        found = zip(pairs[run], row["judged"], strict=True)
        outcomes |= {(run, *pair): Outcome(*each) for pair, each in found}
    if len(outcomes) < sum(map(len, pairs.values())):
        sys.exit("Not all runs are judged yet: nothing was written; go on with the same --kept.")
    return [
        Tried(
            one, one.grid(), tuple(_of_all(outcomes, one, v, judging[one.name]) for v in one.grid())
        )
        for one in asked
    ]


def _of_all(
    outcomes: dict[tuple[Run, str, Number], Outcome], one: Constant, value: Number, runs: list[Run]
) -> list[Outcome]:
    """Return what came out for a value, in the order of the runs."""
    pair = _AS_IT_IS if value == one.value else (one.name, value)
    return [outcomes[run, *pair] for run in runs]


def _into_pages(tried: list[Tried]) -> None:
    """Write the values into the tables of docs/analyses, too."""
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for each in tried:
            shown = rf"^(\| `{each.constant.name}` \| )[^|]+( \|)"
            text = re.sub(shown, rf"\g<1>{each.set_to!r}\g<2>", text, flags=re.MULTILINE)
        page.write_text(text, encoding="utf-8")


def _page(tried: list[Tried], policy: list[Constant], runs: int, kinds: int) -> str:
    """Return both tables: what was tried, and what is policy."""
    rows = [
        (
            f"`{each.constant.name}`",
            each.constant.unit,
            _each(each.values),
            str(len(each.outcomes[0])),
            _each(each.right),
            _each(each.accused),
            _set(each),
        )
        for each in tried
    ]
    head = ("constant", "unit", "values tried", "runs", "right", "wrongly accused", "set to")
    title = f"{len(tried)} constants, {runs} tables of each sort and {kinds} runs of each kind and level"
    chosen = [(f"`{one.name}`", f"{one.value!r}", one.unit, one.meaning) for one in policy]
    return "\n\n".join(
        (
            table(title, head, rows),
            table("Policy: no run can tell", ("constant", "value", "unit", "meaning"), chosen),
        )
    )


def _each(values: tuple[Number, ...] | list[int]) -> str:
    return " / ".join(f"{value!r}" for value in values)


def _set(each: Tried) -> str:
    now, bad = f"{each.set_to!r}", [one for one in each.values if one not in each.as_good]
    if each.set_to != each.constant.value:
        return now
    why = f"worse: {', '.join(map(repr, bad))}" if bad else "nothing can be distinguished"
    return f"{now}, as before; {why}"


if __name__ == "__main__":
    sys.exit(main())
