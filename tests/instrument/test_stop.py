"""A recording ends once and whole; an error at its end never reaches the training."""

from __future__ import annotations

import os
import threading
import warnings
from typing import TYPE_CHECKING

import pytest
from support.launch.patience import wait_until
from support.launch.recording import read, read_one, run_child

import tracelens as tl
from tracelens.conversion import segments
from tracelens.conversion.arrow_file import GrowingFile
from tracelens_instrument import recorder
from tracelens_instrument.core import failures

if TYPE_CHECKING:
    from pathlib import Path


def test_segments_become_one_file(trace: Path) -> None:
    """While it records there is a folder, afterwards a file."""
    with tl.span("piece"):
        assert [path.name for path in trace.iterdir()] == [f"worker-00000-{os.getpid()}.segments"]
    tl.stop()
    assert [path.name for path in trace.iterdir()] == [f"worker-00000-{os.getpid()}.arrow"]
    tl.stop()
    assert len(read_one(trace).events) == 1


def test_empty_recording_says_who_was_there(trace: Path) -> None:
    """A rank that recorded nothing was there all the same."""
    tl.stop()
    recorded = read_one(trace)
    assert recorded.events == []
    assert recorded.side.complete


def test_second_recording_of_a_process(trace: Path) -> None:
    """It has a file of its own, also in the same folder."""
    with tl.span("first"):
        pass
    tl.stop()
    tl.start(trace)
    with tl.span("second"):
        pass
    tl.stop()
    pid = os.getpid()
    names = sorted(path.name for path in trace.iterdir())
    assert names == [f"worker-00000-{pid}.arrow", f"worker-00000-{pid * 1000 + 1}.arrow"]


def test_start_while_recording(trace: Path, tmp_path: Path) -> None:
    """It changes nothing, and says so if it was asked for something else."""
    tl.start()
    tl.start(trace)
    with pytest.warns(RuntimeWarning, match="already records to"):
        tl.start(tmp_path / "other")
    tl.stop()
    assert not (tmp_path / "other").exists()
    assert read_one(trace).side.complete


def test_callbacks_still_record(trace: Path) -> None:
    """Hooks may close what they hold; one that fails does not keep the others from it."""
    span = tl.span("closing")

    def close() -> None:
        with span:
            pass

    def fail() -> None:
        raise KeyError

    recorder.on_stop(fail)
    recorder.on_stop(close)
    with pytest.warns(RuntimeWarning, match="a hook failed when recording stopped"):
        tl.stop()
    assert len(read_one(trace).named("closing")) == 1


def test_callbacks_run_once(trace: Path) -> None:
    """The next recording does not call them again."""
    calls: list[int] = []
    recorder.on_stop(lambda: calls.append(1))
    tl.stop()
    tl.start(trace)
    tl.stop()
    assert calls == [1]


def test_failed_conversion_leaves_the_segments(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are as readable as before, and one sentence says so."""

    def fail(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(GrowingFile, "finish", fail)
    with tl.span("piece"):
        pass
    with pytest.warns(RuntimeWarning, match="stays as it is"):
        tl.stop()
    recorded = read_one(trace)
    assert recorded.path.suffix == ".segments"
    assert recorded.one("piece")["status"] == "closed"
    assert recorded.side.complete


def test_unfinished_file_is_not_left(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversion that breaks off leaves no file that looks like a trace."""

    def fail(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(segments, "_publish", fail)
    with tl.span("piece"):
        pass
    with pytest.warns(RuntimeWarning, match="stays as it is"):
        tl.stop()
    assert [path.suffix for path in trace.iterdir()] == [".segments"]


@pytest.mark.end_to_end
@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise KeyError"])
def test_end_of_the_program_ends_the_recording(tmp_path: Path, end: str) -> None:
    """Normally, by exit, or by an exception that nobody caught."""
    code = f"""
import sys, atexit
import tracelens as tl
tl.start(sys.argv[1])
try:
    with tl.span("piece"):
        {end or "pass"}
except (KeyError, SystemExit):
    pass
"""
    run_child(code, tmp_path)
    recorded = read_one(tmp_path)
    assert recorded.side.complete
    assert recorded.one("piece")["status"] == ("exception" if end else "closed")


def test_warning_that_would_raise_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    """A user who turned warnings into errors still trains to the end, and still reads the sentence."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        failures.warn_once("something is wrong")
        failures.warn_once("something is wrong")
    assert capsys.readouterr().err == "TraceLens: something is wrong\n"


def test_counter_counts_exactly() -> None:
    """Looking at it does not change it."""
    counter = failures.Counter()
    for expected in range(5):
        assert counter.total() == expected
        assert counter.total() == expected
        counter.add()


def highest(folder: Path) -> int:
    """The number of the newest segment: the first ones may have become Arrow already."""
    return max((int(path.stem) for path in folder.glob("*.segments/*.seg")), default=0)


@pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_threads_that_go_on_recording(trace: Path, count: int) -> None:
    """A thread that does not know of the end records nothing any more, and is not disturbed."""
    span = tl.span("piece")
    failed: list[BaseException] = []
    ended = threading.Event()

    def work() -> None:
        try:
            while not ended.is_set():
                with span, span(nbytes=1):
                    span.begin().end()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it fails the test
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for folder in (trace, trace / "again", trace / "and again"):
        tl.start(folder)
        wait_until(lambda folder=folder: highest(folder) > 1)  # type: ignore[misc]  # bound for this turn
        tl.stop()
    ended.set()
    for thread in threads:
        thread.join()
    assert failed == []
    assert not recorder.active()
    assert all(read(path).side.complete for path in trace.rglob("*.arrow"))
