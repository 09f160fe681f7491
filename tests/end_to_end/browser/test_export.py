"""In a real browser: what is taken along shows what was seen, needs nobody, and runs no foreign code."""

from __future__ import annotations

import base64
import csv
import json
import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from support.launch.patience import wait_until
from support.turns import select_turn
from support.web.browser import Watch, box_of, open_page, served

from tracelens.simulator.synthetic import Fault, Scenario, write
from tracelens_dashboard.pages import PAGES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

RUN = Scenario(ranks=4, steps=60, faults=(Fault("backprop", (2,), steps=(20, 39), factor=1.6),))
WINDOW = "timeline?t0=200000000&t1=260000000&pin=2"
CODE = "document.title='hostile'"
HOSTILE = f'<img src=x onerror="{CODE}"></script><script>{CODE}</script>'
FORWARD, BACKPROP = "#4477aa", "#66ccee"
COUNT_PIXELS = """async ([picture, colours]) => {
  const image = new Image();
  image.src = "data:image/png;base64," + picture;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.width, image.height];
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const data = new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer);
  const counts = new Map();
  for (const pixel of data) counts.set(pixel, (counts.get(pixel) || 0) + 1);
  const little = (hex) => {
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  };
  return [image.width, image.height, ...colours.map((colour) => counts.get(little(colour)) || 0)];
}"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("traces") / "slow"
    write(RUN, folder)
    with served(folder) as address:
        yield address


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a table whose hosts, spans and communicators are called what no name should do."""
    table = tmp_path_factory.mktemp("tables") / "hostile.csv"
    rows = [
        [rank, HOSTILE + str(rank // 2), HOSTILE, kind, step, start, start + 40, HOSTILE]
        for rank in range(4)
        for step in range(30)
        for kind, offset in (
            ("forward", 0),
            ("backprop", 40 + 30 * (rank == 2)),
            ("reduction", 120),
        )
        for start in [step * 200 + offset]
    ]
    with table.open("w", newline="") as file:
        head = ["rank", "host", "name", "kind", "step", "start_us", "end_us", "communicator"]
        csv.writer(file).writerows([head, *rows])
    with served(table) as address:
        yield address


def await_timeline(page: Page) -> None:
    """Wait until the timeline is drawn."""
    expect(page.locator("#timeline image").first).to_be_attached()
    expect(page.locator("#timeline-note")).to_contain_text("in view")


def announced_events(page: Page, selection: str) -> int:
    """Return the number of events that the export dialog announces for a selection."""
    counts: list[str] = []

    def is_announced() -> bool:
        sentence = page.locator("#export-size").inner_text()
        counts.extend(re.findall(rf"{re.escape(selection)}.*: ([\d,]+) events", sentence))
        return bool(counts)

    wait_until(is_announced)
    return int(counts[0].replace(",", ""))


def test_a_picture_holds_what_is_seen(browser: Browser, url: str, tmp_path: Path) -> None:
    """The timeline's PNG has the server-made raster in it, and a name that says what it shows."""
    with open_page(browser, url + WINDOW) as page:
        await_timeline(page)
        with page.expect_download() as download:
            page.get_by_role("button", name="save as PNG: Timeline").click()
        assert download.value.suggested_filename == "slow-timeline-light.png"
        download.value.save_as(tmp_path / "seen.png")
        picture = base64.b64encode((tmp_path / "seen.png").read_bytes()).decode()
        width, height, forward, backprop = page.evaluate(
            COUNT_PIXELS, [picture, [FORWARD, BACKPROP]]
        )
    assert width > 2000  # twice what is seen
    assert forward + backprop > width * height / 20


def test_a_selection_is_downloaded_once_its_size_is_known(
    browser: Browser, url: str, tmp_path: Path
) -> None:
    """The dialog speaks of the window as it is after a zoom, and the file holds what it said."""
    with open_page(browser, url + WINDOW) as page:
        await_timeline(page)
        page.wait_for_load_state("networkidle")  # it is drawn anew once its height is known
        before = page.url
        page.keyboard.press("w")
        page.wait_for_function("before => location.href !== before", arg=before)
        page.locator("#export-button").click()
        announced = announced_events(page, "Rank 2, 30.0 ms")
        with page.expect_download() as download:
            page.get_by_role("link", name="Download this selection").click()
        download.value.save_as(tmp_path / "some.json")
    events = json.loads((tmp_path / "some.json").read_text())["traceEvents"]
    assert len([event for event in events if event["ph"] != "M"]) == announced


@pytest.mark.parametrize("which", select_turn(["url", "hostile"]))
def test_the_report_works_offline(
    browser: Browser, which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """From a disk it asks nobody, complains of nothing, draws all charts and follows the scheme."""
    file = tmp_path / "report.html"
    with open_page(browser, request.getfixturevalue(which)) as page:
        expect(page.locator("#verdict")).not_to_be_empty()
        page.locator("#export-button").click()
        with page.expect_download() as download:
            page.get_by_role("link", name="Download the report").click()
        download.value.save_as(file)
    assert file.stat().st_size < 8_000_000
    context = browser.new_context(offline=True, color_scheme="dark")
    alone, watch, addresses_asked = context.new_page(), Watch(), list[str]()
    watch.over(alone)
    alone.on("request", lambda request: addresses_asked.append(request.url))
    alone.goto(file.as_uri())
    charts = alone.locator("section.chart")
    expect(alone.locator(".chart .main-svg").first).to_be_attached()
    assert alone.locator(".chart .js-plotly-plot").count() == charts.count() >= 4
    assert alone.evaluate("document.documentElement.dataset.scheme") == "dark"
    alone.locator("#scheme").click()
    assert alone.evaluate("document.documentElement.dataset.scheme") == "light"
    expect(alone).not_to_have_title("hostile")
    assert alone.locator("img").count() == 0
    context.close()
    assert (watch.console, watch.failed) == ([], [])
    assert {address for address in addresses_asked if not address.startswith("data:")} == {
        file.as_uri()
    }


def test_hostile_names_are_inert_on_every_page(browser: Browser, hostile: str) -> None:
    """Markup in hosts, spans and communicators is text wherever it is shown."""
    with open_page(browser, hostile) as page:
        expect(page.locator("#verdict")).not_to_be_empty()
        for shown_page in PAGES:
            page.get_by_role("link", name=shown_page.TITLE, exact=True).click()
            address = re.escape(hostile + shown_page.PATH.lstrip("/"))
            expect(page).to_have_url(re.compile(rf"{address}(\?|$)"))
            page.wait_for_load_state("networkidle")
            page.evaluate("document.querySelectorAll('[role=switch]').forEach((s) => s.click())")
            assert page.locator("img[src=x]").count() == 0
            assert page.title() != "hostile"
        page.goto(hostile + "timeline")
        await_timeline(page)
        for _ in range(4):
            page.keyboard.press("w")
        box = box_of(page.locator("#timeline .nsewdrag").first)
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 10)
        expect(page.locator("#details-title")).to_be_visible()
        page.locator("#timeline-search").fill("img")
        expect(page.locator("#timeline-found table")).to_contain_text("<img src=x")
        assert page.locator("img[src=x]").count() == 0
        assert page.title() != "hostile"


def test_a_foreign_host_reaches_nothing(browser: Browser, url: str) -> None:
    """What a page gets that reaches this server under its own name is a 400, from any address of it."""
    context = browser.new_context()
    pages = [page.PATH.lstrip("/") for page in PAGES]
    for path in (*pages, "_dash-layout", "export/report", "export/perfetto"):
        answer = context.request.get(url + path, headers={"Host": "evil.example"})
        assert answer.status == 400
        assert "TraceLens" not in answer.text()
    context.close()
