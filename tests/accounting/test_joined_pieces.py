"""A query over the pieces of several workers returns what each worker's pieces return alone."""

import numpy as np
import pytest

from tracelens import load
from tracelens.accounting import phases
from tracelens.accounting.categories import CATEGORIES, COMPUTE_CATEGORIES
from tracelens.simulator.synthetic import Scenario, generate, random_clocks

RUN = Scenario(ranks=6, ranks_per_host=2, steps=12, buckets=3, clocks=random_clocks(3))


@pytest.mark.parametrize("most_bytes", [0, 700, 1 << 16])
def test_a_joint_query_answers_as_each_worker_alone(most_bytes: int) -> None:
    """Each worker's answer is the one that it gives alone, also for moments beyond its time."""
    store = phases.run(load.prepare(generate(RUN))).pieces
    worker_indices = [4, 0, 5, 2]
    counts = np.array([name in COMPUTE_CATEGORIES for name in CATEGORIES])
    luck, expected_workers = np.random.default_rng(7), iter(worker_indices)
    for batch in store.join_workers(worker_indices, most_bytes):
        for owner in range(len(batch.processes)):
            alone = store.unpack_worker(next(expected_workers))
            assert batch.processes[owner] == alone.process
            first, last = alone.bounds_ns[0] - 10**6, alone.bounds_ns[-1] + 10**6
            moments = luck.integers(first, last, 200)
            line = batch.to_line_ns(moments, np.full(len(moments), owner))
            passed = batch.sum_ns_before(counts, line) - batch.sum_ns_before(
                counts, batch.begins_on_line_ns[[owner]]
            )
            np.testing.assert_array_equal(passed, alone.sum_ns_before(counts, moments))
    assert next(expected_workers, None) is None
