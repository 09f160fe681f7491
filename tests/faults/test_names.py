"""A name that is not UTF-8 is a name: every verb reads what it stands for, and writes it legibly."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from support.launch.patience import PATIENCE_S
from support.runs.damage import assert_left_out, rewritten, with_side, written

from tracelens import load
from tracelens.lod import index, opening
from tracelens_dashboard.runs.catalog import id_of, short_names
from tracelens_dashboard.runs.store import Store

if TYPE_CHECKING:
    from pathlib import Path

ODD = os.fsdecode(b"worker-00001-\xff.arrow")
SHOWN = "worker-00001-\\xff.arrow"


@pytest.fixture
def oddly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trace in a folder with such a name, of which one file has one, too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    plain = tmp_path / "plain"
    written(plain).rename(plain / ODD)
    return plain.rename(tmp_path / os.fsdecode(b"tr\xe9ce"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["info"],
        ["info", "--format", "json"],
        ["analyze"],
        ["analyze", "--format", "json"],
        ["analyze", "--format", "markdown"],
        ["analyze", "--html", "report.html"],
        ["validate"],
        ["validate", "--format", "json"],
        ["index"],
        ["convert", "--to", "perfetto"],
    ],
    ids=" ".join,
)
def test_every_verb(arguments: list[str], oddly: Path, tmp_path: Path) -> None:
    """It ends well, and what it prints is UTF-8."""
    verb, *options = arguments
    done = subprocess.run(
        [sys.executable, "-m", "tracelens", verb, str(oddly), *options],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.decode()
    if "json" in options:
        json.loads(said)


def test_the_file_is_read_as_any_other(oddly: Path, tmp_path: Path) -> None:
    """The same events as under a plain name; notes and tables show the name."""
    plain = tmp_path / "plain"
    written(plain)
    expected, found = load.open(plain), load.open(oddly)
    assert found.events.collect().equals(expected.events.collect())
    assert SHOWN in found.processes["file"].to_list()
    (oddly / ODD).write_bytes((oddly / ODD).read_bytes()[:-1])
    (note,) = load.open(oddly).notes
    assert note.file == SHOWN
    assert f"'{SHOWN}' is damaged or cut off" in note.sentence


def test_its_spans_are_found_again(oddly: Path) -> None:
    """An index knows the name as it is shown, and finds the file."""
    made = opening.explained(load.open(oddly))
    assert index.find(oddly) is not None
    assert made.name == "tr\\xe9ce"
    store = Store.indexed(oddly)
    assert store is not None
    process = made.workers.filter(rank=1)["process"][0]
    assert store.spans_of(process).height > 0


def test_the_list_of_runs(oddly: Path) -> None:
    """It has an id and a name that every browser can show."""
    assert short_names([oddly]) == ["tr\\xe9ce"]
    assert id_of(oddly) != id_of(oddly.parent)


@pytest.mark.parametrize("kind", [".csv", ".parquet", ".arrow"])
def test_table(kind: str, tmp_path: Path) -> None:
    """A table of spans, too; one whose name looks like a pattern is read itself, and nothing else."""
    frame = pl.DataFrame(
        {"rank": [0, 1], "start_ns": [0, 5], "end_ns": [9, 9], "kind": ["step"] * 2}
    )
    plain = tmp_path / f"plain{kind}"
    if kind == ".csv":
        frame.write_csv(plain)
    elif kind == ".parquet":
        frame.write_parquet(plain)
    else:
        frame.write_ipc(plain)
    for name in (os.fsdecode(b"t\xff"), "[ab]*"):
        place = tmp_path / f"{name}{kind}"
        shutil.copyfile(plain, place)
        assert load.open(place).events.collect().height == 2


def test_nothing_there_is_said(tmp_path: Path) -> None:
    """A path that is nowhere gets its sentence and its exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "tracelens", "info", str(tmp_path / ODD)],
        check=False,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 3
    assert b"There is no" in done.stderr
    assert b"Traceback" not in done.stderr


def test_halves_of_characters_in_metadata(tmp_path: Path) -> None:
    """JSON can spell them, text cannot hold them: one rank is left out."""
    victim = written(tmp_path)

    def change(side: dict[str, Any]) -> None:
        side["process"]["host"] = "\ud800"

    rewritten(victim, lambda table: with_side(table, change))
    assert_left_out(tmp_path, "metadata is damaged", "host")
