"""One rank opened up: its threads and nested spans, in the window of the timeline above."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import Input, Output, html
from dash.exceptions import PreventUpdate

from tracelens_dashboard import asked, ids, sight, text
from tracelens_dashboard import theme as themes
from tracelens_dashboard.components import chart
from tracelens_dashboard.components.aria import aria
from tracelens_dashboard.figures import timeline

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from tracelens_dashboard.store import Store

CHOICE: Final = "opened-rank"
PANEL: Final = "opened-panel"
GRAPH: Final = "opened-graph"
PLOT: Final = "opened-plot"
NOTE: Final = "opened-note"
SAMPLED: Final = " The last row is the code that was sampled, by its innermost call."


def layout(store: Store) -> Component:
    """Return the card: a choice of rank, and its rows once there is one."""
    ranks = [{"value": str(rank), "label": f"rank {rank}"} for rank in store.ranks]
    choice = dmc.Select(
        id=CHOICE,
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
            html.P(id=NOTE, className="summary"),
            html.Div(chart.graph(GRAPH), role="img", id=PLOT),
        ],
        id=PANEL,
        hidden=True,
    )
    heading = dmc.Group([title, choice], justify="space-between")
    return dmc.Card([heading, panel], className="card", mt="sm")


def register(app: Dash, view: str, wide: str) -> None:
    """Draw the chosen rank whenever the window (component `view`) or the width (`wide`) changes."""

    @app.callback(
        Output(GRAPH, "figure"),
        Output(GRAPH, "style"),
        Output(NOTE, "children"),
        Output(PLOT, "aria-label"),
        Output(PANEL, "hidden"),
        Input(CHOICE, "value"),
        Input(view, "data"),
        Input(ids.SCHEME, "computedColorScheme"),
        Input(wide, "data"),
        asked.RUN,
    )
    def draw(rank: Any, seen: Any, scheme: str | None, *shown: Any) -> tuple[Any, ...]:
        if scheme is None:
            raise PreventUpdate
        px, run = shown
        store = asked.store(run)
        frame = sight.opened(store, seen, rank, wide=px)
        if frame is None:
            return themes.blank(), {}, "", "", True
        picture = sight.picture(frame)
        figure = timeline.draw(frame, picture, themes.of(scheme))
        figure.update_xaxes(fixedrange=True)
        spans = text.count(picture.spans, "span")
        note = f"Rank {rank}: {spans} in view; below a thread, what lies within its spans."
        note += SAMPLED if int(rank) in store.sampled else ""
        return figure, {"height": f"{timeline.height(frame.plan)}px"}, note, note, False
