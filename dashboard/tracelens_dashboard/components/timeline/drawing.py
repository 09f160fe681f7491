"""Draw the timeline; answer zoom, drag, selection, opening and closing with what they change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dash import ClientsideFunction, Input, Output, Patch, State, no_update
from dash.exceptions import PreventUpdate

from tracelens_dashboard import ids
from tracelens_dashboard import theme as themes
from tracelens_dashboard.components.timeline import gutter, names
from tracelens_dashboard.figures.timeline import plot
from tracelens_dashboard.runs import current
from tracelens_dashboard.view import viewport
from tracelens_dashboard.view.viewport import Controls

if TYPE_CHECKING:
    from dash import Dash

    from tracelens.lod.query import Picture
    from tracelens_dashboard.figures.timeline.frame import Frame
    from tracelens_dashboard.runs.store import Store


def register(app: Dash) -> None:
    """Add the callbacks; the address bar is kept true by the browser."""
    _register_drawing(app)
    _register_following(app)
    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "wide"),
        Output(names.WIDE, "data"),
        Output(names.TALL, "data"),
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
        Input(names.OPENED, "data"),
        Input(names.ROW, "value"),
        Input(names.SEARCH, "value"),
        Input(names.NOTES, "data"),
    )


def _register_drawing(app: Dash) -> None:
    changed_layout = (
        names.WIDE, names.TALL, names.OPENED, names.ROW, names.PINS, names.SORT, names.NOTES
    )  # fmt: skip

    @app.callback(
        Output(names.GRAPH, "figure"),
        Output(names.GRAPH, "style"),
        Output(names.NOTE, "children"),
        Output(names.PLOT, "aria-label"),
        Output(names.GUTTER, "children"),
        Input(ids.SCHEME, "computedColorScheme"),
        Input(names.EDITION, "data"),
        *names.control_arguments(*changed_layout),
        current.RUN,
    )
    def draw(scheme: str | None, _edition: Any, *values: Any) -> tuple[Any, ...]:
        if scheme is None:
            raise PreventUpdate
        *controls, run = values
        frame = viewport.frame(current.store(run), Controls(*controls))
        picture = viewport.picture(frame)
        figure = plot.draw(frame, picture, themes.of(scheme))
        note = plot.note(frame, picture)
        style = {"height": f"{plot.height(frame)}px"}
        return figure, style, note, note, gutter.layout(frame)

    @app.callback(
        Output(names.VIEW, "data", allow_duplicate=True),
        Output(names.EDITION, "data"),
        Input(ids.RUN, "data"),
        State(names.VIEW, "data"),
        prevent_initial_call=True,
    )
    def grow(run: Any, view: Any) -> tuple[Any, str]:
        return grown(current.store(run), view), str(run)


def grown(store: Store, view: Any) -> Any:
    """Return the page's view of a run that was read again: what reached to its end still does."""
    whole_ns = store.whole.width_ns
    if not isinstance(view, dict) or view.get("whole") == whole_ns:
        return no_update
    was_at_end = (view.get("t1") or 0) >= (view.get("whole") or 0)
    return view | {"whole": whole_ns, "t1": whole_ns if was_at_end else view.get("t1")}


def _register_following(app: Dash) -> None:
    @app.callback(
        Output(names.GRAPH, "figure", allow_duplicate=True),
        Output(names.NOTE, "children", allow_duplicate=True),
        Output(names.PLOT, "aria-label", allow_duplicate=True),
        *names.control_arguments(names.VIEW, names.SELECTED, names.PATH),
        State(ids.SCHEME, "computedColorScheme"),
        current.RUN,
        prevent_initial_call=True,
    )
    def follow(*values: Any) -> tuple[Any, ...]:
        *control_values, scheme, run = values
        controls = Controls(*control_values)
        if (
            controls.wide_px is None
        ):  # not drawn yet: a store without data says once that it changed
            raise PreventUpdate
        frame = viewport.frame(current.store(run), controls)
        picture = viewport.picture(frame)
        note = plot.note(frame, picture)
        return _patch(frame, picture, themes.of(scheme)), note, note


def _patch(frame: Frame, picture: Picture, theme: themes.Theme) -> Patch:
    """Patch what changes; all else of the figure stays."""
    changes = plot.changing(frame, picture, theme)
    patch = Patch()
    patch["data"] = changes["data"]
    for name in ("images", "shapes", "annotations"):
        patch["layout"][name] = changes[name]
    for name, texts in plot.tick_texts(frame, changes["ticks"]).items():
        patch["layout"]["xaxis2"][name] = texts
    return patch
