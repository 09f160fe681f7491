"""The level of detail follows from how wide a step is and how many spans are in view."""

import numpy as np
import pytest
from support.runs.frames import MS, scene_of

from tracelens.lod import viewport
from tracelens.lod.lanes import CODES, FIRST_LEVEL
from tracelens.lod.query import MOST_BARS, draw_picture
from tracelens.lod.viewport import Window

STEP = 15 * MS


def test_narrow_steps_show_lateness() -> None:
    """400 steps in 1,200 columns: three pixels a step, so colours mean lateness, not categories."""
    scene = scene_of(8, 400)
    picture = draw_picture(scene, scene.run_window, viewport.plan_rows(scene.span_lanes))
    assert picture.detail_level == "residuals"
    assert picture.palette_pixels.max() == FIRST_LEVEL


@pytest.mark.slow
def test_wide_steps_show_categories() -> None:
    """20 steps of 64 ranks: categories, sampled, since the spans are too many for shapes."""
    scene = scene_of(64, 400)
    picture = draw_picture(scene, Window(0, 20 * STEP), viewport.plan_rows(scene.span_lanes))
    assert picture.detail_level == "sampled"
    assert picture.bars is None
    assert picture.span_count == 64 * 20 * 4
    assert set(np.unique(picture.palette_pixels)) == {
        0,
        *(CODES[c] for c in ("data", "forward", "backprop", "update")),
    }


def test_few_spans_are_drawn_as_spans() -> None:
    """Two steps of eight ranks: every span in what is drawn becomes a shape."""
    scene = scene_of(8, 400)
    plan = viewport.plan_rows(scene.span_lanes)
    picture = draw_picture(scene, Window(100 * STEP, 102 * STEP), plan)
    assert picture.detail_level == "spans"
    assert picture.bars is not None
    assert set(picture.bars.band_indices) == set(range(8))
    assert len(picture.bars.item_indices) <= MOST_BARS
    assert picture.hidden_count == 0


def test_pinned_rows_get_shapes_where_the_others_are_too_many() -> None:
    """One step of 512 ranks: the pinned rank's spans are shapes, all others are sampled."""
    scene = scene_of(512, 20)
    plan = viewport.plan_rows(scene.span_lanes, pinned=[41])
    picture = draw_picture(scene, Window(5 * STEP, 6 * STEP), plan)
    assert picture.detail_level == "sampled"
    assert picture.bars is not None
    assert set(picture.bars.band_indices) == {0}
    assert plan.bands[0].lane_indices == (41,)


def test_bars_lie_in_the_band_of_their_lane() -> None:
    """Every shape belongs to the lane whose band it is drawn in."""
    scene = scene_of(4, 10)
    plan = viewport.plan_rows(scene.span_lanes, pinned=[2])
    bars = draw_picture(scene, Window(0, 2 * STEP), plan).bars
    assert bars is not None
    lanes = np.searchsorted(scene.span_lanes.item_offsets, bars.item_indices, side="right") - 1
    assert [plan.bands[band].lane_indices for band in bars.band_indices] == [
        (lane,) for lane in lanes
    ]
