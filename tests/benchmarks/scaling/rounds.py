"""Runs the floor and our verbs on a trace, in turns, each a process of its own.

A round is: the floor; if asked for a report that keeps nothing, as the floor does; a report of a trace
beside which nothing is kept; a report of the same trace again, which may use what the first one kept;
`info`. Ratios are taken within a round, so a machine that is slow for a while is slow for both sides.
The trace is in the page cache: the floor has read it.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.scaling.cost import Cost, measure_command
from benchmarks.scaling.runs import Size, apart, forget, make_run

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["TRACELENS", "Bench", "Rounds", "say", "supports"]

_FLOOR: Final = Path(__file__).with_name("floor.py")
TRACELENS: Final = (sys.executable, "-m", "tracelens")
_REPORT: Final = ("--format", "json")


@functools.cache
def supports(option: str) -> bool:
    """Return whether this version's `tracelens analyze` has an option."""
    command = [*TRACELENS, "analyze", "--help"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return option in shown


@dataclass
class Rounds:
    """What the rounds took, a cost a round; the last report; whether every second one was equal."""

    floor: list[Cost] = field(default_factory=list)
    alone: list[Cost] = field(default_factory=list)
    first: list[Cost] = field(default_factory=list)
    second: list[Cost] = field(default_factory=list)
    info: list[Cost] = field(default_factory=list)
    report: bytes = b""
    equal: bool = True

    def over_floor(self, report: list[Cost]) -> list[float]:
        """Return the CPU time of a report of each round as a multiple of the floor's."""
        return [a.cpu / b.cpu for a, b in zip(report, self.floor, strict=True)]

    def second_share(self) -> list[float]:
        """Return the second report's CPU time in % of the first's."""
        return [100 * b.cpu / a.cpu for a, b in zip(self.first, self.second, strict=True)]

    def finds(self, size: Size) -> bool:
        """Return whether the report's first finding is what was planted."""
        found = json.loads(self.report)["findings"]
        straggler = {"kind": "straggler", "ranks": [size.slow_rank], "phase": "backprop"}
        return bool(found) and straggler.items() <= found[0].items()


@dataclass(frozen=True)
class Bench:
    """Where runs are, how often everything is measured, and whether of small runs, which is `quick`."""

    folder: Path
    rounds: int
    quick: bool = False

    def size(self, full: str, quick: str) -> Size:
        """Choose a size."""
        return Size.parse(quick if self.quick else full)

    def trace(self, size: Size) -> Path:
        """Return a run's trace, written if it was not there."""
        return make_run(size, self.folder)

    @property
    def cache(self) -> Path:
        """The user's cache, as the measured processes see it."""
        return self.folder / "cache"

    @property
    def output(self) -> Path:
        """Where what they print goes."""
        return self.folder / "output.json"

    def forget(self, trace: Path) -> None:
        """Make the next verb the first one."""
        forget(trace, self.cache)

    def floor(self, trace: Path) -> Cost:
        """Measure the floor."""
        return measure_command([sys.executable, str(_FLOOR), str(trace)], self.output)

    def imports(self) -> Cost:
        """Measure a process that imports the libraries that reports are made with."""
        return measure_command([sys.executable, "-c", "import numpy, polars, pyarrow"], self.output)

    def verb(
        self,
        verb: str,
        trace: Path,
        *arguments: str,
        launcher: Sequence[str] = TRACELENS,
        **env: str,
    ) -> Cost:
        """Measure a verb of ours."""
        command = [*launcher, verb, str(trace), *arguments]
        return measure_command(
            command, self.output, trace=trace, environment=apart(self.cache, **env)
        )

    def analyze(
        self, trace: Path, *arguments: str, launcher: Sequence[str] = TRACELENS, **env: str
    ) -> Cost:
        """Measure a report, as JSON."""
        return self.verb("analyze", trace, *_REPORT, *arguments, launcher=launcher, **env)

    def measure(
        self,
        trace: Path,
        *arguments: str,
        alone: bool = False,
        second: bool = True,
        info: bool = True,
    ) -> Rounds:
        """Measure everything round by round; `arguments` go to the reports."""
        rounds = Rounds()
        for number in range(self.rounds):
            rounds.floor.append(self.floor(trace))
            say(f"round {number + 1}, floor ", rounds.floor)
            self.forget(trace)
            if alone:
                rounds.alone.append(self.analyze(trace, *arguments, "--no-keep"))
                say("         alone ", rounds.alone)
            rounds.first.append(self.analyze(trace, *arguments))
            rounds.report = self.output.read_bytes()
            say("         first ", rounds.first)
            if second:
                rounds.second.append(self.analyze(trace, *arguments))
                rounds.equal &= self.output.read_bytes() == rounds.report
                say("         second", rounds.second)
            if info:
                rounds.info.append(self.verb("info", trace))
                say("         info  ", rounds.info)
        return rounds


def say(what: str, costs: list[Cost]) -> None:
    """Print the last of some costs at once."""
    sys.stdout.write(f"  {what} {costs[-1]}\n")
    sys.stdout.flush()
