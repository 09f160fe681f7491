"""Bad input gets one clear sentence and an exit code, never a traceback."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.launch.patience import PATIENCE_S

from tracelens.cli import main


def tracelens(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does, in its own process."""
    return subprocess.run(
        [sys.executable, "-m", "tracelens", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int | str | None, str]:
    """Run a verb in this process; return its exit code and its standard error."""
    try:
        code: int | str | None = main([*arguments])
    except SystemExit as end:
        code = end.code
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [("analyze", "no\nwhere"), ("simulate", "no\nwhere", "--out", "simulated")]
)
def test_line_breaks_in_names_are_escaped(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    """A message stays one line: what it quotes is escaped."""
    _, error_output = run(capsys, *arguments)
    assert len(error_output.splitlines()) == 1
    assert "no\\nwhere" in error_output


def test_a_missing_folder_is_exit_3(tmp_path: Path) -> None:
    """A folder that is not there: exit 3, and the sentence names it."""
    done = tracelens("analyze", str(tmp_path / "nowhere"))
    assert done.returncode == 3
    assert done.stderr.startswith("tracelens: ")
    assert "nowhere" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


@pytest.mark.parametrize("verb", ["info", "analyze", "serve"])
def test_a_folder_without_a_trace_is_exit_3(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder without a trace: exit 3, and the sentence says what was expected."""
    code, errors = run(capsys, verb, str(tmp_path))
    assert code == 3
    assert ".arrow" in errors


def test_a_file_that_is_no_arrow_file_is_exit_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that only looks like a trace: exit 3, and the sentence names the file."""
    (tmp_path / "worker-00000-1.arrow").write_text('{"traceEvents": []}')
    code, errors = run(capsys, "analyze", str(tmp_path))
    assert code == 3
    assert "worker-00000-1.arrow" in errors


@pytest.mark.parametrize(
    "arguments", [["unknown-verb"], ["analyze"], ["analyze", "x", "--format", "xml"], ["record"]]
)
def test_a_wrong_call_is_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, errors = run(capsys, *arguments)
    assert code == 2
    assert "Traceback" not in errors
