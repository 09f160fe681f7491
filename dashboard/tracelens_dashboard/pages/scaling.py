"""How do runs of several sizes scale, which factor loses efficiency, and what would more take?"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import Dash, Input, Output, html

from tracelens.errors import TraceLensError
from tracelens.lod import opening
from tracelens.model.inert import clean
from tracelens.scaling import Point, Scaling, curves, messages
from tracelens_dashboard import ids, text
from tracelens_dashboard.components import chart, fields, heading
from tracelens_dashboard.components.chart import HALF_WIDTH, ChartCard
from tracelens_dashboard.figures import scaling
from tracelens_dashboard.figures.drawing import Drawing, empty
from tracelens_dashboard.ids import aria
from tracelens_dashboard.runs import current, selection

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dash.development.base_component import Component

    from tracelens_dashboard.runs.catalog import Entry
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.theme import Theme
    from tracelens_dashboard.view.state import ViewState

PATH: Final = "/scaling"
TITLE: Final = "Scaling"
EXPLANATION: Final = (
    "What becomes of efficiency with more workers or servers, and which factor loses it."
)
CHOSEN: Final = "scaling-runs"
KIND: Final = "scaling-kind"
BY: Final = "scaling-by"
AHEAD: Final = "scaling-ahead"
VERDICT: Final = "scaling-verdict"
MOST_RUNS: Final = 64
MOST_WORKERS: Final = 1 << 20
KINDS: Final = ("as measured", "weak", "strong")
BYS: Final = ("workers", "shards")
ALONE: Final = (
    "One run is served. Scaling needs runs of one program on different numbers of workers, or "
    "servers: tracelens serve DIR DIR ..."
)
UNREAD: Final = "{count} not analyzed yet: the list of runs shows how far that is."
CONTROLS: Final = tuple(Input(name, "value") for name in (CHOSEN, BY, KIND, AHEAD))


def _draw_scaling(draw: Callable[[Scaling, Theme], Drawing]) -> Callable[..., Drawing]:
    """Return a card's `draw` that compares the chosen runs, or draws why that fails."""
    # The values are those of `CONTROLS`.

    def draw_chosen(_store: Store, theme: Theme, *values: Any) -> Drawing:
        try:
            return draw(_compare_sizes(*values), theme)
        except TraceLensError as error:
            return empty(theme, clean(str(error)))

    return draw_chosen


FACTORS: Final = ChartCard(
    card_id="scaling-factors",
    title="Efficiency and its factors",
    explanation="Efficiency against the smallest run: the product of POP's factors, each as a "
    "share of the smallest run's.",
    draw=_draw_scaling(scaling.factors),
    height_px=360,
    inputs=CONTROLS,
    grid_columns=HALF_WIDTH,
)
STEPS: Final = ChartCard(
    card_id="scaling-steps",
    title="Step time by size",
    explanation="The length of a step; a forecast is hollow, with its 95 % interval.",
    draw=_draw_scaling(scaling.steps),
    height_px=320,
    inputs=CONTROLS,
    grid_columns=HALF_WIDTH,
)
CARDS: Final[tuple[ChartCard, ...]] = (FACTORS, STEPS)


def layout(store: Store, view: ViewState) -> Component:
    """Return the page, or how to come to more runs."""
    title = heading.page_title(TITLE, EXPLANATION)
    if selection.is_served_alone(store.run_key):
        return heading.page_in_words([title], ALONE, identity="no-scaling")
    controls = _lay_out_controls(current.runs_of_app().list_entries())
    return html.Div(
        [
            html.Div([title, controls], className="page-heading"),
            html.Div(id=VERDICT, className="verdict", role="status"),
            chart.grid(CARDS, store, view),
        ],
        className="page",
        id="scaling",
    )


def register(app: Dash) -> None:
    """Compare the chosen runs whenever the choice changes."""

    @app.callback(Output(VERDICT, "children"), *CONTROLS, Input(ids.RUN, "data"))
    def judge(run_ids: Any, *values: Any) -> list[Component]:
        """Return the verdict on how the chosen runs scale, or why they cannot be compared.

        `values` are those of the other controls, and the run.
        """
        try:
            comparison = _compare_sizes(run_ids, *values[:-1])  # the last one: a run was read again
        except TraceLensError as error:
            return [html.P(clean(str(error)), className="summary", id="scaling-refused")]
        describers = (messages.explain_loss, messages.write_advice, messages.describe_scope)
        lines = [
            *(describe(comparison) for describe in describers),
            *messages.list_cautions(comparison),
        ]
        unread_count = sum(
            current.runs_of_app().find_glance(entry) is None for entry in _find_entries(run_ids)
        )
        lines += [UNREAD.format(count=text.count(unread_count, "run"))] if unread_count else []
        return [
            dmc.Title(text.tie_units(messages.write_headline(comparison)), order=2, id="verdict"),
            *(html.P(line, className="summary") for line in lines),
        ]


def _lay_out_controls(entries: list[Entry]) -> Component:
    """Return the fields for the runs, what they differ in, the kind of scaling, and forecasts."""
    run_choices = [(entry.run_key, text.clean_name(entry.name)) for entry in entries]
    run_ids = [entry.run_key for entry in entries[:MOST_RUNS]]
    options = {"searchable": True, "clearable": True, "limit": 100, "maw": 640}
    runs_field = fields.multi_select(
        CHOSEN, run_choices, "runs to compare", value=run_ids, **options
    )
    switches = [
        dmc.SegmentedControl(id=name, data=list(words), value=words[0], size="xs", **aria(label))
        for name, words, label in (
            (BY, BYS, "what runs differ in"),
            (KIND, KINDS, "weak or strong scaling"),
        )
    ]
    label = "numbers of workers to forecast"
    sizes_field = fields.text_input(AHEAD, label, "forecast: 64 128", w=140)
    return dmc.Group([runs_field, *switches, sizes_field], gap="xs")


def _compare_sizes(chosen_ids: Any, grouping: Any, kind: Any, forecast_text: Any) -> Scaling:
    """Compare runs by their sizes; what the browser sends may be anything.

    `forecast_text` has numbers of workers; unknown groupings and kinds of scaling are left to the
    data.

    Raises:
        InvalidArgument: no two sizes of one system are among them, or a forecast cannot be made.
    """
    # A run that was not read yet, or has no steps with computation, is no point.
    points = [
        point
        for entry in _find_entries(chosen_ids)
        if (point := _measure(entry.path, text.clean_name(entry.name), entry.modified_ns))
    ]
    sizes = re.findall(r"\b\d{1,7}\b", forecast_text) if isinstance(forecast_text, str) else []
    return curves(
        points,
        by="shards" if grouping == "shards" else None,
        kind=kind if kind in KINDS[1:] else None,
        at={int(size) for size in sizes if 0 < int(size) <= MOST_WORKERS},
    )


def _find_entries(chosen_ids: Any) -> list[Entry]:
    run_ids = chosen_ids[:MOST_RUNS] if isinstance(chosen_ids, list) else []
    return [entry for entry in map(current.runs_of_app().find_entry, run_ids) if entry]


@lru_cache(4 * MOST_RUNS)
def _measure(path: Path, name: str, _changed_ns: int) -> Point | None:
    """Return a run's point on the curves; None if it was not analyzed, or has no steps of work."""
    run = opening.open_indexed(path)
    try:
        return Point.from_run(run, name) if run else None
    except TraceLensError:
        return None
