"""Every lane has a row, rows do not overlap, and a height leads back to its row."""

from __future__ import annotations

from itertools import pairwise

import pytest
from support.runs.frames import scene_of

from tracelens.lod import viewport


@pytest.mark.parametrize("ranks", [1, 3, 24, 100, 512, 1500])
def test_rows_hold_every_lane_once_from_top_to_bottom(ranks: int) -> None:
    """Bands touch or leave gaps, never overlap, and hold all lanes in order."""
    plan = viewport.plan(scene_of(ranks, 2).lanes, pinned=[0])
    below = plan.section("workers")
    assert [lane for band in below for lane in band.lanes] == list(range(ranks))
    assert all(a.top + a.height <= b.top for a, b in pairwise(plan.bands))
    assert all(band.height >= 1 for band in plan.bands)
    assert plan.bands[-1].top + plan.bands[-1].height <= plan.height
    assert plan.height <= viewport.WORKERS_PX + viewport.PINNED_PX + viewport.BETWEEN_SECTIONS_PX


def test_a_height_leads_back_to_its_band() -> None:
    """The middle of a band finds it; the space between two sections finds none."""
    plan = viewport.plan(scene_of(4, 2).lanes, pinned=[3])
    for band in plan.bands:
        assert plan.at(band.middle) is band
    assert plan.at(plan.bands[0].top + viewport.PINNED_PX + 1) is None


def test_order_and_pins_are_respected() -> None:
    """Pinned lanes come first; the others follow the order asked for."""
    plan = viewport.plan(scene_of(3, 2).lanes, pinned=[1], order=[2, 0, 1])
    assert [band.lanes[0] for band in plan.bands] == [1, 2, 0, 1]
    assert [band.section for band in plan.bands][:2] == ["pinned", "workers"]
