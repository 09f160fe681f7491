"""In a real browser: every page can be read, is named, and can be used without a mouse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from support.accessibility import faint, nameless, tabbed
from support.browser import opened, served, settled

from tracelens.simulator.synthetic import Fault, Scenario, write
from tracelens_dashboard.pages import PAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser
    from support.browser import Scheme

pytestmark = pytest.mark.end_to_end

SLOW = Fault("backprop", (2,), steps=(10, 19), factor=1.6)
RUN = Scenario(ranks=4, steps=30, shards=2, shard_bytes=(24 << 20, 4 << 20), faults=(SLOW,))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("traces") / "run"
    write(RUN, folder)
    with served(folder) as address:
        yield address


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read(browser: Browser, url: str, scheme: Scheme) -> None:
    """Text of every page and dialog has a contrast of 4.5 with what is behind it, as it is styled."""
    with opened(browser, url, scheme) as page:
        for known in PAGES:
            page.goto(url + known.PATH.lstrip("/"))
            settled(page)
            assert (known.TITLE, faint(page)) == (known.TITLE, [])
        for button, dialog in (("#help-button", "Keys"), ("#export-button", "Perfetto")):
            page.locator(button).click()
            expect(page.get_by_role("dialog")).to_contain_text(dialog)
            settled(page)
            assert faint(page) == []
            page.keyboard.press("Escape")
            expect(page.get_by_role("dialog")).to_have_count(0)


def test_everything_is_named_and_reached_by_keyboard(browser: Browser, url: str) -> None:
    """All that can be used has a name, Tab comes to it, and one sees where the focus is."""
    with opened(browser, url) as page:
        for known in PAGES:
            page.goto(url + known.PATH.lstrip("/"))
            settled(page)
            assert (known.TITLE, nameless(page)) == (known.TITLE, [])
            never, unseen = tabbed(page)
            assert (known.TITLE, never, unseen) == (known.TITLE, [], [])
