"""Steps of damaged traces may take no time at all: a report is made all the same."""

from dataclasses import replace

import numpy as np
import pytest
from support.runs.matrices import healthy, own_time
from support.runs.traces import span, trace_of

import tracelens as tl
from tracelens.analyses.stragglers import detection
from tracelens.load import prepare

STEPS = 60
MS = 10**6


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("steps_per_long_one", [3, STEPS])
def test_steps_without_length_are_analyzed(ranks: int, steps_per_long_one: int) -> None:
    """All of them, or most: the usual step takes no time."""
    rows = []
    for step in range(STEPS):
        for rank in range(ranks):
            start_ns = step * 10 * MS
            end_ns = start_ns + (step % steps_per_long_one == 2) * MS
            rows += [
                span(rank, "step", start_ns, end_ns, step=step),
                span(rank, "forward", start_ns, end_ns - rank % 2 * MS // 2, step=step),
            ]
    assert tl.analyze(prepare(trace_of(rows, ranks=ranks))).efficiency is not None


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_ranks_that_compute_in_steps_without_length_are_judged(ranks: int) -> None:
    """As where the ends of steps are damaged, and their spans are not."""
    times = own_time(healthy(0, ranks, STEPS))
    times = replace(times, step_length_ns=np.zeros_like(times.step_length_ns))
    assert times.typical_step_ns == 1.0
    detection.find_episodes(times)


def test_steps_that_no_statistic_may_use_are_analyzed() -> None:
    """Only the warm-up is complete, and the second rank has no step in common with the first."""
    rows = [span(rank, "step", rank * MS, rank * MS + 10, step=rank) for rank in range(2)]
    assert tl.analyze(prepare(trace_of(rows, ranks=2))).verdict.state == "inconclusive"
