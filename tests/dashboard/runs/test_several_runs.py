"""Several runs are served side by side, each opened when it is asked for."""

from __future__ import annotations

import gc
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.runs.indexes import explained, recorded
from support.web.callbacks import call

from tracelens import load
from tracelens.errors import TraceNotFound, UnusableInput
from tracelens.simulator.synthetic import Scenario
from tracelens_dashboard.app.server import create_app
from tracelens_dashboard.runs.catalog import Runs
from tracelens_dashboard.runs.store import Store

if TYPE_CHECKING:
    from tracelens.lod.opening import OnProgress
    from tracelens.model.trace import Trace

LIMIT_S = 300.0
SUMMARY = '{"chart":"waterfall","part":"graph"}.figure'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs with an index, and a run whose only file is damaged."""
    root = tmp_path_factory.mktemp("runs")
    for name, ranks in (("first", 2), ("deep/second", 3)):
        (root / name).mkdir(parents=True)
        explained(recorded(root / name, Scenario(ranks=ranks, steps=8)))
    (root / "broken").mkdir()
    (root / "broken" / "worker-00000-1.arrow").write_bytes(b"no table")
    return root


def test_runs_are_found_in_a_folder(folder: Path) -> None:
    """At any depth; a trace folder itself is one run."""
    assert [run.name for run in load.list_runs(folder)] == ["broken", "second", "first"]
    assert load.list_runs(folder / "first") == [folder / "first"]


def test_an_id_says_nothing_of_the_path_and_stays(folder: Path) -> None:
    """A link to a run holds after a restart, and tells nobody where the run lies."""
    ids = [entry.run_key for entry in Runs([folder]).list_entries()]
    assert ids == [entry.run_key for entry in Runs([folder]).list_entries()]
    assert len(set(ids)) == 3
    assert not any(part in "".join(ids) for part in ("first", "deep", folder.name))


def test_names_tell_runs_apart(folder: Path) -> None:
    """Two folders of one name are called by more of their paths."""
    shutil.copytree(folder / "first", folder / "copy" / "first")
    try:
        names = [entry.name for entry in Runs([folder]).list_entries()]
    finally:
        shutil.rmtree(folder / "copy")
    assert names == ["broken", "copy/first", "second", f"{folder.name}/first"]


def test_a_run_that_cannot_be_read_leaves_the_others_alone(folder: Path) -> None:
    """It keeps its one sentence; the others open, and it can be tried again."""
    runs = Runs([folder])
    entries = {entry.name: entry for entry in runs.list_entries()}
    assert runs.open_store(entries["broken"], LIMIT_S) is None
    assert entries["broken"].stage.kind == "failed"
    assert "worker-00000-1.arrow" in entries["broken"].stage.failure_sentence
    first = runs.open_store(entries["first"])
    assert first is not None
    assert first.ranks == (0, 1)
    runs.retry_opening(entries["broken"])
    assert runs.list_entries()[0].stage.kind == "new"


def test_a_new_run_appears_while_serving(folder: Path) -> None:
    """What is recorded into the folder later is found by its id."""
    runs = Runs([folder])
    recorded(folder / "third", Scenario(ranks=2, steps=4))
    try:
        (new,) = [entry.run_key for entry in Runs([folder / "third"]).list_entries()]
        assert runs.find_entry(new) is not None
    finally:
        shutil.rmtree(folder / "third")


def test_a_run_without_an_index_is_read_beside_all_else(tmp_path: Path) -> None:
    """Asking does not wait; how far it is can be told; it opens when it is explained."""
    recorded(tmp_path, Scenario(ranks=2, steps=8))
    stages = []

    def read(path: Path, tell: OnProgress) -> Trace:
        stages.append(entry.stage.activity)
        return load.open(path, tell)

    runs = Runs([tmp_path], read)
    (entry,) = runs.list_entries()
    assert runs.open_store(entry) is None
    assert entry.stage.kind in {"queued", "working"}
    store = runs.open_store(entry, LIMIT_S)
    assert store is not None
    assert store.run_key == entry.run_key
    assert stages == ["reading"]
    assert runs.open_store(entry) is store


def test_few_runs_stay_open(folder: Path) -> None:
    """Of runs that need more memory than granted only the last one asked for stays open."""
    runs = Runs([folder], most_held_bytes=1)
    _, other_entry, entry = runs.list_entries()
    store = runs.open_store(entry)
    assert store is not None
    assert store.held_bytes > 1
    assert runs.open_store(entry) is store
    assert runs.open_store(other_entry) is not None
    assert runs.open_store(entry) is not store


def test_memory_of_mapped_files_does_not_count(folder: Path) -> None:
    """A run in memory holds its spans and levels, one with an index only small tables."""
    mapped = Store.from_index(folder / "first")
    assert mapped
    whole = Store.open(None, lambda: load.open(folder / "first"))
    assert whole.held_bytes > mapped.held_bytes


def test_nothing_at_a_place_is_told_at_once(tmp_path: Path) -> None:
    """A folder that is not there is an error of one sentence before anything is served."""
    with pytest.raises(TraceNotFound, match="There is no"):
        Runs([tmp_path / "nowhere"])
    assert issubclass(TraceNotFound, UnusableInput)


def test_callbacks_are_about_the_run_they_name(folder: Path) -> None:
    """Each request says which run its page shows; of an unknown one a sentence is told."""
    runs = Runs([folder])
    app = create_app(runs)
    for entry in runs.list_entries()[1:]:
        store = runs.open_store(entry)
        assert store
        assert store.report.efficiency
        useful = f"{100 * store.report.efficiency.achieved:.0f} %"
        values = {"shown-run.data": entry.run_key, "scheme.computedColorScheme": "light"}
        assert useful in call(app, SUMMARY, values).text
    values = {"shown-run.data": "feedfeedfeed", "scheme.computedColorScheme": "light"}
    told = call(app, SUMMARY, values)
    assert "This run is not served any more" in told.text


def test_a_run_that_is_not_shown_any_more_is_closed(tmp_path: Path) -> None:
    """Its mapped files are closed immediately, or a server would run out of descriptors."""
    explained(recorded(tmp_path, Scenario(ranks=2, steps=8)))  # no other test has it open
    gc.disable()  # what holds itself would stay until then
    try:
        store = Store.from_index(tmp_path)
        assert store is not None
        rank = store.scene_row_by_key["0"]
        assert store.open_process_tracks(rank) is store.open_process_tracks(rank)
        assert store.events_of_process(0).height
        assert _mapped(tmp_path)
        del store
        assert not _mapped(tmp_path)
    finally:
        gc.enable()


def _mapped(run: Path) -> list[str]:
    """Return the files of a run that this process has mapped or open."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    opened = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # what lists the folder has it open
            opened.append(str(entry.readlink()))
    return [line for line in [*maps, *opened] if str(run) in line]
