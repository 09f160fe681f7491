"""Two ranks that are compared over few steps: nothing is said of fewer than a block."""

import numpy as np

from tracelens.stats.window_scan import scan_pair


def test_two_steps_accuse_nobody() -> None:
    """However much the ranks differ, the p-value of both is 1."""
    assert scan_pair(np.array([0.9, 0.9])).p_values.tolist() == [1.0, 1.0]
