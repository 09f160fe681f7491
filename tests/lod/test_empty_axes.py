"""A run without a whole step, worker, call or shard is indexed and compared like any other."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import tracelens as tl
from tracelens.arrays import sum_exactly
from tracelens.cli import main
from tracelens.lod import opening, run_data
from tracelens.lod.run_data import Run
from tracelens.lod.step_times import StepGrid, StepTimes
from tracelens.verdicts.report import analyze

RUNS: dict[str, dict[str, list[Any]]] = {
    "counters alone": {"kind": ["user"] * 2, "type": ["counter"] * 2, "value": [1.0, 2.0]},
    "steps that did not end": {"kind": ["step"] * 2, "end_ns": [None, None], "step": [0, 0]},
    "steps without length": {"kind": ["step"] * 2, "end_ns": [0, 5], "step": [0, 0]},
    "servers alone": {"role": ["ps"] * 2, "kind": ["ps"] * 2, "op": ["apply"] * 2},
    "calls that did not end": {
        "kind": ["reduction"] * 2,
        "op": ["allreduce"] * 2,
        "end_ns": [None, None],
    },
    "calls without length": {"kind": ["reduction"] * 2, "op": ["allreduce"] * 2, "end_ns": [0, 5]},
    "one rank": {"rank": [0, 0], "kind": ["user"] * 2},
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_with_an_empty_axis_is_indexed(name: str, tmp_path: Path) -> None:
    """In memory and from its index, all that charts ask of its steps has as many rows as there are."""
    rows = {"rank": [0, 1], "start_ns": [0, 5], "end_ns": [10, 15], "name": ["a", "b"]} | RUNS[name]
    table, folder = tmp_path / "run.parquet", tmp_path / "run"
    pl.DataFrame(rows).write_parquet(table)
    assert main(["convert", str(table), "--to", "native", "--out", str(folder)]) == 0
    assert main(["index", str(folder)]) == 0
    assert main(["compare", str(folder), str(folder)]) == 0
    opened = opening.open_indexed(folder)
    assert opened is not None
    trace = tl.open(folder)
    for run in (opened, run_data.with_pyramid(run_data.Run.from_trace(trace, analyze(trace)))):
        _look_at(run)


@pytest.mark.parametrize("name", ["steps without length", "calls without length"])
def test_nothing_is_replayed_where_no_step_lasts(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sentence says so; a share of no time would be no number."""
    rows = {"rank": [0, 1], "start_ns": [0, 0], "end_ns": [0, 0], "name": ["a", "b"]} | RUNS[name]
    table = tmp_path / "run.parquet"
    pl.DataFrame(rows | {"end_ns": [0, 0]}).write_parquet(table)
    assert main(["whatif", str(table), "--what", "all", "--format", "json"]) == 2
    assert "no steps that last" in capsys.readouterr().err


def test_the_time_of_many_ranks_does_not_wrap(tmp_path: Path) -> None:
    """Months of hundreds of ranks, one after the other, are more nanoseconds than 64 bits hold."""
    ranks, month = 400, 30 * 86_400 * 10**9
    rows = [
        {
            "rank": rank,
            "start_ns": step * month,
            "end_ns": (step + 1) * month - (kind == "forward") * month // 10,
            "kind": kind,
            "step": step,
        }
        for rank in range(ranks)
        for step in range(11)
        for kind in ("step", "forward")
    ]
    table = tmp_path / "run.parquet"
    pl.DataFrame(rows).with_columns(name=pl.lit("step")).write_parquet(table)
    report = analyze(tl.open(table))
    assert report.summary.ranks_seen == ranks
    assert report.efficiency
    assert report.ledger
    assert report.efficiency.achieved == report.ledger.useful == 0.9
    assert all(0 <= loss.share <= 0.1 for loss in report.ledger.losses)
    assert main(["whatif", str(table), "--what", "all"]) in {0, 2}


def _look_at(run: Run) -> None:
    times = run.category_times
    shape = (len(times.categories), len(times.steps))
    assert times.mean_time_ns.shape == times.compute_category_shares().shape == shape
    assert StepGrid.from_times(times, times.categories, 9, 9).longest_time_ns.size == len(
        times.ranks
    ) * len(times.steps)
    assert len(StepTimes.from_times(times, times.categories).longest_ns) == len(times.steps)
    assert run.residuals.palette_indices.shape == (len(times.ranks), len(times.steps))


@pytest.mark.parametrize("largest", [5, 2**62])
def test_sums_beyond_64_bits_are_exact(largest: int) -> None:
    values = np.array([[largest, -3], [largest, 2], [largest, 0]])
    assert [int(total) for total in sum_exactly(values)] == [3 * largest, -1]
    assert int(sum_exactly(values[:, 0])) == 3 * largest
    assert int(sum_exactly(values[:0, 0])) == 0
