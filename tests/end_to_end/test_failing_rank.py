"""A rank fails in a real job: the report and a watch name it, with how it failed and where."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from benchmarks.failures import fail

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")
pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]


@pytest.mark.parametrize("kind", ["kill", "exception", "stop", "thread"])
def test_rank_kind_and_place_are_named(tmp_path: Path, kind: str) -> None:
    outcome = fail(kind, 1, 40, tmp_path)
    assert (outcome.is_rank_right, outcome.is_kind_right, outcome.is_stack_right) == (True,) * 3
    assert outcome.told_s is not None
