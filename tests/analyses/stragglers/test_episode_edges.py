"""From where to where a rank is late: edges, and lateness told from stalls."""

import numpy as np
import pytest
from support.runs.matrices import healthy, own_time

from tracelens.analyses.stragglers import detection
from tracelens.stats.changepoint import MAX_DEVIATION_RATIO_IF_DRIFTING, fit_course

STEPS = 200


@pytest.mark.parametrize("seed", range(8))
def test_what_lasts_from_begin_to_end_has_no_edges(seed: int) -> None:
    """Noise that remembers looks like an edge for some steps, but does not pay for one."""
    excess = healthy(seed, 2, STEPS, noise=0.06, memory=0.8)[2][:, 1] - 0.6 + 0.06
    fitted = fit_course(excess, 60, 140, MAX_DEVIATION_RATIO_IF_DRIFTING)
    assert (fitted.first_row, fitted.last_row, fitted.pattern) == (0, STEPS - 1, "persistent")


@pytest.mark.parametrize("first_step", [6, 20, 100])
def test_a_clear_edge_stays_near_the_begin(first_step: int) -> None:
    """Some steps suffice where the lateness is far above noise."""
    excess = healthy(0, 2, STEPS)[2][:, 1] - 0.6
    excess[first_step:] += 0.3
    assert (
        fit_course(excess, first_step + 10, STEPS - 1, MAX_DEVIATION_RATIO_IF_DRIFTING).first_row
        == first_step
    )


@pytest.mark.parametrize("seed", range(4))
def test_late_between_its_stalls_is_late_for_a_while(seed: int) -> None:
    """A rank that is slower for a while in harsh noise has many far steps, but no calm ones."""
    draw = np.random.default_rng(seed)
    matrices = healthy(seed, 8, STEPS, spiky=True)
    matrices[2][80:, 3] += 0.25 * draw.uniform(0.5, 1.5, STEPS - 80)
    (late,) = detection.find_episodes(own_time(matrices))
    assert (late.rank_columns, late.pattern) == ((3,), "persistent")
    assert abs(late.late_step_rows[0] - 80) <= 4
