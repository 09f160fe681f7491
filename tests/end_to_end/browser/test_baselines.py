"""In a real browser: a run compared with several baselines, chosen in the list, kept in the address."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from support.runs.indexes import explained, recorded
from support.web.browser import open_page, served, wait_until_settled

from tracelens.simulator.synthetic import Fault, Scenario
from tracelens_dashboard.runs.catalog import id_of

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

SLOW = Fault("data", (1,), steps=(10, 49), extra_ms=9)


def test_one_run_against_many(browser: Browser, tmp_path: Path) -> None:
    """The newest is the new one until another is chosen; a baseline is added, and all are named."""
    for seed in range(3):
        explained(recorded(tmp_path / f"main-{seed}", Scenario(ranks=3, steps=60, seed=seed)))
    explained(recorded(tmp_path / "new", Scenario(ranks=3, steps=60, seed=9, faults=(SLOW,))))
    ids = {name: id_of(tmp_path / name) for name in ("main-0", "main-1", "main-2", "new")}
    with served(tmp_path) as url, open_page(browser, url) as page:
        for name in ("main-0", "main-1", "new"):
            page.get_by_label(f"choose {name}").check(force=True)
        page.get_by_role("button", name="Compare 3 chosen").click()
        page.wait_for_url(f"**/compare?run={ids['new']}&compare={ids['main-1']},{ids['main-0']}")
        expect(page.locator("#verdict")).to_contain_text("Slower: median step")
        expect(page.locator("#compare")).to_contain_text("Baselines: 2 runs whose steps differ by")
        expect(page.locator("#compare")).to_contain_text("Straggler: rank 1, data loading")
        page.locator("#compare-choice").click()
        page.get_by_role("option", name="main-2").click()
        expect(page.locator("#compare")).to_contain_text("Baselines: 3 runs")
        wait_until_settled(page)
        page.keyboard.press("Escape")
        page.locator("#compare-new").click()
        page.get_by_role("option", name="main-0").click()
        page.wait_for_url(f"**/compare?run={ids['main-0']}&compare=*{ids['new']}*")
        page.get_by_role("link", name="new", exact=True).click()  # step by step with that one alone
        page.wait_for_url(f"**/compare?run={ids['main-0']}&compare={ids['new']}")
        expect(page.locator("#together-here image")).to_have_count(1)
