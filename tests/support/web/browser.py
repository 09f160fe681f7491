"""A real browser on a really served run: what happened on the page is watched all the while."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect, sync_playwright
from support.launch.ending import end_process
from support.launch.patience import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import (
        Browser,
        BrowserContext,
        ConsoleMessage,
        FloatRect,
        Locator,
        Page,
        Request,
        Response,
        ViewportSize,
    )

Scheme = Literal["light", "dark"]

# The system's browser, without a display, and without its own traffic.
FLAGS: Final = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
CLEARED_STORAGE: Final = "cookies,local_storage,indexeddb"  # after each test
WINDOW: Final[ViewportSize] = {"width": 1440, "height": 900}
ANSWER_LIMIT_MS: Final = 150_000  # two of which fit into what pytest gives a test

# Every chart that is shown has the sentence that comes with its drawing.
EXPLAINED: Final = """() => [...document.querySelectorAll("p.summary:has(+ [role=img]), #timeline-note")]
  .filter((sentence) => sentence.checkVisibility()).every((sentence) => sentence.textContent)"""
# JavaScript: no transition is under way; what turns for ever, such as a spinner, does not matter.
STILL: Final = """() => document.getAnimations().every(animation =>
  animation.playState !== "running" || animation.effect.getComputedTiming().iterations === Infinity)"""


@dataclass
class Watch:
    """What a page did that it should not: console errors, failures, requests to elsewhere."""

    console: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def over(self, page: Page) -> None:
        """Watch a page from now on."""
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.console.append(str(error)))
        page.on("request", self._note_request)
        page.on("response", self._answered)

    def assert_clean(self) -> None:
        """Nothing was complained of, and nothing left this machine."""
        assert self.console == []
        assert self.failed == []
        assert self.hosts <= {"127.0.0.1"}

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.console.append(message.text)

    def _note_request(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme not in {"data", "blob"}:
            self.hosts.add(address.hostname or "")

    def _answered(self, response: Response) -> None:
        if response.status >= 400:
            self.failed.append(f"{response.status} {response.url}")


@contextmanager
def served(trace: Path, *options: str) -> Iterator[str]:
    """Run `tracelens serve` on a free port; yields its address; it must end well on SIGTERM."""
    with serving(trace, *options) as (url, _):
        yield url


@contextmanager
def serving(trace: Path, *options: str) -> Iterator[tuple[str, int]]:
    """Do as `served`; yields the address and the process that answers.

    Without a token, so that the address can be continued, unless a `--host` is given.
    """
    options = options if "--host" in options else (*options, "--no-token")
    command = [sys.executable, "-m", "tracelens", "serve", str(trace), "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        words = (word for line in iter(process.stdout.readline, "") for word in line.split())
        yield next(word for word in words if word.startswith("http://")), _child(process.pid)
        exit_code = end_process(process)
        assert exit_code == 0, exit_code
    finally:
        process.kill()
        process.communicate()


def _child(process: int) -> int:
    """Return the process in which a verb runs: the child of the one that waits."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return int(children[0]) if children else process


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the system's Chromium; its profile on disk keeps what it compiled of our scripts."""
    path = shutil.which("chromium")
    if path is None:
        pytest.fail("Chromium is missing: `make test` installs it as root, else says how")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as profile:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=path, args=FLAGS, viewport=WINDOW
        )
        assert context.browser
        yield context.browser
        context.close()


@contextmanager
def open_page(browser: Browser, url: str, scheme: Scheme = "light") -> Iterator[Page]:
    """Open an address in a profile that remembers no page; afterwards nothing may have gone wrong."""
    watch = Watch()
    with forgetful_profile(browser, url) as context:
        page = context.new_page()
        page.emulate_media(color_scheme=scheme)
        page.set_default_timeout(ANSWER_LIMIT_MS)
        expect.set_options(timeout=ANSWER_LIMIT_MS)  # the machine may be busy with other tests
        watch.over(page)
        page.goto(url)
        yield page
        page.wait_for_load_state("networkidle")
    watch.assert_clean()


@contextmanager
def forgetful_profile(browser: Browser, url: str) -> Iterator[BrowserContext]:
    """Lend the profile on disk, and afterwards clear what an address stored there.

    If a page is open in it already, lend a new profile: two pages know nothing of each other.
    """
    blank, *used = browser.contexts[0].pages  # Chromium starts with a blank page
    if used:
        with browser.new_context(viewport=WINDOW) as context:
            yield context
        return
    context = blank.context
    try:
        yield context
    finally:
        address = urlsplit(url)
        context.new_cdp_session(blank).send(
            "Storage.clearDataForOrigin",
            {"origin": f"{address.scheme}://{address.netloc}", "storageTypes": CLEARED_STORAGE},
        )
        context.clear_permissions()
        for page in context.pages[1:]:
            page.close()


def box_of(part: Locator) -> FloatRect:
    """Return where a part of a page is, once it is: a chart that is drawn anew has no parts."""
    boxes: list[FloatRect] = []

    def is_drawn() -> bool:
        box = part.bounding_box()
        boxes.extend([box] if box else [])
        return box is not None

    wait_until(is_drawn)
    return boxes[-1]


def place_saying(page: Page, height: float, kind: str) -> tuple[float, float]:
    """Move along a row of the timeline until its tooltip begins with `kind`; return where.

    Where there is no span there is no tooltip to wait for, and a busy machine shows one late: so it
    stays longer each time that it goes along the row.
    """
    box = box_of(page.locator("#timeline .nsewdrag").first)
    for pause_ms, share in itertools.product((60, 500, 3000), range(5, 95, 3)):
        across = box["x"] + box["width"] * share / 100
        page.mouse.move(across, height)
        page.wait_for_timeout(pause_ms)
        said = page.locator("#timeline .hoverlayer text").all_text_contents()
        if any(text.startswith(kind) for text in said):
            return across, height
    pytest.fail(f"no span of the row says that it is {kind}")


def wait_until_settled(page: Page) -> None:
    """Wait until a page has what it asks for, every chart is explained, and nothing fades in."""
    page.wait_for_load_state("networkidle")
    page.wait_for_function(EXPLAINED)
    page.wait_for_load_state("networkidle")
    page.wait_for_function(STILL)
