"""Every verb explains itself: a line in the overview, a description and examples."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.samples import SAMPLES

from tracelens.cli import COMMANDS, command, main

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("verb", COMMANDS)
def test_verb_has_help_with_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`tracelens VERB --help` shows at least one example of that verb."""
    with pytest.raises(SystemExit) as end:
        main([verb, "--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0
    assert "examples:" in text
    assert f"tracelens {verb}" in text.partition("examples:")[2]


@pytest.mark.parametrize("verb", COMMANDS)
def test_verb_stands_in_the_overview(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`tracelens --help` lists every verb, and says what the exit codes mean."""
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert verb == command(verb).NAME
    assert verb in text
    assert "unusable input" in text


def test_verbs_run_without_docstrings() -> None:
    """Python leaves them out with -OO."""
    run = SAMPLES / "mpi-late-rank"
    command_line = [sys.executable, "-OO", "-m", "tracelens", "info", str(run)]
    done = subprocess.run(command_line, check=True, capture_output=True, text=True)
    assert "worker 0" in done.stdout


def test_readme_mentions_every_verb() -> None:
    """A verb that README does not show is a verb that nobody finds."""
    readme = (ROOT / "README.md").read_text()
    missing = [verb for verb in COMMANDS if f"tracelens {verb}" not in readme and verb != "demo"]
    assert missing == []
