"""What changed from another run, or from several, to this one?"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html

from tracelens.comparison import Comparison, Metric, RunMetrics
from tracelens.comparison import compare as compare_runs
from tracelens.comparison.series import (
    CATEGORY_OF,
    MEAN_STEP_TIME,
    STEP_TIME,
    subtract_compute_time,
)
from tracelens_dashboard import ids, text
from tracelens_dashboard.components import baselines, chart, fields, finding_card, heading, live
from tracelens_dashboard.components.chart import HALF_WIDTH_FROM_MEDIUM, ChartCard
from tracelens_dashboard.components.timeline import side_by_side
from tracelens_dashboard.figures import compare
from tracelens_dashboard.figures.drawing import Drawing, empty
from tracelens_dashboard.pages.overview import WATERFALL
from tracelens_dashboard.runs import current, selection
from tracelens_dashboard.theme import Theme, name_of
from tracelens_dashboard.view import links, state

if TYPE_CHECKING:
    from collections.abc import Callable

    from dash.development.base_component import Component

    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.view.state import ViewState

PATH: Final = links.COMPARE
TITLE: Final = "Compare"
EXPLANATION: Final = "What changed from another run to this one, with intervals."
BASELINE_KEY: Final = "compare-other"  # store of the one baseline's run key
BASELINE_CHOICE: Final = "compare-choice"  # field
NEW_RUN_CHOICE: Final = "compare-new"  # field, if there are several baselines
MOST_COMPARISONS_KEPT: Final = 2  # of which a page has the charts drawn
ALONE: Final = (
    "One run is served, so there is none to compare it with. Name another one beside it, or a "
    "folder that holds both: tracelens serve DIR DIR ..."
)
CHOOSE: Final = (
    "Choose the run to compare this one with, or several baselines. Steps are matched by their "
    "number since the start, on the ranks that both have."
)
NOT_CHOSEN: Final = "Choose a run to compare with."


def _draw_with_baseline(draw: Callable[[Store, Store, Theme], Drawing]) -> Callable[..., Drawing]:
    """Return a card's `draw` that opens the baseline, by its id."""

    def draw_pair(store: Store, theme: Theme, baseline_id: Any) -> Drawing:
        baseline = current.find_store(baseline_id)
        return draw(store, baseline, theme) if baseline else empty(theme, NOT_CHOSEN)

    return draw_pair


def _draw_categories(store: Store, baseline: Store, theme: Theme) -> Drawing:
    names = current.name_run(store), current.name_run(baseline)
    return compare.by_category(_compare(store, baseline).phase_metrics, names, theme)


def _draw_map(store: Store, baseline: Store, theme: Theme) -> Drawing:
    difference = subtract_compute_time(store.residuals, baseline.residuals)
    return compare.by_rank(difference, theme, step_ns=store.category_times.median_step_ns)


THIS_RUN: Final = replace(
    WATERFALL,
    card_id="compare-here",
    height_px=280,
    grid_columns=HALF_WIDTH_FROM_MEDIUM,
    link_from_mark=None,
)
BASELINE: Final = replace(
    THIS_RUN,
    card_id="compare-there",
    draw=_draw_with_baseline(lambda _, baseline, theme: WATERFALL.draw(baseline, theme)),
    inputs=(Input(BASELINE_KEY, "data"),),
)
CATEGORIES: Final = ChartCard(
    card_id="compare-moved",
    title="Step time by category",
    explanation="Time of the mean rank per step, by the category it belongs to.",
    draw=_draw_with_baseline(_draw_categories),
    height_px=320,
    inputs=(Input(BASELINE_KEY, "data"),),
    grid_columns={"base": 12, "md": 5},
)
MAP: Final = ChartCard(
    card_id="compare-map",
    title="Compute time difference by rank and step",
    explanation="Compute time of this run minus the other's; teal: faster, orange: slower, pale: "
    "within noise.",
    draw=_draw_with_baseline(_draw_map),
    inputs=(Input(BASELINE_KEY, "data"),),
    grid_columns={"base": 12, "md": 7},
)
CARDS: Final[tuple[ChartCard, ...]] = (THIS_RUN, BASELINE, CATEGORIES, MAP, *baselines.CARDS)


def layout(store: Store, view: ViewState) -> Component:
    """Return the page: one baseline step by step, several as ratios, none as a hint."""
    title = heading.page_title(TITLE, EXPLANATION)
    if selection.is_served_alone(store.run_key):
        return heading.page_in_words([title], ALONE, identity="compare")
    top_line = html.Div([title, _choose_runs(store, view)], className="page-heading")
    baseline_stores = list(filter(None, map(current.find_store, view.baseline_keys)))
    if not baseline_stores:
        return heading.page_in_words([top_line], CHOOSE, identity="compare")
    if len(baseline_stores) > 1:
        page_parts = [top_line, *baselines.layout(store, view)]
        return html.Div(page_parts, className="page", id="compare")
    (baseline,) = baseline_stores
    common_count = len(set(store.ranks) & set(baseline.ranks))
    cards = (
        replace(THIS_RUN, title_suffix=f": {current.name_run(store)}"),
        replace(BASELINE, title_suffix=f": {current.name_run(baseline)}"),
        CATEGORIES,
        replace(MAP, height_px=max(200, min(420, 100 + 26 * common_count))),
    )
    return html.Div(
        [
            dcc.Store(id=BASELINE_KEY, data=baseline.run_key),
            top_line,
            _lay_out_verdict(store, view),
            chart.grid(cards, store, view),
            side_by_side.layout(store, baseline, view),
            _lay_out_findings(store, view),
        ],
        className="page",
        id="compare",
    )


def register(app: Dash) -> None:
    """Compare other runs when they are chosen; a click on a cell aligns both timelines there."""
    side_by_side.register(app, BASELINE_KEY, ids.part(MAP.card_id, "graph"))

    @app.callback(
        Output(ids.GO, "href", allow_duplicate=True),
        Input(BASELINE_CHOICE, "value"),
        State(ids.GO, "search"),
        prevent_initial_call=True,
    )
    def choose_baselines(chosen_ids: Any, query_string: Any) -> str:
        """Link to the comparison with the baselines (a list of run ids) that the user chose."""
        view, baseline_ids = state.read(query_string), state.read_baselines(chosen_ids)
        current.prevent_update_unless(
            all(map(current.runs_of_app().find_entry, baseline_ids))
            and baseline_ids != view.baseline_ids
        )
        return links.to_comparison(view.run_key, *baseline_ids)

    @app.callback(
        Output(ids.GO, "href", allow_duplicate=True),
        Input(NEW_RUN_CHOICE, "value"),
        State(ids.GO, "search"),
        prevent_initial_call=True,
    )
    def choose_new_run(new_id: Any, query_string: Any) -> str:
        """Link to the comparison in which one of the baselines is the new run, all others baselines."""
        view = state.read(query_string)
        current.prevent_update_unless(new_id in view.baseline_ids)
        return _swap_runs(view, new_id)


def _baseline_of(view: ViewState) -> Store | None:
    """Return the one baseline; None if it is not served any more."""
    stores = (current.find_store(key) for key in view.baseline_keys)
    return next((store for store in stores if store), None)


def _choose_runs(store: Store, view: ViewState) -> Component:
    """Return the fields for the baselines and, with several of them, for the new run."""
    run_selection = selection.read(store.run_key)
    run_id = run_selection.run_id if run_selection else None
    name_by_id = {
        entry.run_key: text.clean_name(entry.name) for entry in current.runs_of_app().list_entries()
    }
    other_names = {other_id: name for other_id, name in name_by_id.items() if other_id != run_id}
    baseline_ids = [other_id for other_id in view.baseline_ids if other_id in other_names]
    baseline_field = fields.multi_select(
        BASELINE_CHOICE,
        other_names.items(),
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
    controls = [html.Span("with", className="fact-name"), baseline_field]
    if len(baseline_ids) > 1 and run_id:
        compared_runs = [(any_id, name_by_id[any_id]) for any_id in (run_id, *baseline_ids)]
        label = "new run, compared with all others"
        new_run_field = fields.select(NEW_RUN_CHOICE, compared_runs, label, value=run_id, w=190)
        controls = [html.Span("new run", className="fact-name"), new_run_field, *controls]
    elif baseline_ids and view.run_key:
        href = _swap_runs(view, baseline_ids[0])
        controls.append(dcc.Link("Swap", href=href, className="way"))
    return dmc.Group(controls, gap="sm")


def _swap_runs(view: ViewState, new_id: str) -> str:
    """Link to a comparison in which a baseline (`new_id`) and the run change places."""
    run_selection = selection.read(view.run_key)
    former_id = (run_selection.run_id if run_selection else None) or ""
    new_key = (run_selection.key_in_run(new_id) if run_selection else None) or new_id
    return links.to_comparison(
        new_key, *(former_id if run_id == new_id else run_id for run_id in view.baseline_ids)
    )


@live.section("compare-verdict")
def _lay_out_verdict(store: Store, view: ViewState) -> Component | None:
    """Describe how this run differs from its baseline, in one title."""
    baseline = _baseline_of(view)
    if baseline is None:
        return None
    describers = (_compare_steps, _compare_efficiency, _describe_largest_change)
    sentences = (describe(store, baseline) for describe in describers)
    sentence = text.tie_units(" ".join(filter(None, sentences)))
    return html.Div(dmc.Title(sentence, order=2, id="verdict"), className="verdict")


@lru_cache(MOST_COMPARISONS_KEPT)
def _compare(store: Store, baseline: Store) -> Comparison:
    return compare_runs([RunMetrics.from_run(baseline.run)], RunMetrics.from_run(store.run))


def _compare_steps(store: Store, baseline: Store) -> str:
    """Describe how the median and the mean step differ from the baseline's, in a sentence."""
    comparison = _compare(store, baseline)
    step_metric, mean_metric = (
        comparison.find_metric(STEP_TIME),
        comparison.find_metric(MEAN_STEP_TIME),
    )
    if step_metric is None or mean_metric is None:
        return "One of the runs has no steps."
    change_text = (
        "no clear difference" if not step_metric.is_clear else _describe_change(step_metric)
    )
    return (
        f"Median step {text.duration(step_metric.change.value_after)}, in {current.name_run(baseline)} "
        f"{text.duration(step_metric.change.value_before)}: {change_text}; the mean step is "
        f"{_describe_change(mean_metric)}."
    )


def _describe_change(metric: Metric) -> str:
    """Return by how much a metric is longer or shorter, with its interval if that is clear."""
    # A change is in the metric's unit; `as_share` relates it to what was before, if that is not 0.
    change = metric.change
    relative_change = change.to_share(change.difference) or 0.0
    direction = "longer" if relative_change > 0 else "shorter"
    amount_text = f"{text.percent(abs(relative_change))} {direction}"
    if not metric.is_clear or change.low_difference is None or change.high_difference is None:
        return amount_text
    low_share, high_share = sorted(
        abs(change.to_share(interval_end) or 0.0)
        for interval_end in (change.low_difference, change.high_difference)
    )
    low_text, high_text = text.percent_number(low_share), text.percent(high_share)
    return f"{amount_text} (95 % interval {low_text} to {high_text})"


def _compare_efficiency(store: Store, baseline: Store) -> str:
    """Describe the parallel efficiency of both runs; empty if one has none."""
    efficiencies = [run.report.efficiency for run in (store, baseline)]
    share_texts = [text.percent(efficiency.achieved) for efficiency in efficiencies if efficiency]
    if len(share_texts) < 2:
        return ""
    return f"Parallel efficiency {share_texts[0]} here, {share_texts[1]} there."


def _describe_largest_change(store: Store, baseline: Store) -> str:
    """Return the category whose time per step differs most from the baseline's."""
    phases = _compare(store, baseline).phase_metrics
    if not phases:
        return ""
    phase_name, delta_ns = name_of(CATEGORY_OF[phases[0].name]), phases[0].change.difference
    direction = "more" if delta_ns > 0 else "less"
    return f"Largest change: {phase_name}, {text.duration(abs(delta_ns))} {direction} per step."


@live.section("compare-findings")
def _lay_out_findings(store: Store, view: ViewState) -> Component | None:
    """List the findings that only this run has, and those that only the baseline has."""
    baseline = _baseline_of(view)
    if baseline is None:
        return None
    finding_changes = _compare(store, baseline).finding_changes
    columns = []
    for run, state_name in ((store, "new"), (baseline, "gone")):
        findings = [change.finding for change in finding_changes if change.state == state_name]
        build_card = partial(finding_card.card, run)
        cards = finding_card.titled_cards(f"Only in {current.name_run(run)}", findings, build_card)
        columns.append(dmc.GridCol(cards, span=HALF_WIDTH_FROM_MEDIUM))
    return dmc.Grid(columns, gutter="sm", mt="sm")
