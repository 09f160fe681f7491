"""The whole run above the timeline: what all ranks did, where the window is, what colours mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dash import Input, Output, html
from dash.exceptions import PreventUpdate

from tracelens.lod.codes import SHARD_OPS
from tracelens_dashboard import asked, ids
from tracelens_dashboard import theme as themes
from tracelens_dashboard.components import chart, legend
from tracelens_dashboard.components.timeline import names
from tracelens_dashboard.figures import strip

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from tracelens_dashboard.store import Store

STRIP_PX: Final = 64


def layout() -> Component:
    """Return the strip, and the window over it."""
    plot = html.Div(chart.graph(names.STRIP, STRIP_PX), role="img", id=names.STRIP_PLOT)
    window = html.Div(html.Div(id=names.WINDOW, className="window"), className="window-track")
    return html.Div([plot, window], className="strip")


def register(app: Dash) -> None:
    """Draw the strip and the legend."""

    @app.callback(
        Output(names.STRIP, "figure"),
        Output(names.STRIP_PLOT, "aria-label"),
        Output(names.LEGEND, "children"),
        Input(ids.SCHEME, "computedColorScheme"),
        asked.RUN,
    )
    def draw(scheme: str | None, run: Any) -> tuple[Any, ...]:
        if scheme is None:
            raise PreventUpdate
        store, theme = asked.store(run), themes.of(scheme)
        drawing = strip.draw(store.times, store.windows, store.whole, theme)
        ramp = legend.ramp(store.lateness.ceiling_ns, theme)
        return drawing.figure, drawing.summary, [*legend.categories(_present(store), theme), ramp]


def _present(store: Store) -> list[str]:
    """List the categories that occur, in their order."""
    known = list(store.times.categories)
    return [*known, *SHARD_OPS] if store.shard_count else known
