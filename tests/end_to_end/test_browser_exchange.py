"""In a real browser: steps, collectives and interleaving are readable anywhere and lead to spans."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from support.browser import box_of, chromium, opened, served

from tracelens.simulator.synthetic import Fault, Scenario, write
from tracelens_dashboard.pages import collectives, interleaving, steps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Locator, Page

    from tracelens_dashboard.pages import Page as Shown

pytestmark = pytest.mark.end_to_end

RUN = Scenario(ranks=6, steps=60, faults=(Fault("backprop", (4,), steps=(20, 39), factor=1.8),))
CHARTS: dict[Shown, tuple[str, ...]] = {
    steps: (steps.SERIES, steps.MAP, steps.SPREAD),
    collectives: (
        collectives.EXCHANGE,
        collectives.SKEW,
        collectives.LAST,
        collectives.SPREAD,
        collectives.SPEED,
    ),
    interleaving: (
        interleaving.BY_STEP,
        interleaving.BY_BUCKET,
        interleaving.CHAINS,
        interleaving.GAPS,
        interleaving.BUDGET,
    ),
}
EVERY = pytest.mark.parametrize("shown", CHARTS, ids=lambda page: page.TITLE)
MARKS = (
    (collectives.PATH, collectives.SKEW, ".scatterlayer .point"),
    (interleaving.PATH, interleaving.CHAINS, ".barlayer .point path"),
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("traces") / "run"
    write(RUN, folder)
    with served(folder) as address:
        yield address.rstrip("/")


def part(page: Page, chart: str, name: str) -> Locator:
    """Find a part of a chart's card."""
    identity = json.dumps({"chart": chart, "part": name}, separators=(",", ":"))
    return page.locator(f"[id='{identity}']")


def drawn(page: Page, chart: str) -> Locator:
    """Wait until a chart is drawn and says in a sentence what it shows."""
    expect(part(page, chart, "summary")).not_to_be_empty()
    graph = part(page, chart, "graph")
    expect(graph.locator(".main-svg").first).to_be_attached()
    return graph


@EVERY
def test_every_chart_is_drawn_and_fits(browser: Browser, url: str, shown: Shown) -> None:
    """Each card has its sentence, its graph and a table with rows; on 420 pixels nothing is cut off."""
    with opened(browser, url + shown.PATH, "dark") as page:
        for chart in CHARTS[shown]:
            drawn(page, chart)
        first = CHARTS[shown][0]
        part(page, first, "switch").check(force=True)
        expect(part(page, first, "grid").locator(".ag-row").first).to_be_attached()
        expect(part(page, first, "plot")).to_be_hidden()
        page.set_viewport_size({"width": 420, "height": 900})
        page.wait_for_function("() => document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize(("path", "chart", "mark"), MARKS, ids=[row[1] for row in MARKS])
def test_a_mark_leads_to_its_spans(
    browser: Browser, url: str, path: str, chart: str, mark: str
) -> None:
    """A click on a cell, a point or a bar opens the timeline, a rank pinned, in that window."""
    with opened(browser, url + path) as page:
        click(page, drawn(page, chart), mark)
        page.wait_for_url("**/timeline?*")
        assert "pin=" in page.url
        assert "t0=" in page.url
        expect(page.locator("#timeline image")).to_have_count(1)
        if chart == collectives.SKEW:  # the call is selected, and its last rank pointed at
            assert "sel=" in page.url
            arrow = page.locator("#timeline .annotation").filter(has_text="enters last")
            expect(arrow).to_have_count(1)


def test_own_work_names_the_late_rank(browser: Browser, url: str) -> None:
    """All ranks take as long; measured by own work, the slow one is named, and its cell leads there."""
    with opened(browser, url + steps.PATH) as page:
        graph = drawn(page, steps.MAP)
        expect(part(page, steps.MAP, "summary")).to_contain_text("measure own work")
        page.locator(f"#{steps.MEASURE}").click()
        page.get_by_role("option", name="own work", exact=True).click()
        expect(part(page, steps.MAP, "summary")).to_contain_text("on rank 4 in step")
        click(page, graph, ".heatmaplayer image")
        page.wait_for_url("**/timeline?*")
        assert re.search(r"pin=\d+&steps=\d+-\d+", page.url)


def click(page: Page, graph: Locator, mark: str) -> None:
    """Click the middle of a mark, once its tooltip is there; until then the page may still move it."""
    target, said = graph.locator(mark).first, graph.locator(".hoverlayer text")
    for attempt in range(150):
        target.scroll_into_view_if_needed()
        box = box_of(target)
        page.mouse.move(box["x"] + box["width"] / 2 + attempt % 2, box["y"] + box["height"] / 2)
        page.wait_for_timeout(200)
        if said.count():
            page.mouse.down()
            page.mouse.up()
            return
    pytest.fail(f"no tooltip over {mark}")
