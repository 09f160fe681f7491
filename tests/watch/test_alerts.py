"""The command of an alert gets it on its standard input, and nothing waits for the command."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from support.launch.patience import wait_until

from tracelens.watch import alerts
from tracelens.watch.alerts import AlertCommand

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_alert_is_json(tmp_path: Path) -> None:
    """However long it is: more than a pipe holds."""
    file = tmp_path / "alert"
    command = AlertCommand(f"cat > {file}.part; mv {file}.part {file}")
    alert = {"alert": "stalled", "stacks": {"0": ["frame"] * 20_000}}
    command.send(alert)
    wait_until(lambda: command.advance() == 0)
    assert json.loads(file.read_text()) == alert


def test_a_command_that_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others run meanwhile."""
    monkeypatch.setattr(alerts, "MAX_SECONDS", 0.0)
    monkeypatch.setattr(alerts, "MAX_COMMANDS_AT_ONCE", 1)
    file = tmp_path / "second"
    command = AlertCommand(
        f"read line; case $line in *first*) sleep 1000;; *) echo > {file};; esac"
    )
    command.send({"alert": "first"})
    command.send({"alert": "second"})
    assert not file.exists()
    monkeypatch.setattr(alerts, "MAX_SECONDS", 60.0)
    wait_until(lambda: command.advance() == 0)
    assert file.exists()
