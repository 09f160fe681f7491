"""In a real browser: from a finding to the spans behind it, on this machine and without an error."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from support.launch.patience import wait_until
from support.web.browser import box_of, open_page, place_saying, wait_until_settled

from tracelens_dashboard.app import wire
from tracelens_dashboard.pages import PAGES, shards, stragglers

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

BARS = "#timeline .barlayer .point path"
REQUESTED = "performance.getEntriesByType('resource').map((one) => new URL(one.name).pathname)"


@pytest.fixture
def url(slow_rank_url: str) -> str:
    return slow_rank_url


def follow_first_finding(page: Page) -> None:
    """Click the first finding's card and wait until the timeline is drawn."""
    page.locator("#findings .finding").first.click()
    page.wait_for_url("**/timeline?*")
    expect(page.locator("#timeline image").first).to_be_attached()
    expect(page.locator("#timeline-note")).to_contain_text("in view")
    wait_until_settled(page)  # a plot that is being drawn forgets keys and clicks


def plot_box(page: Page) -> tuple[float, float, float, float]:
    """Return the box of the timeline's plot: x, y, width, height in pixels."""
    box = box_of(page.locator("#timeline .nsewdrag").first)
    return box["x"], box["y"], box["width"], box["height"]


def test_from_a_finding_to_the_spans_behind_it(browser: Browser, url: str) -> None:
    """Overview, card, pinned rank in its window, zoom, real spans, click: the planted phase."""
    with open_page(browser, url) as page:
        expect(page.locator("#verdict")).to_contain_text("ank 2")
        expect(page.locator("#run")).to_contain_text("4 ranks · 120 steps")
        follow_first_finding(page)
        assert "pin=2" in page.url
        steps = re.search(r"steps=(\d+)-(\d+)", page.url)
        assert steps
        assert abs(int(steps[1]) - 40) <= 5
        assert abs(int(steps[2]) - 79) <= 5
        expect(page.locator("#timeline .yaxislayer-above text").first).to_have_text(
            re.compile("rank 2")
        )
        for _ in range(4):
            page.locator("#zoom-in").click()
        expect(page.locator(BARS).first).to_be_attached()
        expect(page.locator("#timeline-note")).to_contain_text("Every span is drawn")
        longest = max(
            (bar.bounding_box() or {"width": 0.0} for bar in page.locator(BARS).all()[:60]),
            key=lambda box: box["width"],
        )
        assert longest["width"] > 20
        _, y, _, _ = plot_box(page)
        page.mouse.click(*place_saying(page, y + 8, "backprop"))
        expect(page.locator("#details-title")).to_contain_text("backprop on rank 2 in step")
        expect(page.locator("#timeline-details")).to_contain_text("peers' median")
        large = [
            path
            for path in page.evaluate(REQUESTED)
            if "plotly" in path or "async-community" in path
        ]
        assert large == [wire.LIBRARY_PATH]  # once, and nothing for tables that no page asked for


def test_a_link_restores_the_view(browser: Browser, url: str) -> None:
    """Zooming writes the address; opened anew, it shows the same window and pin."""
    with open_page(browser, url) as page:
        follow_first_finding(page)
        before = page.url
        page.keyboard.press("w")
        page.wait_for_function("before => location.href !== before", arg=before)
        window = "#timeline-window"
        style = "e => [e.style.left, e.style.width]"
        wait_until_settled(page)
        address = page.url
        with open_page(browser, address) as second_page:
            expect(second_page.locator("#timeline image").first).to_be_attached()
            wait_until(
                lambda: (
                    second_page.locator(window).evaluate(style)
                    == page.locator(window).evaluate(style)
                )
            )
            expect(second_page.locator(".pins")).to_contain_text("rank 2")


def test_dragging_moves_the_window(browser: Browser, url: str) -> None:
    """A drag to the left moves on in time, and the image follows."""
    with open_page(browser, url + "timeline?t0=500000000&t1=900000000") as page:
        expect(page.locator("#timeline image").first).to_be_attached()
        wait_until_settled(page)  # a plot that is drawn anew forgets the drag that began on it
        image_before = page.locator("#timeline image").first.get_attribute("href")
        x, y, width, height = plot_box(page)
        page.mouse.move(x + width * 0.7, y + height / 2)
        page.mouse.down()
        page.mouse.move(x + width * 0.2, y + height / 2, steps=5)
        page.mouse.up()
        page.wait_for_function("() => !location.search.includes('t0=500000000')")
        moved = re.search(r"t0=(\d+)&t1=(\d+)", page.url)
        assert moved
        assert int(moved[1]) == pytest.approx(700_000_000, abs=20_000_000)
        page.wait_for_function(
            "old => document.querySelector('#timeline image').getAttribute('href') !== old",
            arg=image_before,
        )


def test_dark_and_light(browser: Browser, url: str) -> None:
    """The system's scheme is followed; the switch overrides it, also after a reload."""
    background = "() => getComputedStyle(document.querySelector('.card')).backgroundColor"
    scheme = "() => document.documentElement.dataset.mantineColorScheme"
    with open_page(browser, url, "dark") as page:
        expect(page.locator("#findings")).to_be_visible()
        page.wait_for_function(f"() => ({scheme})() === 'dark'")
        page.wait_for_function(f"() => ({background})() === 'rgb(46, 46, 46)'")
        expect(page.locator(".ytick text").first).to_have_css("fill", "rgb(227, 229, 232)")
        page.locator("#scheme").click()
        page.wait_for_function(f"() => ({scheme})() === 'light'")
        page.wait_for_function(f"() => ({background})() === 'rgb(255, 255, 255)'")
        page.reload()
        expect(page.locator("#findings")).to_be_visible()
        page.wait_for_function(f"() => ({scheme})() === 'light'")


def test_every_page_shows_tables_and_no_cloud(browser: Browser, url: str) -> None:
    """All pages open by their keys; a chart can be read as a table; nothing offers an upload."""
    with open_page(browser, url) as page:
        expect(page.locator("#findings")).to_be_visible()
        for title, heading in (
            (stragglers, "Stragglers"),
            (shards, "No parameter servers"),
        ):
            page.keyboard.press(str(PAGES.index(title) + 1))
            expect(page.get_by_role("heading", name=heading)).to_be_visible()
        page.keyboard.press("1")
        page.get_by_role("switch", name="Table").first.check(force=True)
        expect(page.get_by_role("gridcell", name="efficiency")).to_be_visible()
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_contain_text("zoom in, zoom out")
        assert "Share chart" not in page.content()


def test_a_narrow_window_has_a_sidebar_to_open(browser: Browser, url: str) -> None:
    """On a narrow window the pages hide behind a button, and step aside once one is chosen."""
    with open_page(browser, url) as page:
        page.set_viewport_size({"width": 600, "height": 800})
        page.get_by_role("button", name="pages").click()
        page.get_by_role("link", name="Stragglers").click()
        expect(page.get_by_role("heading", name="Stragglers")).to_be_visible()
        expect(page.get_by_role("link", name="Stragglers")).not_to_be_in_viewport()
        page.wait_for_function("() => document.documentElement.scrollWidth <= window.innerWidth")
