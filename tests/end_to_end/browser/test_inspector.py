"""In a real browser: the panel next to the timeline, its links to other spans, and closing it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from support.turns import select_turn
from support.web.accessibility import faint, nameless, violations
from support.web.browser import box_of, open_page, wait_until_settled

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
    from support.web.browser import Scheme

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

WINDOW = "timeline?t0=1000000000&t1=1040000000&open=0"
PANEL = "#timeline-details"


@pytest.fixture
def url(slow_rank_url: str) -> str:
    return slow_rank_url


def select_a_bucket(page: Page) -> None:
    """Click a reduction in flight of the opened rank 0."""
    expect(page.locator("#timeline-note")).to_contain_text("in view")
    plot_left_px = box_of(page.locator("#timeline .nsewdrag").first)["x"]
    bars = page.locator("#timeline .barlayer .point text", has_text="bucket")
    box_of(bars.first)
    box = next(box for box in map(box_of, bars.all()) if box["x"] > plot_left_px)
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page.locator("#details-title")).to_contain_text("allreduce on rank 0, reductions")


def test_it_stands_beside_the_plot_and_below_it_in_a_narrow_window(
    browser: Browser, url: str
) -> None:
    """The plot gives way, and takes the room again when the panel is closed, or Esc pressed."""
    with open_page(browser, url + WINDOW) as page:
        plot = page.locator("#timeline")
        wait_until_settled(page)
        alone = box_of(plot)
        wide = alone["width"]
        expect(page.locator(PANEL)).to_be_hidden()
        for key in (None, "Escape"):
            select_a_bucket(page)
            expect(page.locator(PANEL)).to_be_visible()
            wait_until_settled(page)
            plot_box, panel = box_of(plot), box_of(page.locator(PANEL))
            assert plot_box["width"] < wide
            assert (plot_box["y"], plot_box["height"]) == (alone["y"], alone["height"])
            assert plot_box["x"] + plot_box["width"] <= panel["x"]
            assert panel["y"] < plot_box["y"] + plot_box["height"]
            # As many columns as there are pixels now, or a browser would drop some.
            page.wait_for_function(
                "wide => document.querySelector('#timeline .nsewdrag').getBoundingClientRect().width"
                " < wide - 136",
                arg=wide,
            )
            if key:
                page.keyboard.press(key)
            else:
                page.get_by_role("button", name="close details").click()
            expect(page.locator(PANEL)).to_be_hidden()
            page.wait_for_function("() => !location.search.includes('sel=')")
            page.wait_for_function(
                "wide => document.querySelector('#timeline').clientWidth === wide", arg=wide
            )
        select_a_bucket(page)
        page.set_viewport_size({"width": 880, "height": 900})
        page.wait_for_function(
            "() => document.querySelector('#timeline').getBoundingClientRect().bottom <="
            " document.querySelector('#timeline-details').getBoundingClientRect().top"
        )


def test_two_quick_clicks_select_and_keep_the_view(browser: Browser, url: str) -> None:
    """Where the address says that it is."""
    window_script = (
        "() => document.querySelector('#timeline .js-plotly-plot')._fullLayout.xaxis.range"
    )
    with open_page(browser, url + WINDOW) as page:
        expect(page.locator("#timeline-note")).to_contain_text("in view")
        bar = box_of(page.locator("#timeline .barlayer .point text", has_text="bucket").nth(1))
        page.mouse.dblclick(bar["x"] + bar["width"] / 2, bar["y"] + bar["height"] / 2)
        expect(page.locator("#details-title")).to_contain_text("allreduce on rank 0, reductions")
        wait_until_settled(page)
        assert page.evaluate(window_script) == pytest.approx([1.0, 1.04])


def test_a_member_leads_to_its_span(browser: Browser, url: str) -> None:
    """A click on a rank selects its part of the same call, opens it, and marks it in the list."""
    with open_page(browser, url + WINDOW) as page:
        select_a_bucket(page)
        panel = page.locator(PANEL)
        members = panel.locator(".members tbody tr")
        expect(members).to_have_count(4)
        expect(members.first).to_contain_text("rank 2last")
        call = panel.get_by_role("heading", name="allreduce ").last.inner_text()
        members.nth(1).get_by_role("button").focus()
        rank = members.nth(1).get_by_role("button").inner_text()
        page.keyboard.press("Enter")
        expect(page.locator("#details-title")).to_contain_text(f"allreduce on {rank}, reductions")
        expect(panel.get_by_role("heading", name=call, exact=True)).to_be_visible()
        expect(panel.locator(".members tr.chosen")).to_contain_text(rank)
        page.wait_for_function(
            "row => new RegExp(`sel=${row}-[0-9]+-[0-9]+`).test(location.search)",
            arg=rank.removeprefix("rank "),
        )
        panel.get_by_role("button", name="select backprop on rank 2").first.click()
        expect(page.locator("#details-title")).to_contain_text("backprop on rank 2 in step")
        expect(panel).to_contain_text("of this span is on it")


@pytest.mark.parametrize("scheme", select_turn(["light", "dark"]))
def test_it_can_be_read(browser: Browser, url: str, scheme: Scheme) -> None:
    """Contrast, names, and what axe asks for hold with a span selected, wide and narrow."""
    with open_page(browser, url + WINDOW, scheme) as page:
        select_a_bucket(page)
        for width in (1440, 420):
            page.set_viewport_size({"width": width, "height": 900})
            wait_until_settled(page)
            assert (faint(page), nameless(page), violations(page)) == ([], [], [])
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
