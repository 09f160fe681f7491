"""The page that compares two runs: its sentence, its figures, and how to come to a second run."""

import json
from typing import Any

import numpy as np
import pytest
from dash import Dash
from plotly.utils import PlotlyJSONEncoder
from support.runs.indexes import explained, recorded
from support.web.callbacks import URL, body_of, call
from support.web.stores import slow_rank

from tracelens.comparison import RunMetrics
from tracelens.comparison import compare as compared
from tracelens.comparison.series import Difference, subtract_compute_time
from tracelens.simulator.synthetic import Fault, Scenario
from tracelens_dashboard import theme
from tracelens_dashboard.app.server import create_app
from tracelens_dashboard.components import baselines
from tracelens_dashboard.components.timeline import side_by_side
from tracelens_dashboard.figures import compare
from tracelens_dashboard.figures.axes import MOST_ROWS
from tracelens_dashboard.pages import compare as pages_compare
from tracelens_dashboard.runs.catalog import Entry, Runs
from tracelens_dashboard.runs.store import Store
from tracelens_dashboard.view import state
from tracelens_dashboard.view.state import ViewState

LATE = Fault("data", (1,), steps=(10, 49), extra_ms=9)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A healthy run, and a longer one with a late rank."""
    folder = tmp_path_factory.mktemp("runs")
    for name, scenario in {
        "healthy": Scenario(ranks=3, steps=30),
        "late": Scenario(ranks=4, steps=60, faults=(LATE,)),
    }.items():
        (folder / name).mkdir()
        explained(recorded(folder / name, scenario))
    return Runs([folder])


@pytest.fixture(scope="module")
def app(runs: Runs) -> Dash:
    return create_app(runs)


def entries(runs: Runs) -> tuple[Entry, Entry]:
    healthy, late = runs.list_entries()
    return healthy, late


def pair(runs: Runs) -> tuple[Store, Store]:
    healthy, late = (runs.open_store(entry) for entry in entries(runs))
    assert healthy
    assert late
    return late, healthy


def page(runs: Runs, view: ViewState) -> str:
    app = create_app(runs)
    late, _ = pair(runs)
    with app.server.app_context():
        return json.dumps(pages_compare.layout(late, view), cls=PlotlyJSONEncoder)


def test_one_run_is_told_how_to_add_another() -> None:
    """There is nothing to choose from, so the page says what to type."""
    alone = json.dumps(pages_compare.layout(slow_rank(), ViewState()), cls=PlotlyJSONEncoder)
    assert "tracelens serve DIR DIR" in alone


def test_a_second_run_is_chosen_first(runs: Runs) -> None:
    """Without one, or with one that is not served, there is a choice and no chart."""
    for others in ((), ("unknown",)):
        content = page(runs, ViewState(baseline_ids=others))
        assert "Choose the run to compare" in content
        assert pages_compare.MAP.card_id not in content


def test_the_sentence_says_what_changed(runs: Runs) -> None:
    """Step time with its interval, parallel efficiency of both, and the category that moved most."""
    healthy, late = entries(runs)
    content = page(runs, ViewState(run_key=late.run_key, baseline_ids=(healthy.run_key,)))
    assert "Median step" in content
    assert "% interval" in content
    assert "Parallel efficiency" in content
    assert "Largest change" in content
    assert "Only in late" in content
    assert "Straggler: rank 1" in content


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Three healthy runs, and a newer one with a rank that loads data slowly."""
    folder = tmp_path_factory.mktemp("several")
    for seed in range(3):
        explained(recorded(folder / f"main-{seed}", Scenario(ranks=3, steps=60, seed=seed)))
    explained(recorded(folder / "new", Scenario(ranks=3, steps=60, seed=9, faults=(LATE,))))
    return Runs([folder])


def against_all(several: Runs) -> tuple[Store, tuple[str, ...]]:
    *baselines_listed, new = several.list_entries()
    store = several.open_store(new)
    assert store
    return store, tuple(entry.run_key for entry in baselines_listed)


def test_a_run_is_compared_with_all_its_baselines(several: Runs) -> None:
    """As `tracelens compare` does: the same words, numbers, and findings; baselines are named."""
    app = create_app(several)
    store, baseline_ids = against_all(several)
    stores = [
        several.open_store(entry)
        for entry in several.list_entries()
        if entry.run_key in baseline_ids
    ]
    runs = [RunMetrics.from_run(steps.run) for steps in stores if steps]
    expected = compared(runs, RunMetrics.from_run(store.run))
    with app.server.app_context():
        view = ViewState(run_key=store.run_key, baseline_ids=baseline_ids)
        content = json.dumps(pages_compare.layout(store, view), cls=PlotlyJSONEncoder)
        comparison = baselines.compare_with(store, baseline_ids)
    assert comparison.metrics == expected.metrics
    assert "Slower: median step" in content
    assert "Baselines: 3 runs whose steps differ by" in content
    for name in ("main-0", "main-1", "main-2"):
        assert name in content
    assert pages_compare.MAP.card_id not in content  # that is of a pair
    assert content.count('"className": "way"') >= 3


@pytest.mark.slow
def test_ratios_have_their_intervals(several: Runs) -> None:
    """What was planted is red and beyond 1; what did not change is pale; the table has all numbers."""
    app = create_app(several)
    store, others = against_all(several)
    with app.server.app_context():
        comparison = baselines.compare_with(store, others)
    drawing = compare.changes(comparison, theme.LIGHT)
    trace = drawing.figure.data[0]
    index = list(trace.y).index("data loading")
    low = trace.x[index] - trace.error_x.arrayminus[index]
    assert low > 1
    assert trace.marker.color[index] == theme.LIGHT.slower_colour
    assert trace.marker.color[list(trace.y).index("forward")] == theme.LIGHT.quiet_colour
    assert "data loading" in drawing.summary
    row = next(row for row in drawing.rows if row["per step"] == "data loading")
    assert row["95 % from"] == pytest.approx(low, abs=1e-3)
    assert row["ratio"] == pytest.approx(row["new"] / row["baselines"], abs=0.01)
    assert len(drawing.rows) == len(comparison.metrics)


@pytest.mark.slow
def test_the_step_of_each_run_is_drawn(several: Runs) -> None:
    """The new run on top, in its own colour, then each baseline that was used."""
    app = create_app(several)
    store, others = against_all(several)
    with app.server.app_context():
        found = baselines.compare_with(store, others)
    drawing = compare.levels(found, theme.LIGHT)
    dots = drawing.figure.data[-1]
    assert list(dots.y) == ["new", "main-0", "main-1", "main-2"]
    assert dots.marker.color[0] == theme.LIGHT.accent_colour
    assert [row["is"] for row in drawing.rows] == ["new", *["baseline"] * 3]


def test_the_address_names_the_compared_runs() -> None:
    """Also of many runs; more than are compared are left out, and of a part its own limit holds."""
    ids = tuple(f"{number:012x}" for number in range(40))
    view = state.parse({"run": ids[0], "compare": ",".join(ids[1:30])})
    assert view.baseline_ids == ids[1 : 1 + state.MOST_BASELINES]
    assert state.read(view.query_string) == view
    part = state.parse({"run": ids[0] + "~s1-9", "compare": ",".join(ids[1:30])})
    assert part.baseline_keys == tuple(f"{one}~s1-9" for one in ids[1 : 1 + state.MOST_PARTS])


@pytest.mark.parametrize(
    ("low", "high"), [(0.97, 1.02), (0.6, 1.4), (0.25, 35.0), (1e-3, 1e4), (1.0, 1.0)]
)
def test_ratios_are_on_an_axis_that_holds_one(low: float, high: float) -> None:
    """With few ticks, one of them at 1, at any width."""
    axis = compare.ratio_axis(low, high)
    assert 10 ** axis["range"][0] < min(low, 1)
    assert 10 ** axis["range"][1] > max(high, 1)
    assert 1.0 in axis["tickvals"]
    assert 2 <= len(axis["tickvals"]) <= 8


@pytest.mark.parametrize("chosen", [None, "x", [5], ["unknown"], [[]], {}])
def test_nonsense_as_a_choice_leads_nowhere(app: Dash, chosen: Any) -> None:
    """The browser's choice of baselines is taken only if all of them are served."""
    listed = app.server.test_client().get("/_dash-dependencies").get_json()
    firsts = [entry for entry in listed if "compare-choice" in json.dumps(entry["inputs"])]
    body = body_of(firsts, firsts[0]["output"], {"compare-choice.value": chosen})
    assert app.server.test_client().post(URL, json=body).status_code in {204, 400}


def test_the_map_shows_who_is_slower(runs: Runs) -> None:
    """The late rank's row is positive in its steps; a scale with zero in its middle."""
    late, healthy = pair(runs)
    found = subtract_compute_time(late.residuals, healthy.residuals)
    drawing = compare.by_rank(found, theme.LIGHT, step_ns=late.category_times.median_step_ns)
    cells = np.asarray(drawing.figure.data[0].z)
    assert cells.shape == (3, 30)
    assert np.unravel_index(cells[:, 10:].argmax(), cells[:, 10:].shape)[0] == 1
    assert drawing.figure.data[0].zmin == -drawing.figure.data[0].zmax
    assert "rank 1" in drawing.summary
    assert drawing.rows[0]["rank"] == 1


def test_of_many_ranks_the_largest_difference_stands_for_its_neighbours() -> None:
    """One slower rank among 4096 keeps its sign and its size in the row that it shares."""
    own = np.zeros((4096, 5))
    own[1000, 3], own[3000, 2] = -7e6, 9e6
    found = Difference(tuple(range(4096)), tuple(range(5)), tuple(range(5)), own)
    drawing = compare.by_rank(found, theme.DARK)
    cells = np.asarray(drawing.figure.data[0].z)
    assert len(cells) <= MOST_ROWS
    assert cells[:, 3].min() == np.float32(-7e6)
    assert cells[:, 2].max() == np.float32(9e6)
    nothing = Difference((), (), (), np.zeros((0, 0)))
    assert compare.by_rank(nothing, theme.DARK).summary == compare.NOTHING


def test_a_clicked_cell_aligns_both_timelines(runs: Runs) -> None:
    """The same step begins at the same place in both windows, which are equally long."""
    app = create_app(runs)
    healthy, late = entries(runs)
    stores = pair(runs)
    values = {
        "shown-run.data": late.run_key,
        "compare-other.data": healthy.run_key,
        '{"chart":"compare-map","part":"graph"}.clickData': {"points": [{"x": 12, "y": 0}]},
        "scheme.computedColorScheme": "light",
    }
    listed = app.server.test_client().get("/_dash-dependencies").get_json()
    firsts = [entry["output"].removeprefix("..").split("...")[0] for entry in listed]
    align = next(first for first in firsts if first.startswith("together-view.data@"))
    place = call(app, "together-step.value", values).get_json()["response"]["together-step"]
    answer = call(app, align, values | {"together-step.value": place["value"]})
    sync = answer.get_json()["response"]["together-view"]["data"]
    assert sync["step"] == 12
    drawn = call(app, "together-here.figure", values | {"together-view.data": sync}).get_json()
    for store, graph in zip(stores, ("together-here", "together-there"), strict=True):
        low, high = drawn["response"][graph]["figure"]["layout"]["xaxis"]["range"]
        begin = (store.step_windows["start_ns"][12] - store.run_window.start_ns) / 1e9
        assert begin - low == pytest.approx(-sync["t0"] / 1e9)
        assert high - low == pytest.approx((sync["t1"] - sync["t0"]) / 1e9)


@pytest.mark.parametrize(
    "sync", [None, 5, {}, {"begins": [0], "t0": 0, "t1": 1}, {"begins": ["0", 1], "t0": 0, "t1": 1}]
)
def test_nonsense_from_the_browser_draws_nothing(app: Dash, runs: Runs, sync: Any) -> None:
    """Whatever the browser sends as a window, the answer is a figure."""
    healthy, late = entries(runs)
    values = {
        "shown-run.data": late.run_key,
        "compare-other.data": healthy.run_key,
        "together-view.data": sync,
        "scheme.computedColorScheme": "light",
    }
    assert call(app, "together-here.figure", values).status_code == 200


def test_the_whole_of_both_runs_is_shown_first(runs: Runs) -> None:
    """Before a step is chosen nothing of either run is outside of the window."""
    for store, begin_ns in zip(
        pair(runs), side_by_side.view_whole(*pair(runs))["begins"], strict=True
    ):
        shown = side_by_side.view_whole(*pair(runs))
        assert begin_ns + shown["t0"] <= 0
        assert begin_ns + shown["t1"] >= store.run_window.width_ns


def test_two_timelines_share_one_scale(runs: Runs) -> None:
    """What lasts the same in both is as red in both; the scale stands above them, with its end."""
    stores = pair(runs)
    ceiling = side_by_side.common_ceiling(stores)
    assert ceiling == max(store.residuals.ceiling_ns for store in stores)
    late, healthy = stores
    assert healthy.residuals.ceiling_ns < late.residuals.ceiling_ns
    sync = side_by_side.view_whole(late, healthy)
    window = side_by_side._read_window(sync, 1)
    alone = side_by_side._draw_timeline(healthy, window, theme.LIGHT, healthy.residuals.ceiling_ns)
    beside = side_by_side._draw_timeline(healthy, window, theme.LIGHT, ceiling)
    assert alone.layout.images[0].source != beside.layout.images[0].source
