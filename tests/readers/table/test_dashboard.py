"""A table opens in the dashboard like any other run."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING

import pytest
from plotly.utils import PlotlyJSONEncoder
from support.runs.analysed import RUNS
from support.runs.analysed import trace as simulated
from support.runs.tables import table_of

from tracelens import load
from tracelens_dashboard.pages import PAGES, Page
from tracelens_dashboard.runs.store import Store
from tracelens_dashboard.view.state import ViewState

if TYPE_CHECKING:
    from pathlib import Path


@cache
def store(folder: Path, run: str) -> Store:
    file = folder / f"{run}.csv".replace(" ", "-")
    if run == "tiny":
        file.write_text("rank,start_ns,end_ns\n0,1,5\n")
    else:
        columns = ["rank", "role", "start_ns", "end_ns", "kind", "shard"]
        table_of(simulated(RUNS[run][0]), with_extras=False).select(columns).write_csv(file)
    return Store.open(file, lambda: load.open(file))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.TITLE)
@pytest.mark.parametrize("run", ["slow rank", "hot shard", "tiny"])
def test_every_page_opens(page: Page, run: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Also with few columns, without hosts, threads, steps or numbers of calls."""
    opened = store(tmp_path_factory.getbasetemp(), run)
    assert json.dumps(page.layout(opened, ViewState()), cls=PlotlyJSONEncoder)
    assert opened.name.endswith(".csv")
