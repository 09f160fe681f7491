"""In a real browser: every page can be read, is named, and can be used without a mouse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from support.accessibility import faint, nameless, tabbed
from support.browser import opened, served, settled

from tracelens.simulator.synthetic import Fault, Scenario, write
from tracelens_dashboard.components import run_list
from tracelens_dashboard.entries import id_of
from tracelens_dashboard.pages import PAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

pytestmark = pytest.mark.end_to_end

SLOW = Fault("backprop", (2,), steps=(10, 19), factor=1.6)
RUN = Scenario(ranks=4, steps=30, shards=2, shard_bytes=(24 << 20, 4 << 20), faults=(SLOW,))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Serve a folder of runs; return the address of every page by its title, and of the list."""
    folder = tmp_path_factory.mktemp("traces") / "run"
    write(RUN, folder)
    write(Scenario(ranks=2, steps=5), folder.parent / "other")  # one run alone would have no list
    asked = {page.TITLE: f"{page.PATH.lstrip('/')}?run={id_of(folder)}" for page in PAGES}
    with served(folder.parent) as url:
        yield {title: url + path for title, path in asked.items()} | {run_list.TITLE: url}


def visit(page: Tab, address: str) -> None:
    """Open a page, and wait until the run is open and all is drawn."""
    page.goto(address)
    expect(page.locator(".page-title, #verdict, #timeline, #runs").first).to_be_attached()
    expect(page.locator("#message")).to_have_count(0)
    settled(page)


def test_light_pages_can_be_read_named_and_reached(browser: Browser, pages: dict[str, str]) -> None:
    """Text has a contrast of 4.5; all that can be used has a name, Tab comes to it, and that is seen."""
    with opened(browser, pages[run_list.TITLE]) as page:
        for title, address in pages.items():
            visit(page, address)
            assert (title, faint(page), nameless(page)) == (title, [], [])
            never, unseen = tabbed(page)
            assert (title, never, unseen) == (title, [], [])


def test_dark_pages_and_dialogs_can_be_read(browser: Browser, pages: dict[str, str]) -> None:
    """Text has a contrast of 4.5 with what is behind it, as it is styled."""
    with opened(browser, pages[run_list.TITLE], "dark") as page:
        for title, address in pages.items():
            visit(page, address)
            assert (title, faint(page)) == (title, [])
        visit(page, pages["Timeline"])
        for button, dialog in (("#help-button", "Keys"), ("#export-button", "Perfetto")):
            page.locator(button).click()
            expect(page.get_by_role("dialog")).to_contain_text(dialog)
            settled(page)
            assert faint(page) == []
            page.keyboard.press("Escape")
            expect(page.get_by_role("dialog")).to_have_count(0)
