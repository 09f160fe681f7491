"""Tests of others, without and under `tracelens record`: what fails only because it is recorded.

All parts of a suite run together, first without and then recorded; each by itself, if these do not
end. Parts in which something fails only recorded are run once more, both ways: new is what fails each
time that it is recorded, and never without.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from benchmarks.published import publish, published_rows, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["LIMIT_S", "Outcome", "Run", "Suite", "compare", "conclude", "row", "run", "say"]

LIMIT_S: Final = 1800
_PAGE: Final = "harmless.md"
_TESTS: Final = Path(__file__).parents[1]
_EVENTS: Final = re.compile(r"with ([\d,]+) events")
_OURS: Final = ("TRACELENS_", "PMI", "OMPI_", "PRTE_", "PMIX_")


@dataclass
class Outcome:
    """What tests came to: which ran, which failed, and how many events were recorded."""

    ran: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    events: int = 0
    ended: bool = True


Run: TypeAlias = Callable[[Sequence[str], bool], Outcome]
"""Runs some parts of a suite, recorded or not."""


@dataclass
class Suite:
    """What the tests of some parts (files, or single tests) came to, both ways."""

    backend: str
    ranks: int
    parts: int
    without: Outcome = field(default_factory=Outcome)
    recorded: Outcome = field(default_factory=Outcome)
    new: set[str] = field(default_factory=set)

    @property
    def passed(self) -> bool:
        """Whether nothing fails because it is recorded, and something was recorded."""
        return not self.new and self.recorded.events > 0


def compare(backend: str, ranks: int, parts: Sequence[str], run_parts: Run) -> Suite:
    """Run the parts of a suite without and under `tracelens record`."""
    suite = Suite(backend, ranks, len(parts))
    groups = [tuple(parts)]
    while groups:
        group = groups.pop()
        outcomes = run_parts(group, False), run_parts(group, True)
        if len(group) > 1 and not all(outcome.ended for outcome in outcomes):
            groups += [(part,) for part in group]
            continue
        suite.new |= _new(group, run_parts, *outcomes)
        for total, outcome in zip((suite.without, suite.recorded), outcomes, strict=True):
            total.ran |= outcome.ran
            total.failed |= outcome.failed
            total.events += outcome.events
    return suite


def _new(parts: Sequence[str], run_parts: Run, without: Outcome, recorded: Outcome) -> set[str]:
    new = recorded.failed - without.failed
    if new:
        again = [part for part in parts if any(f"{test}.".startswith(f"{part}.") for test in new)]
        new = (new & run_parts(again, True).failed) - run_parts(again, False).failed
    return new


def run(
    command: Callable[[Path], Sequence[str]],
    parts: Sequence[str],
    ends: int,
    variables: Mapping[str, str],
    *,
    recorded: bool,
) -> Outcome:
    """Run a command that writes outcomes into a folder; `ends` of its processes must end."""
    with tempfile.TemporaryDirectory() as place:
        trace, outcomes = Path(place) / "trace", Path(place) / "outcomes"
        outcomes.mkdir()
        full_command = list(command(outcomes))
        if recorded:
            record = ["record", "--no-verdict", "--out", str(trace), "--"]
            full_command = [sys.executable, "-m", "tracelens", *record, *full_command]
        errors = _errors(full_command, variables)
        lines = list(_lines(outcomes))
        result = Outcome(
            ran={test for outcome, test in lines if outcome in ("passed", "failed")},
            failed={test for outcome, test in lines if outcome == "failed"},
            ended=errors is not None and lines.count(("ended", "")) == ends,
        )
        if not result.ended:
            result.failed |= {f"{part}.(does not end)" for part in parts}
        events = _EVENTS.search(errors or "")
        result.events = int(events[1].replace(",", "")) if events else 0
        return result


def _lines(outcomes: Path) -> Iterator[tuple[str, str]]:
    for path in outcomes.iterdir():
        for line in path.read_text(encoding="utf-8").splitlines():
            outcome, _, test = line.partition(" ")
            yield outcome, test


def _errors(command: Sequence[str], variables: Mapping[str, str]) -> str | None:
    """Return the standard error of a command, None if it does not end by itself."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith(_OURS)}
    with subprocess.Popen(
        command,
        env=environment | {"PYTHONPATH": str(_TESTS)} | dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            return process.communicate(timeout=LIMIT_S)[1]
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
            return None


def row(suite: Suite) -> tuple[str, ...]:
    """Return a suite as a row of the table."""
    unrecorded, recorded = suite.without, suite.recorded
    return (
        suite.backend,
        str(suite.ranks),
        str(suite.parts),
        str(len(unrecorded.ran)),
        str(len(recorded.ran)),
        str(len(unrecorded.failed)),
        str(len(recorded.failed)),
        ", ".join(sorted(suite.new)) or "none",
        f"{recorded.events:,}",
    )


def conclude(
    title: str, parts: str, suites: Sequence[Suite], script: str, *, published: bool
) -> int:
    """Print the table of some suites, and return the exit code.

    Published is also what stands there of other backends and numbers of ranks.
    """
    head = (
        "backend", "ranks", parts, "tests without", "tests recorded", "failures without",
        "failures recorded", "new failures", "events",
    )  # fmt: skip
    rows = [row(suite) for suite in suites]
    say(table(title, head, rows))
    if published:
        both = (*published_rows(_PAGE, script, title), *rows)
        latest = {line[:2]: line for line in both}  # by backend and number of ranks
        publish(_PAGE, script, table(title, head, latest.values()))
    return 0 if suites and all(suite.passed for suite in suites) else 1


def say(text: str) -> None:
    """Print a line immediately."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
