"""Draws the timeline, and answers zoom, drag and selection with what they change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dash import ClientsideFunction, Input, Output, Patch, State
from dash.exceptions import PreventUpdate

from tracelens_dashboard import asked, ids, sight
from tracelens_dashboard import theme as themes
from tracelens_dashboard.components.timeline import names
from tracelens_dashboard.figures import timeline, timeline_words

if TYPE_CHECKING:
    from dash import Dash

    from tracelens.lod.query import Picture
    from tracelens_dashboard.figures.frame import Frame


def register(app: Dash) -> None:
    """Add the callbacks; the address bar is kept true by the browser."""
    _register_drawing(app)
    _register_following(app)
    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "wide"),
        Output(names.WIDE, "data"),
        Input(ids.SCHEME, "computedColorScheme"),
    )
    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "moved"),
        Output(names.VIEW, "data"),
        Input(names.GRAPH, "relayoutData"),
        State(names.VIEW, "data"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "remember"),
        Output(names.WINDOW, "style"),
        Input(names.VIEW, "data"),
        Input(names.PINS, "value"),
        Input(names.SORT, "value"),
        Input(names.SELECTED, "data"),
        Input(names.PATH, "checked"),
    )


def _register_drawing(app: Dash) -> None:
    @app.callback(
        Output(names.GRAPH, "figure"),
        Output(names.GRAPH, "style"),
        Output(names.NOTE, "children"),
        Output(names.PLOT, "aria-label"),
        Input(ids.SCHEME, "computedColorScheme"),
        Input(names.WIDE, "data"),
        Input(names.PINS, "value"),
        Input(names.SORT, "value"),
        State(names.VIEW, "data"),
        State(names.SELECTED, "data"),
        State(names.PATH, "checked"),
        asked.RUN,
    )
    def draw(scheme: str | None, *shown: Any) -> tuple[Any, ...]:
        if scheme is None:
            raise PreventUpdate
        frame = _frame(*shown)
        picture = sight.picture(frame)
        figure = timeline.draw(frame, picture, themes.of(scheme))
        note = timeline_words.note(frame, picture)
        return figure, {"height": f"{timeline.height(frame.plan)}px"}, note, note


def _register_following(app: Dash) -> None:
    @app.callback(
        Output(names.GRAPH, "figure", allow_duplicate=True),
        Output(names.NOTE, "children", allow_duplicate=True),
        Output(names.PLOT, "aria-label", allow_duplicate=True),
        Input(names.VIEW, "data"),
        Input(names.SELECTED, "data"),
        Input(names.PATH, "checked"),
        State(ids.SCHEME, "computedColorScheme"),
        State(names.PINS, "value"),
        State(names.SORT, "value"),
        State(names.WIDE, "data"),
        asked.RUN,
        prevent_initial_call=True,
    )
    def follow(view: Any, call: Any, path: Any, scheme: str | None, *how: Any) -> tuple[Any, ...]:
        pins, sort, wide, run = how
        frame = _frame(wide, pins, sort, view, call, path, run)
        picture = sight.picture(frame)
        note = timeline_words.note(frame, picture)
        return _patch(frame, picture, themes.of(scheme)), note, note


def _frame(wide: Any, pins: Any, sort: Any, *seen: Any) -> Frame:
    view, call, path, run = seen
    return sight.frame(asked.store(run), view, pins, sort, call, wide=wide, path=path)


def _patch(frame: Frame, picture: Picture, theme: themes.Theme) -> Patch:
    """Return what changes; all else of the figure stays."""
    parts = timeline.changing(frame, picture, theme)
    patch = Patch()
    patch["data"] = parts["data"]
    for name in ("images", "shapes", "annotations"):
        patch["layout"][name] = parts[name]
    for name, texts in timeline.tick_texts(frame, parts["ticks"]).items():
        patch["layout"]["xaxis2"][name] = texts
    return patch
