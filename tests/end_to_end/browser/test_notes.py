"""In a real browser: notes are put, edited, deleted, and travel with the link."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from playwright.sync_api import expect
from support.turns import select_turn
from support.web.accessibility import faint, nameless, violations
from support.web.browser import box_of, open_page, wait_until_settled

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
    from support.web.browser import Scheme

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

WINDOW = "timeline?t0=1000000000&t1=1040000000&open=0"
LIST = "#timeline-note-list"
LABELS = "#timeline .annotation"
FIELD = "#timeline-note-field"
HOSTILE = "<img src=x onerror=document.title=1> 50 %; &lt;b&gt;"


@pytest.fixture
def url(slow_rank_url: str) -> str:
    return slow_rank_url


def await_timeline(page: Page) -> None:
    expect(page.locator("#timeline-note")).to_contain_text("in view")
    expect(page.locator("#timeline image").first).to_be_attached()
    wait_until_settled(page)


def at_plot(page: Page, share: float) -> tuple[float, float]:
    box = box_of(page.locator("#timeline .nsewdrag").first)
    return box["x"] + share * box["width"], box["y"] + box["height"] / 2


def note_of(page: Page) -> str:
    """Return the address's part about notes."""
    return "".join(parse_qs(urlsplit(page.url).query).get("note", []))


def wait_for_note(page: Page, there: str) -> None:
    page.wait_for_function(
        "there => (new URLSearchParams(location.search).get('note') || '').includes(there)",
        arg=there,
    )


def test_by_key_and_by_button_and_reopened(browser: Browser, url: str) -> None:
    """At the mouse and over a marked area; the link keeps both."""
    with open_page(browser, url + WINDOW) as page:
        await_timeline(page)
        page.mouse.move(*at_plot(page, 0.25))
        page.wait_for_timeout(300)
        page.keyboard.press("m")
        expect(page.locator(FIELD)).to_be_focused()
        page.keyboard.type("first; 50 %")
        page.keyboard.press("Enter")
        notes = page.locator(LIST)
        expect(notes).to_contain_text("first; 50 %")
        expect(page.locator(LABELS).filter(has_text="first; 50 %")).to_have_count(1)
        wait_for_note(page, "first")
        assert abs(int(note_of(page).partition(":")[0]) - 1_010_000_000) < 200_000
        wait_until_settled(page)
        page.keyboard.down("Shift")
        page.mouse.move(*at_plot(page, 0.5))
        page.mouse.down()
        page.mouse.move(*at_plot(page, 0.75), steps=5)
        page.mouse.up()
        page.keyboard.up("Shift")
        expect(page.locator("#timeline-area")).to_contain_text("Spans in the marked area")
        page.get_by_role("button", name="Put a note").click()
        expect(page.locator(FIELD)).to_be_focused()
        page.keyboard.type("second")
        page.locator("#timeline-note").click()  # leaving the field keeps it, too
        expect(notes.locator(".note")).to_have_count(2)
        wait_for_note(page, "second")
        link = page.url
    with open_page(browser, link) as page:
        await_timeline(page)
        expect(page.locator(f"{LIST} .note")).to_have_count(2)
        expect(page.locator(LABELS).filter(has_text="second")).to_have_count(1)


def test_edited_deleted_and_followed(browser: Browser, url: str) -> None:
    """Esc leaves the text as it was; a button keeps what is typed; a time leads to its note."""
    asked = "&note=1010000000:first;1020000000-1030000000:second"
    with open_page(browser, url + WINDOW + asked) as page:
        await_timeline(page)
        notes = page.locator(LIST)
        page.get_by_role("button", name="edit second").click()
        page.locator(FIELD).fill("changed")
        page.keyboard.press("Escape")
        expect(notes).to_contain_text("second")
        page.get_by_role("button", name="edit second").click()
        page.locator(FIELD).fill("changed")
        page.keyboard.press("Enter")
        expect(page.locator(LABELS).filter(has_text="changed")).to_have_count(1)
        page.get_by_role("button", name="edit changed").click()
        page.locator(FIELD).fill("typed meanwhile")
        page.get_by_role("button", name="delete first").click()
        expect(notes.locator(".note")).to_have_count(1)
        page.wait_for_function(
            "() => !(new URLSearchParams(location.search).get('note')).includes('first')"
        )
        expect(page.locator(LABELS).filter(has_text="typed meanwhile")).to_have_count(1)
        page.locator("#zoom-all").click()
        page.wait_for_function("() => !location.search.includes('t0=')")
        for _ in range(5):
            page.keyboard.press("w")
        page.get_by_role("button", name="show typed").click()
        page.wait_for_function(
            """() => {
              const at = new URLSearchParams(location.search);
              const middle = (Number(at.get("t0")) + Number(at.get("t1"))) / 2e6;
              return middle > 1020 && middle < 1030;
            }"""
        )


def test_links_of_the_page_take_them_along(browser: Browser, url: str) -> None:
    """To a step, to another page and back to the timeline."""
    with open_page(browser, url + WINDOW + "&sel=0-1010000000&note=1010000000:kept") as page:
        await_timeline(page)
        page.get_by_role("link", name="Zoom to step 51").click()
        page.wait_for_url("**/timeline?*steps=51-51*")
        expect(page.locator(LIST)).to_contain_text("kept")
        wait_for_note(page, "kept")
        page.get_by_role("link", name="Stragglers").first.click()
        page.wait_for_url("**/stragglers?*")
        page.wait_for_load_state("networkidle")
        page.get_by_role("link", name="Timeline").first.click()
        page.wait_for_url("**/timeline?*")
        await_timeline(page)
        expect(page.locator(LIST)).to_contain_text("kept")
        wait_for_note(page, "kept")


def test_a_choice_of_ranks_keeps_them_and_one_of_steps_does_not(browser: Browser, url: str) -> None:
    """As they are then: one that was deleted does not come back. Of other steps the times are others."""
    with open_page(browser, url + WINDOW + "&note=1010000000:kept;1020000000:deleted") as page:
        await_timeline(page)
        page.get_by_role("button", name="delete deleted").click()
        expect(page.locator(f"{LIST} .note")).to_have_count(1)
        page.locator("#selection-ranks").fill("0-2")
        page.keyboard.press("Enter")
        page.wait_for_url("**~r0-2*")
        expect(page.locator("#run")).to_contain_text("3 ranks")
        await_timeline(page)
        expect(page.locator(LIST)).to_contain_text("kept")
        expect(page.locator(f"{LIST} .note")).to_have_count(1)
        page.locator("#selection-steps").fill("40-60")
        page.keyboard.press("Enter")
        page.wait_for_url("**~s40-60*")
        expect(page.locator("#run")).to_contain_text("21 steps")
        await_timeline(page)
        expect(page.locator(f"{LIST} .note")).to_have_count(0)


@pytest.mark.parametrize("scheme", select_turn(["light", "dark"]))
def test_a_hostile_address_is_text(browser: Browser, url: str, scheme: Scheme) -> None:
    """Tags are letters, in the list and in the plot; what makes no sense is left out in a sentence."""
    text = HOSTILE.replace("%", "%25").replace(";", "%3B")
    asked = quote(f"1010000000-1020000000:{text};nonsense;1:\u202e")
    with open_page(browser, f"{url}{WINDOW}&note={asked}", scheme) as page:
        await_timeline(page)
        expect(page.locator("#timeline-note-problem")).to_have_text(
            "2 notes of this address are none of this run; left out."
        )
        expect(page.locator(LIST)).to_contain_text(HOSTILE)
        expect(page.locator(LABELS).filter(has_text="<img src=x")).to_have_count(1)
        assert page.locator("img[src=x]").count() == 0
        assert page.title() != "1"
        assert (faint(page), nameless(page), violations(page)) == ([], [], [])
        page.get_by_role("button", name="edit <img").click()
        expect(page.locator(FIELD)).to_have_value(HOSTILE)
        assert (faint(page), nameless(page), violations(page)) == ([], [], [])
        page.set_viewport_size({"width": 420, "height": 900})
        page.wait_for_function("() => document.documentElement.scrollWidth <= innerWidth")
