"""What a person in front of a browser waits for: first paints, and zooms from the drag to the pixels."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from benchmarks.resident import memory_of
from benchmarks.unwatched import unwatched
from support.web.browser import chromium, open_page, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.unwatched import Unwatched
    from playwright.sync_api import Page

__all__ = ["Zoom", "browse"]

SHARES: Final = (1.0, 0.3, 0.1, 0.03, 0.01, 0.001, 0.0003, 0.00005, 0.00001)
INDEXED: Final = ("a rank's residual", "what took most of its time")
_TICK_MS: Final = 1000 / os.sysconf("SC_CLK_TCK")

# Each tells when, in ms since the address was asked for, what matters of a page stands there.
OVERVIEW: Final = """document.querySelector("#verdict")?.innerText &&
  document.querySelector(".js-plotly-plot .ytick text")"""
TIMELINE: Final = 'document.querySelector("#timeline image")'
_PAINTED: Final = """new Promise((resolve) => {
  const look = () => (SEEN) ? resolve(performance.now()) : requestAnimationFrame(look);
  look();
})"""
_SENT: Final = """new Promise((resolve) => {
  const all = () => performance.getEntries().reduce((sum, one) => sum + (one.transferSize || 0), 0);
  const look = () => (SEEN) ? resolve(all()) : requestAnimationFrame(look);
  look();
})"""
_ZOOM: Final = """([begin, end]) => new Promise((resolve, reject) => {
  const react = window.Plotly.react;
  const begun = performance.now();
  window.Plotly.react = (...given) => {
    window.Plotly.react = react;
    const made = react(...given);
    const drawn = () => resolve(performance.now() - begun);
    Promise.resolve(made).then(() => requestAnimationFrame(() => setTimeout(drawn)));
    return made;
  };
  const graph = document.querySelector("#timeline .js-plotly-plot");
  setTimeout(() => reject(new Error(`nothing was drawn for ${begin} to ${end}`)), 60000);
  window.Plotly.relayout(graph, { "xaxis.range": [begin, end] });
})"""


class Zoom(NamedTuple):
    """How long one took by clock, what processors did meanwhile (server and browser), and its level."""

    ms: float
    cpu_ms: float
    indexed: bool


def browse(trace: Path, paints: int, zooms: int) -> dict[str, str]:
    """Open a run's pages and zoom its timeline; return what that took, in words, by name.

    Each page is opened so many times, and each width has so many zooms.
    """
    with serving(trace) as (url, server):
        with unwatched() as browser:
            results = {
                "bytes on the wire until the overview stands there": sent(browser, url, OVERVIEW),
                "first paint of the overview, median": first_paints(browser, url, OVERVIEW, paints),
                "first paint of the timeline, median": first_paints(
                    browser, url + "timeline", TIMELINE, paints
                ),
            }
        with chromium() as watched, open_page(watched, url + "timeline") as page:
            page.wait_for_function(f"() => {TIMELINE}")
            measured = list(zoomed(page, zooms))
        for name, indexed in (("drawn from the index", True), ("of the deepest zooms", False)):
            mine = [zoom for zoom in measured if zoom.indexed is indexed]
            if mine:
                results[f"from a zoom or drag to its pixels, {name}"] = describe_zooms(mine)
        results["memory of the server afterwards"] = memory_of(server)
    return results


def first_paints(browser: Unwatched, url: str, seen: str, paints: int) -> str:
    """Open an address anew, some times."""
    ms, worked = [], []
    for _ in range(paints):
        cpu_before = cpu_ms()
        with browser.page(url, _PAINTED.replace("SEEN", seen)) as painted_ms:
            ms.append(painted_ms)
            worked.append(cpu_ms() - cpu_before)
    return f"{np.median(ms) / 1e3:.1f} s (processors: {np.median(worked) / 1e3:.1f} s)"


def sent(browser: Unwatched, url: str, seen: str) -> str:
    """Open an address with nothing in the cache, and add up what came."""
    with browser.page(url, _SENT.replace("SEEN", seen)) as came:
        return f"{came / 1e6:.2f} MB"


def zoomed(page: Page, zooms: int) -> Iterator[Zoom]:
    """Look at random windows of many widths, each once before it is measured."""
    whole_ns = page.wait_for_function(
        '() => document.querySelector("#timeline .js-plotly-plot").layout.xaxis.maxallowed'
    ).json_value()
    draw = np.random.default_rng(0)
    for share in SHARES:
        for begin in draw.uniform(0, whole_ns * (1 - share), zooms):
            window = [begin, begin + whole_ns * share]
            page.evaluate(_ZOOM, [0, whole_ns / 2])
            cpu_before = cpu_ms()
            took = page.evaluate(_ZOOM, window)
            note = page.locator("#timeline-note").inner_text()
            yield Zoom(took, cpu_ms() - cpu_before, any(words in note for words in INDEXED))


def describe_zooms(zooms: list[Zoom]) -> str:
    """Tell median and 95 % quantile by the clock, and the mean that processors worked."""
    ms = [zoom.ms for zoom in zooms]
    cpu = np.mean([zoom.cpu_ms for zoom in zooms])
    return (
        f"{np.median(ms):.0f} ms, 95 % within {np.quantile(ms, 0.95):.0f} ms "
        f"(processors: {cpu:.0f} ms on average)"
    )


def cpu_ms() -> float:
    """Return what this process and all that it started have worked."""
    table = dict(_processes())
    pids, is_growing = {os.getpid()}, True
    while is_growing:
        found = {pid for pid, (parent, _) in table.items() if parent in pids}
        is_growing = not found <= pids
        pids |= found
    return sum(ticks for pid, (_, ticks) in table.items() if pid in pids) * _TICK_MS


def _processes() -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield each process with its parent, and the ticks that it and what it waited for worked."""
    for stat_path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat_path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # gone meanwhile
        yield int(stat_path.parent.name), (int(fields[1]), sum(map(int, fields[11:15])))
