"""Every lane has a row, rows do not overlap, and a height leads back to its row."""

from itertools import pairwise

import pytest
from support.runs.frames import scene_of
from support.tiers import mark_slow

from tracelens.lod import viewport


@pytest.mark.parametrize("ranks", [1, 3, 24, 100, 512, 1500])
def test_rows_hold_every_lane_once_from_top_to_bottom(ranks: int) -> None:
    """Bands touch or leave gaps, never overlap, and hold all lanes in order."""
    plan = viewport.plan_rows(scene_of(ranks, 2).span_lanes, pinned=[0])
    below = plan.select_section("workers")
    assert [lane for band in below for lane in band.lane_indices] == list(range(ranks))
    assert all(a.top_px + a.height_px <= b.top_px for a, b in pairwise(plan.bands))
    assert all(band.height_px >= 1 for band in plan.bands)
    assert plan.bands[-1].top_px + plan.bands[-1].height_px <= plan.bottom_px
    assert plan.bottom_px <= viewport.WORKERS_PX + viewport.PINNED_PX + viewport.BETWEEN_SECTIONS_PX


def test_a_height_leads_back_to_its_band() -> None:
    """The middle of a band finds it; the space between two sections finds none."""
    plan = viewport.plan_rows(scene_of(4, 2).span_lanes, pinned=[3])
    for band in plan.bands:
        assert plan.find_band(band.middle_px) is band
    assert plan.find_band(plan.bands[0].top_px + viewport.PINNED_PX + 1) is None


def test_order_and_pins_are_respected() -> None:
    """Pinned lanes come first; the others follow the order asked for."""
    plan = viewport.plan_rows(scene_of(3, 2).span_lanes, pinned=[1], order=[2, 0, 1])
    assert [band.lane_indices[0] for band in plan.bands] == [1, 2, 0, 1]
    assert [band.section for band in plan.bands][:2] == ["pinned", "workers"]


def test_below_an_opened_lane_there_is_room() -> None:
    """Rows go on below its tracks; its row is its own, also where others share theirs."""
    for ranks in (4, 1500):
        scene = scene_of(ranks, 2)
        closed = viewport.plan_rows(scene.span_lanes)
        plan = viewport.plan_rows(scene.span_lanes, track_px_by_lane={2: 100})
        mine = next(band for band in plan.bands if band.lane_indices == (2,))
        below = next(band for band in plan.bands if band.top_px > mine.top_px)
        assert viewport.TRACK_PX <= plan.track_top_px_by_lane[2] - mine.top_px <= viewport.OPENED_PX
        assert below.top_px == plan.track_top_px_by_lane[2] + 100
        assert [lane for band in plan.bands for lane in band.lane_indices] == list(range(ranks))
        assert plan.bottom_px > closed.bottom_px


def test_tracks_are_opened_once_where_a_rank_is_pinned() -> None:
    """They stand below the pinned row, not below the other one again."""
    plan = viewport.plan_rows(scene_of(4, 2).span_lanes, pinned=[3], track_px_by_lane={3: 50})
    assert plan.track_top_px_by_lane == {3: plan.bands[0].top_px + viewport.PINNED_PX}


@pytest.mark.parametrize("ranks", mark_slow([4, 64, 4096], quick=[4, 64]))
def test_rows_are_as_tall_as_asked(ranks: int) -> None:
    """Of more ranks than can be scrolled through, several share a row."""
    plan = viewport.plan_rows(scene_of(ranks, 2).span_lanes, row_px=24)
    assert {band.height_px for band in plan.bands} == {24 - viewport.GAP_PX}
    assert plan.bottom_px <= viewport.TALLEST_PLAN_PX
    assert [lane for band in plan.bands for lane in band.lane_indices] == list(range(ranks))


def test_rows_use_the_room_there_is() -> None:
    """In a taller window more ranks have a row of their own."""
    lanes = scene_of(900, 2).span_lanes
    low, tall = viewport.plan_rows(lanes), viewport.plan_rows(lanes, room_px=950)
    assert len(low.bands) == viewport.WORKERS_PX
    assert len(tall.bands) == 900
