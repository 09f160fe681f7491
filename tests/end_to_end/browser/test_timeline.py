"""In a real browser: spans are found by name, time is measured, a rank is opened, a call is followed."""

from __future__ import annotations

import contextlib
import itertools
import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from support.web.browser import box_of, opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.end_to_end

WINDOW = "timeline?t0=1000000000&t1=1040000000"


@pytest.fixture
def url(slow_rank_url: str) -> str:
    return slow_rank_url


def drawn(page: Page) -> tuple[float, float, float, float]:
    """Wait for the timeline; return where its plot is: x, y, width, height."""
    expect(page.locator("#timeline image")).to_have_count(1)
    expect(page.locator("#timeline-note")).to_contain_text("in view")
    box = box_of(page.locator("#timeline .nsewdrag").first)
    return box["x"], box["y"], box["width"], box["height"]


def test_spans_are_found_by_name(browser: Browser, url: str) -> None:
    """The slash leads to the field; a link leads to the longest span of that name, rank pinned."""
    with opened(browser, url + "timeline") as page:
        drawn(page)
        page.keyboard.press("/")
        page.keyboard.type("BACKP")
        found = page.locator("#timeline-found")
        expect(found).to_contain_text("on rank 2")
        before = page.url
        found.get_by_role("link", name="Show").first.click()
        page.wait_for_function("before => location.href !== before", arg=before)
        assert "pin=2" in page.url


def test_time_is_measured_with_shift(browser: Browser, url: str) -> None:
    """A drag with Shift marks a stretch, says what it was spent on, and leaves the window alone."""
    with opened(browser, url + WINDOW) as page:
        x, y, width, height = drawn(page)
        before = page.url
        page.keyboard.down("Shift")
        page.mouse.move(x + width * 0.25, y + height / 2)
        page.mouse.down()
        page.mouse.move(x + width * 0.75, y + height / 2, steps=5)
        page.mouse.up()
        page.keyboard.up("Shift")
        measured = page.locator("#timeline-measured")
        expect(measured).to_contain_text("All ranks:")
        said = re.search(r"Selected: ([\d.]+) ms", measured.inner_text())
        assert said
        assert float(said[1]) == pytest.approx(20, abs=0.5)
        assert page.url == before


def test_a_rank_is_opened(browser: Browser, url: str) -> None:
    """Its threads and nested spans get rows, in the same window."""
    with opened(browser, url + WINDOW) as page:
        drawn(page)
        page.locator("#opened-rank").click()
        page.get_by_role("option", name="rank 2").click()
        expect(page.locator("#opened-note")).to_contain_text("Rank 2:")
        rows = page.locator("#opened-graph .yaxislayer-above text")
        expect(rows.filter(has_text="reductions")).to_have_count(1)
        expect(page.locator("#opened-graph .barlayer .point path").first).to_be_attached()


def test_a_click_shows_who_entered_last(browser: Browser, url: str) -> None:
    """In a step in which rank 2 is slow, a click on a waiting rank points at rank 2."""
    with opened(browser, url + WINDOW) as page:
        x, y, width, height = drawn(page)
        details = page.locator("#timeline-details")
        pointed = page.locator("#timeline .annotation").filter(has_text="rank 2 arrives last")
        # Which place it is depends on the drawing; a busy machine answers late.
        for patience_ms, share in itertools.product((2000, 15_000), range(5, 100, 10)):
            page.mouse.click(x + width * share / 100, y + height * 0.1)
            with contextlib.suppress(AssertionError):
                waiting = "wait for other ranks on rank 0"
                expect(details).to_contain_text(waiting, timeout=patience_ms)
                expect(pointed).to_have_count(1, timeout=patience_ms)
                return
        pytest.fail("nothing that was clicked is a wait for other ranks")
