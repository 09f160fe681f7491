"""Where did the efficiency go? Verdict, waterfall, findings, residuals by rank and step, step time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import html

from tracelens.accounting.efficiency import CAUSES, SLOW_HOST
from tracelens.model.inert import clean
from tracelens.reports.messages import lines_of, noted
from tracelens_dashboard import text
from tracelens_dashboard.components import chart, finding_card, live
from tracelens_dashboard.figures import axes, overview, stragglers
from tracelens_dashboard.ids import aria
from tracelens_dashboard.view import links

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from tracelens.model.findings import Finding
    from tracelens_dashboard.figures.drawing import Drawing
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.theme import Theme
    from tracelens_dashboard.view.state import ViewState

PATH: Final = "/"
TITLE: Final = "Overview"

WATERFALL: Final = "waterfall"
RESIDUALS: Final = "overview-lateness"
PARTS: Final = "overview-parts"
PARTS_PX: Final = 230
FEW: Final = 2  # findings beside which the map has room
MOST_ROWS: Final = 64  # beyond, a row is a host
SHOWN: Final = 6


def layout(store: Store, view: ViewState) -> Component:
    """Return the page; few findings leave room for the map beside the waterfall."""
    residuals = chart.card(RESIDUALS, _map_title(store), _map_height(store))
    beside = len(store.report.findings) <= FEW
    findings = _findings(store, view)
    right = [findings, residuals] if beside else [findings]
    waterfall_card = chart.card(WATERFALL, "Where the time went", 300)
    return html.Div(
        [
            _verdict(store, view),
            dmc.Grid(
                [
                    dmc.GridCol(waterfall_card, span={"base": 12, "md": 5}),
                    dmc.GridCol(html.Div(right, className="column"), span={"base": 12, "md": 7}),
                    *([] if beside else [dmc.GridCol(residuals, span=12)]),
                    dmc.GridCol(chart.card(PARTS, "Step time by category", PARTS_PX), span=12),
                ],
                gutter="sm",
            ),
            _notes(store, view),
        ],
        className="page",
    )


def register(app: Dash) -> None:
    """Draw the charts; a click on a bar, a cell or a step leads to the timeline."""
    chart.bind(app, WATERFALL, _waterfall)
    chart.bind(app, RESIDUALS, _map)
    chart.bind(app, PARTS, _parts)
    chart.follow_clicks(app, PARTS, _to_step)
    chart.follow_clicks(app, RESIDUALS, _to_cell)
    chart.follow_clicks(app, WATERFALL, _to_loss)


def _to_cell(store: Store, point: dict[str, Any]) -> str:
    """Lead to the rank with the largest residual of a cell, in its step."""
    rows = _rows(store, str(point["y"]))
    rank, step = stragglers.worst_cell(store.residuals, rows, int(point["x"]))
    return links.to_step(store, step, (rank,))


def _rows(store: Store, label: str) -> list[int]:
    """Return the places of the ranks that a row of the map stands for, by its label."""
    if _by_rank(store):
        return [store.residuals.ranks.index(axes.first_rank(label))]
    return [
        row
        for row, rank in enumerate(store.residuals.ranks)
        if text.safe(store.hosts[rank]) == label
    ]


def _to_loss(store: Store, point: dict[str, Any]) -> str | None:
    """Lead to the step in which most was lost to a cause."""
    lost = {SLOW_HOST: "wait"} | {cause: category for category, cause in CAUSES.items()}
    category = lost.get(str(point.get("customdata")))
    return links.to_most(store, category) if category else None


def _by_rank(store: Store) -> bool:
    return len(store.ranks) <= MOST_ROWS


def _map_height(store: Store) -> int:
    rows = len(store.ranks) if _by_rank(store) else len(set(store.hosts.values()))
    return max(170, min(280, 110 + 26 * rows))


def _map_title(store: Store) -> str:
    if _by_rank(store):
        return "Residual by rank and step"
    return "Residual by host and step: the worst rank of each host"


def _waterfall(store: Store, theme: Theme) -> Drawing:
    return overview.waterfall(store.report.efficiency, theme)


def _parts(store: Store, theme: Theme) -> Drawing:
    return overview.step_parts(store.times, theme)


def _to_step(store: Store, point: dict[str, Any]) -> str:
    return links.to_step(store, int(point["x"]))


def _map(store: Store, theme: Theme) -> Drawing:
    if _by_rank(store):
        return stragglers.by_rank(store.residuals, theme)
    return stragglers.by_host(store.residuals, store.hosts, theme)


@live.part("overview-verdict")
def _verdict(store: Store, _view: ViewState) -> Component:
    lines = [
        part
        for name, line in lines_of(store.report)
        for part in (html.Dt(name), html.Dd(text.tied(line)))
    ]
    headline = text.tied(clean(store.report.verdict.headline))
    return html.Div(
        [dmc.Title(headline, order=1, id="verdict"), html.Dl(lines)],
        className=f"verdict lead lead-{store.report.verdict.state}",
    )


@live.part("overview-findings")
def _findings(store: Store, _view: ViewState) -> Component:
    found = store.report.findings
    if not found:
        return dmc.Card(html.P("No findings.", className="summary"), className="card")
    cards = [finding_card.card(store, finding) for finding in found]
    shown: list[Component] = [dmc.Stack(cards[:SHOWN], gap="xs")]
    if cards[SHOWN:]:
        more = html.Summary(f"{len(cards) - SHOWN} more", className="way")
        shown.append(html.Details([more, dmc.Stack(cards[SHOWN:], gap="xs")]))
    return html.Section(shown, **aria(_count(found)), id="findings")


def _count(found: tuple[Finding, ...]) -> str:
    return text.count(len(found), "finding")


@live.part("overview-notes")
def _notes(store: Store, _view: ViewState) -> Component:
    """List what limits the trace."""
    lines = [html.Li(noted(note)) for note in store.report.notes]
    lines += [
        html.Li(f"{number:,} events dropped while recording: {reason}.")
        for reason, number in store.report.summary.dropped.items()
    ]
    if not lines:
        return html.Div()
    title = dmc.Title("Limitations of this trace", order=2, className="card-title")
    return dmc.Card([title, html.Ul(lines, className="notes")], className="card", mt="sm")
