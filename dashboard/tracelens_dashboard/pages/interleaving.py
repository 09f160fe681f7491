"""Is communication hidden behind compute?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import html

from tracelens.lod.viewport import Window
from tracelens.model.finding_kinds import KINDS
from tracelens_dashboard.components import chart, finding_card, heading, live
from tracelens_dashboard.figures import interleaving
from tracelens_dashboard.view import links

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from tracelens_dashboard.figures.drawing import Drawing
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.theme import Theme
    from tracelens_dashboard.view.state import ViewState

PATH: Final = "/interleaving"
TITLE: Final = "Overlap"
QUESTION: Final = "Is communication hidden behind compute?"

BY_STEP: Final = "overlap-steps"
BY_BUCKET: Final = "overlap-buckets"
CHAINS: Final = "gradient-chains"
GAPS: Final = "update-gaps"
PLOT_PX: Final = 290
ROW_PX: Final = 26
NO_DATA: Final = (
    "Neither communication nor weight updates are in this trace. Hooks of frameworks record both "
    "(“tracelens record”, tl.attach(…)); in your own code, spans of kind reduction with a bucket, "
    "and of kind update, in steps, show here how they interleave."
)


def layout(store: Store, view: ViewState) -> Component:
    """Return the page, or say what to record to see it."""
    title = heading.page_title("Communication overlap")
    question = html.P(QUESTION, className="summary")
    if _is_empty(store):
        nothing = dmc.Card(html.P(NO_DATA), className="card prose")
        return html.Div([title, question, nothing], className="page")
    charts = (
        chart.card(BY_STEP, "Overlapped and exposed communication per step", PLOT_PX),
        chart.card(BY_BUCKET, "Overlap per bucket", _height(store, "overlap_by_bucket", 40)),
        chart.card(CHAINS, "Gradient-to-weight latency per bucket", _height(store, "chains", 40)),
        chart.card(GAPS, "Gaps between optimizer updates", PLOT_PX),
    )
    half = {"base": 12, "lg": 6}
    spans = (12, half, half, 12)
    grid = [dmc.GridCol(card, span=span) for card, span in zip(charts, spans, strict=True)]
    parts = [title, question, _findings(store, view), dmc.Grid(grid, gutter="sm")]
    return html.Div(parts, className="page")


@live.part("interleaving-findings")
def _findings(store: Store, _view: ViewState) -> Component:
    found = (f for f in store.report.findings if KINDS[f.kind].on(PATH))
    return finding_card.first_of(store, found)


def register(app: Dash) -> None:
    """Draw the charts; a click leads to the spans behind a mark."""
    chart.bind(app, BY_STEP, _by_step)
    chart.bind(app, BY_BUCKET, _by_bucket)
    chart.bind(app, CHAINS, _chains)
    chart.bind(app, GAPS, _gaps)
    chart.follow_clicks(app, BY_STEP, _to_step)
    chart.follow_clicks(app, BY_BUCKET, _to_call)
    chart.follow_clicks(app, CHAINS, _to_chain)
    chart.follow_clicks(app, GAPS, _to_gap)


def _is_empty(store: Store) -> bool:
    nothing = interleaving.has_no_communication(store.table("overlap_by_step"))
    return nothing and store.table("gap_spread").is_empty()


def _by_step(store: Store, theme: Theme) -> Drawing:
    return interleaving.overlap_by_step(store.table("overlap_by_step"), theme)


def _by_bucket(store: Store, theme: Theme) -> Drawing:
    return interleaving.overlap_by_bucket(store.table("overlap_by_bucket"), theme)


def _chains(store: Store, theme: Theme) -> Drawing:
    return interleaving.latency(store.table("chains"), theme)


def _gaps(store: Store, theme: Theme) -> Drawing:
    return interleaving.update_gaps(store.table("gap_spread"), theme)


def _height(store: Store, table: str, most: int) -> int:
    return max(PLOT_PX, 110 + ROW_PX * min(store.table(table).height, most))


def _to_step(store: Store, point: dict[str, Any]) -> str:
    return links.to_step(store, int(point["x"]))


def _to_call(store: Store, point: dict[str, Any]) -> str | None:
    """Show the call of a bucket that is exposed longest."""
    _, lead = point["customdata"]
    start, end, rank = lead
    return links.to_moment(store, Window(start, end), (rank,))


def _to_chain(store: Store, point: dict[str, Any]) -> str | None:
    """Show the step of the longest chain."""
    rank, step = point["customdata"][1]
    return None if step is None else links.to_step(store, step, () if rank is None else (rank,))


def _to_gap(store: Store, point: dict[str, Any]) -> str | None:
    """Show the longest gap of a bar."""
    _, lead = point.get("customdata") or (None, None)
    if not lead:
        return None
    rank, start, length = lead
    return links.to_moment(store, Window(start, start + length), (rank,))
