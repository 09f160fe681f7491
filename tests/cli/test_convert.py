"""`tracelens convert` says how much it is, then writes it; too much, or nothing, is one sentence."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from support.runs.indexes import recorded

from tracelens.cli import main
from tracelens.exports import perfetto

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("traces") / "run")


def test_ranks_and_steps_are_chosen(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The number of events is told first and is what the file holds."""
    out = tmp_path / "some.json"
    chosen = ["--ranks", "0,2-9", "--steps", "10-12", "--out", str(out)]
    assert main(["convert", str(trace), "--to", "perfetto", *chosen]) == 0
    told = re.match(r"([\d,]+) events, about [\d.]+ KiB\n", capsys.readouterr().out)
    assert told
    events = json.loads(out.read_text())["traceEvents"]
    assert len([e for e in events if e["ph"] != "M"]) == int(told[1].replace(",", ""))
    assert {e["pid"] for e in events} == {1, 3}


def test_a_whole_run_is_named_after_itself(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `--out` the file stands where one is, under the run's name."""
    monkeypatch.chdir(tmp_path)
    assert main(["convert", str(trace), "--to", "perfetto"]) == 0
    assert json.loads((tmp_path / "run.perfetto.json").read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (["--ranks", "77"], "none of them is a worker"),
        (["--ranks", "3-1"], "expected numbers such as"),
        (["--ranks", "0-999999999"], "expected numbers such as"),
        (["--steps", "900-901"], "no step from 900"),
        (["--out", "/nowhere/at/all.json"], "cannot be written"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    trace: Path, capsys: pytest.CaptureFixture[str], chosen: list[str], said: str
) -> None:
    """Exit 2, and the sentence says what was wrong."""
    assert main(["convert", str(trace), "--to", "perfetto", *chosen]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


def test_too_much_is_refused_before_it_is_written(
    trace: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More events than viewers open are no file, but advice."""
    monkeypatch.setattr(perfetto, "MOST_EVENTS", 10)
    out = tmp_path / "much.json"
    assert main(["convert", str(trace), "--to", "perfetto", "--out", str(out)]) == 2
    assert "--steps" in capsys.readouterr().err
    assert not out.exists()
