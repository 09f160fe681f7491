"""A chart in a card: title, one sentence, the graph, the same numbers as a table; a click leads on.

The server answers a click into the chart's card, and the browser goes there: callbacks that answer
into the frame are called whenever a page is opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import ALL, MATCH, ClientsideFunction, Input, Output, State, dcc, html
from dash.exceptions import PreventUpdate

from tracelens_dashboard import ids, theme
from tracelens_dashboard.components.heading import card_title
from tracelens_dashboard.components.table import table
from tracelens_dashboard.figures import axes
from tracelens_dashboard.ids import aria
from tracelens_dashboard.runs import current
from tracelens_dashboard.theme import GRAPH_CONFIG

if TYPE_CHECKING:
    from collections.abc import Callable

    from dash import Dash
    from dash.development.base_component import Component

    from tracelens_dashboard.figures.drawing import Drawing
    from tracelens_dashboard.runs.store import Store


PLOT: Final = "plot"
NOTHING: Final = "plot nothing"  # what there is to say stands above it


def graph(identity: Any, height: int | None = None, config: Any = GRAPH_CONFIG) -> dcc.Graph:
    """Return a graph with the configuration that all charts share, or the timelines."""
    style = {"height": f"{height}px"} if height else {}
    return dcc.Graph(id=identity, figure=theme.blank(), config=config, style=style, responsive=True)


def card(
    chart: str,
    title: str,
    height: int,
    *extra: Component,
    scrolls: bool = False,
    suffix: str = "",
) -> dmc.Card:
    """Return the card of a chart; `extra` stands beside its title. Its plot fills a higher card.

    `title` is one of `heading.EXPLAINED`; a `suffix` says of which run it is.

    In a narrow window a plot may be wider than its card (`scrolls`): the keyboard reaches it, too.
    """
    return dmc.Card(
        [
            _heading(chart, title, suffix, *extra),
            dcc.Store(id=ids.part(chart, "lead")),
            html.P(id=ids.part(chart, "summary"), className="summary"),
            html.Div(
                graph(ids.part(chart, "graph")),
                id=ids.part(chart, "plot"),
                role="img",
                **aria(title),  # until it is drawn: then the sentence about what it shows
                className=PLOT,
                style={"minHeight": f"{height}px"},
                tabIndex=0 if scrolls else None,
            ),
            html.Div(id=ids.part(chart, "grid"), hidden=True, style={"height": f"{height}px"}),
        ],
        className="card chart-card",
    )


def _heading(chart: str, title: str, suffix: str, *extra: Component) -> Component:
    switch = dmc.Switch(
        id=ids.part(chart, "switch"), label="Table", size="xs", className="table-switch"
    )
    parts = [
        card_title(title, suffix=suffix),
        html.Div(extra, className="card-choices") if extra else None,
        html.Div([picture(title + suffix), switch], className="card-tools"),
    ]
    return html.Div([part for part in parts if part], className="card-heading")


def picture(title: str) -> dmc.Button:
    """Return the button that saves the card's chart as shown; assets/export.js makes it work."""
    name = aria(f"save as PNG: {title}")
    return dmc.Button(
        "PNG", variant="default", size="compact-xs", className="save-png", fw=500, **name
    )


def bind(app: Dash, chart: str, draw: Callable[..., Drawing], *inputs: Input | State) -> None:
    """Draw a chart whenever the colour scheme, or one of `inputs`, changes.

    `draw` is given the run that the page shows, the theme, then the values of `inputs`. The table is
    made when it is asked for: a page with several would show its charts later.
    """
    listed, place = Input(ids.part(chart, "switch"), "checked"), ids.part(chart, "grid")
    scheme = Input(ids.SCHEME, "computedColorScheme")

    def drawn(scheme: str | None, run: Any, *values: Any) -> Drawing:
        if scheme is None:
            raise PreventUpdate
        return draw(current.store(run), theme.of(scheme), *values)

    @app.callback(
        Output(ids.part(chart, "graph"), "figure"),
        Output(ids.part(chart, "summary"), "children"),
        Output(ids.part(chart, "plot"), "aria-label"),
        Output(ids.part(chart, "plot"), "className"),
        Output(place, "children"),
        _looked_up(listed),
        scheme,
        Input(ids.RUN, "data"),  # drawn anew when it was read again
        *inputs,
    )
    def redraw(checked: Any, *given: Any) -> tuple[Any, ...]:
        drawing = drawn(*given)
        shown = PLOT if drawing.figure.data else NOTHING
        rows = table(ids.part(chart, "rows"), drawing.rows) if checked else None
        return drawing.figure, drawing.summary, drawing.summary, shown, rows

    @app.callback(
        Output(place, "children", allow_duplicate=True),
        listed,
        *map(_looked_up, (scheme, current.RUN, *inputs)),
        prevent_initial_call=True,
    )
    def tabulate(checked: Any, *given: Any) -> Component:
        if not checked:
            raise PreventUpdate
        return table(ids.part(chart, "rows"), drawn(*given).rows)


def _looked_up(given: Input | State) -> State:
    """Return what a callback is given without being called when it changes."""
    return State(given.component_id, given.component_property)


def register_switches(app: Dash) -> None:
    """Let every card's switch show its table in place of its graph."""
    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "swap"),
        Output({"chart": MATCH, "part": "plot"}, "hidden"),
        Output({"chart": MATCH, "part": "grid"}, "hidden"),
        Input({"chart": MATCH, "part": "switch"}, "checked"),
        prevent_initial_call=True,
    )


def register_following(app: Dash) -> None:
    """Go where a card's chart leads."""
    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "follow"),
        Output(ids.GO, "href", allow_duplicate=True),
        Input({"chart": ALL, "part": "lead"}, "data"),
        prevent_initial_call=True,
    )


def follow_clicks(app: Dash, chart: str, lead: Callable[..., str | None], *states: State) -> None:
    """Go where `lead(store, point, *values)` says when a point of a chart is clicked."""

    @app.callback(
        Output(ids.part(chart, "lead"), "data", allow_duplicate=True),
        Input(ids.part(chart, "graph"), "clickData"),
        current.RUN,
        *states,
        prevent_initial_call=True,
    )
    def follow(click: dict[str, Any] | None, run: Any, *values: Any) -> str:
        points = (click or {}).get("points")
        href = lead(current.store(run), axes.read_cell(points[0]), *values) if points else None
        if not href:
            raise PreventUpdate
        return href


def follow_row_clicks(app: Dash, chart: str, lead: Callable[[Store, int], str | None]) -> None:
    """Go where `lead(store, place)` says when a row of a chart's table is clicked.

    `place` is the row's in the drawing, however the table is sorted.
    """

    @app.callback(
        Output(ids.part(chart, "lead"), "data", allow_duplicate=True),
        Input(ids.part(chart, "rows"), "cellClicked"),
        current.RUN,
        prevent_initial_call=True,
    )
    def follow(cell: dict[str, Any] | None, run: Any) -> str:
        place = str((cell or {}).get("rowId"))
        href = lead(current.store(run), int(place)) if place.isdecimal() else None
        if not href:
            raise PreventUpdate
        return href
