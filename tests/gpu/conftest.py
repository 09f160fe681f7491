"""Fixtures of the tests that need a GPU: a recorder that is off before and after each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import tracelens as tl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(name="trace")
def recording(tmp_path: Path) -> Iterator[Path]:
    """A folder that this process records to."""
    tl.stop()
    tl.start(tmp_path / "trace", rank=0, world=1)
    yield tmp_path / "trace"
    tl.stop()
