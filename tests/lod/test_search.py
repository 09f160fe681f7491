"""A search tells what is called so in a window, how often, how long in all, and where longest."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracelens.lod import search
from tracelens.lod.lanes import Lane, Lanes
from tracelens.lod.viewport import Window

WORDS = ("", "Layer 1", "layer 2", "optimizer")


def lanes_of(rows: list[list[tuple[int, int]]]) -> Lanes:
    """Build touching spans, (length, word) in each row."""
    starts = [np.cumsum([0, *(length for length, _ in row)]) for row in rows]
    names = np.array([word for row in rows for _, word in row], np.int32)
    return Lanes(
        lanes=tuple(Lane(rank, "worker", rank) for rank in range(len(rows))),
        offsets=np.cumsum([0, *map(len, rows)]),
        starts=np.concatenate([edges[:-1] for edges in starts]),
        ends=np.concatenate([edges[1:] for edges in starts]),
        codes=np.ones(len(names), np.uint8),
        steps=np.zeros(len(names), np.int32),
        names=names,
        words=WORDS,
    )


def test_names_are_found_by_a_part_in_any_case() -> None:
    """Both layers, the one with more time first, with their longest span and its rank."""
    lanes = lanes_of([[(10, 1), (5, 2), (20, 3)], [(30, 1), (7, 2), (1, 1)]])
    first, second = search.find(lanes, " LAYER", Window(0, 1000))
    assert (first.name, first.count, first.total_ns, first.lane) == ("Layer 1", 3, 41, 1)
    assert (first.longest, second.longest) == (3, 4)
    assert (second.name, second.count, second.total_ns) == ("layer 2", 2, 12)


def test_only_the_window_counts() -> None:
    """What lies outside is not found, and no text finds nothing."""
    lanes = lanes_of([[(10, 1), (5, 2), (20, 3)]])
    assert [match.name for match in search.find(lanes, "l", Window(11, 14))] == ["layer 2"]
    assert search.find(lanes, "", Window(0, 100)) == []
    assert search.find(lanes, "nothing", Window(0, 100)) == []


@given(
    rows=st.lists(
        st.lists(st.tuples(st.integers(1, 50), st.integers(0, 3)), min_size=1, max_size=20),
        min_size=1,
        max_size=4,
    ),
    start=st.integers(0, 300),
    length=st.integers(1, 300),
)
def test_sums_are_those_of_looking_at_each(
    rows: list[list[tuple[int, int]]], start: int, length: int
) -> None:
    """For any spans and window, also in small portions."""
    lanes, seen = lanes_of(rows), Window(start, start + length)
    starts, ends = lanes.starts[:], lanes.ends[:]
    inside = (starts < seen.end_ns) & (ends > seen.start_ns)
    for match in search.find(lanes, "l", seen):
        mine = inside & (lanes.names[:] == WORDS.index(match.name))
        lasted = (ends - starts)[mine]
        assert (match.count, match.total_ns) == (len(lasted), lasted.sum())
        assert mine[match.longest]
        assert ends[match.longest] - starts[match.longest] == lasted.max()


def test_small_portions_find_the_same() -> None:
    """However much fits into memory."""
    lanes = lanes_of([[(10, 1), (50, 2), (20, 3)], [(30, 1), (7, 2), (60, 2)]])
    whole = search.find(lanes, "l", Window(0, 1000))
    assert search.find(lanes, "l", Window(0, 1000), max_items=2) == whole
