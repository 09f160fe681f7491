"""A recording is live while the process that makes it runs, here, and has not said that it ended."""

import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.runs.segments import PROCESS, write_folder

from tracelens.conversion.segments import is_live
from tracelens.errors import TraceNotFound
from tracelens.schema.host import clock_domain, host_name, process_started_ns

HERE = replace(PROCESS, host=host_name(), clock_domain=clock_domain(), incarnation=time.time_ns())


def test_this_process_is_live(tmp_path: Path) -> None:
    """As long as there is no end line."""
    assert is_live(write_folder(tmp_path / "running", process=HERE, end=False))
    assert not is_live(write_folder(tmp_path / "ended", process=HERE, end=True))


def test_other_machine_or_boot(tmp_path: Path) -> None:
    """What ran elsewhere, or before this boot, is not running here."""
    elsewhere = replace(HERE, host="elsewhere")
    before = replace(HERE, clock_domain="another boot/time:[1]")
    assert not is_live(write_folder(tmp_path / "a", process=elsewhere, end=False))
    assert not is_live(write_folder(tmp_path / "b", process=before, end=False))


def test_a_process_that_is_gone_is_not_live(tmp_path: Path) -> None:
    """A process that ended without saying so was killed."""
    child = subprocess.Popen(["true"])
    child.wait()
    dead = replace(HERE, pid=child.pid)
    assert not is_live(write_folder(tmp_path, process=dead, end=False))


def test_pid_that_came_again(tmp_path: Path) -> None:
    """A process that started after the recording did is not the one that made it."""
    early = replace(HERE, incarnation=HERE.incarnation - 10**15)
    assert not is_live(write_folder(tmp_path, process=early, end=False))


def test_the_kernel_tells_starts_less_exactly(tmp_path: Path) -> None:
    """A process that seems to have begun a second after its recording is the one that made it."""
    started = process_started_ns(PROCESS.pid)
    assert started is not None
    for seconds, live in ((1, True), (10, False)):
        process = replace(HERE, incarnation=started - seconds * 10**9)
        folder = write_folder(tmp_path / str(seconds), process=process, end=False)
        assert is_live(folder) == live


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceNotFound):
        is_live(tmp_path)


def test_the_start_of_a_process_lies_in_the_past() -> None:
    """The start lies in the past; an unused pid has none."""
    started = process_started_ns(PROCESS.pid)
    assert started is not None
    assert started < time.time_ns()
    assert process_started_ns(2**30) is None
