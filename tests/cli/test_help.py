"""Every verb explains itself: a line in the overview, a description and examples."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracelens.cli import COMMANDS, Command, main

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.NAME)
def test_verb_has_help_with_examples(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """`tracelens VERB --help` shows at least one example of that verb."""
    with pytest.raises(SystemExit) as end:
        main([command.NAME, "--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0
    assert "examples:" in text
    assert f"tracelens {command.NAME}" in text.partition("examples:")[2]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.NAME)
def test_verb_stands_in_the_overview(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """`tracelens --help` lists every verb, and says what the exit codes mean."""
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert command.NAME in text
    assert "unusable input" in text


def test_readme_mentions_every_verb() -> None:
    """A verb that README does not show is a verb that nobody finds."""
    readme = (ROOT / "README.md").read_text()
    missing = [c.NAME for c in COMMANDS if f"tracelens {c.NAME}" not in readme and c.NAME != "demo"]
    assert missing == []
