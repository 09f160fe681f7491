"""One late rank among 4,096, late in one step of 3,000, is a pixel of the picture of the whole run."""

import base64
from pathlib import Path

import numpy as np
import pytest
from support.runs.crowds import crowd, with_peaks
from support.tiers import mark_slow
from support.web.pngs import chunks, pixels_of

from tracelens.lod.colours import parse_rgb
from tracelens.lod.lanes import FIRST_LEVEL, LEVELS
from tracelens_dashboard import theme as themes
from tracelens_dashboard.figures.timeline import plot
from tracelens_dashboard.runs.store import Store
from tracelens_dashboard.view import viewport
from tracelens_dashboard.view.viewport import Controls

# Ranks, steps, the late rank and its late step; of a quarter of them all is quick.
LARGE, SMALL = (4096, 3000, 2741, 1776), (1024, 750, 685, 444)
WORST = FIRST_LEVEL + LEVELS - 1


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(False, id="drawn from steps", marks=pytest.mark.slow),
        pytest.param(True, id="taken from levels"),
    ],
)
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
@pytest.mark.parametrize("size", mark_slow((LARGE, SMALL), quick={SMALL}), ids=["4096", "1024"])
def test_it_has_the_colour_of_the_latest(
    size: tuple[int, int, int, int], scheme: str, *, kept: bool
) -> None:
    """In the PNG that is sent its step is as late as can be, in its row, and nothing else is."""
    ranks, steps, late_rank, late_step = size
    run = crowd(ranks, steps, late_rank, late_step)
    frame = viewport.frame(
        Store(with_peaks(run) if kept else run, Path()), Controls(None, [], "rank")
    )
    theme = themes.for_scheme(scheme)
    figure = plot.draw(frame, viewport.picture(frame), theme)
    image = figure.layout.images[0]
    data = base64.b64decode(image.source.removeprefix("data:image/png;base64,"))
    pixels = pixels_of(data)
    assert len(pixels) == image.sizey == frame.row_plan.bottom_px  # no row is shrunk
    late = np.argwhere(pixels == WORST)
    assert set(late[:, 0]) == {late_rank * len(pixels) // ranks}
    width_s = image.sizex / pixels.shape[1]
    begin_s, end_s = (
        image.x + late[:, 1].min() * width_s,
        image.x + (late[:, 1].max() + 1) * width_s,
    )
    assert begin_s < (late_step + 1) / 1000
    assert end_s > late_step / 1000
    assert end_s - begin_s < 4 * width_s
    palette = chunks(data)[b"PLTE"]
    assert tuple(palette[3 * WORST : 3 * WORST + 3]) == parse_rgb(theme.ramp_colours[-1])
