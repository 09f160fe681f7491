"""All served runs are analyzed in the background, one at a time, until the server ends."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from support.launch.patience import PATIENCE_S, wait_until
from support.runs.indexes import recorded

from tracelens import load
from tracelens.simulator.synthetic import Scenario
from tracelens_dashboard.runs import catalog, worker
from tracelens_dashboard.runs.catalog import NEW, Runs

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.lod.opening import OnProgress
    from tracelens.model.trace import Trace

NAMES = ("one", "three", "two")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three runs that were not read yet, and one that cannot be."""
    for name in NAMES:
        recorded(tmp_path / name, Scenario(ranks=2, steps=8))
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "worker-00000-1.arrow").write_bytes(b"no table")
    return tmp_path


class Watched:
    """Reads as `load.open` does; knows what was read in which order, and can be held up."""

    def __init__(self) -> None:
        self.read: list[str] = []
        self.at_once = self.most_at_once = 0
        self.go_on = threading.Event()
        self.go_on.set()

    def __call__(self, path: Path, on_progress: OnProgress) -> Trace:
        self.read.append(path.name)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            assert self.go_on.wait(PATIENCE_S)
            on_progress(0, 1)
            return load.open(path, on_progress)
        finally:
            self.at_once -= 1


def is_settled(runs: Runs) -> bool:
    return not any(entry.stage.is_under_way for entry in runs.list_entries())


def test_all_runs_get_a_verdict_one_at_a_time(folder: Path) -> None:
    """Each once; what cannot be read says why, and is left until its files change."""
    read = Watched()
    runs = Runs([folder], read)
    entries = {entry.name: entry for entry in runs.list_entries()}
    runs.survey(enabled=True)
    wait_until(lambda: is_settled(runs))
    assert sorted(read.read) == sorted([*NAMES, "damaged"])
    assert read.most_at_once == 1
    assert all(runs.find_glance(entries[name]) for name in NAMES)
    assert "worker-00000-1.arrow" in entries["damaged"].stage.failure_sentence
    runs.survey(enabled=True)
    wait_until(lambda: is_settled(runs))
    assert len(read.read) == 4
    recorded(folder / "damaged", Scenario(ranks=2, steps=8))
    (folder / "damaged" / "worker-00000-1.arrow").unlink()
    runs.survey(enabled=True)
    wait_until(lambda: is_settled(runs))
    assert runs.find_glance(entries["damaged"])


@pytest.mark.slow
def test_it_keeps_no_run_open(folder: Path) -> None:
    """The verdicts stay; what pages hold open is not pushed out by runs that no page shows."""
    runs = Runs([folder], Watched(), indexed=False)  # without an index a verdict is in memory only
    runs.survey(enabled=True)
    wait_until(lambda: is_settled(runs))
    assert not runs._open_run_by_id
    assert sum(runs.find_glance(entry) is not None for entry in runs.list_entries()) == 3


def test_what_a_page_waits_for_is_read_first(folder: Path) -> None:
    """A run that is opened overtakes all that wait for the background, and is kept open."""
    read = Watched()
    read.go_on.clear()
    runs = Runs([folder], read)
    runs.survey(enabled=True)
    wait_until(lambda: len(read.read) == 1)
    last_entry = runs.list_entries()[-1]
    assert runs.open_store(last_entry) is None
    read.go_on.set()
    assert runs.open_store(last_entry, PATIENCE_S) is not None
    assert read.read[1] == last_entry.path.name
    wait_until(lambda: is_settled(runs))
    assert read.read.count(last_entry.path.name) == 1


@pytest.mark.slow
def test_it_can_be_stopped_and_goes_on(folder: Path) -> None:
    """What is being read is read to its end, the others are as they were."""
    read = Watched()
    read.go_on.clear()
    runs = Runs([folder], read)
    runs.survey(enabled=True)
    wait_until(lambda: len(read.read) == 1)
    runs.survey(enabled=False)
    read.go_on.set()
    wait_until(lambda: is_settled(runs))
    assert len(read.read) == 1
    assert sum(entry.stage == NEW for entry in runs.list_entries()) >= 3
    runs.survey(enabled=True)
    wait_until(lambda: is_settled(runs))
    assert len(read.read) == 4


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_after_a_failure_the_next_is_worked_on() -> None:
    done = []

    def work(thing: str) -> None:
        done.append(thing)
        if thing == "bad":
            raise ZeroDivisionError

    worker.Worker(work).replace_backlog(["bad", "good"])
    wait_until(lambda: done == ["bad", "good"])


def test_it_ends_with_the_server(folder: Path) -> None:
    """In the middle of a run: nothing of it is left, and nothing else begins."""
    read = Watched()
    read.go_on.clear()
    runs = Runs([folder], read)
    runs.survey(enabled=True)
    wait_until(lambda: len(read.read) == 1)
    ending = threading.Thread(target=runs.close)
    ending.start()
    wait_until(lambda: runs._worker._closed)
    read.go_on.set()
    ending.join(PATIENCE_S)
    assert not [one for one in threading.enumerate() if one.name == worker.NAME]
    assert len(read.read) == 1
    assert not list(folder.glob("*/index-*"))
    assert is_settled(runs)


def test_a_run_that_is_still_recorded_is_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its verdict would be of a part of it; it is analyzed when it is complete."""
    recording = {"two"}
    monkeypatch.setattr(catalog, "is_recorded", lambda path: path.name in recording)
    read = Watched()
    runs = Runs([folder], read)
    runs.survey(enabled=True)
    wait_until(lambda: is_settled(runs))
    assert "two" not in read.read
    recording.clear()
    runs.survey(enabled=True)
    wait_until(lambda: is_settled(runs))
    assert "two" in read.read
