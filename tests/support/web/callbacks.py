"""Calls a Dash callback over HTTP, as the browser does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dash import Dash
    from werkzeug.test import TestResponse

URL = "/_dash-update-component"


def call(app: Dash, output: str, values: dict[str, Any], **headers: str) -> TestResponse:
    """Call the callback whose first output is `output` ("id.property").

    `values` are its inputs and states by "id.property"; what is not given is null.
    """
    body = request(app, output, values)
    answer: TestResponse = app.server.test_client().post(URL, json=body, headers=headers)
    return answer


def request(app: Dash, output: str, values: dict[str, Any]) -> dict[str, Any]:
    """Write what the browser would post."""
    listed = app.server.test_client().get("/_dash-dependencies").get_json()
    return body_of(listed, output, values)


def body_of(listed: list[dict[str, Any]], output: str, values: dict[str, Any]) -> dict[str, Any]:
    """Write it for one of the callbacks that a server lists."""
    callback = next(entry for entry in listed if _first_output(entry["output"]) == output)
    return {
        "output": callback["output"],
        "outputs": _outputs(callback["output"]),
        "inputs": [_input_value(item, values) for item in callback["inputs"]],
        "state": [_input_value(item, values) for item in callback["state"]],
        "changedPropIds": [_name(item) for item in callback["inputs"]],
    }


def _names(output: str) -> list[str]:
    return output[2:-2].split("...") if output.startswith("..") else [output]


def _first_output(output: str) -> str:
    return _names(output)[0]


def _outputs(output: str) -> Any:
    split = [name.rsplit(".", 1) for name in _names(output)]
    parts = [{"id": _identity(name), "property": key} for name, key in split]
    return parts if output.startswith("..") else parts[0]


def _identity(name: str) -> Any:
    return json.loads(name) if name.startswith("{") else name


def _name(item: dict[str, Any]) -> str:
    return f"{item['id']}.{item['property']}"


def _input_value(item: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    identity = _identity(item["id"])
    return {"id": identity, "property": item["property"], "value": values.get(_name(item))}
