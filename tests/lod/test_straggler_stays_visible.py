"""A single late rank stays visible, however many ranks and steps share a pixel."""

import numpy as np
import pytest
from support.runs.crowds import crowd
from support.runs.frames import scene_of

from tracelens.lod import viewport
from tracelens.lod.lanes import FIRST_LEVEL, LEVELS
from tracelens.lod.query import draw_picture
from tracelens.lod.viewport import Window

WORST = FIRST_LEVEL + LEVELS - 1


@pytest.mark.parametrize(
    ("ranks", "steps"), [(128, 100), pytest.param(512, 400, marks=pytest.mark.slow)]
)
def test_one_late_step_is_painted(ranks: int, steps: int) -> None:
    """The one late step is drawn in its rank's row and its columns only."""
    rank, step = ranks - 50, steps // 2
    scene = scene_of(ranks, steps, {(rank, step): 100})
    plan = viewport.plan_rows(scene.span_lanes)
    picture = draw_picture(scene, scene.run_window, plan)
    assert picture.detail_level == "residuals"
    red = np.argwhere(picture.palette_pixels == WORST)
    row = plan.select_section("workers")[rank]
    assert set(red[:, 0]) == {*range(row.top_px, row.top_px + row.height_px)}
    begin = scene.step_lanes.starts_ns[scene.step_lanes.item_offsets[rank] + step]
    columns = (begin - picture.grid.start_ns) // picture.grid.column_ns
    assert red[:, 1].min() == columns


@pytest.mark.slow
def test_one_late_step_survives_more_ranks_and_steps_than_pixels() -> None:
    """With 4,096 ranks in 512 rows and 2.5 steps to a pixel, the late one is still drawn."""
    scene = crowd(4096, 3000, 4095, 1776).scene
    plan = viewport.plan_rows(scene.span_lanes)
    picture = draw_picture(scene, scene.run_window, plan)
    assert plan.bottom_px == viewport.WORKERS_PX
    red = np.argwhere(picture.palette_pixels == WORST)
    assert red.tolist() == [[511, 710]]


def test_worst_rank_stands_for_its_group_when_spans_are_sampled() -> None:
    """Zoomed in to one step, a row of eight ranks shows the late rank's spans."""
    scene = scene_of(1024, 3, {(9, 1): 100})
    plan = viewport.plan_rows(scene.span_lanes)
    second = Window(15 * 1_000_000, 130 * 1_000_000)
    picture = draw_picture(scene, second, plan)
    assert picture.detail_level == "sampled"
    shown = picture.palette_pixels[4]  # ranks 8 and 9
    alone = draw_picture(
        scene, second, viewport.plan_rows(scene.span_lanes, pinned=[9])
    ).palette_pixels[0]
    assert (shown == alone).all()
