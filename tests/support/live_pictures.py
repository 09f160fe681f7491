"""Pictures of a real training as it runs, hangs and dies: `tracelens watch`, and the page Live."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.text import Text
from support.watch.training import training
from support.web.browser import open_page, served

from tracelens.watch.screen import draw
from tracelens.watch.watcher import News, Watcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

RANKS: Final = 3
FAULT_STEP: Final = 1200
PATIENCE_S: Final = 60.0
WIDTH: Final = 120  # characters


def take_live_pictures(
    browser: Browser, folder: Path, pictures: Path, reduced: Callable[[Tab], bytes]
) -> None:
    """Take the pictures: healthy, hanging, after a crash; `reduced` takes one in few bytes."""
    with training("sleep", folder, ranks=RANKS, fault_step=FAULT_STEP):
        _wait(lambda: len(list(folder.glob("worker-*"))) == RANKS)
        time.sleep(2)
        watcher, news = Watcher(folder), list[News]()
        with served(folder) as url, open_page(browser, f"{url}live", "light") as tab:

            def take(state: str, is_reached: Callable[[], bool]) -> None:
                def look() -> bool:
                    news.extend(watcher.look())
                    return is_reached()

                _wait(look)
                _write_terminal(watcher, news, pictures / f"watch-{state}.svg")
                tab.wait_for_timeout(1500)
                name = "live.png" if state == "hanging" else f"live-{state}.png"
                picture_path = pictures / name
                picture_path.write_bytes(reduced(tab))

            take("healthy", lambda: bool(watcher.status and watcher.status.usual_steps_per_s))
            take("hanging", lambda: any(item.kind == "stacks" for item in news))
            os.kill(_find_pid(folder, 1), signal.SIGKILL)
            take("crashed", lambda: sum(item.kind == "exited" for item in news) == RANKS)
        watcher.close()


def _find_pid(folder: Path, rank: int) -> int:
    (name,) = folder.glob(f"worker-{rank:05}-*")
    return int(name.stem.rpartition("-")[2])


def _wait(is_reached: Callable[[], bool]) -> None:
    """Wait until something is reached, and ask once a second.

    Raises:
        TimeoutError: it is not within a minute.
    """
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_reached():
        if time.monotonic() > deadline_s:
            raise TimeoutError("the training did not come to what is to be shown")
        time.sleep(1)


def _write_terminal(watcher: Watcher, news: list[News], path: Path) -> None:
    """Write what `tracelens watch` shows on a terminal, as a picture."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(width=WIDTH, record=True, file=nowhere, force_terminal=True)
        lines = [Text(line) for item in news for line in item.sentence.splitlines()]
        console.print(draw(watcher, lines[-8:]))
        path.write_text(console.export_svg(title="tracelens watch traces/today"))
