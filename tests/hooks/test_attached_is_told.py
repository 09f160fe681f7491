"""What hooks attach to is told to `tracelens record`, which names a file in the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tracelens_instrument.hooks import attached, base

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _nothing_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_ATTACHED", [])
    monkeypatch.delenv(base.ATTACHED_VARIABLE, raising=False)


def test_each_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asking = tmp_path / "asking"
    asking.touch()
    monkeypatch.setenv(base.ATTACHED_VARIABLE, str(asking))
    base.note_attached("a model")
    base.note_attached("a communicator")
    assert asking.read_text() == "a model\na communicator\n"


def test_nobody_asks() -> None:
    base.note_attached("a model")
    assert attached() == ["a model"]


@pytest.mark.parametrize("missing", ["file", "no folder/file"])
def test_a_file_that_is_not_there_is_not_made(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on another host than the one of `tracelens record`; the training goes on."""
    monkeypatch.setenv(base.ATTACHED_VARIABLE, str(tmp_path / missing))
    base.note_attached("a model")
    assert attached() == ["a model"]
    assert list(tmp_path.iterdir()) == []
