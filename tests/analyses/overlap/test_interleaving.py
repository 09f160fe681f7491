"""What is hidden, what is exposed, and what lies between weight updates."""

from dataclasses import replace
from typing import cast

import polars as pl
import pytest
from support.runs.analysed import report, trace

from tracelens.analyses.interleaving import Interleaving
from tracelens.simulator.synthetic import Fault, Scenario, duration_ns
from tracelens.verdicts.whatif import whatif

QUIET = Scenario(ranks=4, steps=20, noise=0.0, spread=0.0, exit_skew_us=0.0)
MS = 1_000_000


def measure(scenario: Scenario) -> Interleaving:
    return cast("Interleaving", report(scenario).results["interleaving"])


def kinds(scenario: Scenario) -> dict[str, float]:
    return {finding.kind: finding.saving or 0.0 for finding in report(scenario).findings}


def test_overlap_is_exact() -> None:
    """Of two buckets one is hidden behind the rest of backprop, the last one is exposed."""
    scenario = replace(QUIET, transfer_ms=2.0)
    overlap = measure(scenario).overlap
    assert overlap["hidden_ns"].to_list() == [20 * 2 * MS] * 4
    assert overlap["transfer_ns"].to_list() == [20 * 2 * MS] * 4
    assert overlap["wait_ns"].to_list() == [0] * 4
    assert overlap["overlap"].to_list() == [0.5] * 4


def test_blocking_hides_nothing() -> None:
    overlap = measure(Scenario(ranks=4, steps=20, overlap=False)).overlap
    assert overlap["hidden_ns"].to_list() == [0] * 4


def test_only_what_can_be_hidden_is_an_opportunity() -> None:
    """The last reduction of a step follows backprop, so it cannot hide behind it."""
    hidden = Scenario(ranks=4, steps=40, transfer_ms=4.0)
    assert "exposed_communication" not in kinds(hidden)
    blocking = replace(QUIET, steps=40, transfer_ms=4.0, overlap=False)
    saving = kinds(blocking)["exposed_communication"]
    assert saving == pytest.approx(40 * 4 * MS / duration_ns(blocking), rel=0.01)


def test_the_opportunity_is_what_overlap_really_saves() -> None:
    """The same run with overlap is shorter by what is said."""
    blocking = Scenario(ranks=4, steps=40, transfer_ms=3.0, overlap=False)
    overlapped = Scenario(ranks=4, steps=40, transfer_ms=3.0, overlap=True)
    truth = 1 - duration_ns(overlapped) / duration_ns(blocking)
    assert kinds(blocking)["exposed_communication"] == pytest.approx(truth, rel=0.1)


def test_the_opportunity_is_the_answer_of_the_edit() -> None:
    """Finding and `tracelens whatif` state one number, and an interval that holds the truth."""
    blocking = Scenario(ranks=4, steps=40, transfer_ms=3.0, overlap=False)
    truth = 1 - duration_ns(replace(blocking, overlap=True)) / duration_ns(blocking)
    (finding,) = (f for f in report(blocking).findings if f.kind == "exposed_communication")
    (answer,) = whatif(trace(blocking), "overlap=on").answers
    assert finding.saving == pytest.approx(answer.saving, rel=0.01)
    assert finding.interval is not None
    assert finding.interval[0] <= truth <= finding.interval[1]


def test_waiting_is_not_counted_as_transfer() -> None:
    """A slow rank makes the others wait; their transfer is no longer for it."""
    slow = Scenario(ranks=4, steps=40, faults=(Fault("backprop", (1,), factor=3),))
    assert "exposed_communication" not in kinds(slow)
    overlap = measure(slow).overlap
    waited = dict(overlap.select("rank", "wait_ns").iter_rows())
    assert waited[1] < 0.1 * waited[0]


def test_gaps_between_updates_are_exact() -> None:
    """Of four layers' updates three gaps lie within a step, and one before the next step's first."""
    scenario = replace(QUIET, ranks=2, steps=10, layers=4, update_gap_ms=0.5)
    gaps = measure(scenario).gaps
    within = gaps.filter("within")
    assert within.height == 2 * 10 * 3
    assert within["gap_ns"].unique().to_list() == [MS // 2]
    between = gaps.filter(~pl.col("within"))
    assert between.height == 2 * 9


def test_large_gaps_are_an_opportunity() -> None:
    """Gaps that take a tenth of the job are told with their price, small ones are not."""
    wide = Scenario(ranks=4, steps=30, layers=6, update_gap_ms=0.5)
    assert kinds(wide)["update_gap"] == pytest.approx(30 * 5 * MS / 2 / duration_ns(wide), rel=0.01)
    (found,) = (f for f in report(wide).findings if f.kind == "update_gap")
    assert found.interval is not None
    assert found.interval[0] < 30 * 5 * MS / 2 / duration_ns(wide) < found.interval[1]
    narrow = Scenario(ranks=4, steps=30, layers=6, update_gap_ms=0.05)
    assert "update_gap" not in kinds(narrow)
