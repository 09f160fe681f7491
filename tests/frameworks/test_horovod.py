"""Real Horovod, recorded without a change to the script (`make test-horovod`)."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
from support.launch.examples import EXAMPLES
from support.launch.record import run_record

import tracelens as tl

if TYPE_CHECKING:
    import subprocess

    from tracelens.model.trace import Trace

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(
        find_spec("horovod") is None, reason="Horovod is not installed: make test-horovod"
    ),
]

STEPS, WEIGHTS = 40, 8


def _train(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, Path(sys.executable).with_name("horovodrun"), "-np", "2", "--gloo"]
    script = [sys.executable, EXAMPLES / "horovod_cnn.py", f"--steps={STEPS}", *arguments]
    return run_record("--out", folder, "--", *launcher, *script)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    folder = tmp_path_factory.mktemp("horovod") / "t"
    done = _train(folder)
    assert done.returncode == 0, done.stderr
    assert "Horovod with 2 ranks" in done.stderr
    assert "same weights on all ranks: True" in done.stdout
    return tl.open(folder)


def test_every_gradient_is_reduced_in_every_step(trace: Trace) -> None:
    """And the call of one rank is matched with the other's."""
    calls = trace.arrivals.filter(pl.col("op") == "allreduce", pl.col("step") >= 0)
    assert calls["arrived"].unique().to_list() == [2]
    assert calls.group_by("rank", "step").len()["len"].unique().to_list() == [WEIGHTS]
    assert calls["step"].n_unique() == STEPS


def test_reductions_are_handed_in_during_backprop(trace: Trace) -> None:
    """Horovod's purpose: the first reduction begins long before the last gradient is ready."""
    backprop = trace.spans.filter(pl.col("kind") == "backprop").collect()
    backprop_ends = backprop.group_by("rank", "step").agg(pl.col("end_ns").max())
    first_calls = (
        trace.arrivals.filter(op="allreduce").group_by("rank", "step").agg(pl.col("start_ns").min())
    )
    joined = first_calls.join(backprop_ends, on=["rank", "step"])
    assert joined.height == 2 * STEPS
    assert (joined["start_ns"] < joined["end_ns"]).all()


def test_waiting_is_no_part_of_the_update(trace: Trace) -> None:
    """The optimizer's step waits for the reductions first."""
    waits = trace.spans.filter(pl.col("kind") == "wait", pl.col("name") == "synchronize").collect()
    assert waits.height == 2 * STEPS


def test_a_slow_rank_is_found(tmp_path: Path) -> None:
    done = _train(tmp_path / "t", "--slow-rank=1", "--slow-phase=backprop", "--slow-ms=150")
    assert done.returncode == 0, done.stderr
    first = tl.analyze(tl.open(tmp_path / "t")).findings[0]
    assert (first.kind, first.ranks, first.phase) == ("straggler", (1,), "backprop")
