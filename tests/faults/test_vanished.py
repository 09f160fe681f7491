"""A trace that goes while it is shown costs its own pages a sentence, and other runs nothing."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from support.launch.patience import wait_until
from support.runs.indexes import explained, recorded
from support.web.callbacks import call

from tracelens.errors import TraceNotFound
from tracelens.readers.native.reader import NativeReader
from tracelens.simulator.synthetic import Scenario
from tracelens_dashboard.app.server import create_app
from tracelens_dashboard.runs.catalog import Runs
from tracelens_dashboard.runs.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from dash import Dash
    from werkzeug.test import TestResponse

LIMIT_S = 300.0
SUMMARY = '{"chart":"waterfall","part":"graph"}.figure'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs with an index."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("goes", "stays"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        explained(recorded(tmp_path / "runs" / name, Scenario(ranks=2, steps=8)))
    return tmp_path / "runs"


def clicked(app: Dash, run: str) -> TestResponse:
    """Click on rank 0's row, in the middle of a run."""
    values = {"timeline.clickData": {"xvals": [0.03], "yvals": [5]}, "shown-run.data": run}
    return call(app, "timeline-details.children", values)


def removed(folder: Path) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def test_nothing_is_left_of_it(tmp_path: Path) -> None:
    """Between looking and reading it may go: there is a sentence for that."""
    with pytest.raises(TraceNotFound, match=r"Nothing is left in '.*'.*moved or removed since"):
        NativeReader().read(tmp_path / "worker-00000-1.arrow")


def test_spans_of_a_run_that_went(folder: Path) -> None:
    """What was opened by its index is asked for spans of files that are no more."""
    store = Store.from_index(folder / "goes")
    assert store is not None
    shutil.rmtree(folder / "goes")
    with pytest.raises(TraceNotFound, match="moved or removed since"):
        store.spans_of_process(0)


def test_pages_of_a_vanished_run_say_so(folder: Path) -> None:
    """Its pages say it in a sentence; those of the other run are as before."""
    runs = Runs([folder])
    vanishing, staying = sorted(runs.list_entries(), key=lambda entry: entry.name)
    app = create_app(runs)
    assert runs.open_store(vanishing, LIMIT_S) is not None
    wait_until(lambda: removed(folder / "goes"))  # its index may still be refined
    assert "moved or removed" in clicked(app, vanishing.run_key).text
    assert "Recorded spans at this time" in clicked(app, staying.run_key).text
    values = {"shown-run.data": staying.run_key, "scheme.computedColorScheme": "light"}
    assert call(app, SUMMARY, values).status_code == 200


def test_a_run_that_vanishes_before_it_is_opened_fails(folder: Path) -> None:
    """A run that went after it was listed keeps one sentence; the list goes on without it."""
    runs = Runs([folder])
    vanishing, _ = sorted(runs.list_entries(), key=lambda entry: entry.name)
    shutil.rmtree(folder / "goes")
    assert runs.open_store(vanishing, LIMIT_S) is None
    assert vanishing.stage.kind == "failed"
    assert "There is no 'goes'" in vanishing.stage.failure_sentence
    assert [entry.name for entry in runs.list_entries()] == ["stays"]
