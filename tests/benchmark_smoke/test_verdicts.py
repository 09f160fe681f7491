"""What a tool says of a planted fault is judged by rank and place, and of a healthy run by silence."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.verdicts import FAULTS, HEALTHY, Answer, own_answer, their_answer
from support.runs.analysed import report

from tracelens.simulator.synthetic import Fault, Scenario

APART = next(planted for planted in FAULTS if planted.fault == "apart")


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        (Answer((1,), APART.ours), True),
        (Answer((1,), "uninstrumented, update to data"), False),
        (Answer((1,), "backprop"), False),
        (Answer((0,), APART.ours), False),
        (Answer((0, 1), APART.ours), False),
        (Answer(), False),
        (Answer(failed="not installed"), False),
    ],
)
def test_rank_and_place_must_be_right(answer: Answer, right: bool) -> None:  # noqa: FBT001
    assert answer.right(APART.ours) == right


def test_a_healthy_run_accuses_nobody() -> None:
    assert Answer().right(HEALTHY.ours)
    assert not Answer((2,), "data").right(HEALTHY.ours)
    assert not Answer((), "data").right(HEALTHY.ours)
    assert not Answer(failed="not installed").right(HEALTHY.ours)


def test_the_first_finding_is_ours() -> None:
    """If it is a fault; an opportunity accuses no rank."""
    late = Fault("backprop", (1,), extra_ms=20)
    assert own_answer(report(Scenario(ranks=3, steps=60, faults=(late,)))) == Answer(
        (1,), "backprop"
    )
    assert own_answer(report(Scenario(ranks=3, steps=60))) == Answer()


def _summary(severity: str, phase: str | None) -> dict[str, Any]:
    primary = {"section": "step_time", "severity": severity, "kind": "STRAGGLER"}
    return {
        "primary_diagnosis": primary,
        "step_time": {"diagnosis": {"ranks": [1], "phase": phase}},
    }


def test_of_traceml_it_is_the_primary_diagnosis() -> None:
    """Information, such as that a run computes most of the time, accuses no rank."""
    assert their_answer(_summary("crit", "input")) == Answer((1,), "input")
    assert their_answer(_summary("warn", None)) == Answer((1,), "STRAGGLER")
    assert their_answer(_summary("info", "backward")) == Answer()
