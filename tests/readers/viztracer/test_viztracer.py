"""VizTracer's traces: calls of functions, among them the phases of training."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import polars as pl
import pytest
from support import viztracer_file as viztracer

import tracelens as tl
from tracelens.cli import main
from tracelens.errors import UnusableInput
from tracelens.readers import READERS
from tracelens.readers.base import Reading
from tracelens.readers.viztracer import VizTracerReader

PROGRAM: Final = """
import time

class Model:
    def forward(self):
        time.sleep(0.001)
    def backward(self):
        time.sleep(0.002)

def train_step(model):
    model.forward()
    model.backward()

model = Model()
for _ in range(12):
    train_step(model)
"""


def write_bytes(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def kinds_of(trace: tl.Trace) -> dict[str, str]:
    rows = trace.events.select(pl.col("name", "kind").cast(pl.String)).unique().collect()
    return {name.split(" ")[0]: kind for name, kind in rows.rows()}


def test_functions_that_are_phases(tmp_path: Path) -> None:
    """Of the user's by their names, of PyTorch's by their files; others are code of the user."""
    file = write_bytes(tmp_path / "result.json", viztracer.trace(6))
    assert next(reader.name for reader in READERS if reader.sniff(file)) == "trace of VizTracer"
    trace = tl.open(file)
    assert kinds_of(trace) == {
        "Loader.load_batch": "data",
        "Model.forward": "forward",
        "time.sleep": "user",
        "Tensor.backward": "backprop",
        "SGD.step": "update",
        "ProgressBar.update": "user",
        "train_step": "step",
    }
    assert trace.steps["step"].to_list() == list(range(6))
    rows = trace.events.filter(pl.col("kind").cast(pl.String) == "forward").collect()
    assert (rows["end_ns"] - rows["start_ns"]).unique().to_list() == [1_500_000]
    assert trace.threads["name"].to_list() == ["MainThread"]


def test_its_verdict_is_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_bytes(tmp_path / "result.json", viztracer.trace(40))
    assert main(["analyze", "--no-keep", str(file)]) in {0, 1}
    assert "INCONCLUSIVE" in capsys.readouterr().out


def test_ranks_of_several_files_are_given(tmp_path: Path) -> None:
    for rank in range(3):
        write_bytes(
            tmp_path / f"{rank}.json", viztracer.trace(30, pid=rank + 9, slow_ms=4 * (rank == 1))
        )
    with pytest.raises(UnusableInput, match=r"--rank-of 0\.json=RANK"):
        tl.open(tmp_path)
    given = Reading(rank_of={f"{rank}.json": rank for rank in range(3)})
    trace = VizTracerReader().read(tmp_path, given)
    assert trace.workers["rank"].to_list() == [0, 1, 2]


def test_processes_of_one_file_are_ranks_as_the_user_says(tmp_path: Path) -> None:
    """Or they are of one rank, if the user names the file alone."""
    first, second = (json.loads(viztracer.trace(12, pid=pid)) for pid in (71, 72))
    first["traceEvents"] += second["traceEvents"]
    file = write_bytes(tmp_path / "both.json", json.dumps(first).encode())
    with pytest.raises(UnusableInput, match=r"--rank-of both\.json:71=0, once for each"):
        tl.open(file)
    trace = tl.open(file, rank_of={"both.json:71": 1, "both.json:72": 0})
    assert trace.workers["rank"].to_list() == [0, 1]
    assert trace.threads["name"].to_list() == ["MainThread", "MainThread"]
    trace = tl.open(file, rank_of={"both.json": 4})
    assert trace.workers["rank"].to_list() == [4]
    assert trace.threads["name"].to_list() == ["MainThread of 71", "MainThread of 72"]


def test_a_full_buffer_is_said(tmp_path: Path) -> None:
    trace = tl.open(write_bytes(tmp_path / "result.json", viztracer.trace(6, overflow=True)))
    assert trace.recognition
    assert "the oldest calls were overwritten" in trace.recognition.gaps[0].missing


@pytest.mark.end_to_end
def test_viztracers_own_file(tmp_path: Path) -> None:
    """Every call of the program is read, with what it is."""
    (tmp_path / "train.py").write_text(PROGRAM)
    out = tmp_path / "result.json"
    command = [sys.executable, "-m", "viztracer", "--quiet", "-o", str(out), "train.py"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    trace = tl.open(out)
    rows = trace.events.with_columns(pl.col("kind").cast(pl.String)).collect()
    counted = rows["kind"].value_counts().rows()
    assert {kind: count for kind, count in counted if kind != "user"} == {
        "step": 12,
        "forward": 12,
        "backprop": 12,
    }
    backward = rows.filter(kind="backprop")
    assert ((backward["end_ns"] - backward["start_ns"]) >= 2_000_000).all()
