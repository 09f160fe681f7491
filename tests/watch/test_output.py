"""What a watch writes: lines, JSON, or a table on a terminal; and when it ends."""

import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from rich.console import Console
from support.watch.commanded import Commanded, commanded

from tracelens.cli import main
from tracelens.schema.life import Ended, Exited, Journal, Launched
from tracelens.watch.output import Lines, write_json
from tracelens.watch.screen import draw
from tracelens.watch.watcher import Watcher

STEPS: Final = "for i in range(9): tl.step(i, 4).__enter__().__exit__(None, None, None)"
CALLS: Final = "reduce.begin(seq=0).end(); gather.begin(seq=1)"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[Commanded]]]:
    """Two ranks that have made nine steps and are in their second call."""
    folder = tmp_path_factory.mktemp("t")
    with commanded(folder, 0, 2) as rank_0, commanded(folder, 1, 2) as rank_1:
        for process in (rank_0, rank_1):
            process.tell(STEPS)
            process.tell(CALLS)
        yield folder, [rank_0, rank_1]


def test_lines_are_written_once(ranks: tuple[Path, list[Commanded]]) -> None:
    """For what begins, and for where the job stands, as long as that does not change."""
    folder, _ = ranks
    watcher, stream = Watcher(folder), io.StringIO()
    show = Lines(stream)
    for _ in range(3):
        show(watcher, watcher.look())
    watcher.close()
    begin, status = stream.getvalue().splitlines()
    assert begin.endswith("ranks 0 and 1 of 2 record")
    assert "2 of 2 ranks, step 8, " in status
    assert "samples/s" in status


def test_json_has_an_object_a_line(ranks: tuple[Path, list[Commanded]]) -> None:
    folder, processes = ranks
    watcher, stream = Watcher(folder), io.StringIO()
    write_json(stream, watcher, watcher.look())
    watcher.close()
    began, status = map(json.loads, stream.getvalue().splitlines())
    assert (began["kind"], began["ranks"]) == ("began", [0, 1])
    assert began["pids"] == [one.process.pid for one in processes]
    assert (status["kind"], status["step"], status["world"]) == ("status", 8, 2)
    assert not status["is_stalled"]
    (group,) = status["ranks"][1]["communicators"]
    assert (group["completed"], group["entered"]) == (["allreduce", 0], ["all_gather", 1])
    assert status["ranks"][0]["step_count"] == 9


def test_a_table_on_a_terminal(ranks: tuple[Path, list[Commanded]]) -> None:
    folder, _ = ranks
    watcher = Watcher(folder)
    watcher.look()
    watcher.close()
    console = Console(file=io.StringIO(), width=150)
    with console.capture() as capture:
        console.print(draw(watcher, []))
    lines = capture.get().splitlines()
    assert lines[0].startswith("2 of 2 ranks, step 8")
    assert "allreduce 0" in lines[2]
    assert "all_gather 1" in lines[2]


def test_an_empty_folder_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It need not exist yet; one sentence says so."""
    assert main(["watch", str(tmp_path / "later"), "--for", "0"]) == 0
    assert "does not exist yet" in capsys.readouterr().err


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert main(["watch", str(tmp_path / "file")]) == 2


def test_an_end_in_the_journal_of_record_is_told_once(tmp_path: Path) -> None:
    """That of a process that ended before the watch saw it."""
    watcher = Watcher(tmp_path)
    entry = Exited(1 << 62, rank=5, host="far", pid=7, incarnation=1, code=-9)
    Journal(tmp_path).append(entry)
    (news,) = watcher.look()
    assert (news.kind, news.is_alarm) == ("exited", True)
    assert news.sentence == "rank 5 (pid 7) was killed by SIGKILL"
    assert watcher.look() == []
    watcher.close()


def test_a_command_that_its_ranks_outlive_is_told_once(tmp_path: Path) -> None:
    with commanded(tmp_path, 0, 1) as process:
        process.tell(STEPS)
        watcher = Watcher(tmp_path)
        watcher.look()
        for entry in (Launched(time.time_ns(), command="torchrun"), Ended(1 << 62, 143)):
            Journal(tmp_path).append(entry)
        (news,) = watcher.look()
        assert (
            news.sentence == "torchrun ended with exit code 143 (SIGTERM); rank 0 goes on recording"
        )
        assert watcher.look() == []
        watcher.close()


@pytest.mark.parametrize("code", [0, 3])
def test_a_job_that_ended_before(
    code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The journal has the exit code of its command, so nothing is waited for."""
    with commanded(tmp_path) as process:
        process.tell(STEPS)
        assert process.end() == 0
    Journal(tmp_path).append(Ended(1 << 62, code))
    assert main(["watch", str(tmp_path), "--json"]) == (1 if code else 0)
    *_, concluded, status = map(json.loads, capsys.readouterr().out.splitlines())
    assert concluded["sentence"] == (
        "the job has ended: rank 0 closed the recording, "
        f"the command ended with exit code {code}; exit code {1 if code else 0}"
    )
    assert status["ranks"][0]["is_over"]
