"""A watch of a job that never records says so, and ends when nothing is left of the job."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from support.watch.commanded import commanded

from tracelens.watch import sentences
from tracelens.watch.beginnings import MIN_ABSENCE_NS, REPORT_AFTER_NS, BeginningWatch, Nothing
from tracelens.watch.watcher import Watcher

if TYPE_CHECKING:
    from pathlib import Path

S = 10**9


def start(folder: Path, **variables: str) -> subprocess.Popen[bytes]:
    """Start a program that is recorded into a folder, and records nothing."""
    return subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"],
        env={**os.environ, "TRACELENS_DIR": str(folder), **variables},
    )


def look_until(watch: BeginningWatch, begin_ns: int, seconds: int) -> list[tuple[int, Nothing]]:
    """Look once a second; return what is told, and after how many seconds."""
    told = []
    for second in range(seconds):
        nothing = watch.look(begin_ns + second * S)
        if nothing is not None:
            told.append((second, nothing))
    return told


@pytest.mark.parametrize("has_folder", [False, True])
def test_a_job_that_has_not_begun_is_waited_for(has_folder: bool, tmp_path: Path) -> None:  # noqa: FBT001
    folder = tmp_path if has_folder else tmp_path / "t"
    watch = BeginningWatch(folder, 0)
    ((second, nothing),) = look_until(watch, 0, 400)
    assert second * S == REPORT_AFTER_NS
    assert not nothing.has_ended
    sentence = sentences.describe_nothing(nothing)
    assert sentence.startswith("nothing was recorded for 1.00 min: ")
    assert ("the folder does not exist yet" in sentence) is not has_folder
    assert sentence.endswith("the watch goes on waiting")


@pytest.mark.parametrize("variables", [{}, {"RANK": "0", "WORLD_SIZE": "2"}], ids=["one", "rank"])
def test_a_job_of_which_nothing_is_left_has_ended(
    variables: dict[str, str], tmp_path: Path
) -> None:
    watch = BeginningWatch(tmp_path, 0)
    job = start(tmp_path, **variables)
    try:
        ((second, nothing),) = look_until(watch, 0, 100)
        assert second * S == REPORT_AFTER_NS
        assert nothing.pids == (job.pid,)
        assert "1 process of the job runs on this host" in sentences.describe_nothing(nothing)
    finally:
        job.kill()
        job.wait()
    ((second, nothing),) = look_until(watch, 100 * S, 100)
    assert nothing.has_ended
    assert second * S <= MIN_ABSENCE_NS
    assert watch.has_ended


def test_the_watch_ends_with_a_job_that_has_never_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_ns = time.time_ns()
    watcher = Watcher(tmp_path / "t")
    job = start(tmp_path / "t")
    try:
        assert watcher.look() == []
    finally:
        job.kill()
        job.wait()
    monkeypatch.setattr(time, "time_ns", lambda: begin_ns + 30 * S)
    (news,) = watcher.look()
    assert (news.kind, watcher.is_over, watcher.exit_code) == ("nothing", True, 1)
    (conclusion,) = watcher.conclude()
    assert conclusion.sentence == "the job has ended and recorded nothing; exit code 1"
    watcher.close()


def test_a_job_that_records_is_none_of_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher = Watcher(tmp_path)
    job = start(tmp_path)
    try:
        watcher.look()
        with commanded(tmp_path):
            begin_ns = time.time_ns()
            monkeypatch.setattr(time, "time_ns", lambda: begin_ns + 100 * S)
            assert "nothing" not in {news.kind for news in watcher.look()}
    finally:
        job.kill()
        job.wait()
        watcher.close()
