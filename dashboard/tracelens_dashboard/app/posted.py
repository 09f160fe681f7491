"""What a browser may post to callbacks: what they declare, with values of the types that these have.

Dash itself answers anything else with a traceback in the log and status 500.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from flask import abort, request

if TYPE_CHECKING:
    from dash import Dash

PATH: Final = "/_dash-update-component"
_REFUSAL: Final = "Unknown request: no page of this server sends it."
# By property; whatever has no value yet is null.
TYPES_BY_PROPERTY: Final[dict[str, tuple[type, ...]]] = {
    "cellClicked": (dict,),
    "checked": (bool,),
    "clickData": (dict,),
    "computedColorScheme": (str,),
    "data": (str, int, float, bool, list, dict),
    "figure": (dict,),
    "hoverData": (dict,),
    "id": (dict,),
    "n_clicks": (int,),
    "n_intervals": (int,),
    "n_submit": (int,),
    "navbar": (dict,),
    "opened": (bool,),
    "pathname": (str,),
    "relayoutData": (dict,),
    "rowData": (list,),
    "search": (str,),
    "selectedData": (dict,),
    "value": (str, int, float, list),
}
_POINT_PROPERTIES: Final = frozenset({"clickData", "hoverData", "selectedData"})
_SCALAR_TYPES: Final = (str, int, float)


def check(app: Dash) -> None:
    """Answer a request with 400 if its body belongs to no callback."""
    if request.path != PATH or request.method != "POST":
        return
    try:
        body = json.loads(request.get_data())
    except (ValueError, RecursionError):
        abort(400, _REFUSAL)
    if not _calls_known_callback(app, body):
        abort(400, _REFUSAL)


def _calls_known_callback(app: Dash, body: Any) -> bool:
    """Return True if a body posts values for the inputs and states of one of our callbacks."""
    # Such a callback declares its inputs and states as dicts with ``id`` and ``property``.
    if not isinstance(body, dict) or not isinstance(body.get("output"), str):
        return False
    callback = app.callback_map.get(body["output"])
    changed_ids = body.get("changedPropIds", [])
    return (
        callback is not None
        and _has_values_for(body.get("inputs", []), callback["inputs"])
        and _has_values_for(body.get("state", []), callback["state"])
        and isinstance(body.get("outputs"), list | dict)
        and isinstance(changed_ids, list)
        and all(isinstance(name, str) for name in changed_ids)
    )


def _has_values_for(posted: Any, arguments: list[dict[str, Any]]) -> bool:
    """Return True if there is an entry for each declared argument; for a pattern of ids several."""
    return (
        isinstance(posted, list)
        and len(posted) == len(arguments)
        and all(
            _is_value_of(entry, argument["property"])
            for entries, argument in zip(posted, arguments, strict=True)
            for entry in (entries if isinstance(entries, list) else [entries])
        )
    )


def _is_value_of(entry: Any, property_name: str) -> bool:
    """Return True if an entry (id, property, value) has a value of its property's types or none."""
    if not isinstance(entry, dict) or entry.get("property") != property_name or "id" not in entry:
        return False
    value = entry.get("value")
    types = TYPES_BY_PROPERTY[property_name]
    if value is None:
        return True
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        return False
    return property_name not in _POINT_PROPERTIES or _has_points(value)


def _has_points(value: Any) -> bool:
    """Return True if each point has a place and custom data: a value, then values or lists of values."""
    points = value.get("points", [])
    return isinstance(points, list) and all(_is_point(point) for point in points)


def _is_point(point: Any) -> bool:
    """Return True if a point has a position and custom data: a value, then values or lists."""
    if not isinstance(point, dict):
        return False
    data = point.get("customdata")
    first_value, *other_values = (data or [None]) if isinstance(data, list) else [data]
    return (
        all(isinstance(point.get(axis), _SCALAR_TYPES) for axis in "xy")
        and _is_plain(first_value)
        and all(
            all(map(_is_plain, value)) if isinstance(value, list) else _is_plain(value)
            for value in other_values
        )
    )


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, _SCALAR_TYPES)
