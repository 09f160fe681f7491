"""Questions to the pieces of several workers at once have the answers that each gives alone."""

from __future__ import annotations

import numpy as np
import pytest

from tracelens import load
from tracelens.accounting import phases
from tracelens.accounting.categories import CATEGORIES, COMPUTE_CATEGORIES
from tracelens.simulator.synthetic import Scenario, generate, random_clocks

RUN = Scenario(ranks=6, ranks_per_host=2, steps=12, buckets=3, clocks=random_clocks(3))


@pytest.mark.parametrize("most", [0, 700, 1 << 16])
def test_questions_to_several_workers_at_once(most: int) -> None:
    """Each worker's answer is the one that it gives alone, also for moments beyond its time."""
    found = phases.run(load.prepare(generate(RUN))).pieces
    places = [4, 0, 5, 2]
    counts = np.array([name in COMPUTE_CATEGORIES for name in CATEGORIES])
    luck, asked = np.random.default_rng(7), iter(places)
    for some in found.join(places, most):
        for owner in range(len(some.processes)):
            alone = found.of_worker(next(asked))
            assert some.processes[owner] == alone.process
            first, last = alone.bounds[0] - 10**6, alone.bounds[-1] + 10**6
            moments = luck.integers(first, last, 200)
            line = some.to_line(moments, np.full(len(moments), owner))
            passed = some.spent_before(counts, line) - some.spent_before(
                counts, some.begins[[owner]]
            )
            np.testing.assert_array_equal(passed, alone.spent_before(counts, moments))
    assert next(asked, None) is None
