"""The page "What if" in a browser: controls change the answer, and bars lead to edits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from support.web.browser import box_of, open_page, wait_until_settled

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]


def test_controls_change_the_answer(browser: Browser, slow_rank_url: str) -> None:
    """It begins with the slow rank as fast as the others; without edits there is no answer."""
    with open_page(browser, slow_rank_url + "what-if", "light") as page:
        verdict, command = page.locator("#verdict"), page.locator("code")
        expect(verdict).to_contain_text("shorter")
        expect(command).to_contain_text("fix:1")
        expect(page.get_by_text("fix:1 fixes finding 1: Straggler: rank 2")).to_be_visible()
        further_edits = page.get_by_label("More edits")
        further_edits.fill("")
        further_edits.blur()
        expect(page.get_by_text("Choose above what would be different.")).to_be_visible()
        page.get_by_role("slider", name="Data loading").press("Home")
        expect(command).to_contain_text("--what 'phase:data=0'")
        expect(verdict).to_contain_text(re.compile(r"(shorter|longer) \(95.%"))
        further_edits.fill("rank:99=median")
        further_edits.blur()
        expect(page.locator("#what-if-refused")).to_contain_text("99")


def test_a_bar_leads_to_its_edit(browser: Browser, slow_rank_url: str) -> None:
    """And the address keeps it: a link shows the same."""
    with open_page(browser, slow_rank_url + "what-if?what=phase:forward*0.5", "light") as page:
        expect(page.locator("code")).to_contain_text("phase:forward*0.5")
        wait_until_settled(page)
        bars = page.locator('[id*="what-if-every"] .barlayer .point path')
        bars.first.scroll_into_view_if_needed()
        box = box_of(bars.first)
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        expect(page).to_have_url(re.compile("what=phase:backprop%3D0|what=phase:backprop=0"))
        expect(page.locator("code")).to_contain_text("phase:backprop=0")
