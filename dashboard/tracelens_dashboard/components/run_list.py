"""Which runs are there? The first page where several are served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import dash_mantine_components as dmc
from dash import dcc, html

from tracelens_dashboard import text
from tracelens_dashboard.state import ViewState

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from tracelens_dashboard.runs import Runs

PATH: Final = "/runs"
TITLE: Final = "Runs"


def layout(runs: Runs, _view: ViewState) -> Component:
    """Return the page."""
    if runs.alone:
        rows = [html.Li(dcc.Link(text.shown(runs.alone.name), href="/", className="way"))]
    else:
        rows = [
            html.Li(
                dcc.Link(
                    text.shown(entry.name),
                    href=ViewState(run=entry.id).link("/"),
                    className="way",
                )
            )
            for entry in runs.look()
        ]
    title = dmc.Title("Runs", order=1, className="page-title")
    return html.Div([title, dmc.Card(html.Ul(rows), className="card")], className="page", id="runs")


def register(app: Dash) -> None:
    """Add the list's callbacks."""
