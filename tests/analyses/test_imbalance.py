"""Uneven work is told from late ranks and from noise."""

from dataclasses import replace
from typing import cast

import polars as pl
import pytest
from support.runs.analysed import report

import tracelens as tl
from tracelens.analyses.imbalance import Imbalance
from tracelens.simulator.synthetic import Fault, Scenario

QUIET = Scenario(ranks=4, steps=60, noise=0, spread=0)


def measure(scenario: Scenario) -> Imbalance:
    return cast("Imbalance", report(scenario).results["imbalance"])


def kinds(scenario: Scenario) -> set[str]:
    return {finding.kind for finding in report(scenario).findings}


def test_equal_ranks_have_no_imbalance() -> None:
    """Without noise max and mean are one."""
    assert measure(QUIET).lasting == measure(QUIET).per_step == 0.0


def test_a_slow_rank_is_lasting_imbalance() -> None:
    """One rank with 10 of 17 ms doubled: max / mean - 1 = 27 / 19.5 - 1, in steps and on totals."""
    slow = measure(replace(QUIET, faults=(Fault("backprop", (1,), factor=2),)))
    assert slow.lasting == pytest.approx(27 / 19.5 - 1)
    assert slow.per_step == pytest.approx(slow.lasting)
    ranks = slow.ranks.to_dict(as_series=False)
    assert ranks["last"] == [0, 1, 0, 0]
    assert ranks["over_mean"][1] == pytest.approx(slow.lasting)


def test_work_that_varies_is_an_opportunity() -> None:
    """Batches of variable length: uneven in every step, even over the run."""
    varying = Scenario(ranks=8, steps=60, noise=0.3)
    assert measure(varying).per_step > 4 * measure(varying).lasting
    assert "load_imbalance" in kinds(varying)


@pytest.mark.parametrize("noise", [0.02, 0.05])
def test_usual_noise_is_no_imbalance(noise: float) -> None:
    """What noise alone gives is not reported."""
    assert "load_imbalance" not in kinds(Scenario(ranks=8, steps=60, noise=noise))


def test_a_straggler_is_not_told_twice() -> None:
    """Where late ranks explain the slowest rank of a step, imbalance is not another finding."""
    slow = Scenario(ranks=8, steps=60, noise=0.1, faults=(Fault("backprop", (1,), factor=2),))
    assert kinds(slow) & {"straggler", "load_imbalance"} == {"straggler"}


def test_a_run_without_computation_has_no_imbalance() -> None:
    """A benchmark of communication: nothing is divided by the work that there is not."""
    calls = [
        {"rank": rank, "kind": "reduction", "op": "allreduce", "step": step}
        | {"start_ns": 10_000 * step, "end_ns": 10_000 * step + 5_000}
        for step in range(40)
        for rank in range(4)
    ]
    result = tl.analyze(tl.Trace.from_table(pl.DataFrame(calls), one_clock=True))
    assert cast("Imbalance", result.results["imbalance"]).lasting == 0.0
    assert {finding.kind for finding in result.findings} <= {"exposed_communication"}
