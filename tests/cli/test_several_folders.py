"""Ranks that wrote to disks of their own nodes: several folders, or a pattern of them, are one run."""

import json
from pathlib import Path
from typing import Any

import pytest

from tracelens.cli import main
from tracelens.simulator.synthetic import Fault, Scenario, random_clocks, write

RANKS = 6
NODES = 3
SLOW = Scenario(
    ranks=RANKS,
    ranks_per_host=RANKS // NODES,
    steps=60,
    clocks=random_clocks(NODES),
    faults=(Fault("backprop", (4,), factor=1.5),),
)


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    """Write a run, and split a copy of it by node."""
    write(SLOW, tmp_path / "whole")
    folders = [tmp_path / f"node-{node}" for node in range(NODES)]
    for rank, file in enumerate(sorted((tmp_path / "whole").iterdir())):
        folder = folders[rank * NODES // RANKS]
        folder.mkdir(exist_ok=True)
        (folder / file.name).write_bytes(file.read_bytes())
    return folders


def report(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert main(["analyze", *map(str, arguments), "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_folders_are_one_run(
    nodes: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report is that of the whole run, for any order of the folders."""
    report_of_run = report(capsys, tmp_path / "whole")
    assert report_of_run["findings"][0]["ranks"] == [4]
    assert report(capsys, *nodes) == report_of_run
    assert report(capsys, *reversed(nodes))["findings"] == report_of_run["findings"]


def test_a_quoted_pattern_names_all_matching_folders(
    nodes: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pattern that no shell has filled in names all folders that match."""
    assert report(capsys, tmp_path / "node-*") == report(capsys, *nodes)


def test_ranks_of_a_missing_folder_are_reported(
    nodes: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a node's folder its ranks are missing, by name; the others are explained."""
    found = report(capsys, *nodes[:2])
    (missing,) = [one for one in found["findings"] if one["kind"] == "missing_rank"]
    assert missing["ranks"] == [4, 5]


def test_a_folder_that_does_not_exist_is_named(
    nodes: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", *map(str, nodes), str(tmp_path / "node-7*")]) == 3
    assert "node-7*" in capsys.readouterr().err


def test_a_rank_in_two_folders_is_refused(
    nodes: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rank in two folders: which one is meant cannot be known."""
    assert main(["analyze", str(nodes[0]), str(tmp_path / "whole")]) == 2
    assert "rank 0" in capsys.readouterr().err
