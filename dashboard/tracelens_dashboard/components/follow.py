"""A click on a mark leads to the timeline.

The server answers into the chart's card, the browser goes there: callbacks that answer into the frame
are called whenever a page is opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dash import ALL, ClientsideFunction, Input, Output
from dash.exceptions import PreventUpdate

from tracelens_dashboard import asked, ids
from tracelens_dashboard.figures import cells

if TYPE_CHECKING:
    from collections.abc import Callable

    from dash import Dash, State

    from tracelens_dashboard.store import Store


def register(app: Dash) -> None:
    """Go where a card's chart leads."""
    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "follow"),
        Output(ids.GO, "href", allow_duplicate=True),
        Input({"chart": ALL, "part": "lead"}, "data"),
        prevent_initial_call=True,
    )


def bind(app: Dash, chart: str, lead: Callable[..., str | None], *states: State) -> None:
    """Go where `lead(store, point, *values)` says when a point of a chart is clicked."""

    @app.callback(
        Output(ids.part(chart, "lead"), "data", allow_duplicate=True),
        Input(ids.part(chart, "graph"), "clickData"),
        asked.RUN,
        *states,
        prevent_initial_call=True,
    )
    def follow(click: dict[str, Any] | None, run: Any, *values: Any) -> str:
        points = (click or {}).get("points")
        href = lead(asked.store(run), cells.read(points[0]), *values) if points else None
        if not href:
            raise PreventUpdate
        return href


def bind_rows(app: Dash, chart: str, lead: Callable[[Store, int], str | None]) -> None:
    """Go where `lead(store, place)` says when a row of a chart's table is clicked.

    `place` is the row's in the drawing, however the table is sorted.
    """

    @app.callback(
        Output(ids.part(chart, "lead"), "data", allow_duplicate=True),
        Input(ids.part(chart, "rows"), "cellClicked"),
        asked.RUN,
        prevent_initial_call=True,
    )
    def follow(cell: dict[str, Any] | None, run: Any) -> str:
        place = str((cell or {}).get("rowId"))
        href = lead(asked.store(run), int(place)) if place.isdecimal() else None
        if not href:
            raise PreventUpdate
        return href
