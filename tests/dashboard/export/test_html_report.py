"""The report in one file: everything said and drawn is in it, names are text, and it stays small."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support.runs.indexes import recorded
from support.web.stores import (
    LATE,
    SLOW_RANK,
    alone,
    devices,
    report_of,
    sharded,
    slow_rank,
    traced,
)

from tracelens.cli import main
from tracelens.simulator.synthetic import Scenario
from tracelens_dashboard.export import report as exporting
from tracelens_dashboard.runs.store import Store

RUNS: dict[str, Callable[[], Store]] = {
    "slow rank": slow_rank,
    "parameter servers": sharded,
    "one rank": alone,
    "devices": devices,
}
EVERY_RUN = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
HOSTILE = "</script><script>document.title='hostile'</script><img src=x onerror=alert(1)>"


def figures(page: str) -> list[dict[str, Any]]:
    """Read the figures as the page's own script does."""
    embedded = re.search(
        r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL
    )
    assert embedded
    read: list[dict[str, Any]] = json.loads(embedded[1])
    return read


@EVERY_RUN
def test_every_run_has_a_report(run: Callable[[], Store]) -> None:
    """With findings and charts, in light and dark, in less than 8 MB."""
    store = run()
    page = exporting.render(store)
    assert len(page.encode()) < exporting.MAX_REPORT_BYTES
    assert all(finding.sentence in page for finding in store.report.findings)
    drawn = figures(page)
    assert len(drawn) >= 4
    assert page.count('<section class="chart">') == len(drawn)
    for figure in drawn:
        assert figure.keys() == {"light", "dark"}
        assert figure["light"]["data"]


def test_it_may_load_nothing() -> None:
    """No address of elsewhere is in what we write, and the policy allows none."""
    page = exporting.render(slow_rank())
    head, _, body = page.partition("</head>")
    assert "default-src 'none'" in head
    assert "unsafe-eval" not in head
    assert "script-src 'unsafe-inline'" not in head
    own_markup = re.sub(r"<script.*?</script>", "", head + body, flags=re.DOTALL)
    assert not re.search(r"https?:|//[a-z]|@import|url\(", own_markup)
    assert "showSendToCloud: false" in page


def test_names_are_text() -> None:
    """Markup in a run's, a host's or a finding's words is neither read nor ends the data it is in."""
    named = traced(SLOW_RANK).processes.with_columns(host=pl.lit(HOSTILE))
    trace = traced(SLOW_RANK).with_(processes=named)
    finding = replace(LATE, kind="slow_host", hosts=(HOSTILE,), sentence=HOSTILE)
    store = Store.from_trace(trace, report_of(trace, finding))
    page = exporting.render(Store(replace(store.run, name=HOSTILE), trace))
    assert HOSTILE not in page
    assert "<img" not in re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert page.count("<script>") == exporting.render(slow_rank()).count("<script>")
    assert len(figures(page)) >= 4


def test_a_report_never_grows_beyond_its_limit() -> None:
    """Charts without room are left out, and named instead."""
    whole = len(exporting.render(slow_rank()).encode())
    page = exporting.render(slow_rank(), max_bytes=whole - 2_000)
    assert len(page.encode()) < whole - 2_000
    assert "Left out to keep this file small: " in page


@pytest.mark.slow
def test_many_ranks_fit() -> None:
    """Many ranks stay below the limit with every chart in it."""
    trace = traced(Scenario(ranks=128, steps=40))
    page = exporting.render(Store.from_trace(trace, report_of(trace)))
    assert len(page.encode()) < exporting.MAX_REPORT_BYTES
    assert "Left out" not in page


@pytest.mark.slow
def test_analyze_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`tracelens analyze DIR --html FILE` prints as ever and writes the file; else says why not."""
    trace, file = recorded(tmp_path / "run"), tmp_path / "report.html"
    assert main(["analyze", str(trace), "--html", str(file)]) == 0
    assert "Where the time went" in capsys.readouterr().out
    assert "Timeline of all ranks" in file.read_text()
    assert main(["analyze", str(trace), "--html", str(tmp_path / "no" / "x.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.slow
def test_a_report_of_an_indexed_run_has_all_tables(tmp_path: Path) -> None:
    """A run that was opened by its index has the tables of its report, too."""
    trace = recorded(tmp_path / "run")
    assert main(["index", str(trace)]) == 0
    page = exporting.render(Store.open(trace, lambda: pytest.fail("the trace was read")))
    assert "Critical path" in page
