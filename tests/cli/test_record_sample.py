"""`tracelens record --sample`: the code that makes a rank late, by samples of its stack."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import polars as pl
import pytest
from support.launch.examples import EXAMPLES
from support.launch.mpi import launch
from support.launch.record import run_record
from support.launch.recording import clean_environment

import tracelens as tl
from tracelens_instrument.stacks import sampler

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.end_to_end

TRAINING = EXAMPLES / "mpi_allreduce.py"
SLOW = (40, 79)  # steps
SLOW_MS = 50
LATE_NS = SLOW_MS * 10**6 // 2  # a busy machine takes samples late


def _train(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*launch(TRAINING, 2), "--hidden=128", *arguments]
    return run_record("--sample", "--out", folder, "--", *command)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sampled") / "t"
    fault = ("--slow-rank=1", "--slow-phase=forward", f"--slow-ms={SLOW_MS}", "--slow-steps=40:80")
    done = _train(folder, "--steps=80", *fault)
    assert done.returncode == 0, done.stderr
    assert "stacks at 100 Hz" in done.stderr
    return folder


def test_the_verdict_names_the_function(slow: Path) -> None:
    (finding,) = (f for f in tl.analyze(tl.open(slow)).findings if f.kind == "straggler")
    assert finding.ranks == (1,)
    assert finding.function
    assert finding.function.startswith("Faults.slow_down (")
    assert "(faults.py:" in finding.sentence
    assert any("mpi_allreduce.py" in frame for frame in finding.evidence["samples"]["stack"])


def test_frames_tell_nothing_of_this_machine(slow: Path) -> None:
    """Neither where it keeps Python nor where the training lies."""
    frames = tl.open(slow).samples["frames"].list.explode().unique()
    assert frames.str.contains("mpi_allreduce.py").any()
    assert not frames.str.contains(r" \(/").any()


def test_samples_are_on_the_clock_of_the_spans(slow: Path) -> None:
    """The slow function is seen while the slow steps run, and where it begins a span begins."""
    trace = tl.open(slow)
    rank = trace.workers.filter(rank=1)["process"][0]
    calls = trace.spans.filter(
        pl.col("process") == rank, pl.col("kind") == "forward", pl.col("step").is_between(*SLOW)
    )
    spans = calls.sort("start_ns").select("end_ns", "start_ns", begin_ns="start_ns").collect()
    slept = trace.samples.filter(
        pl.col("process") == rank, pl.col("frames").list.last().str.contains("slow_down")
    ).sort("start_ns")
    first, last = spans["start_ns"][0] - LATE_NS, spans["end_ns"][-1] + LATE_NS
    assert slept.height > 0
    assert slept.select((pl.col("start_ns").is_between(first, last)).mean()).item() > 0.9
    met = slept.select("start_ns").join_asof(spans, on="start_ns", strategy="nearest")
    assert abs(met.select((pl.col("start_ns") - pl.col("begin_ns")).median()).item()) < LATE_NS


def test_nothing_else_is_left(slow: Path) -> None:
    """One stream a rank, no remains of py-spy."""
    assert sorted(path.name for path in (slow / "samples").iterdir()) == sorted(
        path.name for path in slow.glob("worker-*.arrow")
    )


@pytest.mark.slow
def test_a_killed_rank_keeps_its_samples(tmp_path: Path) -> None:
    """Another process writes them."""
    done = _train(tmp_path / "t", "--steps=200", "--kill-rank=1", "--kill-step=120")
    assert done.returncode != 0
    trace = tl.open(tmp_path / "t")
    assert set(trace.samples["process"]) == {0, 1}
    assert not list((tmp_path / "t" / "samples").glob("*.unfinished"))


def test_where_py_spy_cannot_look_the_run_goes_on(tmp_path: Path) -> None:
    """It says so in one sentence, and leaves nothing."""
    errors_file, file = tmp_path / "told", tmp_path / "samples" / "worker-00000-1.arrow"
    errors_file.touch()
    with subprocess.Popen(["sleep", "0"]) as gone:
        gone.wait()
    command = [sys.executable, "-m", "tracelens_instrument.stacks.sampler", str(gone.pid), "100"]
    environment = clean_environment(TRACELENS_ATTACHED=str(errors_file))
    with subprocess.Popen([*command, str(file)], env=environment, stdin=subprocess.PIPE) as beside:
        assert beside.wait(60) == 0
    assert errors_file.read_text().splitlines()[-1].startswith("no stacks: py-spy: ")
    assert not list(file.parent.iterdir())


def test_without_py_spy_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OSError, match="pip install py-spy"):
        sampler._find_py_spy()


def test_damaged_samples_are_left_out(slow: Path, tmp_path: Path) -> None:
    """With a sentence; the events are used all the same."""
    shutil.copytree(slow, tmp_path, dirs_exist_ok=True)
    damaged, second = sorted((tmp_path / "samples").iterdir())
    damaged.write_bytes(os.urandom(500))
    second.write_bytes(second.read_bytes()[:-200])
    trace = tl.open(tmp_path)
    assert trace.workers.height == 2
    assert [note.file for note in trace.notes] == [damaged.name]
