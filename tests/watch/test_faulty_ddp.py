"""`tracelens watch` names the rank that holds up a real training, or that ended it, from outside."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from support.launch.patience import PATIENCE_S
from support.watch.training import training

from tracelens.schema.life import Stalled, read_journals
from tracelens_dashboard.runs.watched import WatchedJobs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]
pytest.importorskip("torch")


def watch(folder: Path, until_kind: str | None, *options: str) -> tuple[list[dict[str, Any]], int]:
    """Watch until an object of a kind was written, or to the end; return all objects."""
    command = [sys.executable, "-m", "tracelens", "watch", str(folder), "--json", *options]
    rows = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        for line in started.stdout:
            rows.append(json.loads(line))
            if rows[-1]["kind"] == until_kind:
                started.terminate()  # in the background SIGINT may be ignored
                break
        started.stdout.read()
        return rows, started.wait(PATIENCE_S)


@pytest.mark.parametrize(("fault", "state"), [("sleep", "sleeping"), ("stop", "stopped")])
def test_a_stall(fault: str, state: str, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    with training(fault, folder):
        rows, _ = watch(folder, "stacks")
        stacks = rows[-1]
    assert (stacks["culprits"], stacks["waiting"]) == ([1], [0])
    assert (stacks["op"], stacks["step"]) == ("allreduce", 20)
    assert stacks["states"]["1"] == state
    if fault == "sleep" and stacks["stacks"]:
        assert any("load_features" in frame for frame in stacks["stacks"]["1"])
    if fault == "stop":
        assert "rank 1: the process is stopped" in stacks["no_stacks"]
    (entry,) = (one for one in read_journals(folder) if isinstance(one, Stalled))
    assert entry.culprits == [1]


def test_a_page_sees_a_stall_and_writes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    jobs = WatchedJobs()
    with training("sleep", folder):
        end_s = time.monotonic() + PATIENCE_S
        while (view := jobs.look(folder)).stall is None and time.monotonic() < end_s:
            time.sleep(0.2)
    jobs.close()
    assert view.stall
    assert view.stall.culprits == (1,)
    assert not any(isinstance(entry, Stalled) for entry in read_journals(folder))


def test_calls_that_do_not_match(tmp_path: Path) -> None:
    """Of two ranks none is in the majority; the alert says it as the watch does."""
    alerts = tmp_path / "alerts"
    with training("mismatch", tmp_path / "t"):
        rows, _ = watch(tmp_path / "t", "stacks", "--on-alert", f"cat >> {alerts}")
    stalled = next(row for row in rows if row["kind"] == "stalled")
    assert stalled["culprits"] == [0, 1]
    assert "rank 0 made allreduce 25; rank 1 made broadcast 25" in stalled["sentence"]
    alert = json.loads(alerts.read_text())
    assert (alert["alert"], alert["sentence"]) == ("stalled", stalled["sentence"])


@pytest.mark.parametrize(("fault", "code"), [("raise", 1), ("kill", -signal.SIGKILL)])
def test_a_failure(fault: str, code: int, tmp_path: Path) -> None:
    """The watch ends with the job, and says that it failed."""
    folder = tmp_path / "t"
    with training(fault, folder) as started:
        rows, exit_code = watch(folder, None)
        started.wait(PATIENCE_S)
    ends = {row["rank"]: row for row in rows if row["kind"] == "exited"}
    assert exit_code == 1
    assert ends[1]["code"] == code
    assert "step 20" in ends[1]["sentence"]
    assert not any(row["kind"] == "stalled" for row in rows)


def test_a_training_that_ends_well(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    # Five seconds: the watch sees it run.
    with training("nothing", folder, fault_step=200) as started:
        rows, exit_code = watch(folder, None)
        started.wait(PATIENCE_S)
    assert exit_code == 0
    assert {row["kind"] for row in rows} >= {"began", "status"}
    assert not any(row["kind"] == "stalled" for row in rows)
