"""Fixtures of every test that records in its own process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from support.launch.recording import clean_environment

import tracelens as tl
from tracelens_instrument import lifecycle
from tracelens_instrument.core import failures

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def recorder_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Begin and end with a recorder that is off and knows nothing of this test session."""
    for name in set(os.environ) - set(clean_environment()):
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(failures, "_warned", {})
    tl.stop()
    lifecycle._hook_values.clear()
    lifecycle.UNRECORDED.clear()
    yield
    tl.stop()
    lifecycle._hook_values.clear()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A folder that this process records to."""
    folder = tmp_path / "trace"
    tl.start(folder)
    return folder
