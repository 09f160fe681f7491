"""What browser tests share: a browser for each file, and runs that are served once for all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from support.samples import SAMPLES
from support.web.browser import chromium, served

from tracelens.simulator.synthetic import Fault, Scenario, write
from tracelens_dashboard.app import run_list
from tracelens_dashboard.pages import PAGES, compare, shards
from tracelens_dashboard.runs.catalog import id_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SLOW = Fault("backprop", (2,), steps=(40, 79), factor=1.6)
MIB = 1 << 20
SAMPLED = "mpi-sampled"
SHARDED = Scenario(
    ranks=4,
    steps=60,
    shards=2,
    variables=(9 * MIB, MIB, 2 * MIB, 2 * MIB),
    faults=(Fault("backprop", (2,), steps=(20, 39), factor=1.6),),
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start Chromium; not for longer than a file, as it keeps an event loop in this thread."""
    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def slow_rank_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve 4 ranks of 120 steps; rank 2 is slow in backprop of steps 40-79."""
    folder = tmp_path_factory.mktemp("traces") / "run"
    write(Scenario(ranks=4, steps=120, faults=(SLOW,)), folder)
    with served(folder) as address:
        yield address


@pytest.fixture(scope="session")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Serve two runs; return every page's address by its title, of the run that has most to show there.

    One is a recorded training whose rank 1 is late, with samples of its stacks; one has shards.
    """
    folder = tmp_path_factory.mktemp("traces")
    shutil.copytree(SAMPLES / SAMPLED, folder / SAMPLED, ignore=shutil.ignore_patterns("index-*"))
    write(SHARDED, folder / "sharded")
    late, sharded = id_of(folder / SAMPLED), id_of(folder / "sharded")
    path_by_title = {page.TITLE: f"{page.PATH.lstrip('/')}?run={late}" for page in PAGES}
    path_by_title[shards.TITLE] = f"{shards.PATH.lstrip('/')}?run={sharded}"
    path_by_title[compare.TITLE] += f"&compare={sharded}"
    with served(folder) as url:
        yield {title: url + path for title, path in path_by_title.items()} | {run_list.TITLE: url}
