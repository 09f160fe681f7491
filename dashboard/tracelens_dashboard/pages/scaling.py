"""How do runs of several sizes scale, which factor loses efficiency, and what would more take?"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import Input, Output, html

from tracelens.errors import TraceLensError
from tracelens.lod import opening
from tracelens.model.inert import clean
from tracelens.scaling import Point, curves, messages
from tracelens_dashboard import ids, text
from tracelens_dashboard.components import chart, heading
from tracelens_dashboard.figures import scaling
from tracelens_dashboard.figures.drawing import empty
from tracelens_dashboard.ids import aria
from tracelens_dashboard.runs import current, selection

if TYPE_CHECKING:
    from pathlib import Path

    from dash import Dash
    from dash.development.base_component import Component

    from tracelens.scaling import Scaling
    from tracelens_dashboard.figures.drawing import Drawing
    from tracelens_dashboard.runs.catalog import Entry
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.theme import Theme
    from tracelens_dashboard.view.state import ViewState

PATH: Final = "/scaling"
TITLE: Final = "Scaling"

CHOSEN: Final = "scaling-runs"
KIND: Final = "scaling-kind"
BY: Final = "scaling-by"
AHEAD: Final = "scaling-ahead"
VERDICT: Final = "scaling-verdict"
FACTORS: Final = "scaling-factors"
STEPS: Final = "scaling-steps"
AS_MEASURED: Final = "as measured"
MOST_RUNS: Final = 64
MOST_WORKERS: Final = 1 << 20
KINDS: Final = (AS_MEASURED, "weak", "strong")
BYS: Final = ("workers", "shards")
ALONE: Final = (
    "One run is served. Scaling needs runs of one program on different numbers of workers, or servers: "
    "tracelens serve DIR DIR ..."
)
UNREAD: Final = "{count} not analyzed yet: the list of runs shows how far that is."


def layout(store: Store, _view: ViewState) -> Component:
    """Return the page, or how to come to more runs."""
    title = heading.page_title(TITLE)
    if selection.is_served_alone(store.run_id):
        card = dmc.Card(html.P(ALONE), className="card prose", id="no-scaling")
        return html.Div([title, card], className="page")
    entries = current.runs().look()
    cards = (
        chart.card(FACTORS, "Efficiency and its factors", 360),
        chart.card(STEPS, "Step time by size", 320),
    )
    return html.Div(
        [
            html.Div([title, _controls(entries)], className="page-heading"),
            html.Div(id=VERDICT, className="verdict", role="status"),
            dmc.Grid(
                [dmc.GridCol(card, span={"base": 12, "lg": 6}) for card in cards], gutter="sm"
            ),
        ],
        className="page",
        id="scaling",
    )


def register(app: Dash) -> None:
    """Compare the chosen runs whenever the choice changes."""
    asked = tuple(Input(name, "value") for name in (CHOSEN, BY, KIND, AHEAD))
    chart.bind(app, FACTORS, _factors, *asked)
    chart.bind(app, STEPS, _steps, *asked)

    @app.callback(Output(VERDICT, "children"), *asked, Input(ids.RUN, "data"))
    def judge(*given: Any) -> list[Component]:
        values = given[:-1]  # the last one says that a run was read again
        try:
            found = _found(*values)
        except TraceLensError as error:
            return [html.P(clean(str(error)), className="summary", id="scaling-refused")]
        lines = [messages.why(found), messages.advice(found), messages.scope(found)]
        lines += messages.cautions(found)
        return [
            dmc.Title(text.tied(messages.headline(found)), order=2, id="verdict"),
            *(html.P(line, className="summary") for line in [*lines, *_unread(values[0])]),
        ]


def _controls(entries: list[Entry]) -> Component:
    names = [{"value": entry.id, "label": text.shown(entry.name)} for entry in entries]
    return dmc.Group(
        [
            dmc.MultiSelect(
                id=CHOSEN,
                data=names,
                value=[entry.id for entry in entries[:MOST_RUNS]],
                searchable=True,
                clearable=True,
                limit=100,
                size="xs",
                maw=640,
                **aria("runs to compare"),
            ),
            _choice(BY, BYS, "what runs differ in"),
            _choice(KIND, KINDS, "weak or strong scaling"),
            dmc.TextInput(
                id=AHEAD,
                placeholder="forecast: 64 128",
                debounce=True,
                size="xs",
                w=140,
                **aria("numbers of workers to forecast"),
            ),
        ],
        gap="xs",
    )


def _choice(name: str, values: tuple[str, ...], label: str) -> Component:
    return dmc.SegmentedControl(
        id=name, data=list(values), value=values[0], size="xs", **aria(label)
    )


def _factors(_store: Store, theme: Theme, *values: Any) -> Drawing:
    try:
        return scaling.factors(_found(*values), theme)
    except TraceLensError as error:
        return empty(theme, clean(str(error)))


def _steps(_store: Store, theme: Theme, *values: Any) -> Drawing:
    try:
        return scaling.steps(_found(*values), theme)
    except TraceLensError as error:
        return empty(theme, clean(str(error)))


def _found(chosen: Any, by: Any, kind: Any, ahead: Any) -> Scaling:
    """Compare runs; what the browser sends may be anything.

    Raises:
        InvalidArgument: no two sizes of one system are among them, or a forecast cannot be made.
    """
    points = [point for entry in _entries(chosen) for point in _points(entry)]
    typed = re.findall(r"\b\d{1,7}\b", ahead) if isinstance(ahead, str) else []
    sizes = {int(size) for size in typed if 0 < int(size) <= MOST_WORKERS}
    return curves(
        points,
        by="shards" if by == "shards" else None,
        kind=kind if kind in KINDS[1:] else None,
        at=sizes,
    )


def _entries(chosen: Any) -> list[Entry]:
    given = chosen if isinstance(chosen, list) else []
    found = (current.runs().entry(one) for one in given[:MOST_RUNS])
    return [entry for entry in found if entry]


def _points(entry: Entry) -> list[Point]:
    """Return a run as a point; none if it was not read yet, or has no steps with computation."""
    point = _point(entry.path, text.shown(entry.name), entry.changed_ns)
    return [point] if point else []


@lru_cache(4 * MOST_RUNS)
def _point(path: Path, name: str, _changed_ns: int) -> Point | None:
    run = opening.indexed(path)
    try:
        return Point.from_run(run, name) if run else None
    except TraceLensError:
        return None


def _unread(chosen: Any) -> list[str]:
    entries = _entries(chosen)
    count = sum(current.runs().glance(entry) is None for entry in entries)
    return [UNREAD.format(count=text.count(count, "run"))] if count else []
