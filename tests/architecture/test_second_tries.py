"""Only tests with real processes are tried twice; who needed it is listed, and many fail the run."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import second_tries
from support.launch.patience import PATIENCE_S

TESTS = Path(__file__).parents[1]
pytest.importorskip("pytest_rerunfailures")

FLAKY = """
import pathlib, pytest

def second(name):
    seen = pathlib.Path(__file__).with_name(name)
    known = seen.exists()
    seen.touch()
    return known

@pytest.mark.parametrize("number", range({flaky}))
@pytest.mark.end_to_end
def test_with_processes(number):
    assert second(f"process-{{number}}")

def test_without():
    assert {without}
"""
WITHOUT = 'second("without")'


def run_with_conftest(
    folder: Path, program: str, options: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run the tests of a program with our conftest, in a folder of their own."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copy(TESTS / "conftest.py", folder)
    (folder / "test_program.py").write_text(program)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = end_to_end: real\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:dash", *options],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(TESTS),
            "PYTEST_ADDOPTS": "",
            second_tries.VARIABLE: "",
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def report_second_tries(names: Sequence[str]) -> tuple[int, str]:
    """Report second tries to the plugin; return the exit status of the run, and what it printed."""
    plugin = second_tries.SecondTries()
    for name in names:
        report: Any = SimpleNamespace(
            outcome="rerun", nodeid=name, longreprtext=f"why {name}", capstderr=""
        )
        plugin.pytest_runtest_logreport(report)
    session: Any = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    plugin.pytest_sessionfinish(session)
    printed: list[str] = []
    reporter: Any = SimpleNamespace(section=printed.append, line=printed.append)
    plugin.pytest_terminal_summary(reporter)
    return session.exitstatus, "\n".join(printed)


@pytest.mark.parametrize(("names", "status"), [("", 0), ("ab", 0), ("aab", 0), ("abc", 1)])
def test_few_second_tries_pass_and_more_fail(
    names: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each test is listed once, and the run fails with the third."""
    monkeypatch.delenv(second_tries.VARIABLE, raising=False)
    ended, printed = report_second_tries(names)
    assert ended == status
    listed = [line for line in printed.splitlines() if len(line) == 1]
    assert listed == sorted(set(names))
    assert all(f"why {name}" in printed for name in names)
    assert ("too many" in printed) == bool(status)


def test_several_runs_are_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two in the first, one in the second are three; a third run without any passes."""
    file = tmp_path / "made" / "tries"
    monkeypatch.setenv(second_tries.VARIABLE, str(file))
    assert [report_second_tries(names)[0] for names in ("ab", "c", "")] == [0, 1, 0]
    assert len(file.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    "options", [(), pytest.param(("--numprocesses", "2"), marks=pytest.mark.slow)]
)
def test_only_tests_with_processes_are_tried_twice(tmp_path: Path, options: Sequence[str]) -> None:
    """Three that pass the second time fail the run."""
    ran = run_with_conftest(tmp_path / "t", FLAKY.format(flaky=3, without=True), options)
    assert ran.returncode == 1, ran.stdout
    assert "4 passed" in ran.stdout
    assert "too many" in ran.stdout
    listed = re.findall(r"^test_program.py::test_with_processes\[\d\]$", ran.stdout, re.MULTILINE)
    assert len(listed) == 3


@pytest.mark.slow
def test_a_test_without_processes_is_tried_once(tmp_path: Path) -> None:
    """What would pass the second time fails."""
    ran = run_with_conftest(tmp_path / "t", FLAKY.format(flaky=0, without=WITHOUT))
    assert ran.returncode == 1
    assert "1 failed" in ran.stdout
    assert "rerun" not in ran.stdout
