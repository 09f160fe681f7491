"""Which ranks are stragglers, in which steps, and in which phase?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import Input, dcc, html

from tracelens.accounting.phases import OWN_CATEGORIES
from tracelens.model.finding_kinds import KINDS
from tracelens_dashboard.components import chart, finding_card, heading, live
from tracelens_dashboard.figures import axes, stragglers
from tracelens_dashboard.ids import aria
from tracelens_dashboard.theme import name_of
from tracelens_dashboard.view import links

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from tracelens_dashboard.figures.drawing import Drawing
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.theme import Theme
    from tracelens_dashboard.view.state import ViewState

PATH: Final = "/stragglers"
TITLE: Final = "Stragglers"

MAP: Final = "late-map"
BARS: Final = "late-bars"
PHASE: Final = "late-phase"
MARKED: Final = "late-marked"
ROW_PX: Final = 34
ALL: Final = "compute time"


def layout(store: Store, view: ViewState) -> Component:
    """Return the page."""
    return html.Div(
        [
            dcc.Store(id=MARKED, data=view.steps),
            heading.page_title(TITLE),
            _findings(store, view),
            dmc.Grid(
                [
                    dmc.GridCol(_map_card(store), span={"base": 12, "lg": 7}),
                    dmc.GridCol(
                        chart.card(BARS, "Residual by phase", _height(store)),
                        span={"base": 12, "lg": 5},
                    ),
                ],
                gutter="sm",
            ),
        ],
        className="page",
    )


@live.part("stragglers-findings")
def _findings(store: Store, _view: ViewState) -> Component:
    found = (f for f in store.report.findings if KINDS[f.kind].on(PATH))
    return finding_card.first_of(store, found)


def register(app: Dash) -> None:
    """Draw both charts; a click on a cell leads to that rank and step."""
    chart.bind(app, MAP, _map, Input(PHASE, "value"), Input(MARKED, "data"))
    chart.bind(app, BARS, _bars)
    chart.follow_clicks(app, MAP, _to_cell)


def _to_cell(store: Store, point: dict[str, Any]) -> str:
    rank = axes.first_rank(point["y"])
    return links.to_step(store, int(point["x"]), (rank,))


def _height(store: Store) -> int:
    return max(240, min(440, 100 + ROW_PX * len(store.ranks)))


def _map_card(store: Store) -> Component:
    names = [name for name in OWN_CATEGORIES if name in store.times.categories]
    data = [{"value": ALL, "label": ALL}, *({"value": n, "label": name_of(n)} for n in names)]
    choice = dmc.Select(
        id=PHASE, data=data, value=ALL, size="xs", allowDeselect=False, **aria("phase")
    )
    return chart.card(MAP, "Residual by rank and step", _height(store), choice)


def _bars(store: Store, theme: Theme) -> Drawing:
    return stragglers.by_category(store.residuals, store.residuals_in, theme)


def _map(store: Store, theme: Theme, phase: str | None, marked: list[int] | None) -> Drawing:
    known = phase if phase in OWN_CATEGORIES else None
    residuals = store.residuals_in(known) if known else store.residuals
    return stragglers.by_rank(residuals, theme, (marked[0], marked[1]) if marked else None)
