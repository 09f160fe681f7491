"""Keys of the timeline that need to know the run: fit, pin, the step or finding before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dash import ClientsideFunction, Input, Output, State, dcc, html
from dash.exceptions import PreventUpdate

from tracelens_dashboard import asked, ids, sight, steering
from tracelens_dashboard.figures.strip import SECOND

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

PRESSED: Final = "timeline-key"  # assets/timeline.js says there which key was pressed
GOTO: Final = "timeline-goto"


def layout() -> Component:
    """Return what keys speak through."""
    return html.Div([dcc.Store(id=PRESSED), dcc.Store(id=GOTO)])


def register(app: Dash, graph: str, view: str, selected: str, rows: tuple[str, str]) -> None:
    """Answer keys; the arguments name the timeline's components, `rows` the pins and their order."""
    pins, sort = rows

    @app.callback(
        Output(GOTO, "data"),
        Input(PRESSED, "data"),
        State(view, "data"),
        State(selected, "data"),
        asked.RUN,
        prevent_initial_call=True,
    )
    def go(pressed: Any, seen: Any, chosen: Any, run: Any) -> list[float]:
        found = steering.window(asked.store(run), _key(pressed), seen, chosen)
        if found is None:
            raise PreventUpdate
        return [found.start_ns / SECOND, found.end_ns / SECOND]

    @app.callback(
        Output(pins, "value"),
        Input(PRESSED, "data"),
        State(view, "data"),
        State(pins, "value"),
        State(sort, "value"),
        State(graph, "hoverData"),
        State(selected, "data"),
        asked.RUN,
        prevent_initial_call=True,
    )
    def pin(pressed: Any, seen: Any, pinned: Any, order: Any, *rest: Any) -> list[str]:
        hover, chosen, run = rest
        if _key(pressed) != steering.PIN:
            raise PreventUpdate
        store = asked.store(run)
        place = sight.at(sight.frame(store, seen, pinned, order), hover)
        place = place or sight.place_of(store, chosen)
        changed = steering.pinned(store, pinned, steering.rank_of(store, place and place[0]))
        if changed is None:
            raise PreventUpdate
        return changed

    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "go"), Input(GOTO, "data"), prevent_initial_call=True
    )


def _key(pressed: Any) -> object:
    return pressed.get("key") if isinstance(pressed, dict) else None
