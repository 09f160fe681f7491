"""A grid keeps the worst of every cell, and leads back to it."""

import numpy as np

from tracelens.lod import step_times
from tracelens.lod.step_times import CategoryTimes, StepGrid

RANKS, STEPS = 300, 700


def times(ranks: int = RANKS, steps: int = STEPS) -> CategoryTimes:
    """Return times of about 1000 ns, half of it waiting; rank 7 enters at step 1000 + 13."""
    ns = np.full((2, steps, ranks), 500, np.uint32)
    ns[0] += np.random.default_rng(3).integers(0, 100, (ranks, steps), np.uint32).T
    is_present = np.ones((steps, ranks), np.bool_)
    return CategoryTimes(
        tuple(range(ranks)),
        tuple(range(1000, 1000 + steps)),
        ("backprop", "wait"),
        ns,
        is_present,
        1e3,
    )


def test_one_late_rank_in_one_step_survives() -> None:
    """However small the picture, its largest cell is the one longest step, and says whose it was."""
    block = times()
    assert isinstance(block.matrices_ns, np.ndarray)
    block.matrices_ns[0, 434, 211] = 5000
    grid = StepGrid.from_times(block, ("backprop",), 16, 20)
    row, column = np.unravel_index(grid.longest_time_ns.argmax(), grid.longest_time_ns.shape)
    assert grid.longest_time_ns.shape == (16, 20)
    assert grid.longest_time_ns.max() == 5000
    assert grid.find_longest(int(row), int(column)) == (211, 1434)
    rank, step = grid.rank_slices[int(row)].start, 1000 + grid.step_slices[int(column)].start
    assert grid.find_longest_from(rank, step) == (211, 1434)


def test_it_is_the_maximum_of_all() -> None:
    """Without reduction it is the block itself; with it, each cell is the maximum of its part."""
    block = times()
    times_ns = block.sum_time_ns(("backprop", "wait"))
    assert np.array_equal(
        StepGrid.from_times(block, block.categories, 10**6, 10**6).longest_time_ns, times_ns
    )
    small = StepGrid.from_times(block, block.categories, 7, 11)
    for row, ranks in enumerate(small.rank_slices):
        for column, steps in enumerate(small.step_slices):
            assert small.longest_time_ns[row, column] == times_ns[ranks, steps].max()
    pieces = list(step_times.iterate_chunks(block, 1000))
    assert [part.start for part in pieces[1:]] == [part.stop for part in pieces[:-1]]
    assert len(pieces) > 100


def test_who_was_not_there_is_no_cell() -> None:
    """Cells without a rank are empty; a present rank counts even if others are missing."""
    block = times(4, 6)
    assert isinstance(block.is_present, np.ndarray)
    block.is_present[5] = False
    block.is_present[4, :3] = False
    cells = StepGrid.from_times(block, ("wait",), 2, 6).longest_time_ns
    assert np.isnan(cells[:, 5]).all()
    assert np.isnan(cells[0, 4])
    assert cells[1, 4] == 500


def test_a_run_without_steps_has_no_cells() -> None:
    assert StepGrid.from_times(times(3, 0), ("wait",), 4, 4).longest_time_ns.shape == (3, 0)
