"""Two runs are compared where they can be: the ranks and the number of steps that both have."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
from support.web.stores import HOT, LATE, SLOW_RANK, open_run

from tracelens.lod import comparison
from tracelens.simulator.synthetic import Fault, Scenario

if TYPE_CHECKING:
    from tracelens_dashboard.runs.store import Store

HEALTHY = Scenario(ranks=6, steps=50)
BEGIN, END = 20, 39


@cache
def slow() -> Store:
    return open_run(SLOW_RANK, LATE)


@cache
def healthy() -> Store:
    return open_run(HEALTHY)


def test_what_only_one_run_has_is_left_out() -> None:
    """Of 4 ranks and 60 steps here, 6 and 50 there, 4 ranks and 50 steps are compared."""
    found = comparison.difference(slow().residuals, healthy().residuals)
    assert found.ranks == (0, 1, 2, 3)
    assert found.compute_ns.shape == (4, 50)
    assert found.steps == found.others == tuple(range(50))


def test_the_planted_difference_is_where_it_was_planted() -> None:
    """Rank 2 works longer in steps 20-39, and nowhere else does anything of that size show."""
    own = comparison.difference(slow().residuals, healthy().residuals).compute_ns
    planted = own[2, BEGIN : END + 1]
    rest = own.copy()
    rest[2, BEGIN : END + 1] = 0
    assert planted.min() > 3 * np.abs(rest).max()


def test_steps_are_matched_by_their_place_not_their_number() -> None:
    """A run that goes on from a checkpoint at step 1000 is compared from its first step on."""
    late = slow().residuals
    resumed = replace(late, steps=tuple(step + 1000 for step in late.steps))
    found = comparison.difference(late, resumed)
    assert found.others[0] == 1000
    assert np.nanmax(np.abs(found.compute_ns)) == 0


def test_ranks_are_matched_by_their_number() -> None:
    """The order of the rows of a run plays no part."""
    late = slow().residuals
    turned = replace(late, ranks=late.ranks[::-1], compute_ns=late.compute_ns[::-1])
    assert np.nanmax(np.abs(comparison.difference(late, turned).compute_ns)) == 0


def test_a_run_does_not_differ_from_itself() -> None:
    """Neither in the time of its steps nor in its findings."""
    change = comparison.step_change(slow().run, slow().run)
    assert change is not None
    assert change.share == 0
    assert not change.clear
    found = slow().report.findings
    assert comparison.only_in(found, found) == []


def test_longer_steps_are_clearly_longer() -> None:
    """Backprop of 1.6 times its length on all ranks shows in median, mean and interval."""
    everywhere = Fault("backprop", tuple(range(6)), factor=1.6)
    slower = open_run(replace(HEALTHY, faults=(everywhere,)))
    change = comparison.step_change(slower.run, healthy().run)
    assert change is not None
    assert change.clear
    assert 0 < change.low <= change.share <= change.high
    assert change.mean == pytest.approx(change.share, rel=0.3)
    name, mine, theirs = comparison.moved(slower.times, healthy().times)[0]
    assert name == "backprop"
    assert mine / theirs == pytest.approx(1.6, rel=0.05)


def test_a_run_without_steps_has_no_change() -> None:
    """Nothing is told where nothing was measured."""
    empty = replace(healthy().run, windows=pl.DataFrame(schema=healthy().run.windows.schema))
    assert comparison.step_change(empty, healthy().run) is None


def test_findings_are_alike_by_what_they_are_and_whom_they_name() -> None:
    """Other steps or costs are the same finding; another rank is a new one."""
    again = replace(LATE, steps=(5, 9), saving=0.01)
    assert comparison.only_in([again, HOT], [LATE]) == [HOT]
    assert comparison.only_in([LATE], [replace(LATE, ranks=(3,))]) == [LATE]
