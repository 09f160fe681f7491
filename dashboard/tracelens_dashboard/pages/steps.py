"""How long do steps take: on which ranks, in which steps, since when, and how often?

What is measured can be chosen: the whole step, compute time, waiting, or one category.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import Input, State, dcc, html

from tracelens.accounting.categories import OWN_CATEGORIES
from tracelens.lod import regimes
from tracelens.lod.step_times import StepGrid
from tracelens_dashboard.components import chart, fields, finding_card, heading, live
from tracelens_dashboard.components.chart import ChartCard, fit_rows, rank_count
from tracelens_dashboard.figures import axes, step_durations
from tracelens_dashboard.theme import Theme, name_of
from tracelens_dashboard.view import finding_pages, links

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from tracelens_dashboard.figures.drawing import Drawing
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.view.state import ViewState

PATH: Final = finding_pages.STEPS
TITLE: Final = "Steps"
EXPLANATION: Final = "How long steps take: their time over the run, by rank, and as a distribution."
MEASURE: Final = "step-measure"
MARKED: Final = "step-marked"
WHOLE_STEP: Final = "the whole step"
COMPUTE_TIME: Final = "compute time"
NO_STEPS: Final = (
    "This trace has no steps. Hooks of frameworks mark them by themselves; in a loop of your "
    "own, write “with tl.step(i): …” around what is done for each batch, and this page shows how "
    "long each took on every rank."
)


def _choose_measure(store: Store) -> Component:
    """Return the select; categories that never occur are not offered."""
    names = [WHOLE_STEP, COMPUTE_TIME, *store.category_times.categories]
    return fields.select(MEASURE, [(name, name_of(name)) for name in names], "what is measured")


def select_categories(store: Store, measure: str | None) -> tuple[str, ...]:
    """Return the categories that a measure sums up; all of them for one that is not known."""
    categories = store.category_times.categories
    if measure == COMPUTE_TIME:
        return tuple(name for name in categories if name in OWN_CATEGORIES)
    return (measure,) if measure in categories else categories


def name_measure(measure: str | None) -> str:
    """Return the name of a measure within a sentence."""
    return "step time" if measure in {None, WHOLE_STEP} else f"{name_of(measure)} per step"


def _draw_series(store: Store, theme: Theme, measure: str | None) -> Drawing:
    """Draw a measure of steps over the run, with its regimes and the findings' marks."""
    # Regimes are stretches of the run in which the median rank's time keeps a level.
    marks = [
        step_durations.Mark(
            finding_card.title(finding), *finding.steps, is_fault=finding.category == "fault"
        )
        for finding in store.report.findings
        if finding.steps
    ]
    times = store.measure_step_times(select_categories(store, measure))
    step_regimes = regimes.find_regimes(times.rank_median_ns)
    return step_durations.over_run(times, step_regimes, marks, name_measure(measure), theme)


def draw_plain_series(store: Store, theme: Theme) -> Drawing:
    """Draw whole steps over the run, without marks of findings, for the report."""
    times = store.measure_step_times(store.category_times.categories)
    step_regimes = regimes.find_regimes(times.rank_median_ns)
    return step_durations.over_run(times, step_regimes, marks=[], measure_name="step", theme=theme)


def _make_grid(store: Store, measure: str | None) -> StepGrid:
    categories = select_categories(store, measure)
    return StepGrid.from_times(store.category_times, categories, axes.MOST_ROWS, axes.MOST_COLUMNS)


def _draw_map(
    store: Store, theme: Theme, measure: str | None = None, marked: list[int] | None = None
) -> Drawing:
    steps = (marked[0], marked[1]) if marked else None
    return step_durations.by_rank(_make_grid(store, measure), theme, steps)


def _draw_distribution(store: Store, theme: Theme, measure: str | None) -> Drawing:
    times = store.measure_step_times(select_categories(store, measure))
    return step_durations.distribution(times, name_measure(measure), theme)


def _link_to_point(store: Store, point: dict[str, Any]) -> str | None:
    step, rank, _ = point.get("customdata") or (None, None, None)
    return None if step is None else links.to_step(store, step, () if rank is None else (rank,))


def _link_to_cell(store: Store, point: dict[str, Any], measure: str | None) -> str:
    grid = _make_grid(store, measure)
    rank, step = grid.find_longest_from(axes.first_rank(point["y"]), int(point["x"]))
    return links.to_step(store, step, (rank,))


def _link_to_example(store: Store, point: dict[str, Any]) -> str | None:
    example = (point.get("customdata") or [None, None])[1]
    return links.to_step(store, example[1], (example[0],)) if example else None


SERIES: Final = ChartCard(
    card_id="step-series",
    title="Step time over the run",
    explanation="The median and the slowest rank of each step. A regime is a part of the run whose "
    "step time keeps another level.",
    draw=_draw_series,
    height_px=280,
    inputs=(Input(MEASURE, "value"),),
    link_from_mark=_link_to_point,
)
MAP: Final = ChartCard(
    card_id="step-map",
    title="Step time by rank and step",
    explanation="The longest step of each cell. The scale ends at 2.5 times the median step at "
    "most, so a few warm-up steps do not use its colours up.",
    draw=_draw_map,
    height_px=fit_rows(rank_count, frame_px=100, row_px=30, least_px=240, most_px=440),
    inputs=(Input(MEASURE, "value"), Input(MARKED, "data")),
    link_from_mark=_link_to_cell,
    link_states=(State(MEASURE, "value"),),
    grid_columns={"base": 12, "lg": 7},
)
DISTRIBUTION: Final = ChartCard(
    card_id="step-spread",
    title="Step time distribution",
    explanation="How many steps of ranks lasted how long, with p50, p90 and p99.",
    draw=_draw_distribution,
    height_px=fit_rows(rank_count, frame_px=100, row_px=30, least_px=240, most_px=440),
    inputs=(Input(MEASURE, "value"),),
    link_from_mark=_link_to_example,
    grid_columns={"base": 12, "lg": 5},
)
CARDS: Final[tuple[ChartCard, ...]] = (SERIES, MAP, DISTRIBUTION)


@live.section("steps-findings")
def _lay_out_findings(store: Store, _view: ViewState) -> Component:
    cards = [
        finding_card.card(store, finding) for finding in store.report.findings if finding.steps
    ]
    return dmc.Stack(cards[: step_durations.MOST_MARKS], gap="xs", mt="sm")


def layout(store: Store, view: ViewState) -> Component:
    """Return the page, or say what to record to see it."""
    title = heading.page_title(TITLE, EXPLANATION)
    if not store.category_times.steps:
        return heading.page_in_words([title], NO_STEPS)
    return html.Div(
        [
            dcc.Store(id=MARKED, data=view.marked_steps),
            html.Div([title, _choose_measure(store)], className="page-heading"),
            chart.grid(CARDS, store, view),
            _lay_out_findings(store, view),
        ],
        className="page",
    )
