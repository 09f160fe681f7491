"""Of what is in flight, a step without detail keeps the last of each kind on each thread."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracelens.conversion.retention import Sampled, Sampling, thin

EVENTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(1, 2)), max_size=12)


@given(EVENTS)
def test_the_last_of_each_kind_in_each_step(events: list[tuple[int, int, int]]) -> None:
    """Step 0 has its detail; a step, a kind and a thread each."""
    count = len(events)
    step, group, thread = np.array(events, np.int64).reshape(-1, 3).T
    start = np.arange(count)
    found = thin(
        Sampled(
            thread=thread,
            start=start,
            end=start + 1,
            step=step,
            depth=np.zeros(count, np.int64),
            phase=np.full(count, 5),
            group=group,
            span=np.ones(count, np.bool_),
            over=np.ones(count, np.bool_),
            waited=np.zeros(count, np.bool_),
        ),
        Sampling(every=10, burst=1),
        np.array([False, True, True]),
    )
    last = {event: place for place, event in enumerate(events)}
    expected = [event[0] == 0 or last[event] == place for place, event in enumerate(events)]
    assert found.kept.tolist() == expected
    assert not found.undecided.any()
