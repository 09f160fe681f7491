"""What one verb found out of a trace serves the next: its events are not gone through again."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.launch.patience import PATIENCE_S
from support.runs.indexes import SLOW, explained, recorded

from tracelens import load
from tracelens.cli import main
from tracelens.distil import kept_report, places
from tracelens.lod import index, opening
from tracelens.model.events import Source
from tracelens.verdicts import report
from tracelens_dashboard.runs.store import Store

# Runs the verb with files of at most so many bytes: as on a disk that is full after them.
ON_A_SMALL_DISK = """
import resource, sys
from tracelens.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return recorded(tmp_path / "run", SLOW)


def without_events(trace: Path) -> None:
    """Make all events unreadable, though the files look as before."""
    for file in trace.glob("*.arrow"):
        state = file.stat()
        file.write_bytes(bytes(state.st_size))
        os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("verb", [["analyze"], ["compare", "RUN"], ["scaling", "RUN"]], ids=str)
def test_nothing_is_kept_where_that_is_asked_for(
    verb: list[str], trace: Path, tmp_path: Path
) -> None:
    """No verb writes into the trace folder or the cache with `--no-keep`."""
    contents_before = contents(trace)
    asked = [word.replace("RUN", str(trace)) for word in verb]
    assert main([*asked, str(trace), "--no-keep", "--format", "json"]) in {0, 2, 3}
    assert contents(trace) == contents_before
    assert not [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]
    assert index.find(trace) is None
    assert kept_report.find(trace) is None


def test_a_dashboard_keeps_nothing_where_that_is_asked_for(trace: Path, tmp_path: Path) -> None:
    """It shows the run from memory, and adds nothing to an existing index."""
    with places.keeping_nothing():
        store = Store.open(trace, lambda: load.open(trace))
        store.refine()
        assert store.refinement_thread
        store.refinement_thread.join()
    assert index.find(trace) is None
    assert not [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]
    assert main(["analyze", str(trace)]) == 0
    folder = index.find(trace)
    assert folder
    paths_before = sorted(folder.iterdir())
    with places.keeping_nothing():
        store = Store.open(trace, lambda: load.open(trace))
        store.refine()
        assert store.refinement_thread
        store.refinement_thread.join()
    assert sorted(folder.iterdir()) == paths_before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
@pytest.mark.parametrize("verb", [["analyze"], ["compare", "RUN"], ["index"]], ids=str)
def test_the_folder_of_another_user_stays_as_it_is(
    verb: list[str], trace: Path, tmp_path: Path
) -> None:
    """The reader's own cache keeps the report, and it is found there."""
    os.chown(next(trace.glob("*.arrow")), 12345, -1)
    contents_before = contents(trace)
    asked = [word.replace("RUN", str(trace)) for word in verb]
    assert main([*asked, str(trace)]) == 0
    assert contents(trace) == contents_before
    folder = index.find(trace)
    assert folder
    assert folder.is_relative_to(tmp_path / "cache")


@pytest.mark.slow
def test_an_index_after_a_report(trace: Path, tmp_path: Path) -> None:
    """It is finished without an event, and is the one that is made of the trace alone."""
    alone = recorded(tmp_path / "alone" / "run", SLOW)
    explained(alone)
    assert main(["analyze", str(trace)]) == 0
    without_events(trace)
    assert main(["index", str(trace)]) == 0
    index_alone, index_after_report = index.find(alone), index.find(trace)
    assert index_alone
    assert index_after_report
    assert contents(index_alone) == contents(index_after_report)


def test_the_dashboard_after_a_report(trace: Path) -> None:
    """It opens without reading an event, and only adds the levels."""
    assert main(["analyze", str(trace)]) == 0
    without_events(trace)
    run = opening.open_indexed(trace)
    assert run
    assert run.scene.colour_pyramid
    before = run.scene.colour_pyramid.is_complete
    opening.refine_index(run)
    assert (before, run.scene.colour_pyramid.is_complete) == (False, True)
    assert opening.read_glance(trace)


@pytest.mark.slow
def test_a_page_after_a_report(trace: Path, tmp_path: Path) -> None:
    """It is written from report and index, with all that is in the page of the trace itself."""
    pages = tmp_path / "first.html", tmp_path / "second.html"
    assert main(["analyze", str(trace), "--html", str(pages[0])]) == 0
    without_events(trace)
    assert main(["analyze", str(trace), "--html", str(pages[1])]) == 0
    first, second = (re.findall("<(?:h[1-3]|td)[^>]*>[^<]*", page.read_text()) for page in pages)
    assert first == second


@pytest.mark.slow
def test_flagged_steps_after_a_report(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report names the flagged steps, so the run is not analyzed again."""
    verb = ["convert", str(trace), "--to", "native", "--keep", "flagged", "--out"]
    out = tmp_path / "first", tmp_path / "second"
    assert main([*verb, str(out[0])]) == 0
    assert main(["analyze", str(trace)]) == 0
    monkeypatch.setattr(report, "analyze", None)
    assert main([*verb, str(out[1])]) == 0
    first, second = (contents(folder) for folder in out)
    assert {name for name in first if name.endswith(".arrow")} == {
        name for name in second if name.endswith(".arrow")
    }


def test_again_makes_the_index_anew(trace: Path) -> None:
    """Report and index are of the same analyses."""
    assert main(["analyze", str(trace)]) == 0
    folder = index.find(trace)
    assert folder
    (folder / "report.json").write_text('"of another analysis"')
    assert main(["analyze", str(trace), "--again"]) == 0
    assert opening.open_indexed(trace)


def test_a_part_leaves_no_index(trace: Path) -> None:
    """An index is of a whole run."""
    assert main(["analyze", str(trace), "--steps", "5-20"]) == 0
    assert index.find(trace) is None


def test_a_run_without_devices_is_not_read_for_them(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outlines know that no event was timed by a device, or was one of a server."""

    def read(_source: Source, process: int) -> None:
        pytest.fail(f"all columns of process {process} were read")

    monkeypatch.setattr(Source, "read_frame", read)
    assert explained(trace).scene.colour_pyramid


def test_a_full_disk_is_no_reason_for_no_report(trace: Path) -> None:
    """The report is printed; neither report nor index is kept, and no partial file is left."""
    done = subprocess.run(
        [sys.executable, "-c", ON_A_SMALL_DISK, "512", "analyze", str(trace)],
        capture_output=True,
        check=False,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Rank 1" in done.stdout
    assert kept_report.find(trace) is None
    assert index.find(trace) is None
