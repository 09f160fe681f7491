"""An unforeseen error prints one sentence and a traceback, with exit code 70."""

import argparse
import errno
import re
import tempfile
from pathlib import Path
from typing import NoReturn

import polars as pl
import pytest

from tracelens import __version__
from tracelens.cli import bug, info, main


def fail(_arguments: argparse.Namespace) -> NoReturn:
    """Fail as nothing should."""
    raise ZeroDivisionError("it was not foreseen")


@pytest.fixture(autouse=True)
def broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Make `tracelens info` fail, and give tracebacks a place."""
    monkeypatch.setattr(info, "run", fail)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv(bug.DEBUG, raising=False)


def test_an_unforeseen_error_prints_one_sentence_and_writes_a_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It says what, where and in which version, and where the traceback is."""
    assert main(["info", "x"]) == 70
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tracelens: this is a bug in TraceLens")
    assert "ZeroDivisionError" in line
    assert re.search(r" at cli/__init__\.py:\d+,", line)
    assert __version__ in line
    found = re.search(r"traceback in (\S+\.txt)", line)
    assert found
    kept = Path(found[1]).read_text()
    assert "Traceback (most recent call last)" in kept
    assert "it was not foreseen" in kept


def test_the_traceback_is_printed_with_tracelens_debug(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With TRACELENS_DEBUG=1 it goes to standard error, and no file is written."""
    monkeypatch.setenv(bug.DEBUG, "1")
    assert main(["info", "x"]) == 70
    told = capsys.readouterr().err
    assert told.startswith("Traceback (most recent call last)")
    assert "with the traceback above" in told
    assert list(tmp_path.iterdir()) == []


def test_a_traceback_that_cannot_be_written_is_explained(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where no file can be written the sentence says how else to get it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    assert main(["info", "x"]) == 70
    assert "TRACELENS_DEBUG=1" in capsys.readouterr().err


def test_panics_of_polars_are_caught(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are no `Exception`, and are caught all the same."""

    class Panic(BaseException):
        """What pyo3 raises."""

    def panic(_arguments: argparse.Namespace) -> pl.DataFrame:
        raise Panic("called unwrap on nothing")

    monkeypatch.setattr(info, "run", panic)
    assert main(["info", "x"]) == 70
    assert "Panic" in capsys.readouterr().err


def test_exit_and_ctrl_c_are_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """`SystemExit` and Ctrl-C end the program as ever."""

    def leave(_arguments: argparse.Namespace) -> NoReturn:
        raise SystemExit(5)

    def interrupted(_arguments: argparse.Namespace) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(info, "run", leave)
    with pytest.raises(SystemExit) as end:
        main(["info", "x"])
    assert end.value.code == 5
    monkeypatch.setattr(info, "run", interrupted)
    assert main(["info", "x"]) == 130


def test_what_the_system_refuses_is_no_bug(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is named as such, with the exit code of input that cannot be used."""

    def full(_arguments: argparse.Namespace) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device", "/disk/report.html")

    monkeypatch.setattr(info, "run", full)
    assert main(["info", "x"]) == 3
    assert capsys.readouterr().err == (
        "tracelens: The system refused '/disk/report.html': No space left on device.\n"
    )
