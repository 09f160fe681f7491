"""In a real browser: several runs, from their list to what changed between two; keys and addresses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from support.runs.indexes import explained, recorded
from support.web.browser import box_of, open_page, served

from tracelens.simulator.synthetic import Fault, Scenario

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

SLOW = Fault("backprop", (2,), steps=(40, 79), factor=1.6)
IMAGE = "#timeline image"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a healthy run, one with a slow rank that was not read yet, and a damaged one."""
    folder = tmp_path_factory.mktemp("several")
    for name in ("healthy", "slow", "damaged"):
        (folder / name).mkdir()
    explained(recorded(folder / "healthy", Scenario(ranks=4, steps=100)))
    recorded(folder / "slow", Scenario(ranks=4, steps=120, faults=(SLOW,)))
    (folder / "damaged" / "worker-00000-1.arrow").write_bytes(b"no table")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        with served(folder) as address:
            yield address


def open_run(page: Page, name: str) -> None:
    """Choose a run from the list, and wait until it is read and shown."""
    page.get_by_role("link", name=name, exact=True).click()
    expect(page.locator("#findings, #verdict").first).to_be_visible(timeout=120_000)


def timeline(page: Page) -> None:
    """Go to the timeline by its key, and wait until it is drawn."""
    page.keyboard.press("2")
    expect(page.locator(IMAGE).first).to_be_attached()
    expect(page.locator("#timeline-note")).to_contain_text("in view")


def pressed(page: Page, key: str) -> None:
    """Press a key that changes the address, and wait until it did."""
    before = page.url
    page.keyboard.press(key)
    page.wait_for_function("before => location.href !== before", arg=before)


def window_of(address: str) -> tuple[int, int]:
    """Return the window in an address."""
    found = re.search(r"t0=(\d+)&t1=(\d+)", address)
    assert found
    return int(found[1]), int(found[2])


def test_from_the_list_to_what_changed(browser: Browser, url: str) -> None:
    """The list, a run that has to be read first, the picker, and the comparison, step by step."""
    with open_page(browser, url) as page:
        expect(page.locator(".run-row")).to_have_count(3)
        open_run(page, "slow")
        expect(page.locator("#verdict")).to_contain_text("ank 2")
        expect(page.locator("#run")).to_contain_text("4 ranks · 120 steps")
        page.get_by_role("link", name="Compare").click()
        expect(page.locator("#compare")).to_contain_text("Choose the run to compare")
        page.locator("#compare-choice").click()
        page.get_by_role("option", name="healthy").click()
        expect(page.locator("#verdict")).to_contain_text("95 % interval")
        expect(page.locator("#together-here image")).to_have_count(1)
        expect(page.locator("#together-there image")).to_have_count(1)
        page.locator("#together-step").fill("50")
        page.keyboard.press("Tab")
        page.wait_for_function("() => location.search.includes('steps=50-50')")
        address = page.url
    with open_page(browser, address) as second_page:
        expect(second_page.locator("#together-step")).to_have_value("50")
        for graph in ("here", "there"):
            ticks = second_page.locator(f"#together-{graph} .x2tick text")
            expect(ticks.filter(has_text=re.compile("^50$"))).to_have_count(1)


def test_all_runs_are_analyzed_and_tagged(browser: Browser, url: str) -> None:
    """Without opening one: verdicts appear, why one has none, too; tags filter, group and are kept."""
    with open_page(browser, url) as page:
        expect(page.locator("#run-progress")).to_have_text("Analyzed 2 of 3 runs, 1 cannot be read")
        rows = page.locator(".run-row")
        expect(rows.filter(has_text="slow").locator(".run-verdict")).to_contain_text("rank 2")
        expect(rows.filter(has_text="damaged")).to_contain_text("it is not an Arrow file")
        page.get_by_label("choose slow").check(force=True)
        page.locator("#run-new-tag").fill("lr 0.1")
        page.keyboard.press("Enter")
        expect(rows.filter(has_text="slow").get_by_text("lr 0.1")).to_be_visible()
        page.get_by_label("choose healthy").check(force=True)  # the other one is chosen still
        page.locator("#run-new-tag").fill("baseline")
        page.locator("#run-add-tag").click()
        expect(page.locator(".tag")).to_have_count(3)
    with open_page(browser, url) as second_page:
        second_page.locator("#run-tagged").click()
        second_page.get_by_role("option", name="lr 0.1").click()
        expect(second_page.locator(".run-row")).to_have_count(1)
        second_page.keyboard.press("Escape")
        second_page.get_by_label("remove the tag lr 0.1 from slow").click()
        # A tag that no run has any more filters no longer.
        expect(second_page.locator(".run-row")).to_have_count(3)
        expect(second_page.get_by_text("lr 0.1")).to_have_count(0)
        second_page.locator("#run-group").click()
        second_page.get_by_role("option", name="by tags").click()
        expect(second_page.locator(".run-group")).to_have_text(["baseline2 runs", "No tag1 run"])


def test_the_keyboard_keeps_its_place(browser: Browser, url: str) -> None:
    """What has the focus in the list has it after the list was drawn anew, in another order."""
    with open_page(browser, url) as page:
        box = page.get_by_role("checkbox", name="choose healthy")
        box.focus()
        page.evaluate("dash_clientside.set_props('run-sort', {value: 'by name'})")
        expect(page.locator(".run-row").nth(1)).to_contain_text("healthy")
        expect(box).to_be_focused()
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="healthy", exact=True)).to_be_focused()


def test_a_run_that_cannot_be_read_says_why(browser: Browser, url: str) -> None:
    """Its page has the one sentence and a way back; the picker leads on to another run."""
    with open_page(browser, url) as page:
        page.get_by_role("link", name="damaged", exact=True).click()
        expect(page.get_by_role("alert").filter(has_text="worker-00000-1.arrow")).to_be_visible()
        page.get_by_role("button", name="Try again").click()
        expect(page.get_by_role("alert").filter(has_text="worker-00000-1.arrow")).to_be_visible()
        page.locator("#run-picker").click()
        page.get_by_role("option", name="healthy").click()
        expect(page.locator("#run")).to_contain_text("100 steps")
        expect(page.locator("#message")).to_have_count(0)


def test_an_unknown_run_leads_to_the_list(browser: Browser, url: str) -> None:
    """A link to a run that is not served is told so; one click leads to those that are."""
    with open_page(browser, url + "timeline?run=feedfeedfeed") as page:
        expect(page.locator("#message")).to_contain_text("is not served here")
        page.locator("#message").get_by_role("link", name="All runs").click()
        expect(page.locator(".run-row")).to_have_count(3)
        page.keyboard.press("/")
        page.keyboard.type("HEALTHY")
        expect(page.locator(".run-row")).to_have_count(1)


def test_keys_and_the_address_restore_the_view(browser: Browser, url: str) -> None:
    """Finding, step, pin and the clicked span by keys and mouse; a copied link shows all of it."""
    with open_page(browser, url) as page:
        open_run(page, "slow")
        timeline(page)
        # Who is late is pinned a moment later, which changes the address as a key does.
        page.wait_for_function("() => location.search.includes('pin=2')")
        pressed(page, "]")
        finding = window_of(page.url)
        for _ in range(4):
            pressed(page, "w")
        narrow = window_of(page.url)
        pressed(page, "]")
        moved_window = window_of(page.url)
        assert moved_window[0] > narrow[0]
        assert moved_window[1] - moved_window[0] == pytest.approx(narrow[1] - narrow[0], abs=2)
        assert finding[0] < moved_window[0]
        expect(page.locator("#timeline .barlayer .point path").first).to_be_attached()
        box = box_of(page.locator("#timeline .nsewdrag").first)
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] - 6)
        expect(page.locator("#details-title")).to_contain_text("on rank 3 in step")
        page.wait_for_function("() => location.search.includes('sel=')")
        page.wait_for_function("() => document.querySelector('#timeline').matches(':hover')")
        page.keyboard.press("p")
        expect(page.locator(".pins")).to_contain_text("rank 3")
        pressed(page, "f")
        page.wait_for_function("() => /pin=[^&]*3/.test(location.search)")
        details_title, address = page.locator("#details-title").inner_text(), page.url
    with open_page(browser, address) as second_page:
        expect(second_page.locator(IMAGE).first).to_be_attached()
        expect(second_page.locator("#details-title")).to_have_text(details_title)
        expect(second_page.locator(".pins")).to_contain_text("rank 3")
        expect(second_page.locator("#run-picker")).to_have_value("slow")
        assert window_of(second_page.url) == window_of(address)
