"""Sampled stacks: runs of samples become spans, and stacks are those of our own sampler."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from support import stack_files as stacks
from support.tiers import mark_slow

import tracelens as tl
from tracelens.cli import main
from tracelens.errors import NotATrace, UnusableInput
from tracelens.readers import READERS
from tracelens.readers.base import Reading
from tracelens.readers.stacks import StacksReader

FORMAT = "sampled stacks (py-spy, speedscope)"
SAMPLES = Path(__file__).parents[3] / "sample_traces"
PERIOD_NS = stacks.PERIOD_US * 1_000


def write_stacks(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def shares(trace: tl.Trace) -> dict[str, int]:
    """Return the length of each kind of span, in samples."""
    rows = trace.events.with_columns(pl.col("kind").cast(pl.String)).collect()
    spent = rows.group_by("kind").agg((pl.col("end_ns") - pl.col("start_ns")).sum() / PERIOD_NS)
    return {kind: round(periods) for kind, periods in spent.rows()}


@pytest.mark.parametrize("write", [stacks.py_spy, stacks.speedscope])
def test_spans_and_stacks(tmp_path: Path, write: Callable[[int], bytes]) -> None:
    """A span is the outermost function that is a phase; samples in a row that agree are one."""
    file = write_stacks(tmp_path / "a.json", write(10))
    assert next(reader.name for reader in READERS if reader.sniff(file)) == FORMAT
    trace = tl.open(file)
    assert shares(trace) == {"step": 40, "data": 10, "backprop": 20, "update": 10}
    assert trace.events.filter(pl.col("kind").cast(pl.String) == "backprop").collect().height == 10
    assert trace.samples.height == 40
    assert trace.samples["frames"][1].to_list() == [
        "<module> (/home/me/train.py:9)",
        "backward (torch/_tensor.py:630)",
    ]
    assert trace.samples["process"].unique().to_list() == [0]
    assert trace.steps.height == 1


def test_steps_are_not_made_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two steps of one function in a row look like one, so the verdict is open, and says why."""
    file = write_stacks(tmp_path / "a.json", stacks.py_spy(50))
    assert main(["analyze", "--no-keep", str(file)]) in {0, 1}
    said = capsys.readouterr().out
    assert "INCONCLUSIVE" in said
    assert "samples do not tell steps apart" in said.replace("\n         ", " ")


def test_times_of_py_spys_speedscope_are_sums(tmp_path: Path) -> None:
    """It leaves out samples of idle threads; other exporters do not."""
    gaps = {}
    for exporter in ("py-spy@0.4.3", "other"):
        file = write_stacks(tmp_path / f"{exporter}.json", stacks.speedscope(5, exporter=exporter))
        recognition = tl.open(file).recognition
        assert recognition
        gaps[exporter] = [gap.missing for gap in recognition.gaps]
    assert any("idle" in missing for missing in gaps["py-spy@0.4.3"])
    assert not any("idle" in missing for missing in gaps["other"])


def test_profiles_by_events(tmp_path: Path) -> None:
    trace = tl.open(write_stacks(tmp_path / "a.json", stacks.by_events()))
    assert trace.samples.select("start_ns", "end_ns").rows() == [
        (0, 10_000),
        (10_000, 60_000),
        (60_000, 100_000),
    ]


def test_what_counts_no_time_is_refused(tmp_path: Path) -> None:
    file = write_stacks(tmp_path / "a.json", stacks.speedscope(5, unit="bytes"))
    with pytest.raises(NotATrace, match="no time, such as bytes"):
        tl.open(file)
    cut = write_stacks(tmp_path / "b.json", stacks.speedscope(5)[:-9])
    with pytest.raises(NotATrace, match="no whole JSON"):
        tl.open(cut)


def test_ranks_of_several_files_are_given(tmp_path: Path) -> None:
    for rank in range(2):
        write_stacks(tmp_path / f"{rank}.json", stacks.py_spy(5, pid=rank + 1))
    with pytest.raises(UnusableInput, match=r"--rank-of 0\.json=RANK"):
        tl.open(tmp_path)
    trace = StacksReader().read(tmp_path, Reading(rank_of={"0.json": 0, "1.json": 1}))
    assert trace.workers["rank"].to_list() == [0, 1]
    assert trace.samples["process"].value_counts().sort("process").rows() == [(0, 20), (1, 20)]


def test_our_own_export_comes_back(tmp_path: Path) -> None:
    """With its ranks, as the names of its profiles say them."""
    file = tmp_path / "a.speedscope.json"
    source = SAMPLES / "mpi-sampled"
    assert main(["convert", str(source), "--to", "speedscope", "--out", str(file)]) == 0
    original, read_again = tl.open(source), tl.open(file)
    assert read_again.workers["rank"].to_list() == original.workers["rank"].to_list()
    assert read_again.steps["rank"].to_list() == [0, 1]
    weight = pl.col("end_ns") - pl.col("start_ns")
    assert (
        read_again.samples.select(weight.sum()).item()
        == original.samples.select(weight.sum()).item()
    )
    assert set(read_again.samples["frames"].explode()) == set(original.samples["frames"].explode())


def test_files_that_say_their_ranks_and_others(tmp_path: Path) -> None:
    """They are one run in any order; also in a folder whose name does not end in .json."""
    named = stacks.speedscope(5, names=("rank 0: MainThread",), exporter="TraceLens")
    write_stacks(tmp_path / "a.speedscope", named)
    write_stacks(tmp_path / "b.speedscope", stacks.speedscope(5))
    assert next(reader.name for reader in READERS if reader.sniff(tmp_path)) == FORMAT
    trace = StacksReader().read(tmp_path, Reading(rank_of={"b.speedscope": 1}))
    assert trace.workers["rank"].to_list() == [0, 1]
    assert trace.samples.height == 40


def test_damage_is_counted(tmp_path: Path) -> None:
    """Ends without begins, unknown frames, invalid weights."""
    events = json.loads(stacks.py_spy(3))
    events += [events[-1], {"ph": "B"}, "no event", {"ph": "i", "name": "mark"}]
    trace = tl.open(write_stacks(tmp_path / "a.json", json.dumps(events).encode()))
    assert sum(trace.dropped.values()) == 3
    content = json.loads(stacks.speedscope(3))
    content["profiles"][0]["samples"][0] = [999]
    content["profiles"][0]["weights"][1] = "long"
    content["profiles"].append("no profile")
    trace = tl.open(write_stacks(tmp_path / "b.json", json.dumps(content).encode()))
    assert sum(trace.dropped.values()) == 3
    assert trace.samples.height == 10


@pytest.mark.end_to_end
@pytest.mark.parametrize("form", mark_slow(["chrometrace", "speedscope"], quick=["speedscope"]))
def test_py_spys_own_file(tmp_path: Path, form: str) -> None:
    """Of a program that works in two functions, both are seen for about as long as they worked."""
    (tmp_path / "train.py").write_text(
        "import time\n"
        "def spin(until):\n    while time.perf_counter() < until: pass\n"
        "def backward():\n    spin(time.perf_counter() + 0.6)\n"
        "def load_batch():\n    spin(time.perf_counter() + 0.3)\n"
        "for _ in range(2):\n    load_batch()\n    backward()\n"
    )
    out = tmp_path / "profile.json"
    command = [
        Path(sys.executable).with_name("py-spy"),
        "record",
        "--rate",
        "100",
        "--format",
        form,
    ]
    program = ["--output", str(out), "--", sys.executable, "train.py"]
    done = subprocess.run(
        [*map(str, command), *program],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode:
        pytest.skip(f"py-spy cannot sample here: {done.stderr.strip()[-200:]}")
    spent = shares(tl.open(out))
    assert 60 < spent["backprop"] < 180
    assert 25 < spent["data"] < 90
