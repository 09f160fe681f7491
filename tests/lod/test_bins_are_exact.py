"""Bins sum up time exactly, also where spans overlap, and coarse bins are sums of fine ones."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracelens.lod import pyramid
from tracelens.lod.lanes import BLANK, SHADE, SHADES
from tracelens.lod.pyramid import Bins

ORIGIN = 1_000_003
SPANS = st.lists(
    st.tuples(st.integers(0, 900), st.integers(1, 400), st.integers(1, 16)), min_size=1, max_size=60
)


def arrays(spans: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return starts, ends and codes of (start, length, code)."""
    start, length, code = np.array(spans).T
    return ORIGIN + start, ORIGIN + start + length, code.astype(np.uint8)


def sums_by_hand(spans: list[tuple[int, int, int]], bins: Bins) -> np.ndarray:
    """Count nanosecond by nanosecond, [code, bin]."""
    sums = np.zeros((17, bins.count * bins.width_ns))
    for start, length, code in spans:
        sums[code, start : start + length] += 1
    return np.asarray(sums.reshape(17, bins.count, -1).sum(axis=2))


@given(spans=SPANS, width=st.integers(1, 600))
def test_every_bin_holds_each_codes_time(spans: list[tuple[int, int, int]], width: int) -> None:
    """For any spans, in any order, overlapping or not."""
    bins = Bins.from_window(ORIGIN, ORIGIN + 1300, width)
    present, sums = pyramid.sum_busy_time(*arrays(spans), bins)
    assert (sums == sums_by_hand(spans, bins)[present]).all()
    assert sums.sum() == sum(length for _, length, _ in spans)


@given(spans=SPANS)
def test_every_level_shows_the_code_with_most_time(spans: list[tuple[int, int, int]]) -> None:
    """On each level, the colour is the one that counting says, faint where the bin was not full."""
    ladder = [Bins.from_window(ORIGIN, ORIGIN + 1300, 7 << level) for level in range(6)]
    for bins, row in zip(ladder, pyramid.build_levels(*arrays(spans), ladder), strict=True):
        sums = sums_by_hand(spans, bins)
        busy = np.minimum(sums.sum(axis=0) / bins.width_ns, 1)
        assert ((row == BLANK) == (busy == 0)).all()
        shown_bins = np.flatnonzero(busy)
        longest_ns = sums[row[shown_bins] % SHADE, shown_bins]
        assert (longest_ns == sums[:, shown_bins].max(axis=0)).all()
        assert (
            row[shown_bins] // SHADE == SHADES - 1 - np.minimum(busy[shown_bins] * 4, 3).astype(int)
        ).all()


def test_a_ladder_covers_the_run_with_twos() -> None:
    """Each level is twice as coarse as the one before and covers the run, from fine to 512 bins."""
    ladder = pyramid.choose_levels_over(5, 5 + 10**12, 100_000)
    assert all(b.width_ns == 2 * a.width_ns for a, b in pairwise(ladder))
    assert all(b.count * b.width_ns >= 10**12 > (b.count - 1) * b.width_ns for b in ladder)
    assert ladder[0].count <= 100_000 / pyramid.SPANS_A_BIN
    assert 256 <= ladder[-1].count <= pyramid.FEWEST_BINS
