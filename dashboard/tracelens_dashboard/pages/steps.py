"""How long do steps take: on which ranks, in which steps, since when, and how often?

What is measured can be chosen: the whole step, compute time, waiting, or one category.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import Input, State, dcc, html

from tracelens.accounting.phases import OWN_CATEGORIES
from tracelens.lod import regimes
from tracelens.lod.step_times import StepGrid
from tracelens_dashboard.components import chart, finding_card, heading, live
from tracelens_dashboard.figures import axes, step_durations
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


PATH: Final = "/steps"
TITLE: Final = "Steps"

SERIES: Final = "step-series"
MAP: Final = "step-map"
SPREAD: Final = "step-spread"
MEASURE: Final = "step-measure"
MARKED: Final = "step-marked"
WHOLE_STEP: Final = "the whole step"
COMPUTE_TIME: Final = "compute time"
ROW_PX: Final = 30
NO_STEPS: Final = (
    "This trace has no steps. Hooks of frameworks mark them by themselves; in a loop of your own, write "
    "“with tl.step(i): …” around what is done for each batch, and this page shows how long each "
    "took on every rank."
)


def layout(store: Store, view: ViewState) -> Component:
    """Return the page, or say what to record to see it."""
    title = heading.page_title(TITLE)
    if not store.times.steps:
        return html.Div(
            [title, dmc.Card(html.P(NO_STEPS), className="card prose")], className="page"
        )
    half = {"base": 12, "lg": 7}, {"base": 12, "lg": 5}
    height = max(240, min(440, 100 + ROW_PX * len(store.ranks)))
    cards = (
        (chart.card(SERIES, "Step time over the run", 280), 12),
        (chart.card(MAP, "Step time by rank and step", height), half[0]),
        (chart.card(SPREAD, "Step time distribution", height), half[1]),
    )
    return html.Div(
        [
            dcc.Store(id=MARKED, data=view.steps),
            html.Div([title, measure_choice(MEASURE, store)], className="page-heading"),
            dmc.Grid([dmc.GridCol(card, span=span) for card, span in cards], gutter="sm"),
            _findings(store, view),
        ],
        className="page",
    )


def register(app: Dash) -> None:
    """Draw the charts; a click on a step leads to it in the timeline."""
    chosen = Input(MEASURE, "value")
    chart.bind(app, SERIES, _series, chosen)
    chart.bind(app, MAP, _map, chosen, Input(MARKED, "data"))
    chart.bind(app, SPREAD, _spread, chosen)
    chart.follow_clicks(app, SERIES, _to_point)
    chart.follow_clicks(app, MAP, _to_cell, State(MEASURE, "value"))
    chart.follow_clicks(app, SPREAD, _to_example)


def _series(store: Store, theme: Theme, chosen: str | None) -> Drawing:
    times = store.step_times(measured_categories(store, chosen))
    found = regimes.find(times.usual_ns)
    return step_durations.over_run(times, found, _marks(store), measured_text(chosen), theme)


def _map(store: Store, theme: Theme, chosen: str | None, marked: list[int] | None) -> Drawing:
    steps = (marked[0], marked[1]) if marked else None
    return step_durations.by_rank(_grid(store, chosen), theme, steps)


def _spread(store: Store, theme: Theme, chosen: str | None) -> Drawing:
    times = store.step_times(measured_categories(store, chosen))
    return step_durations.distribution(times, measured_text(chosen), theme)


def _grid(store: Store, chosen: str | None) -> StepGrid:
    categories = measured_categories(store, chosen)
    return StepGrid.from_times(store.times, categories, axes.MOST_ROWS, axes.MOST_COLUMNS)


def _marks(store: Store) -> list[step_durations.Mark]:
    """Return the steps of findings about a part of the run."""
    return [
        step_durations.Mark(
            finding_card.title(finding), *finding.steps, finding.category == "fault"
        )
        for finding in store.report.findings
        if finding.steps
    ]


@live.part("steps-findings")
def _findings(store: Store, _view: ViewState) -> Component:
    cards = [finding_card.card(store, one) for one in store.report.findings if one.steps]
    return dmc.Stack(cards[: step_durations.MOST_MARKS], gap="xs", mt="sm")


def _to_point(store: Store, point: dict[str, Any]) -> str | None:
    step, rank, _ = point.get("customdata") or (None, None, None)
    return None if step is None else links.to_step(store, step, () if rank is None else (rank,))


def _to_cell(store: Store, point: dict[str, Any], chosen: str | None) -> str:
    rank, step = _grid(store, chosen).shown_at(axes.first_rank(point["y"]), int(point["x"]))
    return links.to_step(store, step, (rank,))


def _to_example(store: Store, point: dict[str, Any]) -> str | None:
    example = (point.get("customdata") or [None, None])[1]
    return links.to_step(store, example[1], (example[0],)) if example else None


def measure_choice(identity: str, store: Store) -> Component:
    """Return the select; categories that never occur are not offered."""
    names = [WHOLE_STEP, COMPUTE_TIME, *store.times.categories]
    data = [{"value": name, "label": name_of(name)} for name in names]
    return dmc.Select(
        id=identity,
        data=data,
        value=WHOLE_STEP,
        size="xs",
        allowDeselect=False,
        **aria("what is measured"),
    )


def measured_categories(store: Store, chosen: str | None) -> tuple[str, ...]:
    """Return the categories that a choice stands for; all of them where it makes no sense."""
    known = store.times.categories
    if chosen == COMPUTE_TIME:
        return tuple(name for name in known if name in OWN_CATEGORIES)
    return (chosen,) if chosen in known else known


def measured_text(chosen: str | None) -> str:
    """Return the name of a choice within a sentence."""
    return "step time" if chosen in {None, WHOLE_STEP} else f"{name_of(chosen)} per step"
