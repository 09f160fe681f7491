"""What no page of ours would post is answered with 400, and no traceback is logged."""

from typing import Any

import pytest
from dash import Dash
from support.web.callbacks import URL, request
from support.web.stores import slow_rank

from tracelens_dashboard.app.posted import TYPES_BY_PROPERTY
from tracelens_dashboard.app.server import create_app

GRAPH = '{"chart":"waterfall","part":"graph"}.figure'
SCHEME = "scheme.computedColorScheme"


@pytest.fixture(scope="module")
def app() -> Dash:
    return create_app(slow_rank())


def status(app: Dash, caplog: pytest.LogCaptureFixture, **body: Any) -> int:
    answer = app.server.test_client().post(URL, **body)
    assert "Traceback" not in caplog.text + answer.text
    return int(answer.status_code)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff", b"[]", b"null", b"{}", b"[" * 200_000, b'{"output": ["x"]}']
)
def test_a_body_that_is_none(app: Dash, caplog: pytest.LogCaptureFixture, data: bytes) -> None:
    """Damaged JSON, JSON that is no request, nesting without an end."""
    assert status(app, caplog, data=data, content_type="application/json") == 400


@pytest.mark.parametrize("value", [5, True, ["light"], {"x": 1}])
def test_a_value_of_another_type(app: Dash, caplog: pytest.LogCaptureFixture, value: Any) -> None:
    """The same request with a word is answered."""
    assert status(app, caplog, json=request(app, GRAPH, {SCHEME: value})) == 400
    assert status(app, caplog, json=request(app, GRAPH, {SCHEME: "light"})) == 200


PLACE = {"x": 3, "y": "rank 1"}


@pytest.mark.parametrize(
    "click",
    [
        {"points": 5},
        {"points": [5]},
        {"points": [{}]},
        {"points": [{"x": 3}]},
        {"points": [PLACE | {"x": [3]}]},
        {"points": [PLACE, PLACE | {"customdata": {"step": 3}}]},
        {"points": [PLACE | {"customdata": [[3]]}]},
    ],
)
def test_a_click_that_is_none(app: Dash, caplog: pytest.LogCaptureFixture, click: Any) -> None:
    """What a chart posts holds places; none of these reaches a callback that follows clicks."""
    graphs = {
        output.strip(".").split("...")[0]: f"{dependency['id']}.clickData"
        for output, callback in app.callback_map.items()
        for dependency in callback["inputs"]
        if dependency["property"] == "clickData"
    }
    assert len(graphs) >= 5
    for output, graph in graphs.items():
        assert status(app, caplog, json=request(app, output, {graph: click})) == 400


@pytest.mark.parametrize(
    "change",
    [
        {"output": "nothing.figure"},
        {"inputs": 5},
        {"inputs": [5]},
        {"inputs": []},
        {"inputs": [{"id": "scheme", "property": "other", "value": "light"}]},
        {"state": [{}]},
        {"outputs": "x"},
        {"changedPropIds": [5]},
        {"changedPropIds": "x"},
    ],
)
def test_another_request_than_was_declared(
    app: Dash, caplog: pytest.LogCaptureFixture, change: dict[str, Any]
) -> None:
    """Unknown callbacks, and those with other inputs."""
    assert status(app, caplog, json=request(app, GRAPH, {SCHEME: "light"}) | change) == 400


def test_all_properties_have_types(app: Dash) -> None:
    """A new one needs an entry."""
    entries = (
        callback[part] for callback in app.callback_map.values() for part in ("inputs", "state")
    )
    assert {item["property"] for entry in entries for item in entry} <= set(TYPES_BY_PROPERTY)
