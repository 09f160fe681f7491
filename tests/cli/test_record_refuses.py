"""What `tracelens record` cannot run or write gets one sentence and exit code 2; nothing is run."""

import sys
from pathlib import Path

import pytest
from support.launch.record import run_record

RUNS = ("--", sys.executable, "-c", "print('ran')")


def _sentence_of_refusal(*arguments: object, cwd: Path) -> str:
    done = run_record(*arguments, cwd=cwd)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("tracelens: ")
    return line


@pytest.mark.parametrize("arguments", [(), ("--",), ("--out", "t", "--")])
def test_a_missing_command_is_refused(arguments: tuple[str, ...], tmp_path: Path) -> None:
    assert "put it after --" in _sentence_of_refusal(*arguments, cwd=tmp_path)


@pytest.mark.parametrize("command", ["no-such-command", "./folder", "./plain"])
def test_an_unknown_command_is_refused(command: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "plain").write_text("not executable")
    assert command in _sentence_of_refusal("--", command, cwd=tmp_path)


def test_a_file_that_no_system_can_execute(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("echo there is no line that names a shell\n")
    script.chmod(0o755)
    assert "cannot be started" in _sentence_of_refusal("--", "./script", cwd=tmp_path)


@pytest.mark.parametrize("out", ["taken", "taken/below"])
def test_a_place_where_no_folder_can_be(out: str, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    assert out in _sentence_of_refusal("--out", out, *RUNS, cwd=tmp_path)
