"""In a real browser: a run that is being recorded grows on screen, and its end, or loss, is said."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from support.launch.patience import PATIENCE_S
from support.launch.recording import clean_environment
from support.web.browser import open_page, served

from tracelens_dashboard.runs.live import is_recorded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

TRAINING = """
import sys, time
import tracelens as tl
for step in range(100_000):
    with tl.step(step):
        with tl.span("forward", kind="forward"):
            time.sleep(0.02)
        if step >= 60:
            with tl.span("update", kind="update"):
                time.sleep(0.002)
    if not sys.stdin.readline():
        break
"""


@pytest.fixture
def training(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """Start a training that makes a step for each line that it is given."""
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "tracelens", "record", "--no-verdict", "--out", str(folder)]
    training = subprocess.Popen(
        [*command, "--", sys.executable, "-c", TRAINING],
        stdin=subprocess.PIPE,
        env=clean_environment(),
        text=True,
    )
    try:
        make_steps(training, 20)
        until = time.monotonic() + PATIENCE_S
        while not (folder.exists() and is_recorded(folder)):
            assert time.monotonic() < until
            time.sleep(0.1)
        yield folder, training
    finally:
        training.kill()
        training.communicate()


def make_steps(training: subprocess.Popen[str], steps: int) -> None:
    """Let the training make some steps."""
    assert training.stdin
    training.stdin.write("\n" * steps)
    training.stdin.flush()


def count_steps_shown(page: Page) -> int:
    """Return the number of steps in the header."""
    header = re.search(r"(\d+) steps?", page.locator("#run").inner_text())
    return int(header[1]) if header else 0


def grown(page: Page, beyond: int) -> int:
    """Wait until there are more steps."""
    page.wait_for_function(
        "beyond => Number(/(\\d+) steps?/.exec(document.getElementById('run').innerText)?.[1]) > beyond",
        arg=beyond,
        timeout=60_000,
    )
    return count_steps_shown(page)


def test_new_steps_appear(browser: Browser, training: tuple[Path, subprocess.Popen[str]]) -> None:
    """On the overview and in the timeline; paused, nothing moves; at the end, live is over.

    Files that cannot be read, and a folder that is missing, leave what was read on screen.
    """
    folder, process = training
    with served(folder) as url, open_page(browser, url) as page:
        expect(page.locator("#live-status")).to_contain_text("live: as of", timeout=60_000)
        expect(page.locator("#live-status")).to_contain_text("nothing lost")
        before = count_steps_shown(page)
        make_steps(process, 40)
        first_count = grown(page, before)
        page.keyboard.press("2")
        expect(page.locator("#timeline-note")).to_contain_text("in view")
        make_steps(process, 40)
        grown(page, first_count)
        page.get_by_label("Pause").click(force=True)
        expect(page.locator("#live-status")).to_contain_text("paused")
        time.sleep(2)  # what was asked for before is answered
        second = count_steps_shown(page)
        make_steps(process, 40)
        time.sleep(4)
        assert count_steps_shown(page) == second
        page.get_by_label("Pause").click(force=True)
        third = grown(page, second)
        assert process.stdin
        process.stdin.close()
        process.wait(PATIENCE_S)
        expect(page.locator("#live-status")).to_be_empty(timeout=60_000)
        assert count_steps_shown(page) >= third
        assert not list(folder.glob("*.segments"))
        (recorded,) = folder.glob("*.arrow")
        content = recorded.read_bytes()
        recorded.write_bytes(b"no table")
        expect(page.locator("#live-status")).to_contain_text("cannot be read", timeout=60_000)
        recorded.write_bytes(content)
        expect(page.locator("#live-status")).to_be_empty(timeout=60_000)
        shutil.rmtree(folder)
        expect(page.locator("#live-status")).to_contain_text("is missing", timeout=60_000)


# Of the first chart of a page, whose axis is that of steps.
LAST_STEP = """() => Math.max(0, ...(document.querySelector(".js-plotly-plot")?._fullData || [])
  .flatMap((trace) => Array.from(trace.x || [])).map(Number).filter(Number.isFinite))"""


def test_cards_of_other_pages_are_renewed(
    browser: Browser, training: tuple[Path, subprocess.Popen[str]]
) -> None:
    """Charts get the new steps; what was not recorded at first is shown as soon as it is."""
    folder, process = training
    with served(folder) as url, open_page(browser, url + "critical-path") as page:
        expect(page.locator("#live-status")).to_contain_text("live: as of", timeout=60_000)
        page.wait_for_function(f"() => ({LAST_STEP})() > 0")
        last_step_before = int(page.evaluate(LAST_STEP))
        assert 0 < last_step_before < 60
        make_steps(process, 20)
        page.wait_for_function(f"() => ({LAST_STEP})() > {last_step_before}", timeout=60_000)
        page.get_by_role("link", name="Overlap", exact=True).click()
        expect(page.locator("#page-body")).to_contain_text("Communication overlap")
        expect(page.locator(".chart-card")).to_have_count(0)
        make_steps(process, 60)
        expect(page.locator(".chart-card")).to_have_count(4, timeout=60_000)
        expect(page.get_by_text("Gaps between optimizer updates").first).to_be_visible()
