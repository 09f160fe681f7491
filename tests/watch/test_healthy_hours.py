"""Hours of healthy training, with time that passes faster: no look accuses a rank."""

from __future__ import annotations

import pytest
from support.watch.healthy import PAUSES, HealthyJob

from tracelens.watch.pauses import START

HOURS = 2


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))]
)
def test_no_rank_is_accused(seed: int) -> None:
    """Twenty hours in all: start-up, checkpoints, evaluation, compilation, epochs, long steps."""
    job = HealthyJob(seed)
    job.run(HOURS)
    assert set(job.pause_counts) == {START, *PAUSES}
    assert job.stalls == []
