"""How long after a step was written to disk it is seen on screen, while a run is still recorded.

A real training records steps when it is asked to; a real browser shows its overview. A step is written
when its span has ended (its record is in a memory-mapped file), and seen when the page's header counts
it, by the same clock. Steps come at random moments, so that they meet all phases of polling and reading.

Run: make bench NAME=live [PUBLISH=1] [ARGS="--steps 50 1000 --samples 40"]
"""

from __future__ import annotations

import argparse
import platform
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from benchmarks.published import publish, table
from benchmarks.quick import parse_quick
from support.launch.patience import wait_until
from support.launch.recording import clean_environment
from support.web.browser import chromium, served

from tracelens_dashboard.runs.live import is_recorded

if TYPE_CHECKING:
    from playwright.sync_api import Page

GOAL_S: Final = 2.0
PAGE: Final = "dashboard-costs.md"
SCRIPT: Final = "tests/benchmarks/live.py"
PATIENCE_MS: Final = 120_000
APART_S: Final = 2.0  # between two steps, at most
TRAINING: Final = """
import sys, time
import tracelens as tl
for step in range(10_000_000):
    with tl.step(step):
        with tl.span("forward", kind="forward"):
            time.sleep(0.002)
        with tl.span("backprop", kind="backprop"):
            time.sleep(0.004)
    print(time.time_ns(), flush=True)
    if not sys.stdin.readline():
        break
"""
# Notes when the header counts so many steps, in ms since 1970.
WATCH: Final = """() => {
  window.seen = {};
  const note = () => {
    const found = /([\\d,]+) steps?/.exec(document.getElementById("run").innerText);
    const count = found && Number(found[1].replaceAll(",", ""));
    if (count) window.seen[count] ??= performance.timeOrigin + performance.now();
  };
  new MutationObserver(note).observe(document.getElementById("run"),
    { childList: true, subtree: true, characterData: true });
  note();
}"""


class Training:
    """A training that makes a step when it is asked to; it has made `steps`."""

    def __init__(self, folder: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "tracelens",
            "record",
            "--no-verdict",
            "--out",
            str(folder),
        ]
        self.steps = 0
        self.process = subprocess.Popen(
            [*command, "--", sys.executable, "-c", TRAINING],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=clean_environment(),
            text=True,
        )
        self._end()
        wait_until(lambda: folder.exists() and is_recorded(folder))

    def step(self) -> int:
        """Make a step, and return when it was written, in ns since 1970."""
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._end()

    def _end(self) -> int:
        assert self.process.stdout
        while not (line := self.process.stdout.readline().strip()).isdecimal():
            assert line or self.process.poll() is None
        self.steps += 1
        return int(line)

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


def delays(page: Page, training: Training, samples: int) -> list[float]:
    """Return how long after being written steps were seen, s."""
    delays_s = []
    for _ in range(samples):
        time.sleep(random.uniform(0, APART_S))
        written_ns = training.step()
        count = training.steps
        page.wait_for_function(
            "count => Object.keys(window.seen).some((seen) => Number(seen) >= count)",
            arg=count,
            timeout=PATIENCE_MS,
        )
        # Readings that hold more steps than this one have shown it, too.
        seen_ms = page.evaluate(
            "count => Math.min(...Object.entries(window.seen)"
            ".filter(([seen]) => Number(seen) >= count).map(([, at]) => at))",
            count,
        )
        delays_s.append(seen_ms / 1e3 - written_ns / 1e9)
    return delays_s


def measure_delays(steps: int, samples: int) -> list[float]:
    """Return the delays in a run that has so many steps already, s."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        training = Training(folder)
        try:
            while training.steps < steps:
                training.step()
            with served(folder) as url, chromium() as browser:
                page = browser.new_page()
                page.goto(url)
                page.locator("#live-status").filter(has_text="live").wait_for(timeout=PATIENCE_MS)
                page.evaluate(WATCH)
                return delays(page, training, samples)
        finally:
            training.close()


def main() -> int:
    """Measure, print, and with --publish write into the documentation; 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, nargs="+", default=[50, 1000])
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--publish", action="store_true")
    arguments = parse_quick(parser, steps=[3], samples=1)
    rows, missed = [], False
    for steps in arguments.steps:
        delays_s = np.array(measure_delays(steps, arguments.samples))
        median, most = np.quantile(delays_s, (0.5, 0.95))
        missed |= bool(most > GOAL_S)
        rows.append([f"{steps:,}", f"{median:.2f} s", f"{most:.2f} s", f"{delays_s.max():.2f} s"])
    head = ["steps before", "median", "95 % within", "longest"]
    title = f"From disk to screen, {platform.machine()}, {arguments.samples} steps each"
    text = table(title, head, rows)
    sys.stdout.write(text + "\n")
    if arguments.publish:
        publish(PAGE, SCRIPT, text)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
