"""Per rank and step, the categories sum to the step to the nanosecond in any recording."""

from typing import Any

import polars as pl
import pytest
from hypothesis import strategies as st
from support.runs.scenarios import BLOCKING, HEALTHY, HOT_SHARD, SLOW_LOADER, TWO_HOSTS
from support.runs.traces import call, span, trace_of
from support.tiers import check_examples, few_or_many

from tracelens.accounting import phases
from tracelens.accounting.phases import Phases
from tracelens.load import prepare
from tracelens.model.trace import Trace
from tracelens.schema.vocabulary import KINDS, OPS
from tracelens.simulator.synthetic import Scenario, generate

TIMES = st.integers(0, 400)
LENGTHS = st.one_of(st.none(), st.integers(0, 200))


def assert_adds_up(trace: Trace, accounted: Phases) -> None:
    """Check the promise, and that segments touch, are maximal and agree with the sums."""
    sums = accounted.times.group_by("process", "step").agg(pl.col("ns").sum())
    steps = trace.steps.select("process", "step", ns=pl.col("end_ns") - pl.col("start_ns"))
    lasting = steps.filter(pl.col("ns") > 0)
    assert lasting.sort("process", "step").equals(
        sums.filter(pl.col("ns") > 0).sort("process", "step").select(lasting.columns)
    )
    segments = accounted.segments
    assert (segments["start_ns"] < segments["end_ns"]).all()
    touching = pl.col("start_ns") == pl.col("end_ns").shift(1).over("process")
    assert segments.select(touching.drop_nulls().all()).item()
    is_repeated = pl.all_horizontal(
        pl.col(name).eq_missing(pl.col(name).shift(1))
        for name in ("process", "step", "category", "name")
    )
    assert not segments.select(is_repeated.any()).item()
    within = segments.join(trace.steps, on=["process", "step"], suffix="_of_step")
    assert within.height == segments.height
    assert (within["start_ns"] >= within["start_ns_of_step"]).all()
    assert (within["end_ns"] <= within["end_ns_of_step"]).all()
    assert accounted.hidden_rows.height == trace.steps.height


@st.composite
def any_span(draw: st.DrawFn, ranks: int) -> dict[str, Any]:
    """Draw any event on any thread, overlapping others as it pleases."""
    start, length = draw(TIMES), draw(LENGTHS)
    kind = draw(st.sampled_from(KINDS))
    fields: dict[str, Any] = {
        "thread": draw(st.integers(0, 2)),
        "step": draw(st.integers(-1, 3)),
        "depth": draw(st.integers(0, 3)),
        "op": draw(st.sampled_from((None, *OPS.get(kind, ())))),
        "request": draw(st.one_of(st.none(), st.integers(1, 5))),
    }
    rank = draw(st.integers(0, ranks - 1))
    if kind == "reduction" and draw(st.booleans()):
        fields |= {"communicator": "world-uid", "seq": draw(st.integers(0, 3)), "op": "allreduce"}
    return span(rank, kind, start, None if length is None else start + length, **fields)


@pytest.mark.parametrize("examples", few_or_many(20, 80))
def test_categories_sum_to_the_step_for_random_spans(examples: int) -> None:
    """Random spans, also open, empty, crossing each other and out of order."""

    def check(rows: list[dict[str, Any]]) -> None:
        trace = prepare(trace_of(rows, ranks=2, shards=1))
        assert_adds_up(trace, phases.run(trace))

    check_examples(check, examples, st.lists(any_span(ranks=3), max_size=40))


@pytest.mark.parametrize("scenario", [HEALTHY, BLOCKING, SLOW_LOADER, TWO_HOSTS, HOT_SHARD])
def test_categories_sum_to_the_step_in_simulated_runs(scenario: Scenario) -> None:
    """Whole simulated runs, also on clocks that had to be aligned."""
    trace = prepare(generate(scenario))
    found = phases.run(trace)
    assert_adds_up(trace, found)
    assert set(found.times["rank"]) == set(range(scenario.ranks))


def test_a_trace_without_steps_gives_empty_tables() -> None:
    """A trace without steps gives empty results of the right columns."""
    found = phases.run(prepare(trace_of([])))
    assert found.segments.is_empty()
    assert dict(found.times.schema) == dict(phases.run(prepare(generate(HEALTHY))).times.schema)


def test_open_spans_of_a_killed_rank_count_to_its_last_event() -> None:
    """A killed rank's open spans count up to its last event."""
    rows = [
        span(0, "step", 0, None, step=0),
        span(0, "backprop", 10, None),
        call(0, 0, 20, None),
        span(0, "gc", 25, 30),
    ]
    trace = prepare(trace_of(rows))
    found = phases.run(trace)
    assert_adds_up(trace, found)
    assert found.segments.select("category", "start_ns", "end_ns").rows() == [
        ("uninstrumented", 0, 10),
        ("backprop", 10, 25),
        ("gc", 25, 30),
    ]
