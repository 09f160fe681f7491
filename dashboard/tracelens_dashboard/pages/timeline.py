"""What happened then? Every rank's time, from the whole run down to single spans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import Dash, dcc, html

from tracelens_dashboard.components import chart
from tracelens_dashboard.components.timeline import (
    area,
    controls,
    drawing,
    finding,
    gutter,
    inspector,
    keys,
    names,
    notes,
)
from tracelens_dashboard.ids import aria
from tracelens_dashboard.theme import TIMELINE_CONFIG
from tracelens_dashboard.view import viewport

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from tracelens_dashboard.components.chart import ChartCard
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.view.state import ViewState

PATH: Final = "/timeline"
TITLE: Final = controls.TITLE
CARDS: Final[tuple[ChartCard, ...]] = ()  # the timeline is no chart of a card


def layout(store: Store, view: ViewState) -> Component:
    """Return the page."""
    selection = finding.resolve_selection(store, view)
    graph = html.Div(
        chart.graph(names.GRAPH, config=TIMELINE_CONFIG),
        role="img",
        id=names.PLOT,
        **aria("timeline"),
    )
    plot_area = html.Div([graph, html.Div(id=names.GUTTER, className="gutter")], className="rows")
    plots = html.Div([controls.strip_layout(), plot_area], className="plots")
    panel = inspector.layout(store, selection)
    content = html.Div([plots, panel], className="beside-inspector")
    return html.Div(
        [
            dcc.Store(id=names.VIEW, data=_read_view(store, view)),
            dcc.Store(id=names.EDITION),
            dcc.Store(id=names.CHANGE),
            dcc.Store(id=names.WIDE),
            *gutter.stores(view),
            dcc.Store(id=names.SELECTED, data=selection),
            dcc.Store(id=names.POINTED),
            keys.layout(),
            dmc.Card([controls.layout(store, view), content], className="card"),
            html.Div(id=names.AREA),
        ],
        className="page",
    )


def register(app: Dash) -> None:
    """Draw, follow zoom and drag, describe what is clicked, keep the address bar true."""
    drawing.register(app)
    controls.register_strip(app)
    inspector.register(app)
    area.register(app)
    gutter.register(app)
    finding.register(app)
    notes.register(app)
    keys.register(app)


def _read_view(store: Store, view: ViewState) -> dict[str, Any]:
    """Return the view as the browser keeps it: times in ns since the run's start."""
    window = viewport.window_of_view(store, view)
    steps = list(view.marked_steps) if view.marked_steps else None
    ends = {"t0": window.start_ns, "t1": window.end_ns, "whole": store.run_window.width_ns}
    return ends | {"steps": steps}
