"""What the timeline answers when it is asked: of a span, of a name, of a stretch of time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dash import Input, Output, State
from dash.exceptions import PreventUpdate

from tracelens_dashboard import asked, sight
from tracelens_dashboard.components import details, matches, measured
from tracelens_dashboard.components.timeline import names

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from tracelens_dashboard.state import ViewState
    from tracelens_dashboard.store import Store


def register(app: Dash) -> None:
    """Describe what is clicked, found and measured."""
    _register_details(app)
    _register_search(app)
    _register_measure(app)


def clicked(view: ViewState) -> dict[str, int] | None:
    """Return what a link selects, as a click would."""
    return {"lane": view.selected[0], "at": view.selected[1]} if view.selected else None


def described(store: Store, view: ViewState) -> Component:
    """Describe what a link selects; else say what a click would do."""
    place = sight.place_of(store, clicked(view))
    return details.of_span(store, *place) if place else details.hint()


def _register_details(app: Dash) -> None:
    @app.callback(
        Output(names.DETAILS, "children"),
        Output(names.SELECTED, "data"),
        Input(names.GRAPH, "clickData"),
        State(names.PINS, "value"),
        State(names.SORT, "value"),
        State(names.VIEW, "data"),
        State(names.WIDE, "data"),
        asked.RUN,
        prevent_initial_call=True,
    )
    def describe(click: Any, *shown: Any) -> tuple[Component, Any]:
        pins, sort, view, wide, run = shown
        store = asked.store(run)
        found = sight.at(sight.frame(store, view, pins, sort, wide=wide), click)
        if found is None:
            raise PreventUpdate
        lane, at_ns = found
        return details.of_span(store, *found), {"lane": lane, "at": at_ns - store.whole.start_ns}


def _register_search(app: Dash) -> None:
    @app.callback(
        Output(names.FOUND, "children"),
        Input(names.SEARCH, "value"),
        Input(names.VIEW, "data"),
        asked.RUN,
        prevent_initial_call=True,
    )
    def find(wanted: Any, view: Any, run: Any) -> Component | None:
        store = asked.store(run)
        return matches.of_text(store, wanted, sight.frame(store, view, [], None).seen)


def _register_measure(app: Dash) -> None:
    @app.callback(
        Output(names.MEASURED, "children"),
        Input(names.GRAPH, "selectedData"),
        asked.RUN,
        prevent_initial_call=True,
    )
    def measure(selected: Any, run: Any) -> str:
        return measured.sentence(asked.store(run), selected)
