"""The page "Scaling" says of the served runs what `tracelens scaling` says, and draws it."""

import json
from typing import Any

import pytest
from dash import Dash
from support.runs.indexes import explained, recorded
from support.web.callbacks import call
from support.web.stores import slow_rank

from tracelens.lod import opening
from tracelens.scaling import Point, curves, messages
from tracelens.simulator.synthetic import Scenario
from tracelens_dashboard.app.server import create_app
from tracelens_dashboard.pages import scaling as page
from tracelens_dashboard.runs.catalog import Runs
from tracelens_dashboard.view.state import ViewState

SIZES = (2, 4, 8, 16)
GRAPH = '{{"chart":"{}","part":"graph"}}.figure'
LIGHT = {"scheme.computedColorScheme": "light"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Runs of four sizes whose reductions take longer the more ranks there are, and one not read yet."""
    root = tmp_path_factory.mktemp("runs")
    for ranks in SIZES:
        folder = root / f"{ranks:02}-ranks"
        folder.mkdir()
        scenario = Scenario(ranks=ranks, steps=20, overlap=False, transfer_ms=0.4 * ranks)
        explained(recorded(folder, scenario))
    (root / "unread").mkdir()
    recorded(root / "unread", Scenario(ranks=3, steps=5))
    return Runs([root])


@pytest.fixture(scope="module")
def app(runs: Runs) -> Dash:
    return create_app(runs)


def values_sent(runs: Runs, **values: Any) -> dict[str, Any]:
    """Return the values that the browser sends: all runs, unless chosen otherwise."""
    first_run = next(iter(runs.list_entries()))
    controls = {"chosen": page.CHOSEN, "by": page.BY, "kind": page.KIND, "ahead": page.AHEAD}
    chosen = {"chosen": [entry.run_key for entry in runs.list_entries()]} | values
    sent = {f"{controls[name]}.value": value for name, value in chosen.items()}
    return LIGHT | {"shown-run.data": first_run.run_key} | sent


def verdict_of(app: Dash, values: dict[str, Any]) -> str:
    answer = call(app, f"{page.VERDICT}.children", values)
    assert answer.status_code == 200
    return json.dumps(answer.get_json(), ensure_ascii=False).replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.slow
def test_it_says_what_the_terminal_says(app: Dash, runs: Runs) -> None:
    """Verdict, why, next, scope; and that a run was not read."""
    ready = [entry for entry in runs.list_entries() if entry.name != "unread"]
    points = []
    for entry in ready:
        run = opening.open_indexed(entry.path)
        assert run
        points.append(Point.from_run(run, entry.name))
    expected = curves(points)
    verdict = verdict_of(app, values_sent(runs))
    for line in (
        messages.write_headline(expected),
        messages.explain_loss(expected),
        messages.describe_scope(expected),
    ):
        assert line in verdict
    assert "1 run not analyzed yet" in verdict


def test_factors_multiply_up_to_efficiency(app: Dash, runs: Runs) -> None:
    """A line each, from 100 % on the smallest run down."""
    figure = call(app, GRAPH.format(page.FACTORS.card_id), values_sent(runs)).get_json()["response"]
    (drawn,) = (part["figure"] for part in figure.values() if "figure" in part)
    lines = {line["name"]: line["y"] for line in drawn["data"]}
    assert lines.keys() == {"efficiency", *messages.WORDS.values()}
    for index in range(len(SIZES)):
        product = 1.0
        for factor in messages.WORDS.values():
            product *= lines[factor][index]
        assert product == pytest.approx(lines["efficiency"][index])
    assert lines["efficiency"][0] == 1
    assert lines["efficiency"][-1] < 0.9
    assert drawn["layout"]["xaxis"]["tickvals"] == list(SIZES)


def test_a_forecast_is_drawn_with_its_interval(app: Dash, runs: Runs) -> None:
    given = values_sent(runs, ahead="32, 64 nonsense 0")
    answer = call(app, GRAPH.format(page.STEPS.card_id), given).get_json()["response"]
    (drawn,) = (part["figure"] for part in answer.values() if "figure" in part)
    ahead = next(line for line in drawn["data"] if line["name"] == "forecast")
    assert ahead["x"] == [32, 64]
    assert all(more > 0 for more in ahead["error_y"]["array"])


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"chosen": []}, "no system with two sizes"),
        ({"chosen": None, "by": "shards"}, "no system with two sizes"),
        ({"chosen": ["nonsense", 7], "kind": "x", "ahead": 3}, "no system with two sizes"),
    ],
)
def test_what_cannot_be_compared_is_a_sentence(
    app: Dash, runs: Runs, values: dict[str, Any], reason: str
) -> None:
    assert reason in verdict_of(app, values_sent(runs, **values))
    for name in (page.FACTORS.card_id, page.STEPS.card_id):
        answer = call(app, GRAPH.format(name), values_sent(runs, **values))
        assert answer.status_code == 200
        assert reason in answer.text


def test_too_few_sizes_for_a_forecast(app: Dash, runs: Runs) -> None:
    two = [entry.run_key for entry in runs.list_entries()][:2]
    assert "a forecast" in verdict_of(app, values_sent(runs, chosen=two, ahead="64"))


def test_one_run_has_no_scaling() -> None:
    """The page says how to add others."""
    assert "tracelens serve DIR DIR" in str(page.layout(slow_rank(), ViewState()))
