"""What browser tests share: a browser for each file, and a run with a rank that is slow for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.browser import chromium, served

from tracelens.simulator.synthetic import Fault, Scenario, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

SLOW = Fault("backprop", (2,), steps=(40, 79), factor=1.6)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start Chromium; not for longer than a file, as it keeps an event loop in this thread."""
    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def slow_rank_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve 4 ranks of 120 steps, of which rank 2 is slow in backprop of steps 40-79."""
    folder = tmp_path_factory.mktemp("traces") / "run"
    write(Scenario(ranks=4, steps=120, faults=(SLOW,)), folder)
    with served(folder) as address:
        yield address
