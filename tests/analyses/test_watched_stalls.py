"""What a watch saw of a late rank is in the report, and decides the next step."""

import pytest
from support.runs.analysed import trace as simulated

from tracelens.model.result import Report
from tracelens.schema.life import Stalled
from tracelens.simulator.synthetic import Fault, Scenario
from tracelens.verdicts.report import analyze

PAUSE = Fault("backprop", (1,), steps=(40, 40), factor=300)
CODE = ["read (libc.so.6)", "load_shard (train.py:12)"]


def analyze_watched(stall: Stalled) -> Report:
    return analyze(simulated(Scenario(ranks=3, steps=100, faults=(PAUSE,))).with_(journal=(stall,)))


@pytest.mark.parametrize(
    ("stall", "advice"),
    [
        (
            Stalled(1, culprits=[1], step=41, stacks={"1": CODE}),
            "Look at this code of rank 1: load_shard (train.py:12).",
        ),
        (
            Stalled(1, culprits=[1], step=40, states={"1": "stopped"}),
            "Find out what stopped the process of rank 1",
        ),
    ],
)
def test_the_next_step_is_what_a_watch_saw(stall: Stalled, advice: str) -> None:
    report = analyze_watched(stall)
    assert report.findings[0].ranks == (1,)
    assert report.verdict.action.startswith(advice)
    assert "A watch saw" in report.findings[0].sentence


@pytest.mark.parametrize(
    "stall",
    [
        Stalled(1, culprits=[0], step=40, stacks={"0": CODE}),
        Stalled(1, culprits=[1], step=70, stacks={"1": CODE}),
        Stalled(1, culprits=[1], step=40),
    ],
    ids=["another rank", "another step", "nothing known"],
)
def test_other_stalls_say_nothing_of_it(stall: Stalled) -> None:
    report = analyze_watched(stall)
    assert report.findings[0].ranks == (1,)
    assert "A watch saw" not in report.findings[0].sentence
