"""`make screenshots`: one picture a page in docs/pictures, of the sample traces, in few bytes.

A page that is added to `PAGES` gets its picture without a change here; `SAMPLES` may choose a run that
suits it better than the usual one.
"""

from __future__ import annotations

import base64
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from support.launch.recording import run_command
from support.launch.torchrun import torchrun_command
from support.live_pictures import take_live_pictures
from support.runs.indexes import explained
from support.samples import EXAMPLES, SAMPLES, manifest, record
from support.web.browser import chromium, open_page, served, wait_until_settled

from tracelens.lod import raster
from tracelens.simulator.synthetic import Scenario, write
from tracelens_dashboard.app import run_list
from tracelens_dashboard.pages import PAGES, live_job, scaling
from tracelens_dashboard.runs.catalog import id_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab
    from support.web.browser import Scheme

    from tracelens.arrays import Ints

PICTURES: Final = Path(__file__).parents[2] / "docs" / "pictures"
LARGEST: Final = 150_000
COLOURS: Final = 255
FREQUENT: Final = 150  # of them; the others are as far from them, and each other, as can be
WIDTH: Final = 1440
TALLEST: Final = 1280
SETTLED_MS: Final = 2_500  # for what no request tells: fonts, animations, the browser's own drawing
USUAL: Final = "ddp-slow-backprop"
OTHER: Final = "ddp-healthy"
SAMPLED: Final = "mpi-late-rank with stacks"  # which samples lack: recorded anew
RESTARTED: Final = "restarts"  # the same
# Of a page, by its path: the sample, and what its address says besides.
SUITS: Final = {
    "/timeline": ("mpi-late-rank", "&t0=2300000000&t1=3500000000&pin=2"),
    "/shards": ("ps-hot-shard", ""),
    "/collectives": ("mpi-sweep", ""),
    "/stacks": (SAMPLED, ""),
    "/life": (RESTARTED, ""),
    "/compare": (USUAL, f"&compare={{{OTHER}}}"),
    "/scaling": ("02-ranks", ""),
}
DARK: Final = ("/", "/timeline")
SIZES: Final = (2, 4, 8, 16, 32)
PIXELS: Final = """async (picture) => {
  const image = new Image();
  image.src = "data:image/png;base64," + picture;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.width, image.height];
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const bytes = new Uint8Array(context.getImageData(0, 0, image.width, image.height).data.buffer);
  let text = "";
  const part = 1 << 15;
  for (let at = 0; at < bytes.length; at += part)
    text += String.fromCharCode(...bytes.subarray(at, at + part));
  return [image.width, image.height, btoa(text)];
}"""


def name_of(title: str, scheme: Scheme = "light") -> str:
    """Name the picture of a page."""
    slug = "-".join(title.lower().split())
    return f"{slug}{'-dark' if scheme == 'dark' else ''}.png"


def main() -> None:
    """Take all pictures."""
    PICTURES.mkdir(exist_ok=True)
    for old in PICTURES.glob("*.png"):
        old.unlink()
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        samples, sizes = Path(folder, "samples"), Path(folder, "sizes")
        _take(
            browser,
            samples,
            _copied(samples),
            [one for one in _list_pages() if one[0] not in {scaling.PATH, live_job.PATH}],
        )
        _take(browser, sizes, _of_sizes(sizes), [(scaling.PATH, scaling.TITLE, "light")])
        take_live_pictures(
            browser, Path(folder, "live"), PICTURES, lambda tab: _reduced(tab, tab.screenshot())
        )


def _take(
    browser: Browser, folder: Path, runs: dict[str, str], wanted: list[tuple[str, str, Scheme]]
) -> None:
    """Serve runs, and take the pictures of some pages of theirs."""
    with served(folder) as url:
        for path, title, scheme in wanted:
            picture = _take_picture(browser, url + _address(path, runs), scheme)
            (PICTURES / name_of(title, scheme)).write_bytes(picture)
            sys.stdout.write(f"{name_of(title, scheme)}: {len(picture) // 1000} kB\n")


def _of_sizes(folder: Path) -> dict[str, str]:
    """Simulate runs of several sizes, whose reductions take longer the more ranks there are."""
    for ranks in SIZES:
        run = folder / f"{ranks:02}-ranks"
        write(Scenario(ranks=ranks, steps=40, overlap=False, transfer_ms=0.2 * ranks), run)
        explained(run)
    return {run.name: id_of(run) for run in folder.iterdir()}


def _copied(folder: Path) -> dict[str, str]:
    """Copy the samples, as an index is made beside them; return their ids."""
    folder.mkdir()
    suited = {sample for path, (sample, _) in SUITS.items() if path != scaling.PATH}
    for sample in {USUAL, OTHER, *suited} - {SAMPLED, RESTARTED}:
        shutil.copytree(SAMPLES / sample, folder / sample, ignore=shutil.ignore_patterns("index-*"))
    late = next(sample for sample in manifest() if sample.name == "mpi-late-rank")
    record(replace(late, record=["--sample"]), folder / SAMPLED)
    _record_restarts(folder / RESTARTED)
    return {run.name: id_of(run) for run in folder.iterdir()}


def _record_restarts(folder: Path) -> None:
    """Record a training that is killed and started again."""
    with tempfile.TemporaryDirectory() as state:
        options = ["--state", state, "--fail", "27:1:kill", "44:0:raise"]
        launch = torchrun_command(EXAMPLES / "ddp_restarts.py", 2, options)
        launch[1:1] = ["--max-restarts", "3"]
        run_command(
            [sys.executable, "-m", "tracelens", "record", "--out", str(folder), "--", *launch]
        )


def _list_pages() -> Iterator[tuple[str, str, Scheme]]:
    """List paths, titles and schemes; the list of runs comes last, when all have been opened."""
    for page in PAGES:
        yield page.PATH, page.TITLE, "light"
        if page.PATH in DARK:
            yield page.PATH, page.TITLE, "dark"
    yield run_list.PATH, run_list.TITLE, "light"


def _address(path: str, runs: dict[str, str]) -> str:
    sample, more = SUITS.get(path, (USUAL, ""))
    run = "" if path == run_list.PATH else f"?run={runs[sample]}{more.format(**runs)}"
    return path.lstrip("/") + run


def _take_picture(browser: Browser, address: str, scheme: Scheme) -> bytes:
    """Return the picture of a page, once it has drawn all that it will."""
    with open_page(browser, address, scheme) as tab:
        tab.wait_for_selector(".page-title, #verdict, #timeline, #runs")
        _wait_until_settled(tab)
        height = min(int(tab.evaluate("document.documentElement.scrollHeight")), TALLEST)
        tab.set_viewport_size({"width": WIDTH, "height": height})
        _wait_until_settled(tab)
        return _reduced(tab, tab.screenshot())


def _wait_until_settled(tab: Tab) -> None:
    wait_until_settled(tab)
    tab.wait_for_timeout(SETTLED_MS)


def _reduced(tab: Tab, picture: bytes) -> bytes:
    """Pack a picture anew, with few colours: each other one becomes the nearest of them."""
    width, height, text = tab.evaluate(PIXELS, base64.b64encode(picture).decode())
    pixels = np.frombuffer(base64.b64decode(text), np.uint8).reshape(-1, 4)[:, :3].astype(np.int64)
    mixed = pixels[:, 0] << 16 | pixels[:, 1] << 8 | pixels[:, 2]
    found, colour_index, count = np.unique(mixed, return_inverse=True, return_counts=True)
    colours = np.stack([found >> 16, found >> 8 & 255, found & 255], axis=1)
    kept, nearest = _palette(colours, count)
    indexes = nearest[colour_index].reshape(height, width).astype(np.uint8) + np.uint8(1)
    palette = [(int(r), int(g), int(b)) for r, g, b in kept]
    return raster.encode_png(indexes, [(0, 0, 0), *palette], small=True)  # the first is transparent


def _palette(colours: Ints, count: Ints) -> tuple[Ints, Ints]:
    """Choose colours, and for each one its nearest: first what is frequent, then what is far from it."""
    order = np.argsort(-count, kind="stable")
    chosen_colours = order[:FREQUENT].tolist()
    distances = np.stack([_distance(colours, colours[one]) for one in chosen_colours])
    nearest, least_distance = distances.argmin(axis=0), distances.min(axis=0)
    while len(chosen_colours) < COLOURS and least_distance.max() > 0:
        chosen_colours.append(int(least_distance.argmax()))
        mine = _distance(colours, colours[chosen_colours[-1]])
        nearest[mine < least_distance] = len(chosen_colours) - 1
        least_distance = np.minimum(least_distance, mine)
    return colours[chosen_colours], nearest


def _distance(colours: Ints, one: Ints) -> Ints:
    squares: Ints = ((colours - one) ** 2).sum(axis=1)
    return squares


if __name__ == "__main__":
    main()
