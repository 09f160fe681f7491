"""Only tests with real processes are tried twice; who needed it is listed, and many fail the run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import second_tries
from support.launch.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def tried(
    folder: Path, program: str, options: Sequence[str] = (), file: Path | None = None
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
            second_tries.VARIABLE: str(file or ""),
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("flaky", "code", "options"),
    [(0, 0, ()), (2, 0, ()), (3, 1, ()), (3, 1, ("--numprocesses", "2"))],
    ids=["none", "two", "three", "three side by side"],
)
def test_few_second_tries_pass_and_more_fail(
    tmp_path: Path, flaky: int, code: int, options: Sequence[str]
) -> None:
    """Each is listed, and the run fails with the third."""
    ran = tried(tmp_path / "t", FLAKY.format(flaky=flaky, without=True), options)
    assert ran.returncode == code, ran.stdout
    assert f"{flaky + 1} passed" in ran.stdout
    listed = re.findall(r"^test_program.py::test_with_processes\[\d\]$", ran.stdout, re.MULTILINE)
    assert len(listed) == flaky
    assert ("too many" in ran.stdout) == bool(code)


def test_a_test_without_processes_is_tried_once(tmp_path: Path) -> None:
    """What would pass the second time fails."""
    ran = tried(tmp_path / "t", FLAKY.format(flaky=0, without=WITHOUT))
    assert ran.returncode == 1
    assert "1 failed" in ran.stdout
    assert "rerun" not in ran.stdout


def test_several_runs_are_added_up(tmp_path: Path) -> None:
    """Two in the first, one in the second are three; a third run without any passes."""
    file = tmp_path / "made" / "tries"
    codes = [
        tried(tmp_path / "t", FLAKY.format(flaky=flaky, without=True), file=file).returncode
        for flaky in (2, 1, 0)
    ]
    assert codes == [0, 1, 0]
    assert len(file.read_text().splitlines()) == 3
