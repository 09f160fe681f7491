"""In a real browser: what is selected on one page is what all others show, and what a link restores."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from support.runs.indexes import explained, recorded
from support.web.browser import open_page, served, wait_until_settled

from tracelens.simulator.synthetic import Fault, Scenario

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

SLOW = Fault("backprop", (2,), steps=(40, 79), factor=1.6)
RUN = Scenario(ranks=4, ranks_per_host=2, steps=120, faults=(SLOW,))


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Serve a run alone, and together with another one."""
    folder = tmp_path_factory.mktemp("selected")
    for name in ("one", "other"):
        explained(recorded(folder / name, RUN))
    with served(folder / "one") as alone, served(folder) as several:
        yield alone, several


def fill(page: Page, label: str, value: str) -> None:
    """Type into a field of the bar, and wait until another part is shown."""
    address_before = page.url
    field = page.get_by_label(label)
    field.fill(value)
    field.press("Enter")
    page.wait_for_function("before => location.href !== before", arg=address_before)


def facts(page: Page, text: str) -> None:
    """Wait until the header says what is shown."""
    expect(page.locator("#run")).to_contain_text(text, timeout=60_000)


def test_narrowed_on_one_page_narrowed_on_all(browser: Browser, urls: tuple[str, str]) -> None:
    """Ranks and steps; a reload keeps them, Escape shows all again."""
    with open_page(browser, urls[0]) as page:
        facts(page, "4 ranks")
        page.keyboard.press("4")
        expect(page.get_by_role("heading", name="Steps", exact=True)).to_be_visible()
        fill(page, "steps to show", "40-79")
        facts(page, "40 steps")
        fill(page, "ranks to show", "2-3")
        facts(page, "2 ranks · 40 steps")
        expect(page.locator(".selection")).to_contain_text("peers are of all ranks")
        for key, path in (("2", "timeline"), ("3", "stragglers"), ("1", "")):
            page.keyboard.press(key)
            page.wait_for_url(re.compile(rf"/{path}\?run=~r2-3~s40-79"))
            facts(page, "2 ranks · 40 steps")
        expect(page.locator("#verdict, .verdict h1").first).to_contain_text("STRAGGLER rank 2")
        page.reload()
        facts(page, "2 ranks · 40 steps")
        expect(page.get_by_role("button", name="show all ranks, steps and names")).to_be_enabled()
        page.keyboard.press("Escape")
        facts(page, "4 ranks · 120 steps")
        assert "run=" not in page.url


def test_names_are_a_selection(browser: Browser, urls: tuple[str, str]) -> None:
    """Tables show their rows where they have any, the timeline finds them, links take them along."""
    with open_page(browser, urls[0] + "interleaving") as page:
        facts(page, "4 ranks")
        fill(page, "names to show", "bucket 1")
        wait_until_settled(page)
        for switch in page.get_by_role("switch", name="Table").all():
            switch.press("Space")
        filters = page.get_by_label("filter rows")
        expect(page.locator(".table .ag-row").first).to_be_attached()
        buckets = page.locator(".card", has=page.get_by_text("Overlap per bucket", exact=True))
        expect(buckets.get_by_label("filter rows")).to_have_value('"bucket 1"')
        expect(buckets.locator(".ag-center-cols-container .ag-row")).to_have_count(1)
        steps = page.locator(".card", has=page.get_by_text("communication per step"))
        expect(steps.get_by_label("filter rows")).to_have_value("")
        buckets.get_by_label("filter rows").fill("")
        expect(buckets.locator(".ag-center-cols-container .ag-row")).not_to_have_count(1)
        assert filters.count() > 1
        page.locator(".page-link", has_text="Timeline").click()
        expect(page.locator("#timeline-search")).to_have_value("bucket 1")
        expect(page.locator("#timeline-found")).to_contain_text("bucket 1")
        page.locator("#timeline-search").fill("forward")
        page.wait_for_url(re.compile("find=forward"))
        page.locator(".page-link", has_text="Overlap").click()
        expect(page.get_by_label("names to show")).to_have_value("forward")
        page.get_by_role("button", name="show all ranks, steps and names").click()
        expect(page.get_by_label("names to show")).to_have_value("")
        assert "find=" not in page.url


def test_what_is_no_part_is_said_beside_the_field(browser: Browser, urls: tuple[str, str]) -> None:
    """The page stays as it was; steps that are not there are said in the page's place."""
    with open_page(browser, urls[0]) as page:
        facts(page, "4 ranks")
        field = page.get_by_label("steps to show")
        field.fill("9-3")
        field.press("Enter")
        expect(page.locator(".selection")).to_contain_text("9 is not before 3")
        facts(page, "120 steps")
        fill(page, "steps to show", "500-600")
        expect(page.locator("#message")).to_contain_text("it has steps 0 to 119", timeout=60_000)
        page.go_back()
        facts(page, "120 steps")


def test_a_host_selects_its_ranks(browser: Browser, urls: tuple[str, str]) -> None:
    """Its ranks are filled in; another run is compared in the same steps."""
    with open_page(browser, urls[1]) as page:
        page.get_by_role("link", name="one", exact=True).click()
        facts(page, "4 ranks")
        page.locator("#selection-group").click()
        page.get_by_role("option").nth(1).click()
        facts(page, "2 ranks")
        assert "~r2-3" in page.url
        fill(page, "steps to show", "40-79")
        facts(page, "2 ranks · 40 steps")
        page.get_by_role("link", name="Compare").click()
        page.get_by_role("textbox", name="runs to compare with").click()
        page.get_by_role("option", name="other").click()
        expect(page.locator("#compare")).to_contain_text("Median step", timeout=60_000)
        expect(page.locator("#compare")).to_contain_text("no clear difference")
