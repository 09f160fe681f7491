"""What `async=on` saves is what the same simulated run comes to without a barrier, or is not stated."""

import polars as pl
import pytest
from support.runs.analysed import trace as run
from support.runs.server_scenarios import draw_scenario
from support.runs.without_barrier import measure_duration_ns
from support.tiers import mark_slow

from tracelens.simulator.synthetic import Fault, Scenario, duration_ns
from tracelens.verdicts.whatif import whatif

CLOSE, NOISE = 0.101, 0.004  # of the saving; of the run
QUICK = (2, 9, 12, 25)


@pytest.mark.parametrize("seed", mark_slow(range(100, 160), quick=[100 + seed for seed in QUICK]))
def test_savings_are_the_true_ones_or_marked(seed: int) -> None:
    """A saving is within 10 % of the true one; where that cannot be known, its interval holds it."""
    scenario = draw_scenario(seed)
    before_ns = duration_ns(scenario)
    truth = 1 - measure_duration_ns(scenario) / before_ns
    (answer,) = whatif(run(scenario), "async=on").answers
    if answer.doubt is None:
        assert answer.saving == pytest.approx(truth, rel=CLOSE, abs=NOISE)
    else:
        assert answer.interval[0] - NOISE <= truth <= answer.interval[1] + NOISE


IN_TURNS = Scenario(
    ranks=2,
    steps=24,
    seed=5,
    ranks_per_host=2,
    forward_ms=20,
    backprop_ms=40,
    shards=1,
    shard_bytes=(1 << 20,),
    faults=tuple(
        Fault("backprop", (rank,), extra_ms=60, steps=(rank, 23), every=2) for rank in (0, 1)
    ),
)


@pytest.mark.parametrize(("cores", "is_known"), [("0", True), ("0-1", False), (None, False)])
def test_ranks_that_would_compute_at_the_same_time_need_cores(
    cores: str | None, *, is_known: bool
) -> None:
    """Where they share fewer, or as many as there are of them, the answer is marked, or is not."""
    trace = run(IN_TURNS)
    processes = trace.processes.with_columns(cores=pl.lit(cores, pl.String))
    (answer,) = whatif(trace.with_(processes=processes), "async=on").answers
    (with_free_cores,) = whatif(trace, "async=on").answers
    assert answer.saving == with_free_cores.saving > 0.1
    sentence = "2 ranks share 1 core, and would do more at the same time"
    assert (answer.doubt is not None and sentence in answer.doubt) == is_known
    assert (answer.interval[0] < with_free_cores.interval[0]) == is_known


def test_a_straggler_among_ranks_that_share_cores_is_no_new_load() -> None:
    """Others wait while it computes, so without it no rank computes at the same time as more others."""
    trace = run(Scenario(ranks=4, steps=40, seed=8, faults=(Fault("backprop", (1,), extra_ms=30),)))
    processes = trace.processes.with_columns(host=pl.lit("one"), cores=pl.lit("0-1"))
    (answer,) = whatif(trace.with_(processes=processes), "rank:1=median").answers
    assert answer.doubt is None
    assert answer.saving > 0.1
