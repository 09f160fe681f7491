"""Where did the efficiency go? Verdict, waterfall, findings, residuals by rank and step, step time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import html

from tracelens.accounting.efficiency import CAUSES, SLOW_HOST
from tracelens.model.inert import clean
from tracelens.reports.messages import list_verdict_lines, write_note
from tracelens_dashboard import text
from tracelens_dashboard.components import finding_card, live
from tracelens_dashboard.components.chart import ChartCard
from tracelens_dashboard.figures import axes, overview, stragglers
from tracelens_dashboard.ids import aria
from tracelens_dashboard.view import links

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from tracelens_dashboard.figures.drawing import Drawing
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.theme import Theme
    from tracelens_dashboard.view.state import ViewState

PATH: Final = links.OVERVIEW
TITLE: Final = "Overview"
FEW_FINDINGS: Final = 2  # beside which the map has room
MOST_RANK_ROWS: Final = 64  # beyond, a row is a host
MOST_OPEN_FINDINGS: Final = 6


def _has_rank_rows(store: Store) -> bool:
    return len(store.ranks) <= MOST_RANK_ROWS


def _draw_map(store: Store, theme: Theme) -> Drawing:
    if _has_rank_rows(store):
        return stragglers.by_rank(store.residuals, theme)
    return stragglers.by_host(store.residuals, store.host_by_rank, theme)


def _fit_map(store: Store) -> int:
    row_count = len(store.ranks) if _has_rank_rows(store) else len(set(store.host_by_rank.values()))
    return max(170, min(280, 110 + 26 * row_count))


def _link_to_cell(store: Store, point: dict[str, Any]) -> str:
    """Lead to the rank with the largest residual of a cell, in its step."""
    rows = _find_rows(store, str(point["y"]))
    rank, step = stragglers.worst_cell(store.residuals, rows, int(point["x"]))
    return links.to_step(store, step, (rank,))


def _find_rows(store: Store, label: str) -> list[int]:
    """Return the row indexes of the ranks that a row of the map represents, by its label."""
    ranks = store.residuals.ranks
    if _has_rank_rows(store):
        return [ranks.index(axes.first_rank(label))]
    host_labels = [text.escape_name(store.host_by_rank[rank]) for rank in ranks]
    return [row for row, host_label in enumerate(host_labels) if host_label == label]


def _link_to_loss(store: Store, point: dict[str, Any]) -> str | None:
    """Lead to the step in which most was lost to a cause."""
    categories = {SLOW_HOST: "wait"} | {cause: category for category, cause in CAUSES.items()}
    category = categories.get(str(point.get("customdata")))
    return links.to_step_with_most(store, category) if category else None


WATERFALL: Final = ChartCard(
    card_id="waterfall",
    title="Where the time went",
    explanation="From total rank time down to parallel efficiency, each loss by its cause, after "
    "POP.",
    draw=lambda store, theme: overview.waterfall(store.report.efficiency, theme),
    height_px=300,
    link_from_mark=_link_to_loss,
    grid_columns={"base": 12, "md": 5},
)
RESIDUALS: Final = ChartCard(
    card_id="overview-lateness",
    title=stragglers.MAP_TITLE,
    explanation=stragglers.MAP_EXPLANATION,
    draw=_draw_map,
    height_px=_fit_map,
    link_from_mark=_link_to_cell,
)
RESIDUALS_BY_HOST: Final = replace(
    RESIDUALS,
    title="Residual by host and step: the worst rank of each host",
    explanation="The largest residual of a host's ranks in a step: compute time minus the peers' "
    "median. A mean over the host would hide a single rank.",
)
STEPS: Final = ChartCard(
    card_id="overview-parts",
    title="Step time by category",
    explanation="Time of the mean rank per step, by the category it belongs to.",
    draw=lambda store, theme: overview.step_parts(
        store.category_times, theme, of_hosts=store.uses_devices
    ),
    height_px=230,
    link_from_mark=links.to_step_of_mark,
)
CARDS: Final[tuple[ChartCard, ...]] = (WATERFALL, RESIDUALS, STEPS)


def layout(store: Store, view: ViewState) -> Component:
    """Return the page; few findings leave room for the map of residuals next to the waterfall."""
    residuals = RESIDUALS if _has_rank_rows(store) else RESIDUALS_BY_HOST
    map_column = residuals.lay_out(store, view)
    right_parts, wide_columns = [_lay_out_findings(store, view)], [map_column]
    if len(store.report.findings) <= FEW_FINDINGS:
        right_parts, wide_columns = [*right_parts, map_column.children], []
    return html.Div(
        [
            _lay_out_verdict(store, view),
            dmc.Grid(
                [
                    WATERFALL.lay_out(store, view),
                    dmc.GridCol(
                        html.Div(right_parts, className="column"), span={"base": 12, "md": 7}
                    ),
                    *wide_columns,
                    STEPS.lay_out(store, view),
                ],
                gutter="sm",
            ),
            _lay_out_notes(store, view),
        ],
        className="page",
    )


@live.section("overview-verdict")
def _lay_out_verdict(store: Store, _view: ViewState) -> Component:
    """Return the run's verdict as a title, with its named lines as terms and descriptions."""
    lines = [
        term_or_line
        for name, line in list_verdict_lines(store.report)
        for term_or_line in (html.Dt(name), html.Dd(text.tie_units(line)))
    ]
    headline = text.tie_units(clean(store.report.verdict.headline))
    return html.Div(
        [dmc.Title(headline, order=1, id="verdict"), html.Dl(lines)],
        className=f"verdict lead lead-{store.report.verdict.state}",
    )


@live.section("overview-findings")
def _lay_out_findings(store: Store, _view: ViewState) -> Component:
    """List all findings; beyond `MOST_OPEN_FINDINGS` they are folded."""
    findings = store.report.findings
    if not findings:
        return dmc.Card(html.P("No findings.", className="summary"), className="card")
    cards = [finding_card.card(store, finding) for finding in findings]
    sections: list[Component] = [dmc.Stack(cards[:MOST_OPEN_FINDINGS], gap="xs")]
    folded_cards = cards[MOST_OPEN_FINDINGS:]
    if folded_cards:
        summary = html.Summary(f"{len(folded_cards)} more", className="way")
        sections.append(html.Details([summary, dmc.Stack(folded_cards, gap="xs")]))
    return html.Section(sections, **aria(text.count(len(findings), "finding")), id="findings")


@live.section("overview-notes")
def _lay_out_notes(store: Store, _view: ViewState) -> Component:
    """List what limits the trace."""
    lines = [html.Li(write_note(note)) for note in store.report.notes]
    lines += [
        html.Li(f"{event_count:,} events dropped while recording: {reason}.")
        for reason, event_count in store.report.summary.dropped.items()
    ]
    if not lines:
        return html.Div()
    title = dmc.Title("Limitations of this trace", order=2, className="card-title")
    return dmc.Card([title, html.Ul(lines, className="notes")], className="card", mt="sm")
