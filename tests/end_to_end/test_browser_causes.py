"""In a real browser: a mark on the page of shards leads to the request behind it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from support.browser import box_of, chromium, opened, served

from tracelens.simulator.synthetic import Fault, Scenario, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.end_to_end

MIB = 1 << 20
RUN = Scenario(
    ranks=4,
    steps=60,
    shards=2,
    variables=(9 * MIB, MIB, 2 * MIB, 2 * MIB),
    faults=(Fault("backprop", (2,), steps=(20, 39), factor=1.6),),
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
        yield address


def part(page: Page, chart: str, name: str) -> Locator:
    """Find a part of a chart's card."""
    return page.locator(f"""[id='{{"chart":"{chart}","part":"{name}"}}']""")


def card(page: Page, chart: str) -> Locator:
    """Find a chart's card."""
    return page.locator(".card").filter(has=part(page, chart, "graph")).last


def click_first_bar(page: Page, chart: str) -> None:
    """Click the middle of a chart's first bar."""
    bar = part(page, chart, "graph").locator(".barlayer .point path").first
    bar.scroll_into_view_if_needed()
    box = box_of(bar)
    click_mark(page, chart, box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def click_mark(page: Page, chart: str, x: float, y: float) -> None:
    """Point at a mark until the chart says which, then click: it only hears of what it pointed at."""
    page.mouse.move(x, y)
    expect(part(page, chart, "graph").locator(".hoverlayer .hovertext").first).to_be_visible()
    page.mouse.click(x, y)


def test_a_tensor_leads_to_its_longest_request(browser: Browser, url: str) -> None:
    """The tensor that bounds the shard is named; its bar leads to a worker's request."""
    with opened(browser, url + "shards") as page:
        expect(card(page, "shard-tensors")).to_contain_text("variable 0 (9.0 MiB a step, one way)")
        expect(card(page, "shard-placements")).to_contain_text("2 shards work like")
        click_first_bar(page, "shard-tensors")
        page.wait_for_url(re.compile("timeline.*pin="))
        expect(page.locator("#timeline image")).to_have_count(1)
