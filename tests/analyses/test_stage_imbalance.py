"""Stages with unequal work are an opportunity, and no rank of them is accused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from benchmarks.labelled import kinds_of_pipelines, kinds_of_ranks
from benchmarks.labelled.endtoend import report
from benchmarks.labelled.setting import Setting

from tracelens.accounting.stages import Stages
from tracelens.analyses.stage_imbalance import ALONE, StageImbalance

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.labelled.label import Case, Label
    from benchmarks.labelled.work import Work

SETTING = Setting(64, 120, 8, "mild", "lognormal", 11)
LAST = tuple(range(48, 64))


def made(plant: Callable[[Setting, Work], Label]) -> Case:
    return kinds_of_pipelines.staged(plant)(SETTING)


def test_the_longest_stage_is_named() -> None:
    """With its ranks, what it takes, and what an even spread would save; no rank is accused."""
    case = made(kinds_of_pipelines.unequal_stages)
    found = report(case)
    (finding,) = [one for one in found.findings if one.kind == "stage_imbalance"]
    assert not [one for one in found.findings if one.category == "fault"]
    assert (finding.category, finding.ranks, finding.phase) == ("opportunity", LAST, "backprop")
    assert finding.slowdown == pytest.approx((0.2 + 0.8 * 1.4) / (0.2 + 0.8 * 1.1), abs=0.03)
    assert finding.saving == pytest.approx(case.label.saving, rel=0.05)
    assert finding.sentence.startswith("Stage 3 of 4 (ranks 48, 49")
    assert ALONE not in finding.sentence
    table = found.results["stages"]
    assert isinstance(table, StageImbalance)
    assert table.stages["ranks"].to_list() == [16] * 4
    assert table.stages["over_mean"].arg_max() == 3


def test_equal_stages_have_none() -> None:
    """Noise alone makes no stage the longest for good."""
    found = report(made(kinds_of_ranks.nothing))
    assert [one.kind for one in found.findings if one.kind == "stage_imbalance"] == []


def test_a_straggler_is_no_stage() -> None:
    """One rank of a stage is slow: that is a fault of the rank."""
    case = made(kinds_of_pipelines.straggler)
    faults = [one for one in report(case).findings if one.category == "fault"]
    assert [(one.kind, one.ranks) for one in faults] == [("straggler", case.label.ranks)]


def test_a_straggler_among_unequal_stages() -> None:
    """It is compared with its own stage, however long that of others is."""
    make = kinds_of_pipelines.staged(kinds_of_pipelines.straggler, kinds_of_pipelines.uneven)
    case = make(replace(SETTING, seed=0))
    found = report(case)
    faults = [one for one in found.findings if one.category == "fault"]
    assert [(one.kind, one.ranks) for one in faults] == [("straggler", case.label.ranks)]
    assert "stage_imbalance" in {one.kind for one in found.findings}


@pytest.mark.parametrize("seed", [1, 2])
def test_a_straggler_whose_neighbours_arrive_last(seed: int) -> None:
    """All meet in one collective, to which others come last: they were kept waiting for messages."""
    make = kinds_of_pipelines.staged(kinds_of_pipelines.straggler, by_stage=False)
    case = make(Setting(8, 200, 2, "mild", "lognormal", seed))
    found = report(case)
    faults = [one for one in found.findings if one.category == "fault"]
    assert [(one.kind, one.ranks) for one in faults] == [("straggler", case.label.ranks)]
    assert found.ledger
    assert found.ledger.awaited_rank == case.label.ranks[0]


def test_stages_number_their_members() -> None:
    """In the order of ranks."""
    stages = Stages(np.array([1, 0, 1, 0]), np.zeros(4, np.int64))
    assert [members.tolist() for members in stages.members] == [[1, 3], [0, 2]]
