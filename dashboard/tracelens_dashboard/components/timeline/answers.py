"""What the timeline answers when it is asked: for a span, for a time range.

A clicked span is shown beside the plot (`inspector`); of a range selected with the mouse, what it was
spent on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dash import Input, Output
from dash.exceptions import PreventUpdate

from tracelens.lod import search
from tracelens_dashboard import text
from tracelens_dashboard.components.timeline import area, inspector, names
from tracelens_dashboard.runs import current
from tracelens_dashboard.theme import name_of
from tracelens_dashboard.view import viewport

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.view.state import ViewState
    from tracelens_dashboard.view.viewport import Place

Chosen = dict[str, int | None]  # what the browser keeps of what is selected

MOST_CATEGORIES: Final = 6


def register(app: Dash) -> None:
    """Describe what is clicked and measured."""
    _register_details(app)
    _register_measure(app)


def selected(store: Store, place: Place) -> Chosen:
    """Return what the browser keeps of what is selected."""
    return {"lane": place.lane, "at": place.at_ns - store.whole.start_ns, "track": place.track}


def clicked(view: ViewState) -> Chosen | None:
    """Return what a link selects, as a click would."""
    return (
        dict(zip(("lane", "at", "track"), view.selected, strict=False)) if view.selected else None
    )


def described(store: Store, chosen: Any) -> Component | None:
    """Describe what a link selects; None without that."""
    place = viewport.place_of(store, chosen)
    return inspector.span_details(store, place) if place else None


def _register_details(app: Dash) -> None:
    @app.callback(
        Output(names.DETAILS, "children"),
        Output(names.SELECTED, "data"),
        Input(names.GRAPH, "clickData"),
        *area.SHOWN,
        prevent_initial_call=True,
    )
    def describe(click: Any, *shown: Any) -> tuple[Component, Any]:
        store, frame = area.seen(*shown)
        found = viewport.at(store, frame, click)
        if found is None:
            raise PreventUpdate
        return inspector.span_details(store, found), selected(store, found)


def _register_measure(app: Dash) -> None:
    @app.callback(
        Output(names.MEASURED, "children"),
        Input(names.GRAPH, "selectedData"),
        current.RUN,
        prevent_initial_call=True,
    )
    def measure(selected: Any, run: Any) -> str:
        return time_in(current.store(run), selected)


def time_in(store: Store, selected: Any) -> str:
    """Return how long the selected time range is, and what all ranks did in it; empty without one."""
    marked = area.marked_window(store, selected)
    if marked is None:
        return ""
    spent = search.time_by_category(store.scene.lanes, marked)
    total = max(sum(spent.values()), 1)
    parts = [
        f"{name_of(label)} {text.percent(ns / total)}"
        for label, ns in list(spent.items())[:MOST_CATEGORIES]
    ]
    length = text.duration(marked.width_ns)
    begin = text.duration(marked.start_ns - store.whole.start_ns)
    what = ", ".join(parts) if parts else "nothing recorded"
    return f"Selected: {length}, starting at {begin}. All ranks: {what}."
