"""An index gives back the run it was made of, is found only while it is true, and never half there."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from support.launch.patience import PATIENCE_S
from support.runs.indexes import explained, recorded

from tracelens import load
from tracelens.distil import places
from tracelens.lod import files, index, opening, query, run_data, viewport
from tracelens.lod.run_data import Run, with_pyramid
from tracelens.lod.viewport import Window
from tracelens.simulator.synthetic import Scenario
from tracelens.verdicts.report import analyze

LONG = Scenario(ranks=2, steps=400)  # has more than one level


@pytest.fixture
def long_trace(tmp_path: Path) -> Path:
    return recorded(tmp_path / "long", LONG)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return recorded(tmp_path / "run")


def test_what_comes_back_is_what_went_in(trace: Path) -> None:
    """Findings, tables, lateness, spans and levels are the same as without an index."""
    opened = load.open(trace)
    fresh_run = with_pyramid(Run.from_trace(opened, analyze(opened)))
    explained(trace)
    indexed_run = opening.open_indexed(trace)
    assert indexed_run
    reports = (indexed_run.report, fresh_run.report)
    was, now = (asdict(replace(report, findings=(), results={})) for report in reports)
    assert was == now
    assert indexed_run.report.findings == fresh_run.report.findings
    for table in files.TABLES.values():
        assert getattr(indexed_run, table).equals(getattr(fresh_run, table))
    assert indexed_run.tables.keys() == fresh_run.tables.keys() == run_data.KEPT_TABLES.keys()
    assert all(
        indexed_run.tables[name].equals(fresh_run.tables[name]) for name in run_data.KEPT_TABLES
    )
    assert np.array_equal(
        indexed_run.residuals.residual_ns, fresh_run.residuals.residual_ns, equal_nan=True
    )
    for indexed_lanes, fresh_lanes in (
        (indexed_run.scene.span_lanes, fresh_run.scene.span_lanes),
        (indexed_run.scene.step_lanes, fresh_run.scene.step_lanes),
    ):
        assert indexed_lanes.owners == fresh_lanes.owners
        assert indexed_lanes.item_names == fresh_lanes.item_names
        for name in (
            "item_offsets",
            "starts_ns",
            "ends_ns",
            "palette_codes",
            "step_numbers",
            "name_indices",
        ):
            assert np.array_equal(getattr(indexed_lanes, name), getattr(fresh_lanes, name))
    assert indexed_run.scene.colour_pyramid
    assert indexed_run.scene.colour_pyramid.is_complete
    plan, window = viewport.plan_rows(indexed_run.scene.span_lanes), indexed_run.scene.run_window
    first, second = (
        query.draw_picture(run.scene, window, plan).palette_pixels
        for run in (indexed_run, fresh_run)
    )
    assert np.array_equal(first, second)


def test_a_changed_trace_gets_a_new_index(trace: Path) -> None:
    """Another file, another size or another time: the index is not found, and goes when one is made."""
    explained(trace)
    index_before = index.find(trace)
    assert index_before
    file = next(trace.glob("*.arrow"))
    os.utime(file, ns=(1, 1))
    assert index.find(trace) is None
    explained(trace)
    assert index.find(trace) not in (None, index_before)
    assert not index_before.exists()


@pytest.mark.slow
def test_an_index_without_a_table_that_pages_need_is_made_anew(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table more in the list, and what was kept before does not open; the next one has it."""
    explained(trace)
    monkeypatch.setitem(run_data.KEPT_TABLES, "one_more", "critical_path.slack")
    assert opening.open_indexed(trace) is None
    explained(trace)
    again = opening.open_indexed(trace)
    assert again
    assert again.tables["one_more"].equals(again.tables["slack"])


def test_tables_do_not_grow_with_events(trace: Path) -> None:
    """Of a table with too many rows the first are kept."""
    report = analyze(load.open(trace))
    assert {table.height for table in run_data.select_tables(report, 2).values()} == {0, 1, 2}


@pytest.mark.slow
def test_another_format_finds_no_index(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index is read by those who write the same; theirs takes the place of an older one."""
    explained(trace)
    older = index.find(trace)
    assert older
    monkeypatch.setattr(places, "INDEX_VERSION", places.INDEX_VERSION + 1)
    monkeypatch.setattr(places, "INDEX_FOLDER", f"index-v{places.INDEX_VERSION}")
    assert index.find(trace) is None
    explained(trace)
    newer = index.find(trace)
    assert newer
    assert newer.parent != older.parent
    assert not older.exists()


@pytest.mark.slow
def test_the_same_tracelens_installed_again_finds_the_index(trace: Path, tmp_path: Path) -> None:
    """Its files are new ones, at another place; what they make of a trace is the same."""
    explained(trace)
    install_folder = tmp_path / "installed"
    shutil.copytree(
        Path(index.__file__).parents[1],
        install_folder / "tracelens",
        ignore=shutil.ignore_patterns("__pycache__"),
        copy_function=shutil.copyfile,
    )
    program = (
        "import sys; from pathlib import Path; from tracelens.lod import index as home, index\n"
    )
    program += "print(home.__file__, index.find(Path(sys.argv[1])), sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", program, str(trace)],
        env={**os.environ, "PYTHONPATH": str(install_folder)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    code, found = done.stdout.splitlines()
    assert Path(code).is_relative_to(install_folder)
    assert Path(found) == index.find(trace)


def test_a_killed_build_leaves_nothing_that_is_found(
    long_trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while written: no index. Killed while refined: the finished levels are whole."""
    trace = long_trace
    monkeypatch.setattr(index, "COARSE_BINS", 300)
    with monkeypatch.context() as dying:
        dying.setattr(files, "_save_calls", _kill_build)
        with pytest.raises(KeyboardInterrupt):
            opening.explain_trace(load.open(trace))
    assert index.find(trace) is None
    with monkeypatch.context() as dying:
        dying.setattr(index, "_add_levels", _kill_build)
        with pytest.raises(KeyboardInterrupt):
            opening.explain_trace(load.open(trace))
    assert levels_of(trace) == []
    opening.explain_trace(load.open(trace))
    indexed_run = opening.open_indexed(trace)
    assert indexed_run
    assert indexed_run.scene.colour_pyramid
    with monkeypatch.context() as dying:
        dying.setattr(np.memmap, "flush", _kill_build)
        with pytest.raises(KeyboardInterrupt):
            opening.refine_index(indexed_run)
    assert levels_of(trace) == [275]
    again = opening.open_indexed(trace)
    assert again
    opening.refine_index(again)
    assert len(levels_of(trace)) > 1
    entries = [entry for entry in (trace / places.INDEX_FOLDER).iterdir() if entry.is_dir()]
    assert [entry for entry in entries if not entry.name.startswith("report-")] == [
        index.find(trace)
    ]


def levels_of(trace: Path) -> list[int]:
    """List the bin counts of the present levels; each must be readable."""
    found = index.find(trace)
    assert found
    return sorted(int(np.load(file).shape[1]) for file in found.glob("level-*.npy"))


def _kill_build(*_arguments: object) -> None:
    raise KeyboardInterrupt


def test_coarse_levels_serve_while_finer_ones_are_made(
    long_trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before refinement the whole run can be drawn, and a narrow window by its spans."""
    monkeypatch.setattr(index, "COARSE_BINS", 300)
    run = opening.explain_trace(load.open(long_trace))
    assert run.scene.colour_pyramid
    assert not run.scene.colour_pyramid.is_complete
    plan, whole = viewport.plan_rows(run.scene.span_lanes), run.scene.run_window
    narrow = Window(whole.start_ns, whole.start_ns + whole.width_ns // 15)
    for seen in (whole, narrow):
        assert query.draw_picture(run.scene, seen, plan).palette_pixels.any()


def test_a_read_only_trace_is_indexed_in_the_cache(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (trace / places.INDEX_FOLDER).write_text("in the way")  # root may write anywhere
    explained(trace)
    found = index.find(trace)
    assert found
    assert found.is_relative_to(tmp_path / "cache")


def test_without_any_place_the_run_is_in_memory(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full or read-only disk is no reason not to show a run."""
    (tmp_path / "cache").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (trace / places.INDEX_FOLDER).write_text("in the way")
    run = explained(trace)
    assert index.find(trace) is None
    assert run.scene.colour_pyramid
    assert run.scene.colour_pyramid.is_complete


def test_a_damaged_index_is_made_anew(trace: Path) -> None:
    """What cannot be read is removed, and is no error."""
    explained(trace)
    found = index.find(trace)
    assert found
    (found / "run.json").write_text(json.dumps({"whole": 3}))
    assert opening.open_indexed(trace) is None
    explained(trace)
    assert opening.open_indexed(trace)


@pytest.mark.slow
def test_an_index_that_lacks_a_file_is_made_anew(trace: Path) -> None:
    """Also one that is read much later than the index is opened; without a level pages do."""
    explained(trace)
    index_folder = index.find(trace)
    assert index_folder
    names = {file.name for file in index_folder.iterdir()} - {run_data.GLANCE_FILE}
    for name in sorted(name for name in names if not name.startswith(("level-", "peaks-"))):
        copy = trace.parent / "copy"
        shutil.copytree(index_folder, copy)
        (copy / name).unlink()
        assert index.load(copy) is None, name
        assert not copy.exists()


def test_an_index_with_a_file_cut_short_is_made_anew(trace: Path) -> None:
    """Completeness is checked when the index is opened, long before its columns are read."""
    explained(trace)
    found = index.find(trace)
    assert found
    file = found / "spans.arrow"
    file.write_bytes(file.read_bytes()[:-1])
    assert opening.open_indexed(trace) is None
    explained(trace)
    assert opening.open_indexed(trace)


def test_a_recording_that_goes_on_has_no_index(trace: Path) -> None:
    """What is still written to changes all the time."""
    (trace / "worker-00009-77.segments").mkdir()
    assert places.compute_fingerprint(trace) is None


@pytest.mark.slow
def test_an_index_opens_without_what_made_it(trace: Path) -> None:
    """Neither the analyses nor the library of their tests are imported by a server that opens one."""
    explained(trace)
    program = (
        "import sys; from pathlib import Path; from tracelens_dashboard.app.server import create_app\n"
        "from tracelens_dashboard.pages import overview\n"
        "from tracelens_dashboard.runs.store import Store\n"
        "from tracelens_dashboard.view.state import ViewState\n"
        "store = Store.from_index(Path(sys.argv[1]))\n"
        "create_app(store); overview.layout(store, ViewState())\n"
        "print(*sorted({'scipy', 'tracelens.analyses'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(trace)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stdout.split() == []
