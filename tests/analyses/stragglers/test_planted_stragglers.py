"""A planted lateness is found: the rank, the phase, and the steps."""

import numpy as np
import pytest
from support.runs.matrices import STEP_NS, Floats, healthy, own_time
from support.tiers import few_or_many, mark_slow

from tracelens.accounting.compute_time import WARM_UP
from tracelens.analyses.stragglers import detection

PHASES = ("data", "forward", "backprop")
BLOCK = 4  # steps, the detector's


def plant_delay(
    seed: int, ranks: int, steps: int, extra: float, *, spiky: bool = False
) -> tuple[list[Floats], int, int, tuple[int, int]]:
    """Make one phase of one rank longer by `extra` of a step, in 40 % of the run, at random."""
    draw = np.random.default_rng([99, seed])
    matrices = healthy(seed, ranks, steps, spiky=spiky)
    length = int(0.4 * steps)
    first_row = int(draw.integers(WARM_UP, steps - length + 1))
    phase, rank = int(draw.integers(3)), int(draw.integers(ranks))
    matrices[phase][first_row : first_row + length, rank] += extra
    return matrices, phase, rank, (first_row, first_row + length - 1)


@pytest.mark.parametrize("seed", mark_slow(range(4), quick=[0, 1]))
@pytest.mark.parametrize("spiky", [False, True], ids=["smooth", "spiky"])
@pytest.mark.parametrize(
    ("ranks", "steps", "extra"),
    [(2, 100, 0.3), (3, 100, 0.2), (4, 100, 0.15), (8, 100, 0.1), (64, 100, 0.1), (8, 500, 0.06)],
)
def test_delays_is_found_where_it_is(
    seed: int, ranks: int, steps: int, extra: float, *, spiky: bool
) -> None:
    """One entry: the rank, the phase, the size to a third, the edges to a block (three with spikes)."""
    edge = 3 * BLOCK if spiky else BLOCK
    matrices, phase, rank, (first_row, last_row) = plant_delay(
        seed, ranks, steps, extra, spiky=spiky
    )
    own = own_time(matrices)
    (late,) = (late for late in detection.find_episodes(own) if late.pattern != "sparse")
    assert (late.rank_columns, late.phase, late.pattern) == ((rank,), PHASES[phase], "transient")
    assert abs(late.late_step_rows[0] - first_row) <= edge
    assert abs(late.late_step_rows[-1] - last_row) <= edge
    assert late.delay_ns[late.late_step_rows, rank].mean() / STEP_NS == pytest.approx(
        extra, rel=0.35
    )


@pytest.mark.parametrize("runs", few_or_many(6, 30))
def test_ten_percent_of_a_step_is_found_among_many(runs: int) -> None:
    """Nearly every one of many runs gives its late rank away."""
    hits = 0
    for seed in range(runs):
        matrices, phase, rank, _ = plant_delay(seed, 8, 60, 0.1)
        found = detection.find_episodes(own_time(matrices))
        assert {late.rank_columns for late in found} <= {(rank,)}
        hits += any(late.phase == PHASES[phase] for late in found)
    assert hits >= 28 / 30 * runs


def test_lasting_lateness_spans_the_run() -> None:
    """Late from the first step on: the warm-up belongs to it, too."""
    matrices = healthy(0, 4, 80)
    matrices[1][:, 3] += 0.2
    (late,) = detection.find_episodes(own_time(matrices))
    assert (late.late_step_rows[0], late.late_step_rows[-1], late.pattern) == (0, 79, "persistent")


def test_growing_lateness_drifts() -> None:
    """A lateness that grows from nothing is told from one that begins."""
    matrices = healthy(0, 8, 120)
    matrices[2][40:, 5] += 0.4 * np.arange(80) / 80
    (late,) = detection.find_episodes(own_time(matrices))
    assert (late.rank_columns, late.pattern) == ((5,), "drifting")
    assert late.late_step_rows[-1] == 119
    assert abs(late.late_step_rows[0] - 40) <= 3 * BLOCK


def test_regular_stalls_are_sparse() -> None:
    """Every tenth step far behind is a stall with its period, not a lateness."""
    matrices = healthy(0, 4, 100)
    matrices[0][8::10, 2] += 0.5
    (late,) = detection.find_episodes(own_time(matrices))
    assert (late.rank_columns, late.phase, late.pattern, late.period_steps) == (
        (2,),
        "data",
        "sparse",
        10,
    )
    assert late.late_step_rows.tolist() == list(range(8, 100, 10))


@pytest.mark.parametrize("seed", mark_slow(range(4), quick=[0]))
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_stalls_for_a_while_are_those_of_a_rank(ranks: int, seed: int) -> None:
    """The rank and the range of steps are named, not a phase, if it stops in any phase."""
    matrices, draw = healthy(seed, ranks, 300), np.random.default_rng(seed)
    hit = 60 + np.flatnonzero(draw.random(80) < 0.4)
    for row in hit:
        matrices[draw.integers(3)][row, 1] += 0.7
    late, *others = detection.find_episodes(own_time(matrices))
    assert (late.rank_columns, late.pattern, others) == ((1,), "sparse", [])
    assert late.late_step_rows.tolist() == hit.tolist()
    assert {*late.phase_names} == set(PHASES)


def test_two_ranks_need_a_large_difference() -> None:
    """With two ranks 5 % says nothing, however long it lasts."""
    matrices = healthy(0, 2, 200)
    matrices[2][:, 1] += 0.05
    assert detection.find_episodes(own_time(matrices)) == []


def test_the_slower_of_two_is_named() -> None:
    """The rank with more own time is late, whichever it is."""
    for slow in (0, 1):
        matrices = healthy(slow, 2, 80)
        matrices[2][30:60, slow] += 0.5
        (late,) = detection.find_episodes(own_time(matrices))
        assert (late.rank_columns, late.late_step_rows[0], late.late_step_rows[-1]) == (
            (slow,),
            30,
            59,
        )


def test_a_rank_that_lacks_steps_does_not_disturb() -> None:
    """A rank whose recording ends early is not late and hides no straggler."""
    matrices = healthy(0, 6, 100)
    matrices[2][50:, 1] += 0.2
    for matrix in matrices:
        matrix[70:, 4] = np.nan
    (late,) = detection.find_episodes(own_time(matrices))
    assert late.rank_columns == (1,)
