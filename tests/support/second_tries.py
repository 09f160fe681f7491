"""Tests that needed a second try: listed at the end, and a failure where there are too many.

A second try is for what a shared machine does to real processes, which is rare: more than a few are
flaky tests. The file that SECOND_TRIES names in the environment adds up those of several runs of pytest,
as `make test-all` makes them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

MOST: Final = 2
VARIABLE: Final = "SECOND_TRIES"


class SecondTries:
    """Plugin of the process that reports: not of those that run tests beside each other for it."""

    def __init__(self) -> None:
        named = os.environ.get(VARIABLE)
        self._file = Path(named) if named else None
        self._first_errors: dict[str, str] = {}  # by test
        self._all: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a try that failed and is made again."""
        if str(report.outcome) == "rerun":
            error_text = f"{report.longreprtext}\n{report.capstderr}"
            self._first_errors.setdefault(report.nodeid, error_text)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Add them up; too many fail a run in which everything else passed."""
        self._all = [*self._read_earlier(), *self._first_errors]
        if self._file:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text("".join(f"{test}\n" for test in self._all))
        if (
            self._first_errors
            and len(self._all) > MOST
            and session.exitstatus == pytest.ExitCode.OK
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List them, with the error of the first try, and what was written to stderr."""
        if not self._first_errors:
            return
        terminalreporter.section("tests that needed a second try")
        for test in self._all:
            terminalreporter.line(
                test if test in self._first_errors else f"{test} (an earlier run)"
            )
            terminalreporter.line(self._first_errors.get(test, ""))
        verdict = (
            "too many: this run fails" if len(self._all) > MOST else "to be fixed all the same"
        )
        terminalreporter.line(f"{len(self._all)} of at most {MOST}; {verdict}")

    def _read_earlier(self) -> list[str]:
        return self._file.read_text().splitlines() if self._file and self._file.exists() else []
