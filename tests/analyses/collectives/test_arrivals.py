"""How far apart ranks come to collectives, who comes last, and how often that is by chance."""

from dataclasses import replace

import numpy as np
import pytest
from support.runs.analysed import report, trace

from tracelens.accounting import phases
from tracelens.analyses import arrivals
from tracelens.analyses.arrivals import Arrivals
from tracelens.facts import Facts
from tracelens.load import prepare
from tracelens.model.trace import Alignment
from tracelens.simulator.synthetic import Fault, Scenario, generate, random_clocks
from tracelens.stats.histogram import BINS_PER_DECADE

LATE = Fault("backprop", (5,), steps=(20, 59), factor=1.8)
RUN = Scenario(ranks=8, steps=80, faults=(LATE,))
FAIR = Scenario(ranks=8, steps=200, noise=0.1)


def measure(scenario: Scenario) -> Arrivals:
    """Return the result for a simulated run."""
    found = report(scenario).results["arrivals"]
    assert isinstance(found, Arrivals)
    return found


def test_skew_is_last_less_first_arrival() -> None:
    """Step by step, the widest call is that of the trace, found call by call."""
    rows = trace(RUN).arrivals
    by_step = measure(RUN).by_step
    for row in by_step.head(30).iter_rows(named=True):
        calls = rows.filter(step=row["step"]).partition_by("communicator", "seq")
        skews = [int(np.ptp(call["start_ns"].to_numpy())) for call in calls]
        widest = calls[int(np.argmax(skews))].sort("start_ns")
        assert row["skew_max_ns"] == max(skews)
        assert row["last_rank"] == widest["rank"][-1]
        assert row["first_ns"] == widest["start_ns"][0]
        assert row["calls"] == len(calls)


def test_wait_and_transfer_are_those_of_the_calls() -> None:
    """The mean rank's time in calls, over all steps, is what all ranks' calls sum to."""
    calls, by_step = trace(RUN).arrivals, measure(RUN).by_step
    for name in ("wait_ns", "transfer_ns"):
        assert by_step[name].sum() == pytest.approx(calls[name].sum() / RUN.ranks, rel=1e-3)


def test_the_late_rank_is_last_beyond_chance() -> None:
    """It is last in all calls of its 40 slow steps, which chance does not explain; of others it does."""
    counts = measure(RUN).last
    late = counts.row(5, named=True)
    assert late["last"] >= 0.45 * late["calls"]
    assert late["last"] > late["chance"]
    assert late["alone_ns"] == counts["alone_ns"].max()
    assert counts["last"].sum() == late["calls"]
    assert counts["expected"].to_list() == pytest.approx([late["calls"] / 8] * 8)


def test_noise_alone_names_nobody() -> None:
    """In a fair run no rank comes last more often than chance explains."""
    last = measure(FAIR).last
    assert (last["last"] <= last["chance"]).all()


def test_every_call_is_counted_once() -> None:
    """The bins of the spread hold each call, and each bin's example is in the bin."""
    spread = measure(RUN).spread
    calls = trace(RUN).arrivals.select("communicator", "seq").n_unique()
    assert spread["count"].sum() == calls
    assert (spread["to_ns"] / spread["from_ns"]).to_list() == pytest.approx(
        [10 ** (1 / BINS_PER_DECADE)] * spread.height
    )
    widest = measure(RUN).by_step["skew_max_ns"].max()
    assert isinstance(widest, int)
    assert spread["from_ns"].max() <= widest <= spread["to_ns"].max()  # type: ignore[operator]  # columns of numbers


def test_a_rank_alone_comes_to_nobody() -> None:
    """Without calls of several ranks, tables are empty."""
    alone = trace(Scenario(ranks=1, steps=10))
    result = arrivals.run(Facts(alone, phases.run(alone)))
    assert result.by_step.is_empty()
    assert result.last.is_empty()
    assert result.spread.is_empty()


def test_no_wait_is_told_that_the_clocks_cannot_see() -> None:
    """Below three times their uncertainty ranks came together, and what calls took is transfer."""
    run = Scenario(ranks=4, ranks_per_host=2, steps=60, clocks=random_clocks(2, seed=3))
    sure = prepare(generate(run))
    hosts = [replace(host, uncertainty_ns=10**8) for host in sure.alignment.hosts]
    unsure = sure.with_(alignment=Alignment("wall", tuple(hosts)))
    certain, uncertain = (arrivals.run(Facts(one, phases.run(one))) for one in (sure, unsure))
    assert (certain.by_step["skew_max_ns"] > 3 * sure.uncertainty_ns).all()
    assert set(uncertain.by_step["skew_max_ns"]) == set(uncertain.last["alone_ns"]) == {0}
    assert set(uncertain.last["wait_ns"]) == {0}
    whole = certain.last["wait_ns"] + certain.last["transfer_ns"]
    assert uncertain.last["transfer_ns"].to_list() == whole.to_list()
    assert uncertain.spread.equals(certain.spread)
