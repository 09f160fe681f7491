"""Simulated runs of 2 to 32 ranks: the forecast for 64 and 128 is compared with runs of that size."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.tiers import few_or_many, mark_slow

from tracelens import load
from tracelens.cli import main
from tracelens.load import prepare
from tracelens.lod.run_data import Run
from tracelens.scaling import Point, curves
from tracelens.simulator import synthetic
from tracelens.simulator.scenario_file import make_scenario
from tracelens.simulator.synthetic import duration_ns
from tracelens.verdicts.report import analyze
from tracelens.verdicts.whatif import whatif

SIZES = (2, 4, 8, 16, 32)
SYSTEMS: dict[str, dict[str, Any]] = {
    "ring": {"allreduce": {"overlap": False, "buckets": [8_000_000] * 4}},
    "tree": {"allreduce": {"algorithm": "tree", "overlap": False, "buckets": [8_000_000] * 4}},
    "servers": {"servers": {"shards": 2, "variables": [4_000_000] * 4}},
}


def of_size(system: str, workers: int) -> dict[str, Any]:
    """Return a scenario of weak scaling on a slow network."""
    network = {"gbytes_per_s": 1.0, "latency_us": 50}
    run = {"workers": workers, "steps": 30, "seed": workers}
    return {"run": run, "network": network, **SYSTEMS[system]}


@cache
def measure_point(system: str, workers: int) -> Point:
    trace = prepare(synthetic.generate(make_scenario(of_size(system, workers))))
    return Point.from_run(Run.from_trace(trace, analyze(trace)), f"{workers} workers")


@pytest.mark.parametrize("largest", few_or_many(16, 32))
@pytest.mark.parametrize("system", mark_slow(SYSTEMS, quick=["ring"]))
def test_forecasts_hold_the_larger_runs(system: str, largest: int) -> None:
    """Within 5 % at twice and at four times the largest known run; beyond, nothing is validated."""
    known = [measure_point(system, workers) for workers in SIZES if workers <= largest]
    found = curves(known, at=(2 * largest, 4 * largest, 8 * largest))
    (curve,) = found.curves
    assert curve.scaling_kind == "weak"
    assert curve.rows[-1].efficiency < (0.6 if largest == SIZES[-1] else 0.7)
    for forecast in curve.forecasts[:2]:
        larger = make_scenario(of_size(system, forecast.rank_count))
        assert forecast.step_ns == pytest.approx(duration_ns(larger) / larger.steps, rel=0.05)
        assert forecast.interval_ns[0] < forecast.step_ns < forecast.interval_ns[1]
    assert [forecast.is_validated for forecast in curve.forecasts] == [True, True, False]


@pytest.mark.slow
def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two sizes by a pattern, as JSON: the larger one lost in transfer; and what is no set of sizes."""
    for workers in (2, 8):
        synthetic.write(make_scenario(of_size("ring", workers)), tmp_path / f"run-{workers}")
    assert main(["scaling", f"{tmp_path}/run-*", "--format", "json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert read["format"] == "tracelens.scaling/1"
    (curve,) = read["curves"]
    assert [row["workers"] for row in curve["sizes"]] == [2, 8]
    assert curve["sizes"][1]["lost_in"] == "transfer"
    assert main(["scaling", str(tmp_path / "run-2"), str(tmp_path / "run-2")]) == 2
    assert "expected runs of one system" in capsys.readouterr().err
    assert main(["scaling", f"{tmp_path}/run-*", "--forecast", "64"]) == 2
    assert "4 numbers of workers" in capsys.readouterr().err


def test_servers_are_forecast_as_the_replay_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two sizes are enough; the number is that of whatif, and of a run of that size."""
    servers = {"shards": 3, "variables": [3_000_000] * 6}
    changes = {"servers": servers, "compute": {"noise": 0.02}}
    for workers in (2, 4):
        run = make_scenario(of_size("servers", workers) | changes)
        synthetic.write(run, tmp_path / f"run-{workers}")
    command = ["scaling", f"{tmp_path}/run-*", "--forecast", "16", "--format", "json"]
    assert main(command) == 0
    (curve,) = json.loads(capsys.readouterr().out)["curves"]
    (forecast,) = curve["forecasts"]
    assert forecast["method"] == "replay"
    (answer,) = whatif(load.open(tmp_path / "run-4"), "ranks=16").answers
    usual = curve["sizes"][-1]["step_ns"] / answer.before_ns
    assert forecast["step_ns"] == pytest.approx(usual * answer.after_ns, rel=1e-6)
    larger = make_scenario(of_size("servers", 16) | changes)
    assert forecast["step_ns"] == pytest.approx(duration_ns(larger) / larger.steps, rel=0.03)
