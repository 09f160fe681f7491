"""A damaged file costs what is damaged, which is counted: a short run of `support.mutated_events`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.mutated_events import base_of, run

TWO_RANKS = Path(__file__).parents[2] / "data/kineto/two_ranks"


@pytest.mark.parametrize("seed", [1, 2])
def test_no_damage_is_uncounted(seed: int) -> None:
    became = run(60, seed, [base_of(TWO_RANKS / "rank0.pt.trace.json.gz")], sys.stderr.write)
    assert sum(became.values()) == 60
    assert became["damaged"] > 5
