"""In a real browser: on every page a mark, or a row of its table, leads to the spans behind it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from support.turns import select_turn
from support.web.browser import box_of, open_page

from tracelens_dashboard.pages import (
    collectives,
    critical_path,
    interleaving,
    overview,
    shards,
    stacks,
    steps,
    stragglers,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

SLOWED = "Faults.slow_down"
BAR, POINT, CELLS = ".barlayer .point path", ".scatterlayer .point", ".heatmaplayer image"
# Page, chart, mark, what the address says besides the rank. Each run clicks one mark of each kind.
MARKS = (
    (collectives, collectives.SKEW, POINT, "sel="),
    *select_turn(
        (
            (overview, overview.RESIDUALS, CELLS, "steps="),
            (stragglers, stragglers.MAP, CELLS, "steps="),
            (shards, shards.TRAFFIC, CELLS, "t0="),
        )
    ),
    *select_turn(
        (
            (interleaving, interleaving.GAPS, BAR, "t0="),
            (critical_path, critical_path.COMPOSITION, BAR, "path=1"),
            (shards, shards.TENSORS, BAR, "t0="),
        )
    ),
)


def card_part(page: Page, chart: str, name: str) -> Locator:
    """Find a part of a chart's card."""
    identity = json.dumps({"chart": chart, "part": name}, separators=(",", ":"))
    return page.locator(f"[id='{identity}']")


def await_chart(page: Page, chart: str) -> Locator:
    """Wait until a chart is drawn and says in a sentence what it shows."""
    expect(card_part(page, chart, "summary")).not_to_be_empty()
    graph = card_part(page, chart, "graph")
    expect(graph.locator(".main-svg").first).to_be_attached()
    return graph


def click(page: Page, graph: Locator, mark: str, height: float | None = None) -> None:
    """Click the middle of a mark once its tooltip is shown; until then the page may still move it.

    `height` is in pixels below the mark's upper edge; the middle without.
    """
    target, hover_text = graph.locator(mark).first, graph.locator(".hoverlayer text")
    for attempt in range(150):
        target.scroll_into_view_if_needed()
        box = box_of(target)
        down = box["height"] / 2 if height is None else height
        page.mouse.move(box["x"] + box["width"] / 2 + attempt % 2, box["y"] + down)
        page.wait_for_timeout(200)
        if hover_text.count():
            page.mouse.down()
            page.mouse.up()
            return
    pytest.fail(f"no tooltip over {mark}")


def expect_spans(page: Page, *said: str) -> None:
    """Wait for the timeline, with a rank pinned."""
    page.wait_for_url("**/timeline?*")
    for word in ("pin=", *said):
        assert word in page.url
    expect(page.locator("#timeline image").first).to_be_attached()


def test_a_mark_leads_to_its_spans(browser: Browser, addresses: dict[str, str]) -> None:
    """A click on a cell, a point or a bar opens the timeline, a rank pinned, at its spans."""
    with open_page(browser, addresses["Runs"]) as page:
        for page_title, chart, mark, expected_text in MARKS:
            page.goto(addresses[page_title.TITLE])
            click(page, await_chart(page, chart.card_id), mark)
            expect_spans(page, expected_text)
            if expected_text == "sel=":  # the collective is selected: its last rank is pointed at
                arrow = page.locator("#timeline .annotation").filter(has_text="arrives last")
                expect(arrow).to_have_count(1)
            if expected_text == "path=1":
                expect(page.get_by_role("switch", name="Critical path")).to_be_checked()
                expect(page.locator("#timeline-note")).to_contain_text("The line is the critical")
            page.wait_for_load_state("networkidle")


def test_a_segment_of_the_path_leads_to_its_span(
    browser: Browser, addresses: dict[str, str]
) -> None:
    """Its row of the table, however it is sorted, leads to its rank and its moment, the path drawn."""
    with open_page(browser, addresses[critical_path.TITLE]) as page:
        expect(card_part(page, critical_path.SLACK.card_id, "summary")).not_to_be_empty()
        card_part(page, critical_path.SEGMENTS.card_id, "switch").check(force=True)
        table = card_part(page, critical_path.SEGMENTS.card_id, "rows")
        table.get_by_text("rank", exact=True).click()
        header = table.get_by_role("columnheader", name="rank")
        expect(header).to_have_attribute("aria-sort", "ascending")
        cells = table.locator(".ag-center-cols-container .ag-row[row-index='0'] .ag-cell")
        rank = cells.first.inner_text()
        cells.first.click()
        expect_spans(page, f"pin={rank}", "path=1")
        lines = page.locator("#timeline .layer-above .shapelayer path")
        expect(lines).not_to_have_count(0)
        page.get_by_role("switch", name="Critical path").uncheck(force=True)
        expect(lines).to_have_count(0)
        page.wait_for_function("() => !location.search.includes('path=')")


def test_a_frame_shows_when_it_ran(browser: Browser, addresses: dict[str, str]) -> None:
    """The late rank's function is named; another frame's row shows that one; a cell leads to spans."""
    with open_page(browser, addresses[stacks.TITLE]) as page:
        expect(card_part(page, stacks.CALLS.card_id, "summary")).to_contain_text(SLOWED)
        times = card_part(page, stacks.TIMES.card_id, "summary")
        expect(times).to_contain_text(SLOWED)
        card_part(page, stacks.FUNCTIONS.card_id, "switch").check(force=True)
        rows = card_part(page, stacks.FUNCTIONS.card_id, "rows").locator(".ag-cell[col-id='frame']")
        rows.filter(has_not_text=SLOWED).first.click()
        expect(times).not_to_contain_text(SLOWED)
        rows.filter(has_text=SLOWED).first.click()
        expect(times).to_contain_text(SLOWED)
        click(page, await_chart(page, stacks.TIMES.card_id), ".nsewdrag", height=12)
        expect_spans(page, "t0=")
        labels = page.locator("#timeline .yaxislayer-above text")
        expect(labels.filter(has_text="code of MainT").first).to_be_attached()


def test_the_chain_of_a_gradient_leads_to_its_spans(browser: Browser, slow_rank_url: str) -> None:
    """A bar of a bucket's way from backprop to its update leads to where it is typical."""
    with open_page(browser, slow_rank_url + interleaving.PATH.lstrip("/")) as page:
        click(page, await_chart(page, interleaving.CHAINS.card_id), BAR)
        expect_spans(page, "t0=")


def test_compute_time_names_the_straggler(browser: Browser, slow_rank_url: str) -> None:
    """All ranks take as long; by compute time, the slow one is named, and its cell leads there."""
    with open_page(browser, slow_rank_url + steps.PATH.lstrip("/")) as page:
        graph, summary = (
            await_chart(page, steps.MAP.card_id),
            card_part(page, steps.MAP.card_id, "summary"),
        )
        expect(summary).to_contain_text("choose compute time")
        page.locator(f"#{steps.MEASURE}").click()
        page.get_by_role("option", name="compute time", exact=True).click()
        expect(summary).to_contain_text("on rank 2 in step")
        click(page, graph, CELLS)
        expect_spans(page)
        assert re.search(r"pin=\d+&steps=\d+-\d+", page.url)
