"""In a real browser: spans are found, time is measured, ranks are opened, a call is followed."""

from __future__ import annotations

import contextlib
import itertools
import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from support.web.browser import box_of, open_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

WINDOW = "timeline?t0=1000000000&t1=1040000000"


@pytest.fixture
def url(slow_rank_url: str) -> str:
    return slow_rank_url


def await_timeline(page: Page) -> tuple[float, float, float, float]:
    """Wait for the timeline; return where its plot is: x, y, width, height."""
    expect(page.locator("#timeline image").first).to_be_attached()
    expect(page.locator("#timeline-note")).to_contain_text("in view")
    box = box_of(page.locator("#timeline .nsewdrag").first)
    return box["x"], box["y"], box["width"], box["height"]


def test_spans_are_found_by_name(browser: Browser, url: str) -> None:
    """The slash leads to the field; a link leads to the longest span, selected, its rank opened."""
    with open_page(browser, url + "timeline?open=none") as page:
        await_timeline(page)
        page.keyboard.press("/")
        page.keyboard.type("BACKP")
        search_result = page.locator("#timeline-found")
        expect(search_result).to_contain_text("on rank 2")
        page.wait_for_function("() => location.search.includes('find=BACKP')")
        search_result.get_by_role("link", name="Show").first.click()
        expect(page.locator("#details-title")).to_contain_text("backprop on rank 2, MainThread")
        page.wait_for_function(
            "() => /open=2.*find=BACKP|find=BACKP.*open=2/.test(location.search)"
        )


def test_a_bucket_is_found_selected_and_reopened_by_keyboard(browser: Browser, url: str) -> None:
    """Enter and `n` lead from one to the next: selected, its rank opened, in view; the link keeps it."""
    with open_page(browser, url + "timeline?open=none") as page:
        await_timeline(page)
        page.keyboard.press("/")
        page.keyboard.type("bucket 1")
        expect(page.locator("#timeline-found")).to_contain_text("480 spans of the run match")
        page.keyboard.press("Enter")
        hit = page.locator("#timeline-hit")
        expect(hit).to_contain_text("1 of 480")
        page.keyboard.press("n")
        expect(hit).to_contain_text("2 of 480")
        page.keyboard.press("N")
        expect(hit).to_contain_text("1 of 480")
        page.keyboard.press("N")
        expect(hit).to_contain_text("480 of 480")
        title = page.locator("#details-title")
        expect(title).to_contain_text("on rank 3, reductions in step 119")
        page.wait_for_function("() => /sel=3-[0-9]+-[0-9]+/.test(location.search)")
        page.wait_for_function(
            "() => location.search.includes('open=0%2C3') || /open=0,3/.test(location.search)"
        )
        details_title, link = title.inner_text(), page.url
    with open_page(browser, link) as page:
        await_timeline(page)
        expect(page.locator("#details-title")).to_have_text(details_title)
        expect(page.locator("#timeline-search")).to_have_value("bucket 1")


def test_a_marked_area_is_a_table(browser: Browser, url: str) -> None:
    """Of the rows that were dragged over; a level drag marks all of them."""
    with open_page(browser, url + "timeline?open=none") as page:
        x, y, width, _ = await_timeline(page)
        page.keyboard.down("Shift")
        page.mouse.move(x + 0.3 * width, y + 30)
        page.mouse.down()
        page.mouse.move(x + 0.6 * width, y + 60, steps=6)
        page.mouse.up()
        table = page.locator("#timeline-area")
        expect(table).to_contain_text("Spans in the marked area")
        cells = table.locator("[col-id='process'].ag-cell")
        expect(cells.first).to_be_visible()
        assert 1 <= len(set(cells.all_inner_texts())) < 4
        page.mouse.move(x + 0.7 * width, y + 40)
        page.mouse.down()
        page.mouse.move(x + 0.8 * width, y + 40, steps=6)
        page.mouse.up()
        page.keyboard.up("Shift")
        for rank in range(4):
            expect(cells.get_by_text(f"rank {rank}", exact=True).first).to_be_visible()
        table.get_by_role("tab", name="Single spans").click()
        span = table.locator("[col-id='span'].ag-cell").first
        called = span.inner_text()
        span.click()
        expect(page.locator("#timeline-details")).to_contain_text(called)


def test_time_is_measured_with_shift(browser: Browser, url: str) -> None:
    """A drag with Shift marks a stretch, says what it was spent on, and leaves the window alone."""
    with open_page(browser, url + WINDOW) as page:
        x, y, width, height = await_timeline(page)
        address_before = page.url
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
        assert page.url == address_before


def toggle(page: Page, name: str) -> None:
    """Press the button of a row."""
    page.get_by_role("button", name=f"tracks of {name}", exact=True).first.click()


def test_a_rank_is_opened_and_closed(browser: Browser, url: str) -> None:
    """Its threads and reductions get rows below it, in the same window; the address says so."""
    with open_page(browser, url + WINDOW + "&open=none") as page:
        await_timeline(page)
        labels = page.locator("#timeline .yaxislayer-above text")
        expect(labels.filter(has_text="reductions")).to_have_count(0)
        toggle(page, "rank 2")
        expect(labels.filter(has_text="reductions")).to_have_count(1)
        expect(page.locator("#timeline image")).to_have_count(2)
        expect(page.locator("#timeline-note")).to_contain_text("1 process is opened")
        page.wait_for_function("() => location.search.includes('open=2')")
        page.reload()
        expect(labels.filter(has_text="reductions")).to_have_count(1)
        toggle(page, "rank 2")
        expect(labels.filter(has_text="reductions")).to_have_count(0)
        page.wait_for_function("() => location.search.includes('open=none')")


def test_a_bucket_is_seen_beside_backprop_and_its_link_opens_again(
    browser: Browser, url: str
) -> None:
    """In the opened rank a bucket has a bar of its own; a click selects it, and the link keeps it."""
    with open_page(browser, url + WINDOW + "&open=0") as page:
        plot_left_px = await_timeline(page)[0]
        bars = page.locator("#timeline .barlayer .point text", has_text="bucket")
        box_of(bars.first)
        boxes = [box_of(bar) for bar in bars.all()]
        box = next(
            box for box in boxes if box["x"] > plot_left_px
        )  # those beside the window are drawn, too
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        title = page.locator("#details-title")
        expect(title).to_contain_text("allreduce on rank 0, reductions")
        page.wait_for_function("() => /sel=0-[0-9]+-[0-9]+/.test(location.search)")
        details_title, link = title.inner_text(), page.url
    with open_page(browser, link) as page:
        await_timeline(page)
        expect(page.locator("#details-title")).to_have_text(details_title)
        expect(page.locator("#timeline .layer-above .shapelayer path").first).to_be_attached()


def test_rows_are_made_taller_by_their_edge(browser: Browser, url: str) -> None:
    """A drag of a row's lower edge makes all rows as tall; the address keeps it; the field undoes it."""
    with open_page(browser, url + WINDOW + "&open=none") as page:
        height_before_px = await_timeline(page)[3]
        edge = box_of(page.locator(".row-edge").first)
        page.mouse.move(edge["x"] + edge["width"] / 2, edge["y"] + edge["height"] / 2)
        page.mouse.down()
        page.mouse.move(edge["x"] + edge["width"] / 2, edge["y"] + 22, steps=4)
        page.mouse.up()
        page.wait_for_function("() => /row=[0-9]+/.test(location.search)")
        page.wait_for_function(
            "before => document.querySelector('#timeline .nsewdrag').getBoundingClientRect().height"
            " > before + 40",
            arg=height_before_px,
        )
        page.reload()
        assert await_timeline(page)[3] > height_before_px + 40


def test_few_ranks_are_opened_unasked(browser: Browser, url: str) -> None:
    """The rank that a finding names comes first, and the plot is no taller than the window."""
    with open_page(browser, url + "timeline") as page:
        await_timeline(page)
        row = page.get_by_role("button", name="tracks of rank 2", exact=True).first
        expect(row).to_have_attribute("aria-expanded", "true")
        page.keyboard.press("o")
        tall = page.evaluate("document.documentElement.scrollHeight")
        assert tall < 1500


def test_a_click_shows_who_entered_last(browser: Browser, url: str) -> None:
    """In a step in which rank 2 is slow, a click on a waiting rank points at rank 2."""
    with open_page(browser, url + WINDOW + "&open=none") as page:
        x, y, width, height = await_timeline(page)
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
