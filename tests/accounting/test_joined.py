"""Small processes whose time is cut at once come to what they come to alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from polars.testing import assert_frame_equal

from tracelens import load
from tracelens.accounting import joined, phases
from tracelens.accounting.categories import CATEGORIES, COMPUTE_CATEGORIES
from tracelens.simulator.synthetic import Fault, Scenario, generate, random_clocks, write

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.accounting.phases import Phases

RUNS = {
    "several hosts": Scenario(
        ranks=6, ranks_per_host=2, steps=12, buckets=3, clocks=random_clocks(3)
    ),
    "one slow": Scenario(ranks=4, steps=9, faults=(Fault("backprop", (2,), factor=1.5),)),
}


def accounted(folder: Path, rows: int, monkeypatch: pytest.MonkeyPatch) -> Phases:
    """Account for a run, so many rows of several processes at once."""
    monkeypatch.setattr(joined, "MAX_JOINED_ROWS", rows)
    return phases.run(load.open(folder))


@pytest.mark.parametrize("name", RUNS)
def test_the_same_as_alone(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces, sums, updates and amounts of every process are the same."""
    write(RUNS[name], tmp_path)
    alone = accounted(tmp_path, 0, monkeypatch)
    for rows in (500, 1 << 16):
        found = accounted(tmp_path, rows, monkeypatch)
        np.testing.assert_array_equal(found.spent, alone.spent)
        np.testing.assert_array_equal(found.hidden_ns, alone.hidden_ns)
        assert found.spans == alone.spans
        assert_frame_equal(found.segments, alone.segments)
        np.testing.assert_equal(found.amounts, alone.amounts)
        for table in ("gaps", "updates", "used"):
            assert_frame_equal(getattr(found.updates, table), getattr(alone.updates, table))


def test_groups_are_not_too_large() -> None:
    """As many are joined as have so few rows; a large one goes alone."""
    sizes = [30_000, 30_000, 30_000, 100_000, 1, 2]
    found = list(joined.grouped(sizes, lambda size: size))
    assert found == [[30_000, 30_000], [30_000], [100_000], [1, 2]]
    assert list(joined.grouped(sizes, lambda size: size, 3)) == [sizes[:3], sizes[3:]]


@pytest.mark.parametrize("most", [0, 700, 1 << 16])
def test_questions_to_several_workers_at_once(most: int) -> None:
    """Each worker's answer is the one that it gives alone, also for moments beyond its time."""
    found = phases.run(load.prepare(generate(RUNS["several hosts"]))).pieces
    places = [4, 0, 5, 2]
    counts = np.array([name in COMPUTE_CATEGORIES for name in CATEGORIES])
    luck, asked = np.random.default_rng(7), iter(places)
    for some in found.joined(places, most):
        for owner in range(len(some.processes)):
            alone = found.of_worker(next(asked))
            assert some.processes[owner] == alone.process
            first, last = alone.bounds[0] - 10**6, alone.bounds[-1] + 10**6
            moments = luck.integers(first, last, 200)
            line = some.moved(moments, np.full(len(moments), owner))
            passed = some.spent_before(counts, line) - some.spent_before(
                counts, some.begins[[owner]]
            )
            np.testing.assert_array_equal(passed, alone.spent_before(counts, moments))
    assert next(asked, None) is None
