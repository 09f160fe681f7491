"""Real JAX on two processes, without a change to the script (`make test-jax`)."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import polars as pl
import pytest
from support.launch.examples import EXAMPLES
from support.launch.record import run_record

import tracelens as tl

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.trace import Trace

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed: make test-jax"),
]

STEPS, FIRST, LAST = 40, 5, 25


def _train(folder: Path, *arguments: str) -> Trace:
    script = [sys.executable, EXAMPLES / "jax_mlp.py", f"--steps={STEPS}", *arguments]
    done = run_record("--out", folder, "--", *script)
    assert done.returncode == 0, done.stderr
    assert "JAX's steps" in done.stderr
    return tl.open(folder)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return _train(tmp_path_factory.mktemp("jax") / "t")


def test_every_step_of_every_rank(trace: Trace) -> None:
    steps = trace.steps.group_by("rank").agg(pl.col("step")).sort("rank")
    assert steps["step"].to_list() == [list(range(STEPS))] * 2


def test_collectives_of_the_profiled_steps_are_matched(trace: Trace) -> None:
    """The same operation of the same step, in both processes."""
    calls = trace.arrivals
    assert calls["arrived"].unique().to_list() == [2]
    assert sorted(calls["step"].unique()) == list(range(FIRST, LAST))
    together = calls.group_by("communicator", "seq").agg(pl.col("step").n_unique())
    assert together["step"].unique().to_list() == [1]
    assert together.height >= 2 * (LAST - FIRST)  # a gradient for each matrix


def test_computation_is_in_the_same_steps(trace: Trace) -> None:
    computed = trace.spans.filter(pl.col("name") == "computation").collect()
    assert sorted(computed["step"].unique()) == list(range(FIRST, LAST))


def test_a_slow_rank_makes_the_other_wait(tmp_path: Path) -> None:
    """It comes last to the collectives."""
    calls = _train(tmp_path / "t", "--slow-rank=1", "--slow-phase=data", "--slow-ms=30").arrivals
    first = calls.sort("start_ns").unique(["step", "rank"], keep="first")
    last = first.filter(pl.col("rank") == 0)["last_rank"]
    assert (last == 1).sum() >= 0.9 * (LAST - FIRST)
