"""A run compared with several baselines: each metric's ratio with its interval, and the findings.

What equal runs differ by is known of the baselines, so this is what `tracelens compare BASE... NEW`
reports. Single steps are compared with one baseline, which each of them has a link to.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import Input, dcc, html

from tracelens.comparison import Comparison, RunMetrics, messages
from tracelens.comparison import compare as compare_runs
from tracelens.comparison.changes import FindingChange, find_match_key
from tracelens.model import fmt
from tracelens_dashboard import text
from tracelens_dashboard.components import chart, finding_card
from tracelens_dashboard.components.chart import ChartCard
from tracelens_dashboard.figures import compare
from tracelens_dashboard.figures.drawing import Drawing, empty
from tracelens_dashboard.ids import aria
from tracelens_dashboard.runs import current, selection
from tracelens_dashboard.view import links, state

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dash.development.base_component import Component

    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.theme import Theme
    from tracelens_dashboard.view.state import ViewState

BASELINES: Final = "compare-baselines"
FEWEST_BASELINES: Final = 2
MAX_MEASURED_RUNS: Final = 64  # baselines that are not measured again
MISSING: Final = "Fewer than two of the baselines are served any more."
STATES: Final = {
    "new": "Only in the new run",
    "both": "In the new run and in baselines",
    "gone": "Only in baselines",
}


def _draw_comparison(draw: Callable[[Comparison, Theme], Drawing]) -> Callable[..., Drawing]:
    """Return a card's `draw` that compares a run with the baselines that are served."""

    def draw_served(store: Store, theme: Theme, keys: Any) -> Drawing:
        baselines = state.read_baselines(keys)
        if len(_select_served(baselines)) < FEWEST_BASELINES:
            return empty(theme, MISSING)
        return draw(compare_with(store, baselines), theme)

    return draw_served


CHANGES: Final = ChartCard(
    card_id="compare-changes",
    title="Ratio to the baselines",
    explanation="What a usual step has of each, over the mean of the baselines, with its 95 % interval. "
    "Coloured: equal runs would rarely differ so far.",
    draw=_draw_comparison(compare.changes),
    height_px=420,
    inputs=(Input(BASELINES, "data"),),
    grid_columns={"base": 12, "lg": 7},
)
LEVELS: Final = ChartCard(
    card_id="compare-levels",
    title="Step time of each run",
    explanation="The median step (dot) and the middle 80 % of the steps (line) of the new run and each "
    "baseline.",
    draw=_draw_comparison(compare.levels),
    inputs=(Input(BASELINES, "data"),),
    grid_columns={"base": 12, "lg": 5},
)
CARDS: Final = (CHANGES, LEVELS)


def layout(store: Store, view: ViewState) -> list[Component]:
    """Return the cards below the page's title; the view names the baselines."""
    baselines = view.baseline_keys
    comparison = compare_with(store, baselines)
    levels_card = replace(LEVELS, height_px=max(240, 110 + 24 * len(baselines)))
    return [
        dcc.Store(id=BASELINES, data=list(baselines)),
        _lay_out_verdict(store, comparison),
        _link_baselines(store, baselines),
        chart.grid((CHANGES, levels_card), store, view),
        _list_findings(store, baselines, comparison),
    ]


def _select_served(baselines: Sequence[str]) -> list[str]:
    return [key for key in baselines if current.runs_of_app().find_entry(key)]


def compare_with(store: Store, baselines: tuple[str, ...]) -> Comparison:
    """Compare a run with its baselines, measured once as long as their files are the same."""
    runs = current.runs_of_app()
    keys_and_states = [(key, runs.files_state_of(key)) for key in _select_served(baselines)]
    return _compare_states(store, tuple(keys_and_states))


@lru_cache(2)
def _compare_states(store: Store, keys_and_states: tuple[tuple[str, Any], ...]) -> Comparison:
    measured = [_measure(key, files_state) for key, files_state in keys_and_states]
    return compare_runs(
        measured, replace(RunMetrics.from_run(store.run), name=current.name_run(store))
    )


@lru_cache(MAX_MEASURED_RUNS)
def _measure(run_key: str, _files_state: Any) -> RunMetrics:
    """Measure a baseline; it need not stay open for that, and is measured anew if its files change.

    Raises:
        InvalidArgument: it has to be read again first.
    """
    store = current.store_of_run(run_key)
    return replace(RunMetrics.from_run(store.run), name=current.name_run(store))


def _lay_out_verdict(store: Store, comparison: Comparison) -> Component:
    """Describe what changed against the baselines, as a title and lines below it."""
    verdict_text = messages.name_verdict(comparison).lower()
    title = fmt.capital(f"{verdict_text}: {messages.write_headline(comparison)}")
    baseline_text, _ = messages.describe_runs(comparison)
    lines = [f"Baselines: {baseline_text}", *messages.list_cautions(comparison)]
    return html.Div(
        [
            dmc.Title(text.tie_units(title), order=2, id="verdict"),
            *(html.P(text.tie_units(line)) for line in lines),
        ],
        className="verdict",
        **aria(f"what changed in {current.name_run(store)}"),
    )


def _link_baselines(store: Store, baselines: tuple[str, ...]) -> Component:
    """Return a link to the comparison with each baseline alone, step by step.

    `baselines` are keys of runs, as in addresses. A part of a run has no such comparison.
    """
    name_by_run_id = {
        entry.run_key: text.clean_name(entry.name) for entry in current.runs_of_app().list_entries()
    }
    baseline_selections = (selection.read(key) for key in baselines)
    run_ids = [chosen.run_id for chosen in baseline_selections if chosen and chosen.run_id]
    baseline_links = [
        dcc.Link(
            name_by_run_id[run_id], href=links.to_comparison(store.run_key, run_id), className="way"
        )
        for run_id in run_ids
        if run_id in name_by_run_id and selection.read(store.run_key)
    ]
    lead_text = html.Span("Step by step, with one of them:", className="fact-name")
    return html.Div([lead_text, *baseline_links], className="ways baselines")


def _list_findings(store: Store, baselines: tuple[str, ...], comparison: Comparison) -> Component:
    """Return a column of finding cards for each of the `STATES` of a finding."""
    build_card = partial(_lay_out_finding, store, baselines)
    columns = []
    for state_name, title in STATES.items():
        changes = [change for change in comparison.finding_changes if change.state == state_name]
        cards = finding_card.titled_cards(title, changes, build_card)
        columns.append(dmc.GridCol(cards, span={"base": 12, "md": 4}))
    return dmc.Grid(columns, gutter="sm", mt="sm")


def _lay_out_finding(store: Store, baselines: tuple[str, ...], change: FindingChange) -> Component:
    """Return a finding's card, of the run that has it, and its cost in the other runs."""
    holding_run = store if change.state != "gone" else _find_holder(baselines, change) or store
    card = finding_card.card(holding_run, change.finding)
    if change.state == "new":
        return card
    return html.Div([card, html.P(_describe_cost(change, len(baselines)), className="summary")])


def _find_holder(baselines: tuple[str, ...], change: FindingChange) -> Store | None:
    """Return a baseline that has a finding."""
    match_key = find_match_key(change.finding)
    baseline_stores = (current.find_store(key) for key in baselines)
    for baseline in filter(None, baseline_stores):
        if match_key in map(find_match_key, baseline.report.findings):
            return baseline
    return None


def _describe_cost(change: FindingChange, baseline_count: int) -> str:
    """Describe a finding's saving in the new run and the baselines, and how many of these have it."""
    # Savings are shares of the job; `state` says whether it is new, gone, or in both.
    baseline_share, new_share = change.saving_share_before, change.saving_share_after
    frequency_text = f"in {change.baseline_count} of {text.count(baseline_count, 'baseline')}"
    if change.state == "gone":
        return (
            f"{frequency_text}, at most {text.percent(baseline_share)} of the job"
            if baseline_share
            else frequency_text
        )
    if not baseline_share or new_share is None:
        return frequency_text
    return (
        f"{text.percent(new_share)} of the job, {text.percent(baseline_share)} at most "
        f"{frequency_text}: {new_share / baseline_share:.2f} times as much"
    )
