"""A planted fault changes what it names, by its factor, and nothing else that it does not cause."""

from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from support.runs.scenarios import HEALTHY

from tracelens.errors import InvalidArgument
from tracelens.simulator.scenario import FaultPhase
from tracelens.simulator.synthetic import Fault, Scenario, generate


def durations(scenario: Scenario, kind: str) -> pl.DataFrame:
    spans = generate(scenario).spans.filter(pl.col("kind") == kind)
    lasting = spans.with_columns(ns=pl.col("end_ns") - pl.col("start_ns"))
    return lasting.select("rank", "step", "ns").sort("rank", "step").collect()


@pytest.mark.parametrize("phase", ["data", "forward", "backprop", "update"])
def test_a_factor_lengthens_only_its_phase_rank_and_steps(phase: FaultPhase) -> None:
    """Only the named phase, rank and steps last longer, by the factor."""
    fault = Fault(phase, (2,), steps=(10, 19), factor=1.5)
    healthy_durations = durations(HEALTHY, phase)
    planted = durations(replace(HEALTHY, faults=(fault,)), phase)
    hit = (pl.col("rank") == 2) & pl.col("step").is_between(10, 19)
    expected = pl.when(hit).then(1.5 * pl.col("ns")).otherwise(pl.col("ns"))
    assert planted["ns"].to_list() == pytest.approx(
        healthy_durations.select(ns=expected)["ns"].to_list(), abs=2
    )


def test_every_and_extra() -> None:
    """A sparse stall hits each n-th step, with its extra time."""
    fault = Fault("data", (1,), extra_ms=30.0, every=20)
    added = (
        durations(replace(HEALTHY, faults=(fault,)), "data")["ns"]
        - durations(HEALTHY, "data")["ns"]
    )
    assert sorted(added.to_list()) == [0] * 237 + [30_000_000] * 3


def test_a_drifting_fault_grows_to_its_factor() -> None:
    scenario = replace(HEALTHY, noise=0.0, spread=0.0)
    fault = Fault("forward", (0,), factor=2.0, ramp=True)
    forward_durations = durations(replace(scenario, faults=(fault,)), "forward").filter(
        pl.col("rank") == 0
    )
    assert forward_durations["ns"][0] == 5_000_000
    assert forward_durations["ns"][-1] == 10_000_000
    assert forward_durations["ns"].is_sorted()


def test_pause_at_a_share_of_backprop() -> None:
    """Buckets that are full before a pause are reduced as without it, those after it later."""
    scenario = Scenario(ranks=2, steps=1, buckets=4, noise=0.0, spread=0.0)
    paused = replace(scenario, faults=(Fault("backprop", (1,), extra_ms=100.0, pause_share=0.5),))
    entered = [
        generate(either_scenario)
        .spans.filter((pl.col("kind") == "reduction") & (pl.col("rank") == 1))
        .sort("seq")
        .collect()["start_ns"]
        for either_scenario in (scenario, paused)
    ]
    assert (entered[1] - entered[0]).to_list() == [0, 0, 100_000_000, 100_000_000]
    assert durations(paused, "backprop")["ns"].to_list() == [10_000_000, 110_000_000]


PAUSE = Fault("forward", (1,), extra_ms=1.0, pause_share=0.5)


@pytest.mark.parametrize(
    "impossible",
    [
        {"ranks": 0},
        {"steps": 0},
        {"shards": 2, "shard_bytes": (1,)},
        {"clocks": ()},
        {"faults": (PAUSE,)},
        {"faults": (replace(PAUSE, phase="backprop", pause_share=1.5),)},
        {"faults": (replace(PAUSE, phase="backprop"),), "overlap": False},
    ],
)
def test_impossible_faults_are_refused(impossible: dict[str, Any]) -> None:
    if impossible == {"clocks": ()}:
        impossible = {"ranks": 8, "ranks_per_host": 2, "clocks": (object(),)}
    with pytest.raises(InvalidArgument, match=r"^A (scenario|fault)"):
        replace(HEALTHY, **impossible)
