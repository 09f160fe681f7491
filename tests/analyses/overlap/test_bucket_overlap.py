"""What own work hides of each bucket's communication, call by call, and of each step's."""

from typing import cast

import polars as pl
import pytest
from support.runs.analysed import report, trace

from tracelens.accounting.categories import COMPUTE_CATEGORIES
from tracelens.accounting.phases import Phases
from tracelens.analyses import interleaving
from tracelens.analyses.interleaving import Interleaving
from tracelens.simulator.synthetic import Scenario

OVERLAPPED = Scenario(ranks=4, steps=40)
BLOCKING = Scenario(ranks=4, steps=40, overlap=False)


def measure(scenario: Scenario) -> Interleaving:
    """Return the result for a simulated run."""
    return cast("Interleaving", report(scenario).results["interleaving"])


@pytest.mark.parametrize("scenario", [OVERLAPPED, BLOCKING], ids=["overlapped", "blocking"])
def test_hidden_is_own_work_within_the_calls(scenario: Scenario) -> None:
    """Bucket by bucket it is what own pieces and calls have in common, found pair by pair."""
    phases = cast("Phases", report(scenario).results["phases"])
    computing = phases.segments.filter(pl.col("category").cast(pl.String).is_in(COMPUTE_CATEGORIES))
    calls = trace(scenario).arrivals.filter(pl.col("step") == 7)
    begin_ns, end_ns = (
        pl.max_horizontal("start_ns", "start_ns_own"),
        pl.min_horizontal("end_ns", "end_ns_own"),
    )
    common = (
        calls.join(computing, on="process", suffix="_own")
        .with_columns(common=(end_ns - begin_ns).clip(lower_bound=0))
        .group_by("process", "bucket")
        .agg(pl.col("common").sum(), length=(pl.col("end_ns") - pl.col("start_ns")).first())
    )
    one = trace(scenario).with_(arrivals=calls)
    measured = interleaving.overlap_of_buckets(one, phases)
    for bucket, hidden, waited, transferred in measured.select(
        "bucket", "hidden_ns", "wait_ns", "transfer_ns"
    ).iter_rows():
        mine = common.filter(bucket=bucket)
        assert hidden == pytest.approx(mine["common"].mean(), abs=1)
        assert hidden + waited + transferred == pytest.approx(mine["length"].mean(), abs=1)


def test_blocking_calls_hide_nothing() -> None:
    """A call on the training thread is exposed; a call on another thread during backprop is hidden."""
    assert measure(BLOCKING).by_bucket["hidden_ns"].sum() == 0
    hidden = measure(OVERLAPPED).by_bucket["hidden_ns"]
    assert cast("float", hidden.max()) > 0


def test_steps_sum_to_ranks() -> None:
    """The mean rank's hidden, waiting and transfer time over all steps is the mean over the ranks."""
    result = measure(OVERLAPPED)
    for name in ("hidden_ns", "wait_ns", "transfer_ns"):
        assert result.by_step[name].sum() == pytest.approx(result.overlap[name].mean(), rel=1e-6)
    assert result.by_step["step"].to_list() == list(range(40))


def test_every_gap_is_counted_once() -> None:
    """The spread holds all gaps; of each bin the longest is its example."""
    result = measure(OVERLAPPED)
    spread = result.gap_spread
    assert spread["count"].sum() == result.gaps.height
    assert spread["gap_ns"].max() == result.gaps["gap_ns"].max()
    assert (spread["gap_ns"] >= spread["from_ns"] * 0.999).all()
    assert (spread["gap_ns"] <= spread["to_ns"] * 1.001).all()
