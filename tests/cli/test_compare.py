"""`tracelens compare` from the command line: what it prints, and with which code it ends."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support.runs.indexes import recorded

from tracelens.cli import main
from tracelens.simulator.synthetic import Fault, Scenario

ROOT = Path(__file__).parents[2]
EQUAL = Scenario(ranks=3, steps=40)
SLOWER = replace(EQUAL, seed=9, faults=(Fault("backprop", (0, 1, 2), factor=1.5),))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four equal runs, and one that is slower."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in range(4):
        recorded(folder / f"main-{seed}", replace(EQUAL, seed=seed))
    recorded(folder / "slower", SLOWER)
    return folder


def test_a_slower_run_fails_its_gate(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 and the reason; a pattern selects the baselines."""
    code = main(["compare", f"{runs}/main-*", f"{runs}/slower", "--fail-if", "step_time>+3%"])
    text = capsys.readouterr().out
    assert code == 1
    assert "SLOWER" in text
    assert "FAILED   step_time>+3%" in text


def test_an_equal_run_passes(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0; without a gate, too."""
    names = [f"{runs}/main-{seed}" for seed in range(4)]
    assert main(["compare", *names, "--fail-if", "step_time>+3%", "--fail-if", "faults"]) == 0
    assert "NO CLEAR CHANGE" in capsys.readouterr().out
    assert main(["compare", names[0], f"{runs}/slower"]) == 0


def test_json_names_the_runs_as_they_were_given(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON of one baseline names its runs as they were given."""
    main(["compare", f"{runs}/main-0", f"{runs}/slower", "--format", "json"])
    read = json.loads(capsys.readouterr().out)
    assert read["new"]["name"] == f"{runs}/slower"
    assert read["gates"] == []


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["main-0"], 2, "expected baseline runs, and last the new one"),
        (["main-0", "nowhere"], 3, "nowhere"),
        (["main-0", "slower", "--fail-if", "speed>3%"], 2, "no metric"),
    ],
)
def test_a_wrong_call_is_one_sentence(
    runs: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, part: str
) -> None:
    call = [str(runs / word) if i < 2 else word for i, word in enumerate(arguments)]
    if "--fail-if" in arguments:
        call = [*call[:2], *arguments[2:]]
    assert main(["compare", *call]) == code
    error = capsys.readouterr().err
    assert part in error
    assert len(error.strip().splitlines()) == 1


def test_the_example_of_the_page_is_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/compare.md shows a command, and its output to the letter."""
    page = (ROOT / "docs" / "compare.md").read_text()
    example = re.search(r"\$ tracelens compare (sample_traces/.*)\n([^`]*)```", page)
    assert example
    call, printed = shlex.split(example[1]), example[2]
    for word in call:
        if word.startswith("sample_traces/"):
            shutil.copytree(ROOT / word, tmp_path / word)
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *call]) == 1
    assert capsys.readouterr().out == printed
