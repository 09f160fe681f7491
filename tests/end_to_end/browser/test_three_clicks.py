"""A real browser, 16 and 512 ranks: from the first page to the culprit in three clicks at most."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from support.tiers import mark_slow
from support.web.browser import box_of, open_page, served, wait_until_settled
from support.web.pixels import coloured, plot

from tracelens.lod.lanes import CODES, SHADE, SHADES
from tracelens.simulator.synthetic import Fault, Scenario, write
from tracelens_dashboard import theme

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.end_to_end

MOST_CLICKS = 3
SLOW, HOT = 13, 0
MIB = 1 << 20
RUN = Scenario(
    ranks_per_host=8,
    steps=36,
    shards=4,
    shard_bytes=(24 * MIB, 4 * MIB, 4 * MIB, 4 * MIB),
    faults=(Fault("backprop", (SLOW,), steps=(12, 26), factor=1.6),),
)
GBYTES_PER_S_AND_RANK = 4.0  # of a shard's link: all ranks together push for a small part of a step
# Counts the clicks that the page gets from a mouse; none is lost when a link changes the page.
COUNTING = "window.clicks = 0; addEventListener('click', e => { clicks += e.isTrusted; }, true);"


@pytest.fixture(scope="module", params=mark_slow([16, 512], quick=[16]))
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("traces") / "run"
    rate = GBYTES_PER_S_AND_RANK * request.param
    write(
        replace(RUN, ranks=request.param, link_gbytes_per_s=rate, aggregate_gbytes_per_s=rate),
        folder,
    )
    with served(folder) as address:
        yield address


def card_of(page: Page, culprit: str) -> Locator:
    """Find the card of a finding on the first page, and count clicks from now on."""
    card = page.locator("#findings .finding").filter(has=page.get_by_role("link", name=culprit))
    expect(card).to_have_count(1)
    page.evaluate(COUNTING)
    return card


def middle_of(page: Page, label: str) -> float:
    """Return the height of the row that is called so, once the timeline is drawn."""
    expect(page.locator("#timeline image").first).to_be_attached()
    wait_until_settled(page)  # a plot that is drawn anew forgets the click on it
    name = page.locator("#timeline .yaxislayer-above text").get_by_text(label, exact=True).first
    box = box_of(name)
    return box["y"] + box["height"] / 2


def place_coloured(page: Page, height: float, category: str) -> tuple[float, float]:
    """Find the point of a row with most of a category's colour, as an eye would."""
    shades = [CODES[category] + shade * SHADE for shade in range(SHADES)]
    colours = [theme.palette("light")[code] for code in shades]
    row = plot(page) | {"y": height, "height": 1}
    columns = [x for x, _ in coloured(page, row, colours)]
    assert columns
    return row["x"] + columns[len(columns) // 2] + 0.5, height


def test_three_clicks_lead_to_the_slow_rank(browser: Browser, url: str) -> None:
    """The card's worst step, then the long span: the slow rank, its phase, and what others took."""
    with open_page(browser, url) as page:
        card_of(page, f"Straggler: rank {SLOW}").get_by_role("link", name="Worst step").click()
        row = middle_of(page, f"rank {SLOW}")
        point = place_coloured(page, row, "backprop")
        page.mouse.move(*point)
        expect(page.locator("#timeline .hoverlayer text").first).to_contain_text("backprop")
        page.mouse.click(*point)
        expect(page.locator("#details-title")).to_contain_text(f"backprop on rank {SLOW} in step")
        expect(page.locator("#timeline-details")).to_contain_text("peers' median")
        expect(page.locator("#timeline-details .spans")).to_contain_text("backprop")
        assert page.evaluate("clicks") <= MOST_CLICKS


@pytest.mark.slow
def test_three_clicks_lead_to_the_hot_shard(browser: Browser, url: str) -> None:
    """The card's worst step, then where its row is busy: which push it served, of how many bytes."""
    with open_page(browser, url) as page:
        card_of(page, f"Shard {HOT}").get_by_role("link", name="Worst step").click()
        row = middle_of(page, f"PS {HOT} serves")
        page.mouse.click(*place_coloured(page, row, "aggregate"))
        expect(page.locator("#details-title")).to_contain_text(
            f"server: aggregate on PS shard {HOT}"
        )
        expect(page.locator("#timeline-details .spans")).to_contain_text("24.0 MiB")
        assert page.evaluate("clicks") <= MOST_CLICKS
