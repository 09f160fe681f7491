"""What changed from another run, or from several, to this one?"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import Input, Output, State, dcc, html
from dash.exceptions import PreventUpdate

from tracelens.comparison import Steps
from tracelens.comparison import compare as compared
from tracelens.comparison.series import CATEGORY_OF, MEAN_STEP_TIME, STEP_TIME, difference
from tracelens_dashboard import ids, text
from tracelens_dashboard.components import baselines, chart, finding_card, heading, live
from tracelens_dashboard.components.timeline import side_by_side
from tracelens_dashboard.figures import compare, overview
from tracelens_dashboard.figures.drawing import empty
from tracelens_dashboard.ids import aria
from tracelens_dashboard.runs import current, selection
from tracelens_dashboard.theme import name_of
from tracelens_dashboard.view import links, state

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from tracelens.comparison import Comparison, Metric
    from tracelens.model.findings import Finding
    from tracelens_dashboard.figures.drawing import Drawing
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.theme import Theme
    from tracelens_dashboard.view.state import ViewState

PATH: Final = links.COMPARE
TITLE: Final = "Compare"

OTHER: Final = "compare-other"
CHOICE: Final = "compare-choice"
NEW: Final = "compare-new"
THIS_RUN: Final = "compare-here"
THERE: Final = "compare-there"
MOVED: Final = "compare-moved"
MAP: Final = "compare-map"
SHOWN: Final = 6
_KEPT: Final = 2  # comparisons: of which a page has the charts drawn
ROW_PX: Final = 26
ALONE: Final = (
    "One run is served, so there is none to compare it with. Name another one beside it, or a folder "
    "that holds both: tracelens serve DIR DIR ..."
)
CHOOSE: Final = (
    "Choose the run to compare this one with, or several baselines. Steps are matched by their number "
    "since the start, on the ranks that both have."
)
NOT_CHOSEN: Final = "Choose a run to compare with."


def layout(store: Store, view: ViewState) -> Component:
    """Return the page, or how to come to a second run."""
    title = heading.page_title(TITLE)
    if selection.is_served_alone(store.run_id):
        return _message(title, ALONE)
    others = [found for one in view.compared if (found := current.other(one))]
    top = html.Div([title, _choice(store, view)], className="page-heading")
    if not others:
        return _message(top, CHOOSE)
    if len(others) > 1:
        parts = [top, *baselines.layout(store, view.compared)]
        return html.Div(parts, className="page", id="compare")
    (other,) = others
    height = max(200, min(420, 100 + ROW_PX * len(set(store.ranks) & set(other.ranks))))
    half = {"base": 12, "md": 6}
    cards = (
        (chart.card(THIS_RUN, "Where the time went", 280, suffix=f": {current.name(store)}"), half),
        (chart.card(THERE, "Where the time went", 280, suffix=f": {current.name(other)}"), half),
        (chart.card(MOVED, "Step time by category", 320), {"base": 12, "md": 5}),
        (
            chart.card(
                MAP,
                "Compute time difference by rank and step",
                height,
            ),
            {"base": 12, "md": 7},
        ),
    )
    return html.Div(
        [
            dcc.Store(id=OTHER, data=other.run_id),
            top,
            _verdict(store, view),
            dmc.Grid([dmc.GridCol(card, span=span) for card, span in cards], gutter="sm"),
            side_by_side.layout(store, other, view),
            _listing(store, view),
        ],
        className="page",
        id="compare",
    )


def register(app: Dash) -> None:
    """Draw the charts; a click on a cell shows the step in both timelines."""
    other = Input(OTHER, "data")
    chart.bind(app, THIS_RUN, _this_run)
    chart.bind(app, THERE, _there, other)
    chart.bind(app, MOVED, _moved, other)
    chart.bind(app, MAP, _map, other)
    baselines.register(app)
    side_by_side.register(app, OTHER, ids.part(MAP, "graph"))

    @app.callback(
        Output(ids.GO, "href", allow_duplicate=True),
        Input(CHOICE, "value"),
        State(ids.GO, "search"),
        prevent_initial_call=True,
    )
    def choose(chosen: Any, search: Any) -> str:
        view, wanted = state.read(search), state.baselines(chosen)
        if not all(map(current.runs().entry, wanted)) or wanted == view.compare:
            raise PreventUpdate
        return links.to_comparison(view.run, *wanted)

    @app.callback(
        Output(ids.GO, "href", allow_duplicate=True),
        Input(NEW, "value"),
        State(ids.GO, "search"),
        prevent_initial_call=True,
    )
    def renew(chosen: Any, search: Any) -> str:
        view = state.read(search)
        if chosen not in view.compare:
            raise PreventUpdate
        return _exchanged(view, chosen)


@live.part("compare-verdict")
def _verdict(store: Store, view: ViewState) -> Component | None:
    other = _other(view)
    return _sentence(store, other) if other else None


@live.part("compare-findings")
def _listing(store: Store, view: ViewState) -> Component | None:
    other = _other(view)
    return _findings(store, other) if other else None


def _other(view: ViewState) -> Store | None:
    """Return the one baseline; null if it is not served any more."""
    return next((found for one in view.compared if (found := current.other(one))), None)


def _choice(store: Store, view: ViewState) -> Component:
    shown = selection.read(store.run_id)
    mine = shown.run if shown else None
    entries = [entry for entry in current.runs().look() if entry.id != mine]
    known = [entry.id for entry in entries if entry.id in view.compare]
    select = dmc.MultiSelect(
        id=CHOICE,
        data=[{"value": entry.id, "label": text.shown(entry.name)} for entry in entries],
        value=sorted(known, key=view.compare.index),
        placeholder="Add a baseline" if known else "Compare with",
        searchable=True,
        hidePickedOptions=True,
        maxValues=state.MOST_BASELINES,
        limit=50,
        size="xs",
        miw=220,
        maw=560,
        **aria("runs to compare with"),
    )
    parts = [html.Span("with", className="fact-name"), select]
    if len(known) > 1 and mine:
        parts = [*_newest(mine, known), *parts]
    elif known and view.run:
        parts.append(dcc.Link("Swap", href=_exchanged(view, known[0]), className="way"))
    return dmc.Group(parts, gap="sm")


def _newest(mine: str, known: list[str]) -> list[Component]:
    """Return the choice of which run is compared with all others."""
    named = {entry.id: text.shown(entry.name) for entry in current.runs().look()}
    select = dmc.Select(
        id=NEW,
        data=[{"value": one, "label": named[one]} for one in (mine, *known)],
        value=mine,
        allowDeselect=False,
        size="xs",
        w=190,
        **aria("new run, compared with all others"),
    )
    return [html.Span("new run", className="fact-name"), select]


def _exchanged(view: ViewState, chosen: str) -> str:
    """Compare one of the baselines with all other runs of a comparison."""
    mine = selection.read(view.run)
    former = (mine.run if mine else None) or ""
    new = (mine.like(chosen) if mine else None) or chosen
    return links.to_comparison(new, *(former if one == chosen else one for one in view.compare))


def _message(heading: Component, sentence: str) -> Component:
    card = dmc.Card(html.P(sentence), className="card prose")
    return html.Div([heading, card], className="page", id="compare")


def _this_run(store: Store, theme: Theme) -> Drawing:
    return overview.waterfall(store.report.efficiency, theme)


def _there(_store: Store, theme: Theme, other: Any) -> Drawing:
    found = current.other(other)
    return overview.waterfall(found.report.efficiency, theme) if found else empty(theme, NOT_CHOSEN)


def _moved(store: Store, theme: Theme, other: Any) -> Drawing:
    found = current.other(other)
    if found is None:
        return empty(theme, NOT_CHOSEN)
    names = current.name(store), current.name(found)
    return compare.by_category(_comparison(store, found).phases, names, theme)


def _map(store: Store, theme: Theme, other: Any) -> Drawing:
    found = current.other(other)
    if found is None:
        return empty(theme, NOT_CHOSEN)
    cells = difference(store.residuals, found.residuals)
    return compare.by_rank(cells, theme, step_ns=store.times.usual_ns)


def _sentence(store: Store, other: Store) -> Component:
    parts = [_steps(store, other), _efficiency(store, other), _category(store, other)]
    sentence = " ".join(part for part in parts if part)
    return html.Div(dmc.Title(text.tied(sentence), order=2, id="verdict"), className="verdict")


@lru_cache(_KEPT)
def _comparison(store: Store, other: Store) -> Comparison:
    """Compare this run with the other one, its baseline."""
    return compared([Steps.from_run(other.run)], Steps.from_run(store.run))


def _steps(store: Store, other: Store) -> str:
    found = _comparison(store, other)
    step, mean = found.metric(STEP_TIME), found.metric(MEAN_STEP_TIME)
    if step is None or mean is None:
        return "One of the runs has no steps."
    change = step.change
    usual = (
        f"Median step {text.duration(change.after)}, in {current.name(other)} "
        f"{text.duration(change.before)}"
    )
    end = f"the mean step is {_more(mean)}"
    if not step.clear:
        return f"{usual}: no clear difference; {end}."
    return f"{usual}: {_more(step)}; {end}."


def _more(metric: Metric) -> str:
    """Return by how much a metric is longer or shorter, with its interval where that is clear."""
    change = metric.change
    share = change.share(change.delta) or 0.0
    words = f"{text.percent(abs(share))} {'longer' if share > 0 else 'shorter'}"
    if not metric.clear or change.low is None or change.high is None:
        return words
    low, high = sorted(abs(change.share(edge) or 0.0) for edge in (change.low, change.high))
    return f"{words} (95 % interval {text.points(low)} to {text.percent(high)})"


def _efficiency(store: Store, other: Store) -> str:
    mine, theirs = store.report.efficiency, other.report.efficiency
    if mine is None or theirs is None:
        return ""
    return (
        f"Parallel efficiency {text.percent(mine.achieved)} here, "
        f"{text.percent(theirs.achieved)} there."
    )


def _category(store: Store, other: Store) -> str:
    phases = _comparison(store, other).phases
    if not phases:
        return ""
    largest, delta = name_of(CATEGORY_OF[phases[0].name]), phases[0].change.delta
    more = "more" if delta > 0 else "less"
    return f"Largest change: {largest}, {text.duration(abs(delta))} {more} per step."


def _findings(store: Store, other: Store) -> Component:
    """List what appeared, and what is not there any more."""
    rows = _comparison(store, other).findings
    new = [row.finding for row in rows if row.state == "new"]
    departed = [row.finding for row in rows if row.state == "gone"]
    half = {"base": 12, "md": 6}
    columns = [
        dmc.GridCol(_listed(f"Only in {current.name(store)}", store, new), span=half),
        dmc.GridCol(_listed(f"Only in {current.name(other)}", other, departed), span=half),
    ]
    return dmc.Grid(columns, gutter="sm", mt="sm")


def _listed(title: str, store: Store, found: list[Finding]) -> Component:
    cards: list[Component] = [finding_card.card(store, finding) for finding in found[:SHOWN]]
    if not found:
        cards = [html.P("No finding.", className="summary")]
    elif found[SHOWN:]:
        cards.append(html.P(f"and {len(found) - SHOWN} more", className="summary"))
    heading = dmc.Title(title, order=2, className="card-title", mb="xs")
    return html.Section([heading, dmc.Stack(cards, gap="xs")], **aria(title))
