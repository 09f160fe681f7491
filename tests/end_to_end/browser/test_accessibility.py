"""In a real browser: every page can be read, is named, fits, and can be used without a mouse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from playwright.sync_api import expect
from support.launch.patience import wait_until
from support.turns import select_turn
from support.web.accessibility import faint, nameless, tabbed, violations
from support.web.browser import open_page, wait_until_settled

from tracelens_dashboard.app import run_list

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, ViewportSize

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

# The charts that are neither drawn nor say in a sentence that there is nothing to draw.
UNDRAWN = """() => [...document.querySelectorAll(`[id*='"part":"graph"']`)]
  .filter((graph) => graph.checkVisibility() && !graph.querySelector(".main-svg"))
  .map((graph) => graph.id)"""
# The charts with a switch whose table does not stand in their place, with rows.
UNREAD = """() => [...document.querySelectorAll(`[id*='"part":"grid"']`)]
  .filter((grid) => grid.closest(".card").querySelector(".table-switch")?.checkVisibility())
  .filter((grid) => grid.hidden || !grid.querySelector(".ag-row")).map((grid) => grid.id)"""
SHOWN = """() => [...document.querySelectorAll(`[id*='"part":"plot"']`)]
  .filter((plot) => plot.checkVisibility()).map((plot) => plot.id)"""
WIDE: Final[ViewportSize] = {"width": 1440, "height": 900}
NARROW: Final[ViewportSize] = {"width": 420, "height": 900}
SCHEME = "() => document.documentElement.dataset.mantineColorScheme"
IS_SCHEME = f"scheme => ({SCHEME})() === scheme"
OTHER_SCHEME = {"light": "dark", "dark": "light"}
FITS = "() => document.documentElement.scrollWidth <= innerWidth"


def wait_until_drawn(page: Page) -> None:
    """Wait until the run is open and all is drawn."""
    expect(page.locator(".page-title, #verdict, #timeline, #runs").first).to_be_attached()
    expect(page.locator("#message")).to_have_count(0)
    wait_until_settled(page)


def read_as_tables(page: Page) -> None:
    """Turn every switch, and wait until each chart is replaced by its table.

    By keyboard: a table that comes moves the switches below it, away under a mouse.
    """
    for switch in page.get_by_role("switch", name="Table").all():
        switch.press("Space")
        expect(switch).to_be_checked()
    wait_until(lambda: page.evaluate(UNREAD) == page.evaluate(SHOWN) == [])


def test_pages_can_be_read_named_and_reached(browser: Browser, addresses: dict[str, str]) -> None:
    """Text has a contrast of 4.5, light and dark; all that can be used has a name, and Tab comes to it.

    Every chart is drawn, and 420 pixels hold all of it. Axe finds nothing serious. On the pages whose
    turn it is, also while they arrive, in a narrow window of the other scheme, and with tables in place
    of the charts.
    """
    violations_by_page: dict[str, list[str]] = {}
    titles_in_turn = select_turn(list(addresses))
    with open_page(browser, addresses[run_list.TITLE]) as page:
        for title, address in addresses.items():
            in_turn = title in titles_in_turn
            page.set_viewport_size(WIDE)
            page.goto(address)
            if in_turn:
                violations_by_page[f"{title}, arriving"] = violations(page)
            wait_until_drawn(page)
            assert (title, faint(page), nameless(page)) == (title, [], [])
            never, unseen = tabbed(page)
            assert (title, never, unseen) == (title, [], [])
            wait_until(lambda: page.evaluate(UNDRAWN) == [])
            scheme = page.evaluate(SCHEME)
            violations_by_page[f"{title}, {scheme}"] = violations(page)
            other_scheme = OTHER_SCHEME[scheme]  # the next page opens in it
            page.locator("#scheme").click()
            page.wait_for_function(IS_SCHEME, arg=other_scheme)
            wait_until_settled(page)
            wait_until(lambda: faint(page) == [])
            page.set_viewport_size(NARROW)
            page.wait_for_function(FITS)
            if in_turn:
                violations_by_page[f"{title}, narrow, {other_scheme}"] = violations(page)
                read_as_tables(page)
                violations_by_page[f"{title}, as tables"] = violations(page)
    assert {
        where: broken_rules for where, broken_rules in violations_by_page.items() if broken_rules
    } == {}


def test_dark_dialogs_can_be_read(browser: Browser, addresses: dict[str, str]) -> None:
    """Text has a contrast of 4.5, and axe finds nothing serious."""
    with open_page(browser, addresses["Timeline"], "dark") as page:
        wait_until_drawn(page)
        for button, dialog in (("#help-button", "Keys"), ("#export-button", "Perfetto")):
            page.locator(button).click()
            expect(page.get_by_role("dialog")).to_contain_text(dialog)
            wait_until_settled(page)
            assert (faint(page), violations(page)) == ([], [])
            page.keyboard.press("Escape")
            expect(page.get_by_role("dialog")).to_have_count(0)
