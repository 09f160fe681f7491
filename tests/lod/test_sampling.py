"""A pixel shows the span under its centre, and what falls between the centres is counted."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.lod import raster
from tracelens.lod.lanes import BLANK, Lane, Lanes
from tracelens.lod.viewport import Grid


def lanes_of(edges: list[int], codes: list[int]) -> Lanes:
    """Build one lane; every second piece between the edges is a gap."""
    starts, ends = np.array(edges[:-1:2]), np.array(edges[1::2])
    number = np.zeros(len(starts), np.int32)
    code = np.array(codes[: len(starts)], np.uint8)
    offsets = np.array([0, len(starts)])
    return Lanes((Lane(0, "worker", 0),), offsets, starts, ends, code, number, number, ("",))


def test_each_column_shows_what_runs_at_its_centre() -> None:
    """Gaps stay blank, spans keep their code, a span between two centres is counted as hidden."""
    lanes = lanes_of([0, 20, 30, 40, 41, 44, 50, 100], [1, 2, 3, 4])
    pixels, hidden = raster.draw_samples(lanes, [0], Grid(0, 10, 10))
    assert pixels.tolist() == [[1, 1, BLANK, 2, BLANK, 4, 4, 4, 4, 4]]
    assert hidden == 1


@settings(max_examples=60)
@given(
    edges=st.lists(st.integers(0, 500), min_size=2, max_size=40, unique=True),
    start=st.integers(-50, 450),
    step=st.integers(1, 40),
)
def test_sampling_agrees_with_looking_at_every_span(
    edges: list[int], start: int, step: int
) -> None:
    """For any lane and grid, each pixel is the code of the span that holds its centre."""
    edges = sorted(edges)[: len(edges) // 2 * 2]
    lanes = lanes_of(edges, list(range(1, 41)))
    grid = Grid(start, step, 25)
    pixels, _ = raster.draw_samples(lanes, [0], grid)
    for column in range(grid.column_count):
        centre = start + column * step + step // 2
        inside = (lanes.starts_ns[:] <= centre) & (centre < lanes.ends_ns[:])
        expected = lanes.palette_codes[inside][0] if inside.any() else BLANK
        assert pixels[0, column] == expected


@settings(max_examples=60)
@given(
    edges=st.lists(st.integers(0, 500), min_size=2, max_size=40, unique=True),
    codes=st.lists(st.integers(1, 90), min_size=20, max_size=20),
    start=st.integers(-50, 450),
    step=st.integers(1, 40),
)
def test_highest_never_loses_a_span(
    edges: list[int], codes: list[int], start: int, step: int
) -> None:
    """For any lane and grid, each pixel is the highest code of all spans that touch its column."""
    edges = sorted(edges)[: len(edges) // 2 * 2]
    lanes = lanes_of(edges, codes)
    grid = Grid(start, step, 25)
    pixels = raster.draw_highest(lanes, [0], grid)
    for column in range(grid.column_count):
        left, right = start + column * step, start + (column + 1) * step
        touching = (lanes.starts_ns[:] < right) & (left < lanes.ends_ns[:])
        assert pixels[0, column] == lanes.palette_codes[touching].max(initial=BLANK)
