"""Messages that share a link evenly: what each had of its time leads back to when each was through."""

import numpy as np
import pytest

from tracelens.accounting.service import measure_link_time
from tracelens.replay.resources import Tasks, replay_events


def play(arrivals: list[float], work: list[float], crowding: float = 0.0) -> list[float]:
    """Return when messages are through that come to one link at some moments."""
    count = len(arrivals)
    numbers, zeros = np.arange(count), np.zeros(count, np.int64)
    tasks = Tasks(
        edge_rows=numbers,
        server_index=zeros,
        kind_indices=zeros,
        lane=zeros,
        stream=zeros - 1,
        work_share=np.ones(count),
        message_counts=np.ones(count),
        unit=numbers,
        is_unit_begin=np.ones(count, np.bool_),
        crowding_of_kind=np.array([crowding]),
    )
    recorded = np.array([*arrivals, *([0.0] * count)])
    none = np.zeros(0, np.int64)
    times = replay_events(
        recorded,
        (none, none, np.zeros(0)),
        (numbers, count + numbers, tasks, np.array(work)),
        np.zeros(2 * count, np.int64),
    )
    through: list[float] = times[count:].tolist()
    return through


def test_messages_at_once_get_equal_parts() -> None:
    """The second comes when the first has a third left, which then takes twice as long."""
    assert play([0.0, 2.0, 20.0], [3.0, 3.0, 1.0]) == [4.0, 6.0, 21.0]


def test_short_messages_are_through_before_long_ones() -> None:
    assert play([0.0, 1.0], [10.0, 1.0]) == [11.0, 3.0]


@pytest.mark.parametrize("crowding", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_what_messages_had_of_a_link_plays_them_again(seed: int, crowding: float) -> None:
    """Of any sizes, crowded or far apart."""
    draw = np.random.default_rng(seed)
    come, work = draw.uniform(0, 100, 60), draw.exponential(2.0, 60)
    through = np.array(play(come.tolist(), work.tolist(), crowding))
    assert measure_link_time(come, through, crowding) == pytest.approx(work, abs=1e-6)
