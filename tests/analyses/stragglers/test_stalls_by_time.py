"""Recorded runs whose stalls only the time that they cost shows: named, and healthy twins silent."""

from functools import partial

import numpy as np
import pytest
from benchmarks.labelled.endtoend import report
from benchmarks.labelled.label import Label
from benchmarks.labelled.makers import synchronous
from benchmarks.labelled.setting import Setting
from benchmarks.labelled.work import STEP_MS, Work
from support.tiers import mark_slow

from tracelens.model.findings import Finding

FIRST = 5_000_000


def stalls(setting: Setting, work: Work, *, count: int, steps: float, blips: float = 0.0) -> Label:
    """Let rank 1 stall in forward `count` times, irregularly; all ranks have as many short blips."""
    draw = setting.stream("stalls")
    candidate_steps = np.arange(8, setting.steps, 4)
    for rank in range(setting.ranks):
        rows = draw.choice(candidate_steps, count, replace=False)
        work.phases["forward"][rows, rank] += blips * STEP_MS
    rows = draw.choice(candidate_steps, count, replace=False)
    work.phases["forward"][rows, 1] += steps * STEP_MS
    return Label("straggler", ranks=(1,), priced=False)


def faults(ranks: int, seed: int, *, count: int, steps: float, blips: float = 0.0) -> list[Finding]:
    setting = Setting(ranks, 120, 1, "mild", "lognormal", FIRST + seed)
    plant = partial(stalls, count=count, steps=steps, blips=blips)
    found = report(synchronous(plant)(setting)).findings
    return [one for one in found if one.category == "fault"]


seeds = pytest.mark.parametrize("seed", mark_slow(range(3), quick=[0]))


@seeds
def test_six_long_stalls_of_one_of_three_ranks(seed: int) -> None:
    (found,) = faults(3, seed, count=6, steps=8.0)
    assert (found.kind, found.ranks, found.phase) == ("straggler", (1,), "forward")
    assert found.evidence["steps_late"] == 6


@seeds
@pytest.mark.parametrize("ranks", [3, 8])
def test_blips_of_all_hide_no_dozen_stalls_ten_times_as_long(ranks: int, seed: int) -> None:
    (found,) = faults(ranks, seed, count=12, steps=2.0, blips=0.2)
    assert (found.kind, found.ranks, found.phase) == ("straggler", (1,), "forward")


@seeds
@pytest.mark.parametrize("ranks", [3, 8])
def test_blips_of_all_alone_are_no_fault(ranks: int, seed: int) -> None:
    assert faults(ranks, seed, count=12, steps=0.0, blips=0.2) == []


@pytest.mark.parametrize("steps", [0.0, 30.0])
def test_four_very_long_stalls_of_one_of_three_ranks_that_keep_a_period(steps: float) -> None:
    """As evaluations after each epoch; without them no rank is accused."""
    setting = Setting(3, 120, 1, "mild", "lognormal", FIRST)

    def plant(setting: Setting, work: Work) -> Label:
        work.phases["forward"][23 : setting.steps - 5 : 24, 0] += steps * STEP_MS
        return Label("straggler", ranks=(0,), priced=False)

    found = [one for one in report(synchronous(plant)(setting)).findings if one.category == "fault"]
    assert [(one.ranks, one.pattern) for one in found] == ([((0,), "sparse")] if steps else [])
