"""Messages that share a link evenly: what each had of its time leads back to when each was through."""

from __future__ import annotations

import numpy as np
import pytest

from tracelens.replay.parameter_servers import in_turn, link_time, shared


def test_messages_at_once_get_equal_parts() -> None:
    """The second comes when the first has a third left, which then takes twice as long."""
    through = shared(np.array([0.0, 2.0, 20.0]), np.array([3.0, 3.0, 1.0]))
    assert through.tolist() == [4.0, 6.0, 21.0]


def test_short_messages_are_through_before_long_ones() -> None:
    """Whoever came first."""
    assert shared(np.array([0.0, 1.0]), np.array([10.0, 1.0])).tolist() == [11.0, 3.0]


@pytest.mark.parametrize("seed", range(5))
def test_what_messages_had_of_a_link_plays_them_again(seed: int) -> None:
    """Of any sizes, crowded or far apart."""
    draw = np.random.default_rng(seed)
    come, work = draw.uniform(0, 100, 60), draw.exponential(2.0, 60)
    through = shared(come, work)
    assert link_time(come, through) == pytest.approx(work, abs=1e-6)


def test_a_processor_serves_in_turn() -> None:
    """Who comes while it is at work waits."""
    served = in_turn(np.array([0.0, 1.0, 9.0]), np.array([4.0, 2.0, 1.0]))
    assert served.tolist() == [4.0, 6.0, 10.0]
