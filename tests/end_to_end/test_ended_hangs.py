"""The report of a job that hung until somebody ended it names the rank that the others waited for."""

import os
import signal
import time
from pathlib import Path

import pytest
from support.launch.patience import PATIENCE_S, wait_until
from support.watch.training import training

import tracelens as tl
from tracelens.model.findings import Finding

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]
pytest.importorskip("torch")

HANG_S = 8.0  # more than counts as a hang


def _end(fault: str, order: signal.Signals, folder: Path, *, recorded_ranks: int) -> Finding:
    """Let rank 1 of two hang, end all by a signal, and return the first finding."""
    with training(fault, folder) as started:
        wait_until(lambda: len(list(folder.glob("worker-*"))) == recorded_ranks)
        time.sleep(3 + HANG_S)
        if recorded_ranks == 2:
            for name in folder.glob("worker-*"):
                os.kill(int(name.stem.rpartition("-")[2]), order)
        else:
            os.killpg(started.pid, order)
        started.wait(PATIENCE_S)
    return tl.analyze(tl.open(folder)).findings[0]


def test_a_hang_that_an_interrupt_ends(tmp_path: Path) -> None:
    """The exceptions close all calls, as if they had come to an end."""
    hang = _end("sleep", signal.SIGINT, tmp_path / "t", recorded_ranks=2)
    assert (hang.kind, hang.ranks, hang.steps) == ("hang", (1,), (20, 20))
    assert "in which rank 0 waited for" in hang.sentence
    assert "KeyboardInterrupt" in hang.sentence
    assert "load_features" in hang.sentence


def test_a_rank_that_never_recorded_anything(tmp_path: Path) -> None:
    """It is stuck before its first event, and the other one waits in a call of theirs."""
    hang = _end("before", signal.SIGTERM, tmp_path / "t", recorded_ranks=1)
    assert (hang.kind, hang.ranks) == ("hang", (1,))
    assert hang.sentence.startswith("Rank 1 recorded nothing at all, and rank 0 waited in ")
