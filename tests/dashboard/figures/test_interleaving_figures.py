"""The page of interleaving: overlap, gradients' ways and gaps."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from support.runs.analysed import report, trace

from tracelens.analyses import gradient_latency
from tracelens.load import prepare
from tracelens.simulator.synthetic import Scenario, generate
from tracelens.verdicts.report import analyze
from tracelens_dashboard.figures import interleaving
from tracelens_dashboard.pages import interleaving as page
from tracelens_dashboard.runs.store import Store
from tracelens_dashboard.theme import DARK, LIGHT
from tracelens_dashboard.view.state import ViewState

RUN = Scenario(ranks=4, steps=40)
ALONE = Scenario(ranks=1, steps=10)


@pytest.fixture(scope="module")
def store() -> Store:
    return Store.from_trace(trace(RUN), report(RUN))


def test_communication_of_a_step_sums_to_the_table(store: Store) -> None:
    """Bars of a step are hidden, transfer and waiting; the sentence gives their shares."""
    table = store.analysis_table("overlap_by_step")
    drawing = interleaving.overlap_by_step(table, LIGHT)
    heights = sum(sum(bar.y) for bar in drawing.figure.data)
    assert heights == pytest.approx(table.drop("step").sum_horizontal().sum())
    assert "is overlapped with compute" in drawing.summary
    nothing = table.with_columns(
        pl.lit(0.0).alias(n) for n in ("hidden_ns", "wait_ns", "transfer_ns")
    )
    assert interleaving.overlap_by_step(nothing, LIGHT).rows == []


def test_each_bucket_has_a_bar(store: Store) -> None:
    """A row a bucket, in three parts, and the table says how many calls each had."""
    drawing = interleaving.overlap_by_bucket(store.analysis_table("overlap_by_bucket"), DARK)
    buckets = store.analysis_table("overlap_by_bucket").height
    assert buckets > 0
    assert [len(bar.y) for bar in drawing.figure.data] == [buckets] * 3
    assert {row["calls"] for row in drawing.rows} == {RUN.ranks * RUN.steps}


def test_stages_of_a_gradient_follow_each_other(store: Store) -> None:
    """Each stage begins where the one before ends, the first when the gradient is ready."""
    chains = store.analysis_table("chains")
    drawing = interleaving.latency(chains, LIGHT)
    bars = [trace for trace in drawing.figure.data if trace.type == "bar"]
    ready = chains.sort("of", "ready_ns", "number")["ready_ns"].to_list()
    assert list(bars[0].base) == ready
    assert min(ready) == 0
    for before, after in pairwise(bars):
        ends = [base + length for base, length in zip(before.base, before.x, strict=True)]
        assert list(after.base) == ends
    assert "from ready to first use" in drawing.summary


def test_gaps_are_counted(store: Store) -> None:
    """Bars sum to the gaps; the sentence names the rank with the longest."""
    spread = store.analysis_table("gap_spread")
    drawing = interleaving.update_gaps(spread, LIGHT)
    assert sum(sum(bar.y) for bar in drawing.figure.data) == spread["count"].sum()
    assert f"{spread['count'].sum()} gaps from step to step" in drawing.summary


LEADS: list[tuple[Callable[..., Any], Callable[..., Any], int]] = [
    (page.BY_BUCKET.draw, page._link_to_call, 0),
    (page.CHAINS.draw, page._link_to_chain, 1),
    (page.GAPS.draw, page._link_to_gap, 0),
]


@pytest.mark.parametrize(("draw", "lead", "bar"), LEADS)
def test_marks_lead_to_spans(
    store: Store, draw: Callable[..., Any], lead: Callable[..., Any], bar: int
) -> None:
    """Every bar that has an example opens the timeline with its rank pinned."""
    drawn = draw(store, LIGHT).figure.data[bar]
    found = [lead(store, {"customdata": custom}) for custom in drawn.customdata]
    assert any(found)
    assert all("/timeline?" in href and "pin=" in href for href in found if href)


def test_a_run_without_updates_and_communication_says_what_to_record() -> None:
    """Every figure says so instead of failing, and the page explains."""
    raw = generate(ALONE)
    kept = pl.col("kind").cast(pl.String).is_in(["update", "reduction", "wait"]).not_()
    quiet = prepare(raw.with_(events=raw.events.filter(kept)))
    empty = Store.from_trace(quiet, analyze(quiet))
    assert "tracelens record" in str(page.layout(empty, ViewState()))
    for draw in (page.BY_STEP.draw, page.BY_BUCKET.draw, page.CHAINS.draw, page.GAPS.draw):
        assert draw(empty, LIGHT).rows == []


def test_the_latency_that_is_told_is_the_one_that_is_marked() -> None:
    """Medians of stages do not add up to the median of the whole: the mark is where that ends."""
    row = dict.fromkeys(gradient_latency.SHOWN_COLUMNS, 0) | {
        "of": "bucket",
        "number": 3,
        "chains": 8,
        "ready_ns": 5_000_000,
        "reducing_ns": 44_600_000,
        "whole_ns": 61_000_000,
        "whole_p90_ns": 70_000_000,
    }
    chains = pl.DataFrame([row], schema=gradient_latency.SHOWN_COLUMNS)
    drawing = interleaving.latency(chains, LIGHT)
    mark = next(trace for trace in drawing.figure.data if trace.name == "ready to first use")
    assert mark.x[0] - row["ready_ns"] == row["whole_ns"]
    assert "61.0 ms from ready to first use (the mark" in drawing.summary
    assert "“reduction”, in the median 44.6 ms" in drawing.summary
