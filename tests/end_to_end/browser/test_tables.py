"""In a real browser: tables sort by amount, and what they show can be found, copied and saved."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from support.launch.patience import wait_until
from support.web.browser import open_page, wait_until_settled

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

SKEW = "skew, max"
UNITS = {"ns": 1.0, "µs": 1e3, "ms": 1e6, "s": 1e9}


def skew_table(page: Page, address: str) -> Locator:
    """Open the page of collectives, and the table of arrival skew by step."""
    page.goto(address)
    card = page.locator(".card", has=page.get_by_role("heading", name="Arrival skew per step"))
    card.get_by_role("switch", name="Table").check(force=True)
    expect(card.locator(".ag-row").first).to_be_visible()
    wait_until_settled(page)
    return card


def read(card: Locator) -> list[float]:
    """Return the skews that are shown, from top to bottom, in ns."""
    rows = sorted(
        card.locator(".ag-center-cols-container .ag-row").all(),
        key=lambda row: int(row.get_attribute("row-index") or 0),
    )
    texts = [row.locator(f"[col-id='{SKEW}']").inner_text().split() for row in rows]
    return [float(number.replace(",", "")) * UNITS[unit] for number, unit in texts]


def test_a_column_sorts_by_amount(browser: Browser, addresses: dict[str, str]) -> None:
    """Upwards on a click on its head, downwards on the next; other units come in their place."""
    with open_page(browser, addresses["Collectives"]) as page:
        card = skew_table(page, addresses["Collectives"])
        head = card.locator(f".ag-header-cell[col-id='{SKEW}'] .ag-header-cell-text")
        head.click()
        wait_until(lambda: read(card) == sorted(read(card)))
        lowest = read(card)[0]
        head.click()
        wait_until(lambda: read(card) == sorted(read(card), reverse=True))
        assert read(card)[0] > lowest


def test_rows_are_found_copied_and_saved(browser: Browser, addresses: dict[str, str]) -> None:
    """As shown: filtered, in order; numbers as numbers, their unit in the heading."""
    with open_page(browser, addresses["Collectives"]) as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        card = skew_table(page, addresses["Collectives"])
        card.get_by_label("copy the table").click()
        expect(card.get_by_role("status")).to_contain_text("rows copied")
        text = page.evaluate("navigator.clipboard.readText()")
        copied = [line.split("\t") for line in text.splitlines()]
        with page.expect_download() as download:
            card.get_by_label("save the table as CSV").click()
        assert download.value.suggested_filename == "arrival-skew-per-step.csv"
        saved = list(csv.reader(Path(download.value.path()).read_text("utf-8-sig").splitlines()))
        assert saved == copied
        unit = next(head for head in saved[0] if head.startswith(SKEW)).split("(")[1].rstrip(")")
        place = saved[0].index(f"{SKEW} ({unit})")
        numbers = [float(row[place]) * UNITS[unit] for row in saved[1:]]
        assert numbers == pytest.approx(sorted(numbers, reverse=True))
        assert read(card) == pytest.approx(numbers[: len(read(card))], rel=0.01)
        third = card.locator(".ag-center-cols-container .ag-row[row-index='2']")
        cell_texts = third.locator(".ag-cell").all_inner_texts()
        card.get_by_label("filter rows").fill(" ".join(cell_texts[2:4]))
        expect(card.locator(".ag-center-cols-container .ag-row")).to_have_count(1)
        expect(card.locator(".ag-center-cols-container")).to_contain_text(cell_texts[3])


def test_a_link_to_the_view_is_copied(browser: Browser, addresses: dict[str, str]) -> None:
    """Opened anew it shows the same window: the button copies what the address bar says."""
    with open_page(browser, addresses["Timeline"]) as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        wait_until_settled(page)
        before = page.url
        page.locator("#zoom-in").click()
        page.wait_for_function("before => location.href !== before", arg=before)
        page.get_by_label("copy a link to this view").click()
        expect(page.get_by_label("copy a link to this view")).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == page.url
        expect(page.get_by_label("copy a link to this view")).to_have_text("Copy link")
