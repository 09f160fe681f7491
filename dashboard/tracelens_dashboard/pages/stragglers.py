"""Which ranks are stragglers, in which steps, and in which phase?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dash import Input, dcc, html

from tracelens.accounting.categories import OWN_CATEGORIES
from tracelens_dashboard.components import chart, fields, finding_card, heading
from tracelens_dashboard.components.chart import ChartCard, fit_rows, rank_count
from tracelens_dashboard.figures import axes, stragglers
from tracelens_dashboard.theme import Theme, name_of
from tracelens_dashboard.view import finding_pages, links

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from tracelens_dashboard.figures.drawing import Drawing
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.view.state import ViewState

PATH: Final = finding_pages.STRAGGLERS
TITLE: Final = "Stragglers"
EXPLANATION: Final = (
    "Ranks whose compute time exceeds that of their peers, so that others wait for them."
)
PHASE: Final = "late-phase"
MARKED: Final = "late-marked"
COMPUTE_TIME: Final = "compute time"


def _choose_phase(store: Store, _view: ViewState) -> Component:
    phases = [name for name in OWN_CATEGORIES if name in store.category_times.categories]
    return fields.select(
        PHASE, [(name, name_of(name)) for name in (COMPUTE_TIME, *phases)], "phase"
    )


def _draw_map(
    store: Store, theme: Theme, phase: str | None = None, marked: list[int] | None = None
) -> Drawing:
    residuals = store.residuals_of_category(phase) if phase in OWN_CATEGORIES else store.residuals
    return stragglers.by_rank(residuals, theme, (marked[0], marked[1]) if marked else None)


def _link_to_cell(store: Store, point: dict[str, Any]) -> str:
    return links.to_step(store, int(point["x"]), (axes.first_rank(point["y"]),))


MAP: Final = ChartCard(
    card_id="late-map",
    title=stragglers.MAP_TITLE,
    explanation=stragglers.MAP_EXPLANATION,
    draw=_draw_map,
    height_px=fit_rows(rank_count, frame_px=100, row_px=34, least_px=240, most_px=440),
    inputs=(Input(PHASE, "value"), Input(MARKED, "data")),
    link_from_mark=_link_to_cell,
    lay_out_choice=_choose_phase,
    grid_columns={"base": 12, "lg": 7},
)
BARS: Final = ChartCard(
    card_id="late-bars",
    title="Residual by phase",
    explanation="The mean residual per step of the worst ranks, by the phase it is in.",
    draw=lambda store, theme: stragglers.by_category(
        store.residuals, store.residuals_of_category, theme
    ),
    height_px=fit_rows(rank_count, frame_px=100, row_px=34, least_px=240, most_px=440),
    grid_columns={"base": 12, "lg": 5},
)
CARDS: Final[tuple[ChartCard, ...]] = (MAP, BARS)

_lay_out_findings = finding_card.section_of_page("stragglers-findings", PATH)


def layout(store: Store, view: ViewState) -> Component:
    """Return the page."""
    return html.Div(
        [
            dcc.Store(id=MARKED, data=view.marked_steps),
            heading.page_title(TITLE, EXPLANATION),
            _lay_out_findings(store, view),
            chart.grid(CARDS, store, view),
        ],
        className="page",
    )
