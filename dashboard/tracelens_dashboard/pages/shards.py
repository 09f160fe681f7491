"""Is a parameter-server shard overloaded?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import dash_mantine_components as dmc
from dash import Input, dcc, html

from tracelens_dashboard.components import chart, finding_card
from tracelens_dashboard.figures import shards as figures

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from tracelens_dashboard.state import ViewState
    from tracelens_dashboard.store import Store

PATH: Final = "/shards"
TITLE: Final = "PS shards"

DOTS: Final = "shard-dots"
TRAFFIC: Final = "shard-traffic"
MARKED: Final = "shard-marked"
ROW_PX: Final = 26
NONE_HERE: Final = (
    "This run has no parameter servers: its workers exchange gradients among themselves, "
    "by collective reductions."
)
WHAT_IT_SHOWS: Final = (
    "Where processes of the role “ps” are recorded, this page compares their shards: bytes, "
    "requests, service time and queue, each against the mean, and which worker talks to which."
)


def layout(store: Store, view: ViewState) -> Component:
    """Return the page, or say why this run has none of it."""
    if not store.shard_count:
        return _explanation()
    found = [finding for finding in store.report.findings if finding.shards]
    height = max(220, 100 + ROW_PX * store.shard_count)
    workers = max(220, min(560, 90 + ROW_PX * len(store.ranks)))
    return html.Div(
        [
            dcc.Store(id=MARKED, data=view.shard),
            dmc.Title("Is a shard overloaded?", order=1, className="page-title"),
            dmc.Stack(
                [
                    *(finding_card.card(store, finding) for finding in found[:3]),
                    chart.card(DOTS, "Load of each shard, the dotted line is the mean", height),
                    chart.card(TRAFFIC, "Bytes between workers and shards", workers),
                ],
                gap="sm",
            ),
        ],
        className="page",
    )


def register(app: Dash, store: Store) -> None:
    """Draw both charts."""
    chart.bind(
        app,
        DOTS,
        lambda theme, marked: figures.dots(store.run.loads, theme, marked),
        Input(MARKED, "data"),
    )
    chart.bind(app, TRAFFIC, lambda theme: figures.traffic(store.run.traffic, theme))


def _explanation() -> Component:
    lines = [html.P(line) for line in (NONE_HERE, WHAT_IT_SHOWS)]
    return html.Div(
        [
            dmc.Title("No parameter servers", order=1, className="page-title"),
            dmc.Card(lines, className="card prose"),
        ],
        className="page",
        id="no-shards",
    )
