"""Skew or bandwidth: do ranks wait for each other in collectives, or for the network?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import html

from tracelens.lod.viewport import Window
from tracelens.model.finding_kinds import KINDS
from tracelens_dashboard.components import chart, finding_card, heading, live
from tracelens_dashboard.figures import arrival_skew, bandwidth
from tracelens_dashboard.view import links

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from tracelens_dashboard.figures.drawing import Drawing
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.theme import Theme
    from tracelens_dashboard.view.state import ViewState

PATH: Final = "/collectives"
TITLE: Final = "Collectives"
QUESTION: Final = "Do ranks wait for each other, or for the network?"

EXCHANGE: Final = "collective-exchange"
SKEW: Final = "collective-skew"
SPREAD: Final = "collective-spread"
LAST: Final = "collective-last"
SPEED: Final = "collective-speed"
LINKS: Final = "collective-links"
PLOT_PX: Final = 290
ROW_PX: Final = 24
NO_DATA: Final = (
    "No collective entered by several ranks is in this trace. Hooks record them: PyTorch DDP and "
    "torch.distributed, Horovod and MPI, with “tracelens record” or tl.attach(…). In your own code, "
    "“with tl.span('reduce', kind='reduction', op='allreduce', nbytes=n): …” records a call; calls "
    "match by communicator and number."
)
WITH_SERVERS: Final = (
    "This run has parameter servers: see the page “PS shards” for traffic between them and workers."
)


def layout(store: Store, view: ViewState) -> Component:
    """Return the page, or say what to record to see it."""
    title = heading.page_title(TITLE)
    question = html.P(QUESTION, className="summary")
    if store.table("arrivals_last").is_empty():
        lines = [html.P(NO_DATA), *([html.P(WITH_SERVERS)] if store.shard_count else [])]
        card = dmc.Card(lines, className="card prose")
        return html.Div([title, question, card], className="page")
    half = {"base": 12, "lg": 6}
    charts = (
        chart.card(EXCHANGE, "Wait and transfer per step", PLOT_PX),
        chart.card(SKEW, "Arrival skew per step", PLOT_PX),
        chart.card(LAST, "Last arrivals", _height(len(store.ranks), arrival_skew.MOST_RANKS)),
        chart.card(SPREAD, "Arrival skew: distribution", PLOT_PX),
        chart.card(SPEED, "Bandwidth by message size", PLOT_PX + 60),
        chart.card(LINKS, "Links between ranks", _height(_links(store), bandwidth.MOST_LINKS)),
    )
    spans = [half] * 4 + [half if store.table("links").height else 12] * 2
    grid = [dmc.GridCol(one, span=span) for one, span in zip(charts, spans, strict=True)]
    parts = [title, question, _findings(store, view), dmc.Grid(grid, gutter="sm")]
    return html.Div(parts, className="page")


@live.part("collectives-findings")
def _findings(store: Store, _view: ViewState) -> Component:
    found = (f for f in store.report.findings if KINDS[f.kind].on(PATH))
    return finding_card.first_of(store, found)


def register(app: Dash) -> None:
    """Draw the charts; a click leads to the spans of a call."""
    chart.bind(app, EXCHANGE, _exchange)
    chart.bind(app, SKEW, _skew)
    chart.bind(app, LAST, _last)
    chart.bind(app, SPREAD, _spread)
    chart.bind(app, SPEED, _speed)
    chart.bind(app, LINKS, _link_bars)
    chart.follow_clicks(app, EXCHANGE, _to_step)
    for name in (SKEW, LAST, SPREAD, SPEED):
        chart.follow_clicks(app, name, _to_call)
    chart.follow_clicks(app, LINKS, _to_link)


def _exchange(store: Store, theme: Theme) -> Drawing:
    return arrival_skew.by_step(store.table("arrivals_by_step"), theme)


def _skew(store: Store, theme: Theme) -> Drawing:
    return arrival_skew.over_run(store.table("arrivals_by_step"), theme)


def _last(store: Store, theme: Theme) -> Drawing:
    return arrival_skew.last_arrivals(store.table("arrivals_last"), theme)


def _spread(store: Store, theme: Theme) -> Drawing:
    uncertainty = store.report.clock.uncertainty_ns
    return arrival_skew.distribution(store.table("arrivals_spread"), uncertainty, theme)


def _speed(store: Store, theme: Theme) -> Drawing:
    return bandwidth.by_size(
        store.table("bandwidths"),
        store.table("message_costs"),
        store.table("bandwidths_slowest"),
        theme,
    )


def _link_bars(store: Store, theme: Theme) -> Drawing:
    return bandwidth.by_link(store.table("links"), theme, links.slow_links(store))


def _links(store: Store) -> int:
    return store.table("links").height or 8


def _height(rows: int, most: int) -> int:
    return max(PLOT_PX, 90 + ROW_PX * min(rows, most))


def _to_step(store: Store, point: dict[str, Any]) -> str:
    """Show, of a step's collectives, the one with the largest arrival skew."""
    step = int(point["x"])
    found = store.table("arrivals_by_step").filter(step=step).select("first_ns", "over_ns").rows()
    return links.to_call(store, Window(*found[0])) if found else links.to_step(store, step)


def _to_call(store: Store, point: dict[str, Any]) -> str | None:
    """Show the call behind a mark, selected."""
    _, lead = point.get("customdata") or (None, None)
    if not lead:
        return None
    first, over, _ = lead
    return links.to_call(store, Window(first, over))


def _to_link(store: Store, point: dict[str, Any]) -> str:
    """Show both ends of a link, in the whole run."""
    return links.to_ranks(store, tuple(point["customdata"][1]))
