"""How much of the job's time was training? Its attempts, and what became of the wall time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dash import html

from tracelens.reports.messages import describe_life
from tracelens_dashboard.components import chart, heading
from tracelens_dashboard.components.chart import ChartCard, fit_rows, from_tables
from tracelens_dashboard.figures import life
from tracelens_dashboard.view import finding_pages

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.view.state import ViewState

PATH: Final = finding_pages.LIFE
TITLE: Final = "Life"
EXPLANATION: Final = (
    "The wall time of the job with all its attempts: how much of it went into steps that were kept."
)
NOT_RECORDED: Final = (
    "What became of the wall time is known of jobs that TraceLens recorded itself, as a whole: "
    "“tracelens record -- COMMAND”."
)


def _count_attempts(store: Store) -> int:
    return int(store.analysis_table("attempts").height)


BY_ATTEMPT: Final = ChartCard(
    card_id="life-attempts",
    title="Wall time by attempt",
    explanation=(
        "A bar for each start of the job. Steps that were kept are what no later attempt did again; "
        "the rest is what training cost beyond them."
    ),
    draw=from_tables(life.by_attempt, "life", "attempts"),
    height_px=fit_rows(_count_attempts, frame_px=130, row_px=40, least_px=220, most_px=900),
)
CARDS: Final[tuple[ChartCard, ...]] = (BY_ATTEMPT,)


def layout(store: Store, view: ViewState) -> Component:
    """Return the page, or say why nothing is known of the job's life."""
    title = heading.page_title(TITLE, EXPLANATION)
    life_shares = store.report.life
    if life_shares is None:
        return heading.page_in_words([title], NOT_RECORDED, identity="no-life")
    summary = html.P(describe_life(life_shares), className="summary prose")
    return html.Div([title, summary, chart.grid(CARDS, store, view)], className="page")
