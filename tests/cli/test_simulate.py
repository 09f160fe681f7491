"""`tracelens simulate` from the command line, as docs/simulate.md shows it."""

import re
from pathlib import Path

import pytest

from tracelens.cli import main
from tracelens.load import open as open_trace

PAGE = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text()


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the scenario of the page."""
    found = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert found
    (tmp_path / "scenario.toml").write_text(found[1])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_pages_example_prints_what_it_shows(
    example: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It prints what the page shows, and the trace has what it says."""
    expected = re.search(r"--out traces/simulated\n(Simulated .*\n)", PAGE)
    assert expected
    assert main(["simulate", "scenario.toml", "--out", "traces/simulated"]) == 0
    assert capsys.readouterr().out == expected[1]
    trace = open_trace(example / "traces" / "simulated")
    assert (trace.workers.height, trace.shards.height) == (8, 4)
    assert trace.steps["step"].n_unique() == 30


def test_a_folder_with_something_in_it_is_kept(
    example: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and nothing is written."""
    assert main(["simulate", "scenario.toml", "--out", str(example)]) == 2
    assert "not empty" in capsys.readouterr().err
    assert [file.name for file in example.iterdir()] == ["scenario.toml"]


def test_a_mistake_is_one_sentence(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit codes 2 for what cannot be simulated, 3 for a file that is not there."""
    out = ["--out", "new"]
    assert main(["simulate", "scenario.toml", "--set", "run.wokers=3", *out]) == 2
    assert main(["simulate", "nowhere.toml", *out]) == 3
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 2
    assert "did you mean 'workers'" in lines[0]
    assert not (example / "new").exists()
