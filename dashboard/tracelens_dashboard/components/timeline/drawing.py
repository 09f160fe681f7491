"""Draw the timeline; answer zoom, drag, selection, opening and closing with what they change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dash import ClientsideFunction, Dash, Input, Output, State, no_update

from tracelens_dashboard import ids
from tracelens_dashboard import theme as themes
from tracelens_dashboard.components.timeline import gutter, names
from tracelens_dashboard.figures.timeline import plot
from tracelens_dashboard.runs import current
from tracelens_dashboard.view import viewport

if TYPE_CHECKING:
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
    """Draw the timeline anew when its layout changes; let its view grow with a recorded run."""
    layout_controls = (
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
        *names.control_arguments(*layout_controls),
    )
    def draw(scheme: str | None, _edition: Any, *values: Any) -> tuple[Any, ...]:
        """Return the timeline's figure and style, its note twice, and the row buttons."""
        theme = themes.for_scheme(current.prevent_update_unless(scheme))
        frame = viewport.frame(*names.read_arguments(values))
        picture = viewport.picture(frame)
        figure = plot.draw(frame, picture, theme)
        note = plot.describe_picture(frame, picture)
        style = {"height": f"{plot.height_px(frame)}px"}
        return figure, style, note, note, gutter.layout(frame)

    @app.callback(
        Output(names.VIEW, "data", allow_duplicate=True),
        Output(names.EDITION, "data"),
        Input(ids.RUN, "data"),
        State(names.VIEW, "data"),
        prevent_initial_call=True,
    )
    def follow_end(run_key: Any, view_data: Any) -> tuple[Any, str]:
        """Return the view of a run that was read again, and its key: a view of its end stays there."""
        return grow_view(current.store_of_run(run_key), view_data), str(run_key)


def grow_view(store: Store, view_data: Any) -> Any:
    """Return the view of a run that was read again; if it reached to the end it still does."""
    # A view has a window, `t0` to `t1` (ns since the start), and its run's length, `whole`.
    run_length_ns = store.run_window.width_ns
    if not isinstance(view_data, dict) or view_data.get("whole") == run_length_ns:
        return no_update
    was_at_end = (view_data.get("t1") or 0) >= (view_data.get("whole") or 0)
    return view_data | {
        "whole": run_length_ns,
        "t1": run_length_ns if was_at_end else view_data.get("t1"),
    }


def _register_following(app: Dash) -> None:
    """Send what the view, the selection and the critical path change; the browser puts it in."""
    # A `Patch` of the figure would be an error in the browser where its page was left meanwhile.
    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "change"),
        Output(names.GRAPH, "figure", allow_duplicate=True),
        Input(names.CHANGE, "data"),
        State(names.GRAPH, "figure"),
        prevent_initial_call=True,
    )

    @app.callback(
        Output(names.CHANGE, "data"),
        Output(names.NOTE, "children", allow_duplicate=True),
        Output(names.PLOT, "aria-label", allow_duplicate=True),
        State(ids.SCHEME, "computedColorScheme"),
        *names.control_arguments(names.VIEW, names.SELECTED, names.PATH),
        prevent_initial_call=True,
    )
    def draw_view(scheme: str | None, *values: Any) -> tuple[Any, ...]:
        """Return the change of the figure, and a note twice; `values` are those of the controls."""
        store, controls = names.read_arguments(values)
        # Without a width it is not drawn yet, and only a store without data changed.
        current.prevent_update_unless(controls.plot_width_px)
        frame = viewport.frame(store, controls)
        picture = viewport.picture(frame)
        note = plot.describe_picture(frame, picture)
        return _list_changes(frame, picture, themes.for_scheme(scheme)), note, note


def _list_changes(frame: Frame, picture: Picture, theme: themes.Theme) -> dict[str, Any]:
    """Return the changing elements of the timeline's figure: traces, and elements of its layout."""
    changing = plot.draw_changing(frame, picture, theme)
    layout = {name: changing[name] for name in ("images", "shapes", "annotations")}
    return {
        "data": changing["data"],
        "layout": layout,
        "step_axis": plot.tick_texts(frame, changing["ticks"]),
    }
