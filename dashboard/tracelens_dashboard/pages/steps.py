"""How long do steps take: on which ranks, in which steps, since when, and how often?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import Input, State, dcc, html

from tracelens.lod import regimes
from tracelens.lod.grid import Grid
from tracelens_dashboard import links
from tracelens_dashboard.components import chart, finding_card, follow, measure
from tracelens_dashboard.figures import step_map, step_series, step_spread
from tracelens_dashboard.figures.lateness_map import first_rank

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from tracelens_dashboard.figures.drawing import Drawing
    from tracelens_dashboard.state import ViewState
    from tracelens_dashboard.store import Store
    from tracelens_dashboard.theme import Theme

PATH: Final = "/steps"
TITLE: Final = "Steps"

SERIES: Final = "step-series"
MAP: Final = "step-map"
SPREAD: Final = "step-spread"
MEASURE: Final = "step-measure"
MARKED: Final = "step-marked"
ROW_PX: Final = 30
NO_STEPS: Final = (
    "This trace has no steps. Hooks of frameworks mark them by themselves; in a loop of your own, write "
    "“with tl.step(i): …” around what is done for each batch, and this page shows how long each "
    "took on every rank."
)


def layout(store: Store, view: ViewState) -> Component:
    """Return the page, or say what to record to see it."""
    title = dmc.Title("How long do steps take?", order=1, className="page-title")
    if not store.times.steps:
        return html.Div(
            [title, dmc.Card(html.P(NO_STEPS), className="card prose")], className="page"
        )
    half = {"base": 12, "lg": 7}, {"base": 12, "lg": 5}
    height = max(240, min(440, 100 + ROW_PX * len(store.ranks)))
    cards = (
        (chart.card(SERIES, "Step time over the run", 280), 12),
        (chart.card(MAP, "Rank and step", height), half[0]),
        (chart.card(SPREAD, "How often a step takes how long", height), half[1]),
    )
    return html.Div(
        [
            dcc.Store(id=MARKED, data=view.steps),
            html.Div([title, measure.choice(MEASURE, store)], className="page-heading"),
            dmc.Grid([dmc.GridCol(card, span=span) for card, span in cards], gutter="sm"),
            _findings(store),
        ],
        className="page",
    )


def register(app: Dash) -> None:
    """Draw the charts; a click on a step leads to it in the timeline."""
    chosen = Input(MEASURE, "value")
    chart.bind(app, SERIES, _series, chosen)
    chart.bind(app, MAP, _map, chosen, Input(MARKED, "data"))
    chart.bind(app, SPREAD, _spread, chosen)
    follow.bind(app, SERIES, _to_point)
    follow.bind(app, MAP, _to_cell, State(MEASURE, "value"))
    follow.bind(app, SPREAD, _to_example)


def _series(store: Store, theme: Theme, chosen: str | None) -> Drawing:
    times = store.step_times(measure.categories(store, chosen))
    found = regimes.find(times.usual_ns)
    return step_series.draw(times, found, _marks(store), measure.words(chosen), theme)


def _map(store: Store, theme: Theme, chosen: str | None, marked: list[int] | None) -> Drawing:
    steps = (marked[0], marked[1]) if marked else None
    return step_map.draw(_grid(store, chosen), theme, steps)


def _spread(store: Store, theme: Theme, chosen: str | None) -> Drawing:
    times = store.step_times(measure.categories(store, chosen))
    return step_spread.draw(times, measure.words(chosen), theme)


def _grid(store: Store, chosen: str | None) -> Grid:
    categories = measure.categories(store, chosen)
    return Grid.of(store.times, categories, step_map.MOST_ROWS, step_map.MOST_COLUMNS)


def _marks(store: Store) -> list[step_series.Mark]:
    """Return the steps of findings that speak of a part of the run."""
    return [
        step_series.Mark(finding_card.title(finding), *finding.steps, finding.category == "fault")
        for finding in store.report.findings
        if finding.steps
    ]


def _findings(store: Store) -> Component:
    cards = [finding_card.card(store, one) for one in store.report.findings if one.steps]
    return dmc.Stack(cards[: step_series.MOST_MARKS], gap="xs", mt="sm")


def _to_point(store: Store, point: dict[str, Any]) -> str | None:
    step, rank, _ = point.get("customdata") or (None, None, None)
    return None if step is None else links.to_step(store, step, () if rank is None else (rank,))


def _to_cell(store: Store, point: dict[str, Any], chosen: str | None) -> str:
    rank, step = _grid(store, chosen).shown_at(first_rank(point["y"]), int(point["x"]))
    return links.to_step(store, step, (rank,))


def _to_example(store: Store, point: dict[str, Any]) -> str | None:
    example = (point.get("customdata") or [None, None])[1]
    return links.to_step(store, example[1], (example[0],)) if example else None
