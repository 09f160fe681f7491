"""What changed from another run, or from several, to this one?"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import Input, Output, State, dcc, html
from dash.exceptions import PreventUpdate

from tracelens.comparison import Steps
from tracelens.comparison import compare as compare_runs
from tracelens.comparison.series import CATEGORY_OF, MEAN_STEP_TIME, STEP_TIME, difference
from tracelens_dashboard import ids, text
from tracelens_dashboard.components import baselines, chart, fields, finding_card, heading, live
from tracelens_dashboard.components.chart import HALF_FROM_MEDIUM, ChartCard
from tracelens_dashboard.components.timeline import side_by_side
from tracelens_dashboard.figures import compare, overview
from tracelens_dashboard.figures.drawing import empty
from tracelens_dashboard.runs import current, selection
from tracelens_dashboard.theme import name_of
from tracelens_dashboard.view import links, state

if TYPE_CHECKING:
    from collections.abc import Callable

    from dash import Dash
    from dash.development.base_component import Component

    from tracelens.comparison import Comparison, Metric
    from tracelens_dashboard.figures.drawing import Drawing
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.theme import Theme
    from tracelens_dashboard.view.state import ViewState

PATH: Final = links.COMPARE
TITLE: Final = "Compare"
EXPLANATION: Final = "What changed from another run to this one, with intervals."
OTHER: Final = "compare-other"
CHOICE: Final = "compare-choice"
NEW: Final = "compare-new"
MOST_COMPARISONS_KEPT: Final = 2  # of which a page has the charts drawn
ALONE: Final = (
    "One run is served, so there is none to compare it with. Name another one beside it, or a folder "
    "that holds both: tracelens serve DIR DIR ..."
)
CHOOSE: Final = (
    "Choose the run to compare this one with, or several baselines. Steps are matched by their number "
    "since the start, on the ranks that both have."
)
NOT_CHOSEN: Final = "Choose a run to compare with."


def _draw_with_baseline(draw: Callable[[Store, Store, Theme], Drawing]) -> Callable[..., Drawing]:
    """Return a card's `draw` that opens the baseline, by its id."""

    def draw_pair(store: Store, theme: Theme, baseline_id: Any) -> Drawing:
        baseline = current.find_store(baseline_id)
        return draw(store, baseline, theme) if baseline else empty(theme, NOT_CHOSEN)

    return draw_pair


def _draw_waterfall(store: Store, theme: Theme) -> Drawing:
    return overview.waterfall(store.report.efficiency, theme)


def _draw_baseline_waterfall(_store: Store, baseline: Store, theme: Theme) -> Drawing:
    return overview.waterfall(baseline.report.efficiency, theme)


def _draw_categories(store: Store, baseline: Store, theme: Theme) -> Drawing:
    names = current.name(store), current.name(baseline)
    return compare.by_category(_compare(store, baseline).phases, names, theme)


def _draw_map(store: Store, baseline: Store, theme: Theme) -> Drawing:
    cells = difference(store.residuals, baseline.residuals)
    return compare.by_rank(cells, theme, step_ns=store.times.usual_ns)


THIS_RUN: Final = ChartCard(
    name="compare-here",
    title="Where the time went",
    explanation=(
        "From total rank time down to parallel efficiency, each loss by its cause, after POP."
    ),
    draw=_draw_waterfall,
    height_px=280,
    span=HALF_FROM_MEDIUM,
)
BASELINE: Final = replace(
    THIS_RUN,
    name="compare-there",
    draw=_draw_with_baseline(_draw_baseline_waterfall),
    inputs=(Input(OTHER, "data"),),
)
CATEGORIES: Final = ChartCard(
    name="compare-moved",
    title="Step time by category",
    explanation="Time of the mean rank per step, by the category it belongs to.",
    draw=_draw_with_baseline(_draw_categories),
    height_px=320,
    inputs=(Input(OTHER, "data"),),
    span={"base": 12, "md": 5},
)
MAP: Final = ChartCard(
    name="compare-map",
    title="Compute time difference by rank and step",
    explanation=(
        "Compute time of this run minus the other's; teal: faster, orange: slower, pale: "
        "within noise."
    ),
    draw=_draw_with_baseline(_draw_map),
    inputs=(Input(OTHER, "data"),),
    span={"base": 12, "md": 7},
)
CARDS: Final[tuple[ChartCard, ...]] = (THIS_RUN, BASELINE, CATEGORIES, MAP, *baselines.CARDS)


def layout(store: Store, view: ViewState) -> Component:
    """Return the page, or how to come to a second run."""
    title = heading.page_title(TITLE, EXPLANATION)
    if selection.is_served_alone(store.run_id):
        return heading.page_in_words([title], ALONE, identity="compare")
    top = html.Div([title, _choose_runs(store, view)], className="page-heading")
    stores = [other for run_id in view.compared if (other := current.find_store(run_id))]
    if not stores:
        return heading.page_in_words([top], CHOOSE, identity="compare")
    if len(stores) > 1:
        parts = [top, *baselines.layout(store, view)]
        return html.Div(parts, className="page", id="compare")
    (baseline,) = stores
    common_ranks = len(set(store.ranks) & set(baseline.ranks))
    cards = (
        replace(THIS_RUN, suffix=f": {current.name(store)}"),
        replace(BASELINE, suffix=f": {current.name(baseline)}"),
        CATEGORIES,
        replace(MAP, height_px=max(200, min(420, 100 + 26 * common_ranks))),
    )
    return html.Div(
        [
            dcc.Store(id=OTHER, data=baseline.run_id),
            top,
            _lay_out_verdict(store, view),
            chart.grid(cards, store, view),
            side_by_side.layout(store, baseline, view),
            _lay_out_findings(store, view),
        ],
        className="page",
        id="compare",
    )


def register(app: Dash) -> None:
    """Compare baseline runs when they are chosen; a click on a cell shows the step in both timelines."""
    side_by_side.register(app, OTHER, ids.part(MAP.name, "graph"))

    @app.callback(
        Output(ids.GO, "href", allow_duplicate=True),
        Input(CHOICE, "value"),
        State(ids.GO, "search"),
        prevent_initial_call=True,
    )
    def choose(chosen: Any, search: Any) -> str:
        view, run_ids = state.read(search), state.baselines(chosen)
        if not all(map(current.runs().entry, run_ids)) or run_ids == view.compare:
            raise PreventUpdate
        return links.to_comparison(view.run, *run_ids)

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
        return _swap_runs(view, chosen)


def _baseline_of(view: ViewState) -> Store | None:
    """Return the one baseline; None if it is not served any more."""
    stores = (current.find_store(run_id) for run_id in view.compared)
    return next((store for store in stores if store), None)


def _choose_runs(store: Store, view: ViewState) -> Component:
    part = selection.read(store.run_id)
    run_id = part.run if part else None
    names = {entry.id: text.shown(entry.name) for entry in current.runs().look()}
    offered = {other_id: name for other_id, name in names.items() if other_id != run_id}
    baseline_ids = [other_id for other_id in view.compare if other_id in offered]
    choice = fields.multi_select(
        CHOICE,
        offered.items(),
        "runs to compare with",
        value=baseline_ids,
        placeholder="Add a baseline" if baseline_ids else "Compare with",
        searchable=True,
        hidePickedOptions=True,
        maxValues=state.MOST_BASELINES,
        limit=50,
        miw=220,
        maw=560,
    )
    controls = [html.Span("with", className="fact-name"), choice]
    if len(baseline_ids) > 1 and run_id:
        compared = [(one, names[one]) for one in (run_id, *baseline_ids)]
        label = "new run, compared with all others"
        newest = fields.select(NEW, compared, label, value=run_id, w=190)
        controls = [html.Span("new run", className="fact-name"), newest, *controls]
    elif baseline_ids and view.run:
        href = _swap_runs(view, baseline_ids[0])
        controls.append(dcc.Link("Swap", href=href, className="way"))
    return dmc.Group(controls, gap="sm")


def _swap_runs(view: ViewState, chosen: str) -> str:
    """Compare one of the baselines with all baseline runs of a comparison."""
    part = selection.read(view.run)
    former_run = (part.run if part else None) or ""
    new_run = (part.in_run(chosen) if part else None) or chosen
    return links.to_comparison(
        new_run, *(former_run if run_id == chosen else run_id for run_id in view.compare)
    )


@live.section("compare-verdict")
def _lay_out_verdict(store: Store, view: ViewState) -> Component | None:
    baseline = _baseline_of(view)
    if baseline is None:
        return None
    describers = (_compare_steps, _compare_efficiency, _largest_change)
    sentences = (describe(store, baseline) for describe in describers)
    sentence = text.tied(" ".join(filter(None, sentences)))
    return html.Div(dmc.Title(sentence, order=2, id="verdict"), className="verdict")


@lru_cache(MOST_COMPARISONS_KEPT)
def _compare(store: Store, baseline: Store) -> Comparison:
    return compare_runs([Steps.from_run(baseline.run)], Steps.from_run(store.run))


def _compare_steps(store: Store, baseline: Store) -> str:
    comparison = _compare(store, baseline)
    step, mean = comparison.metric(STEP_TIME), comparison.metric(MEAN_STEP_TIME)
    if step is None or mean is None:
        return "One of the runs has no steps."
    change = "no clear difference" if not step.clear else _describe_change(step)
    return (
        f"Median step {text.duration(step.change.after)}, in {current.name(baseline)} "
        f"{text.duration(step.change.before)}: {change}; the mean step is {_describe_change(mean)}."
    )


def _describe_change(metric: Metric) -> str:
    """Return by how much a metric is longer or shorter, with its interval where that is clear."""
    change = metric.change
    share = change.share(change.delta) or 0.0
    amount = f"{text.percent(abs(share))} {'longer' if share > 0 else 'shorter'}"
    if not metric.clear or change.low is None or change.high is None:
        return amount
    low, high = sorted(abs(change.share(edge) or 0.0) for edge in (change.low, change.high))
    return f"{amount} (95 % interval {text.points(low)} to {text.percent(high)})"


def _compare_efficiency(store: Store, baseline: Store) -> str:
    efficiencies = [run.report.efficiency for run in (store, baseline)]
    shares = [text.percent(one.achieved) for one in efficiencies if one]
    return "" if len(shares) < 2 else f"Parallel efficiency {shares[0]} here, {shares[1]} there."


def _largest_change(store: Store, baseline: Store) -> str:
    phases = _compare(store, baseline).phases
    if not phases:
        return ""
    phase, delta_ns = name_of(CATEGORY_OF[phases[0].name]), phases[0].change.delta
    direction = "more" if delta_ns > 0 else "less"
    return f"Largest change: {phase}, {text.duration(abs(delta_ns))} {direction} per step."


@live.section("compare-findings")
def _lay_out_findings(store: Store, view: ViewState) -> Component | None:
    """List what appeared, and what is not there any more."""
    baseline = _baseline_of(view)
    if baseline is None:
        return None
    rows = _compare(store, baseline).findings
    columns = []
    for run, name in ((store, "new"), (baseline, "gone")):
        findings = [row.finding for row in rows if row.state == name]
        build = partial(finding_card.card, run)
        cards = finding_card.titled_cards(f"Only in {current.name(run)}", findings, build)
        columns.append(dmc.GridCol(cards, span=HALF_FROM_MEDIUM))
    return dmc.Grid(columns, gutter="sm", mt="sm")
