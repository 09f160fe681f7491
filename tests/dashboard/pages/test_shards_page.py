"""The page of shards: contents, placement and staleness; marks lead to requests."""

from functools import cache
from typing import Any

import polars as pl
import pytest
from support.web.callbacks import call
from support.web.stores import open_run, sharded, slow_rank
from support.web.views import view_of

from tracelens.analyses.servers.asynchrony import WORKER_COLUMNS
from tracelens.simulator.synthetic import Scenario
from tracelens_dashboard.app.server import create_app
from tracelens_dashboard.figures import axes, shards
from tracelens_dashboard.runs.store import Store
from tracelens_dashboard.theme import LIGHT
from tracelens_dashboard.view.state import ViewState

MIB = 1 << 20
DEALT = Scenario(
    ranks=2, steps=12, shards=2, variables=(9 * MIB, MIB, 2 * MIB, 2 * MIB), noise=0.01
)
WORKERS = pl.DataFrame(
    [(0, 50, 1.25, 1.0, 3, None, None), (1, 30, 0.75, 4.5, 7, None, None)],
    schema=WORKER_COLUMNS,
    orient="row",
)


@cache
def run_with_variables() -> Store:
    """Return a run whose requests name their variables; the first is larger than a shard."""
    return open_run(DEALT)


def view_after_click(store: Store, graph: str, point: Any) -> ViewState | None:
    """Click a mark; return the view that this leads to, None if to none or if it is no mark."""
    app = create_app(store)
    point_at_origin = {"x": 0, "y": 0}
    identity = f'{{"chart":"{graph}","part":"graph"}}'
    listed = app.server.test_client().get("/_dash-dependencies").get_json()
    output = next(
        entry["output"]
        for entry in listed
        if entry["inputs"] == [{"id": identity, "property": "clickData"}]
    )
    answer = call(app, output, {f"{identity}.clickData": {"points": [point_at_origin | point]}})
    if answer.status_code in {204, 400}:
        return None
    (lead,) = answer.get_json()["response"].values()
    return view_of(lead["data"])


def test_the_tensor_that_bounds_is_red_and_named() -> None:
    """It alone is more than the mean shard; the others are not."""
    mean = float(run_with_variables().analysis_table("placements")["mean_bytes"][0])
    drawing = shards.tensor_bars(run_with_variables().analysis_table("tensors"), 0, mean, LIGHT)
    assert list(drawing.figure.data[0].marker.color) == [LIGHT.loss_colour, LIGHT.accent_colour]
    assert drawing.summary.startswith(
        "Shard 0 serves 2 tensors; variable 0 (9.0 MiB per step, one way) is 82 % of its bytes. Alone"
    )
    assert [row["bytes per step, one way"] for row in drawing.rows] == [9 * MIB, 2 * MIB]


def test_an_even_shard_bounds_nothing() -> None:
    """No bar is red, and nothing is said of placements."""
    mean = float(run_with_variables().analysis_table("placements")["mean_bytes"][0])
    drawing = shards.tensor_bars(run_with_variables().analysis_table("tensors"), 1, mean, LIGHT)
    assert set(drawing.figure.data[0].marker.color) == {LIGHT.accent_colour}
    assert "Alone" not in drawing.summary


def test_unnamed_tensors_are_said_to_be_unnamed() -> None:
    """Where requests have neither key nor name, and where there is no table at all."""
    for table in (sharded().analysis_table("tensors"), pl.DataFrame()):
        said = shards.tensor_bars(table, 0, None, LIGHT).summary
        assert said == "Requests of shard 0 do not name their tensors."


def test_placements_are_bars_with_what_bounds_them() -> None:
    """Each bar is the max shard, each diamond its lower bound; the sentence has the best one."""
    table = run_with_variables().analysis_table("placements")
    drawing = shards.placement_bars(table, LIGHT)
    bars, bounds = drawing.figure.data
    assert list(bars.x) == pytest.approx((table["most_bytes"] / MIB).to_list())
    assert list(bounds.x) == pytest.approx((table["least_bytes"] / MIB).to_list())
    best = table.sort("saving")["saving"][-1]
    assert drawing.summary.startswith("Effective shards: 1.3 of 2; placement “")
    assert f"{100 * best:.0f} % shorter" in drawing.summary
    assert len(drawing.rows) == 4


def test_placements_that_save_nothing_say_so() -> None:
    table = run_with_variables().analysis_table("placements").with_columns(saving=pl.lit(0.0))
    assert "no other placement" in shards.placement_bars(table, LIGHT).summary


def test_the_stalest_worker_is_named() -> None:
    """With how old its weights are, and how uneven updates are."""
    drawing = shards.staleness(WORKERS, LIGHT)
    assert drawing.summary == (
        "Worker 1's updates are the stalest: made from weights 4.5 versions old on average, 7 at "
        "most. Workers make between 0.75 and 1.25 times the mean number of updates."
    )
    assert len(drawing.figure.data) == 3  # rates, staleness and its worst: nobody takes turns
    assert "no staleness" in shards.staleness(pl.DataFrame(), LIGHT).summary


def test_a_tensor_leads_to_its_longest_request() -> None:
    """Its worker is pinned, and the request is in view."""
    view = view_after_click(run_with_variables(), "shard-tensors", {"customdata": [0, 1]})
    row = run_with_variables().analysis_table("tensors").filter(shard=0).row(1, named=True)
    assert view is not None
    assert view.pinned_ranks == (row["rank"],)
    assert view.start_ns is not None
    assert view.end_ns is not None
    origin = run_with_variables().run_window.start_ns
    assert view.start_ns <= row["longest_start_ns"] - origin
    assert row["longest_end_ns"] - origin <= view.end_ns


def test_shards_and_pairs_lead_to_their_longest_requests() -> None:
    """A cell names its worker; a dot leads to the worker whose request was longest."""
    pair = view_after_click(
        run_with_variables(), "shard-traffic", {"customdata": axes.write_cell_values(1, 0)}
    )
    assert pair is not None
    assert pair.pinned_ranks == (1,)
    dot = view_after_click(run_with_variables(), "shard-dots", {"customdata": 1})
    assert dot is not None
    assert dot.start_ns is not None


@pytest.mark.parametrize("data", [None, "x", [9, 9], ["0", 1], {"a": 1}, 10**30, [0, -1]])
@pytest.mark.parametrize("graph", ["shard-dots", "shard-traffic", "shard-tensors"])
def test_what_is_no_mark_leads_nowhere(graph: str, data: Any) -> None:
    assert view_after_click(run_with_variables(), graph, {"customdata": data}) is None


def test_a_worker_leads_to_its_row() -> None:
    view = view_after_click(slow_rank(), "shard-staleness", {"customdata": 2})
    assert view is not None
    assert view.pinned_ranks == (2,)
