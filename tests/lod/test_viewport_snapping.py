"""A window is covered whole, on a grid that does not move while one pans."""

from hypothesis import given
from hypothesis import strategies as st

from tracelens.lod.viewport import SMALLEST_NS, Window, snap_to_grid

WHOLE = Window(1_000_000, 91_000_000)


@given(
    start=st.integers(-(10**8), 2 * 10**8),
    width=st.integers(-(10**6), 3 * 10**8),
    columns=st.integers(1, 3000),
)
def test_any_window_is_clamped_into_the_run_and_covered(
    start: int, width: int, columns: int
) -> None:
    """Any requested window ends up in the run and is covered by whole columns."""
    window = Window(start, start + width).clamp(WHOLE)
    assert WHOLE.start_ns <= window.start_ns < window.end_ns <= WHOLE.end_ns
    assert window.width_ns >= SMALLEST_NS
    grid = snap_to_grid(window, WHOLE, columns)
    assert grid.start_ns <= window.start_ns
    assert window.end_ns <= grid.end_ns
    assert grid.column_count <= 2 * columns + 2


@given(shift=st.integers(0, 10**7))
def test_panning_keeps_the_columns_in_place(shift: int) -> None:
    """Two windows of one width share their column borders."""
    grid = snap_to_grid(Window(20_000_000, 30_000_000), WHOLE, 1200)
    moved_grid = snap_to_grid(Window(20_000_000 + shift, 30_000_000 + shift), WHOLE, 1200)
    assert grid.column_ns == moved_grid.column_ns
    assert (grid.start_ns - moved_grid.start_ns) % grid.column_ns == 0


def test_a_window_inside_keeps_its_width() -> None:
    """Pushed against the run's end, a window moves back instead of shrinking."""
    assert Window(90_000_000, 100_000_000).clamp(WHOLE) == Window(81_000_000, 91_000_000)
