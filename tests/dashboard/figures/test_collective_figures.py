"""The page of collectives: skew, who comes last, bandwidth and links, from the analyses' tables."""

import json
from typing import Any

import polars as pl
import pytest
from plotly.utils import PlotlyJSONEncoder
from support.runs.analysed import report, trace
from support.web.views import view_of

from tracelens.lod.search import Call
from tracelens.simulator.synthetic import Fault, Scenario
from tracelens_dashboard.components.timeline import inspector
from tracelens_dashboard.figures import arrival_skew, bandwidth
from tracelens_dashboard.figures.drawing import Drawing
from tracelens_dashboard.pages import collectives as page
from tracelens_dashboard.runs.store import Store
from tracelens_dashboard.theme import DARK, LIGHT
from tracelens_dashboard.view import viewport
from tracelens_dashboard.view.state import ViewState
from tracelens_dashboard.view.viewport import Controls

LATE = Fault("backprop", (5,), steps=(20, 59), factor=1.8)
RUN = Scenario(ranks=8, steps=80, faults=(LATE,))
ALONE = Scenario(ranks=1, steps=10)


@pytest.fixture(scope="module")
def store() -> Store:
    return Store.from_trace(trace(RUN), report(RUN))


def points(drawing: Drawing) -> list[dict[str, Any]]:
    """Return the click data of each mark of a figure."""
    traces = json.loads(json.dumps(drawing.figure.data, cls=PlotlyJSONEncoder))
    return [
        {"customdata": custom, "x": x}
        for mark in traces
        if "customdata" in mark
        for custom, x in zip(
            mark["customdata"], mark["x"] if isinstance(mark["x"], list) else [], strict=False
        )
    ]


def test_waiting_is_told_from_transfer(store: Store) -> None:
    """The sentence says which matters; steps in which rank 5 is late wait longest."""
    drawing = arrival_skew.by_step(store.analysis_table("arrivals_by_step"), LIGHT)
    assert "Arrival skew dominates, not the network." in drawing.summary
    assert [bar.name for bar in drawing.figure.data] == ["transfer", "wait for the last arrival"]
    assert {row["step"] for row in drawing.rows[:30]} <= set(range(20, 60))


def test_the_late_rank_has_its_own_colour(store: Store) -> None:
    """Rank 5 is named, first of those with a colour, and its points are its slow steps."""
    drawing = arrival_skew.over_run(store.analysis_table("arrivals_by_step"), LIGHT)
    late = next(one for one in drawing.figure.data if one.name == "rank 5 last")
    assert late.marker.color == LIGHT.series_colours[0]
    assert set(range(20, 60)) <= set(late.x)
    assert "rank 5 last" in drawing.summary


def test_who_is_last_beyond_chance_is_red(store: Store) -> None:
    """Only the late rank's bar is red; the sentence gives both counts."""
    drawing = arrival_skew.last_arrivals(store.analysis_table("arrivals_last"), DARK)
    assert list(drawing.figure.data[0].marker.color).index(DARK.loss_colour) == 5
    assert list(drawing.figure.data[0].marker.color).count(DARK.loss_colour) == 1
    assert drawing.summary.startswith("Rank 5 arrives last in")
    assert drawing.rows[0]["rank"] == 5


def test_of_thousands_of_ranks_those_that_matter_are_drawn(store: Store) -> None:
    """Few rows are drawn, the late rank among them; the table has all."""
    last_arrivals = store.analysis_table("arrivals_last")
    many_ranks = pl.concat(
        [last_arrivals.with_columns(pl.col("rank") + 8 * i) for i in range(1, 512)]
    )
    other_ranks = many_ranks.with_columns(
        pl.lit(0, pl.Int64).alias(name) for name in ("last", "alone_ns")
    )
    drawing = arrival_skew.last_arrivals(pl.concat([other_ranks, last_arrivals]), LIGHT)
    assert len(drawing.figure.data[0].y) == arrival_skew.MOST_RANKS
    assert "rank 5 " in drawing.figure.data[0].y
    assert len(drawing.rows) == 4096


def test_the_distribution_has_the_clocks_uncertainty(store: Store) -> None:
    """Bars sum to the calls; with uncertain clocks the sentence says which skew may be theirs."""
    spread = store.analysis_table("arrivals_spread")
    drawing = arrival_skew.distribution(spread, 0, LIGHT)
    assert sum(sum(bar.y) for bar in drawing.figure.data) == spread["count"].sum()
    assert "clock" not in drawing.summary
    assert arrival_skew.distribution(spread, 1000, LIGHT).summary.endswith(
        "Skew below 3.00 µs is within clock uncertainty."
    )


def test_bandwidths_carry_their_fit() -> None:
    """Every size is a point, bus and algorithm; a fitted line goes through about the same values."""
    table = pl.DataFrame(
        {
            "op": "allreduce",
            "ranks": 4,
            "algorithm": pl.Series([None] * 3, dtype=pl.String),
            "from_bytes": [1 << 10, 1 << 16, 1 << 20],
            "calls": 20,
            "bytes": [1024.0, 65536.0, 1048576.0],
            "wire_ns": [11_024.0, 75_536.0, 1_058_576.0],
            "algorithm_bandwidth": [0.09, 0.87, 0.99],
            "bus_bandwidth": [0.14, 1.3, 1.49],
            "of_best": [0.09, 0.87, 0.99],
        }
    )
    line = pl.DataFrame(
        {"op": "allreduce", "ranks": 4, "latency_ns": 1e4, "bus_bandwidth": 1.5}
    ).with_columns(half_bandwidth_bytes=pl.lit(1e4), algorithm=pl.lit(None, pl.String))
    slowest = table.select("op", "ranks", "algorithm", "from_bytes").with_columns(
        ready_ns=pl.lit(5, pl.Int64), wire_ns=pl.lit(7, pl.Int64)
    )
    drawing = bandwidth.by_size(table, line, slowest, LIGHT)
    bus, algorithm, fitted = drawing.figure.data
    assert list(bus.y) == [0.14, 1.3, 1.49]
    assert list(algorithm.y) == [0.09, 0.87, 0.99]
    assert max(fitted.y) == pytest.approx(1.5, rel=0.02)
    assert "fit: latency 10.0 µs" in drawing.summary
    assert bus.customdata[0][1] == [5, 12, None]


def test_a_link_is_red_where_a_finding_names_it() -> None:
    """The slowest is first, and the sentence says how much slower, and whether that is a finding."""
    links = pl.DataFrame(
        {
            "sender": [1, 0, 2],
            "receiver": [2, 1, 0],
            "sender_host": "a",
            "receiver_host": "<b>",
            "messages": 5,
            "bytes": 1 << 20,
            "message_ns": 1e6,
            "bandwidth": [0.01, 0.1, 0.11],
        }
    )
    drawing = bandwidth.by_link(links, LIGHT, {(1, 2)})
    assert list(drawing.figure.data[0].marker.color) == [
        LIGHT.loss_colour,
        LIGHT.accent_colour,
        LIGHT.accent_colour,
    ]
    assert "10.0 times slower than the median link" in drawing.summary
    assert drawing.summary.endswith("a finding names it.")
    unnamed = bandwidth.by_link(links, LIGHT)
    assert set(unnamed.figure.data[0].marker.color) == {LIGHT.accent_colour}
    assert unnamed.summary.endswith("no finding names it.")
    assert drawing.rows[0]["to host"] == "&lt;b&gt;"


@pytest.mark.slow
def test_marks_lead_to_the_call(store: Store) -> None:
    """Each mark of skew, last arrivals and spread opens the timeline with its call selected."""
    drawings = (
        arrival_skew.over_run(store.analysis_table("arrivals_by_step"), LIGHT),
        arrival_skew.last_arrivals(store.analysis_table("arrivals_last"), LIGHT),
        arrival_skew.distribution(store.analysis_table("arrivals_spread"), 0, LIGHT),
    )
    for drawing in drawings:
        leads = [point for point in points(drawing) if point["customdata"][1]]
        assert leads
        for point in leads:
            first, over, rank = point["customdata"][1]
            call = selected_collective(store, page._link_to_call(store, point))
            assert (call.first_arrival_ns, call.last_exit_ns, call.last_arriving_rank) == (
                first,
                over,
                rank,
            )


def test_a_step_leads_to_its_most_skewed_call(store: Store) -> None:
    """Of waiting and transfer, too: the call to which ranks came furthest apart is selected."""
    for row in store.analysis_table("arrivals_by_step").iter_rows(named=True):
        call = selected_collective(store, page._link_to_largest_skew(store, {"x": row["step"]}))
        assert call.last_arrival_ns - call.first_arrival_ns == row["skew_max_ns"]
    assert "sel=" not in page._link_to_largest_skew(store, {"x": 10**6})


def test_a_point_of_bandwidth_leads_to_a_call_of_its_size(store: Store) -> None:
    """What is selected is the call that was slowest of its size, from when all had come."""
    drawing = page.BANDWIDTH.draw(store, LIGHT)
    leads = [one["customdata"][1] for one in points(drawing) if one["customdata"][1]]
    assert leads
    for lead in leads:
        call = selected_collective(store, page._link_to_call(store, {"customdata": ["", lead]}))
        assert call.last_arrival_ns == lead[0]
        assert abs(call.last_exit_ns - lead[1]) <= 1


def selected_collective(store: Store, href: str | None) -> Call:
    """Return the collective that the timeline of a link shows as selected, its last rank pinned."""
    view = view_of(href)
    frame = viewport.frame(
        store, Controls(None, list(view.pinned_ranks), "rank", inspector.selection_in(view))
    )
    assert frame.selected_call
    assert view.pinned_ranks == (frame.selected_call.last_arriving_rank,)
    return frame.selected_call


def test_a_run_without_collectives_says_what_to_record() -> None:
    """A rank alone meets nobody; every figure says so instead of failing, and the page explains."""
    alone = Store.from_trace(trace(ALONE), report(ALONE))
    shown = str(page.layout(alone, ViewState()))
    assert "tracelens record" in shown
    for draw in (
        page.EXCHANGE.draw,
        page.SKEW.draw,
        page.LAST_ARRIVALS.draw,
        page.DISTRIBUTION.draw,
        page.BANDWIDTH.draw,
        page.LINKS.draw,
    ):
        assert draw(alone, LIGHT).rows == []
