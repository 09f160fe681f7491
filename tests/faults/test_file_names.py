"""Files and folders whose names are no text in UTF-8 are read, and shown, all the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.runs.damage import VICTIM, write_run

from tracelens import load
from tracelens.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable

VERBS = ("info", "analyze", "validate", "index")


def renamed_file(trace: Path) -> Path:
    """Name a rank's file with a byte that begins no character."""
    name = os.fsencode(VICTIM.removesuffix(".arrow")) + b"\xff.arrow"
    (trace / VICTIM).rename(Path(os.fsdecode(os.fsencode(trace) + b"/" + name)))
    return trace


def renamed_folder(trace: Path) -> Path:
    return trace.rename(Path(os.fsdecode(os.fsencode(trace) + b"\xff")))


@pytest.mark.parametrize("rename", [renamed_file, renamed_folder])
def test_names_that_are_no_text(
    rename: Callable[[Path], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All ranks are read, every verb works, and its output can be printed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_run(tmp_path / "trace")
    trace = rename(tmp_path / "trace")
    assert load.open(trace).workers["rank"].to_list() == [0, 1, 2]
    for verb in VERBS:
        assert main([verb, str(trace)]) == 0, verb
    assert (
        main(["convert", str(trace), "--to", "parquet", "--out", str(tmp_path / "all.parquet")])
        == 0
    )
    assert load.open(tmp_path / "all.parquet").workers["rank"].to_list() == [0, 1, 2]
    shown = capsys.readouterr()
    (shown.out + shown.err).encode()
    assert "Traceback" not in shown.err
