"""`tracelens index` makes the index once and says where it is, and how large."""

from pathlib import Path

import polars as pl
import pytest
from support.runs.indexes import recorded

from tracelens import load
from tracelens.cli import main
from tracelens.lod import index
from tracelens.lod.tracks import names


def test_the_index_is_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second call finds the index and changes nothing in it."""
    trace = recorded(tmp_path / "run")
    assert main(["index", str(trace)]) == 0
    folder = index.find(trace)
    assert folder
    assert str(folder) in capsys.readouterr().out
    times_by_name = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert any(name.startswith("level-") for name in times_by_name)
    assert (
        pl.read_ipc(folder / names.FILE)["count"].sum() == load.open(trace).spans.collect().height
    )
    assert main(["index", str(trace)]) == 0
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == times_by_name


def test_again_makes_it_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever changed an analysis sees what it says now; without an index it is just made."""
    trace = recorded(tmp_path / "run")
    for _ in range(2):
        assert main(["index", str(trace), "--again"]) == 0
        folder = index.find(trace)
        assert folder
        assert "of another analysis" not in (folder / "report.json").read_text()
        (folder / "report.json").write_text('"of another analysis"')
    assert str(folder) in capsys.readouterr().out


def test_what_is_no_folder_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table of spans opens without; the sentence says so."""
    table = tmp_path / "spans.csv"
    table.write_text("rank,start_ns,end_ns\n0,1,5\n")
    assert main(["index", str(table)]) == 2
    assert "works without" in capsys.readouterr().err
