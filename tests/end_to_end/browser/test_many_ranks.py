"""In a real browser: one late rank among 4,096 is on the screen, on wide windows and narrow ones."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from playwright.sync_api import expect
from support.launch.patience import wait_until
from support.runs.crowds import crowd, with_peaks
from support.web.browser import chromium, open_page
from support.web.pixels import coloured, plot
from waitress import create_server

from tracelens.lod.colours import parse_rgb
from tracelens_dashboard import theme
from tracelens_dashboard.app.server import create_app
from tracelens_dashboard.runs.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

RANKS, RANK, STEP, STEPS = 4096, 2741, 1776, 3000
# The plot lies within the window, and its image has no more columns than it has pixels.
FITS = """async () => {
  const plot = document.querySelector("#timeline .nsewdrag").getBoundingClientRect();
  const drawn = document.querySelector("#timeline image");
  if (!drawn) return false;
  const image = new Image();
  image.src = drawn.getAttribute("href");
  await image.decode();
  return plot.right <= window.innerWidth && image.naturalWidth <= plot.width;
}"""
LATEST = parse_rgb(theme.LIGHT.ramp_colours[-1])


@pytest.fixture
def url() -> Iterator[str]:
    store = Store(with_peaks(crowd(RANKS, STEPS, RANK, STEP)), Path())
    server = create_server(create_app(store).server, host="127.0.0.1", port=0, ident=None)
    threading.Thread(target=server.run, daemon=True).start()
    yield f"http://127.0.0.1:{server.effective_port}/"
    server.close()


def test_the_one_late_step_is_seen(url: str) -> None:
    """At full zoom-out its row shows its colour at its position, at any width of the window."""
    with chromium() as browser, open_page(browser, url + "timeline") as page:
        expect(page.locator("#timeline image").first).to_be_attached()
        for width in (1440, 1000, 600, 420):
            page.set_viewport_size({"width": width, "height": 1100})
            wait_until(lambda: page.evaluate(FITS) and _the_late_step_alone_is_seen(page))


def _the_late_step_alone_is_seen(page: Page) -> bool:
    where = plot(page)
    late = coloured(page, where, [LATEST])
    columns = [x for x, _ in late]
    rows = np.array_split(np.arange(RANKS), int(where["height"]))
    if {y for _, y in late} != {next(y for y, ranks in enumerate(rows) if RANK in ranks)}:
        return False
    place = (min(columns) + max(columns) + 1) / 2
    return abs(place / where["width"] - (STEP + 0.5) / STEPS) * where["width"] < 4
