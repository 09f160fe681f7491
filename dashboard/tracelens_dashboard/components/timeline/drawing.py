"""Draw the timeline, answer zoom, drag and selection with what they change; open one rank below it.

An opened rank shows its threads and nested spans, in the window of the timeline above.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import ClientsideFunction, Input, Output, Patch, State, html
from dash.exceptions import PreventUpdate

from tracelens_dashboard import ids, text
from tracelens_dashboard import theme as themes
from tracelens_dashboard.components import chart
from tracelens_dashboard.components.timeline import names
from tracelens_dashboard.figures.timeline import plot
from tracelens_dashboard.ids import aria
from tracelens_dashboard.runs import current
from tracelens_dashboard.view import viewport

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from tracelens.lod.query import Picture
    from tracelens_dashboard.figures.timeline.frame import Frame
    from tracelens_dashboard.runs.store import Store

RANK_CHOICE: Final = "opened-rank"
RANK_PANEL: Final = "opened-panel"
RANK_GRAPH: Final = "opened-graph"
RANK_PLOT: Final = "opened-plot"
RANK_NOTE: Final = "opened-note"
SAMPLED_NOTE: Final = " The last row is sampled code, by innermost frame."


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
        current.RUN,
    )
    def draw(scheme: str | None, *shown: Any) -> tuple[Any, ...]:
        if scheme is None:
            raise PreventUpdate
        frame = _frame(*shown)
        picture = viewport.picture(frame)
        figure = plot.draw(frame, picture, themes.of(scheme))
        note = plot.note(frame, picture)
        return figure, {"height": f"{plot.height(frame.plan)}px"}, note, note


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
        current.RUN,
        prevent_initial_call=True,
    )
    def follow(view: Any, call: Any, path: Any, scheme: str | None, *how: Any) -> tuple[Any, ...]:
        pins, sort, wide, run = how
        frame = _frame(wide, pins, sort, view, call, path, run)
        picture = viewport.picture(frame)
        note = plot.note(frame, picture)
        return _patch(frame, picture, themes.of(scheme)), note, note


def _frame(wide: Any, pins: Any, sort: Any, *seen: Any) -> Frame:
    view, call, path, run = seen
    return viewport.frame(current.store(run), view, pins, sort, call, wide=wide, path=path)


def _patch(frame: Frame, picture: Picture, theme: themes.Theme) -> Patch:
    """Return what changes; all else of the figure stays."""
    parts = plot.changing(frame, picture, theme)
    patch = Patch()
    patch["data"] = parts["data"]
    for name in ("images", "shapes", "annotations"):
        patch["layout"][name] = parts[name]
    for name, texts in plot.tick_texts(frame, parts["ticks"]).items():
        patch["layout"]["xaxis2"][name] = texts
    return patch


def rank_layout(store: Store) -> Component:
    """Return the card: a choice of rank, and its rows once there is one."""
    ranks = [{"value": str(rank), "label": f"rank {rank}"} for rank in store.ranks]
    choice = dmc.Select(
        id=RANK_CHOICE,
        data=ranks,
        placeholder="Open a rank",
        searchable=True,
        clearable=True,
        limit=50,
        size="xs",
        **aria("rank to open"),
    )
    title = dmc.Title("Threads of a rank", order=2, className="card-title")
    panel = html.Div(
        [
            html.P(id=RANK_NOTE, className="summary"),
            html.Div(chart.graph(RANK_GRAPH), role="img", id=RANK_PLOT, **aria("a rank")),
        ],
        id=RANK_PANEL,
        hidden=True,
    )
    heading = dmc.Group([title, choice], justify="space-between")
    return dmc.Card([heading, panel], className="card", mt="sm")


def register_rank(app: Dash, view: str, wide: str) -> None:
    """Draw the chosen rank whenever the window (component `view`) or the width (`wide`) changes."""

    @app.callback(
        Output(RANK_GRAPH, "figure"),
        Output(RANK_GRAPH, "style"),
        Output(RANK_NOTE, "children"),
        Output(RANK_PLOT, "aria-label"),
        Output(RANK_PANEL, "hidden"),
        Input(RANK_CHOICE, "value"),
        Input(view, "data"),
        Input(ids.SCHEME, "computedColorScheme"),
        Input(wide, "data"),
        current.RUN,
    )
    def draw(rank: Any, seen: Any, scheme: str | None, *shown: Any) -> tuple[Any, ...]:
        if scheme is None:
            raise PreventUpdate
        px, run = shown
        store = current.store(run)
        frame = viewport.opened(store, seen, rank, wide=px)
        if frame is None:
            return themes.blank(), {}, "", "", True
        picture = viewport.picture(frame)
        figure = plot.draw(frame, picture, themes.of(scheme))
        figure.update_xaxes(fixedrange=True)
        spans = text.count(picture.spans, "span")
        note = f"Rank {rank}: {spans} in view; nested spans below each thread."
        note += SAMPLED_NOTE if int(rank) in store.sampled else ""
        return figure, {"height": f"{plot.height(frame.plan)}px"}, note, note, False
