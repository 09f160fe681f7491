"""A run compared with several baselines: each metric's ratio with its interval, and the findings.

What equal runs differ by is known of the baselines, so this is what `tracelens compare BASE... NEW`
reports. Single steps are compared with one baseline, which each of them has a link to.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import Input, dcc, html

from tracelens.comparison import Steps, messages
from tracelens.comparison import compare as compared
from tracelens.comparison.changes import likeness
from tracelens.model import fmt
from tracelens_dashboard import text
from tracelens_dashboard.components import chart, finding_card
from tracelens_dashboard.figures import compare
from tracelens_dashboard.figures.drawing import empty
from tracelens_dashboard.ids import aria
from tracelens_dashboard.runs import current, selection
from tracelens_dashboard.view import links, state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dash import Dash
    from dash.development.base_component import Component

    from tracelens.comparison import Comparison
    from tracelens.comparison.changes import FindingChange
    from tracelens_dashboard.figures.drawing import Drawing
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.theme import Theme

OTHERS: Final = "compare-baselines"
CHANGES: Final = "compare-changes"
LEVELS: Final = "compare-levels"
SHOWN: Final = 6  # findings of a kind
ROW_PX: Final = 24
_KEPT: Final = 64
FEWEST: Final = 2
MISSING: Final = "Fewer than two of the baselines are served any more."
STATES: Final = {
    "new": "Only in the new run",
    "both": "In the new run and in baselines",
    "gone": "Only in baselines",
}


def layout(store: Store, others: tuple[str, ...]) -> list[Component]:
    """Return what stands below the page's title; `others` are the baselines."""
    found = _comparison(store, others)
    cards = (
        (chart.card(CHANGES, "Ratio to the baselines", 420), {"base": 12, "lg": 7}),
        (
            chart.card(LEVELS, "Step time of each run", max(240, 110 + ROW_PX * len(others))),
            {"base": 12, "lg": 5},
        ),
    )
    return [
        dcc.Store(id=OTHERS, data=list(others)),
        _verdict(store, found),
        _used(store, others),
        dmc.Grid([dmc.GridCol(card, span=span) for card, span in cards], gutter="sm"),
        _findings(store, others, found),
    ]


def register(app: Dash) -> None:
    """Draw the charts."""
    others = Input(OTHERS, "data")
    chart.bind(app, CHANGES, _changes, others)
    chart.bind(app, LEVELS, _levels, others)


def _changes(store: Store, theme: Theme, others: Any) -> Drawing:
    known = state.baselines(others)
    if len(_served(known)) < FEWEST:
        return empty(theme, MISSING)
    return compare.changes(_comparison(store, known), theme)


def _levels(store: Store, theme: Theme, others: Any) -> Drawing:
    known = state.baselines(others)
    if len(_served(known)) < FEWEST:
        return empty(theme, MISSING)
    return compare.levels(_comparison(store, known), theme)


def _served(others: Sequence[str]) -> list[str]:
    return [one for one in others if current.runs().entry(one)]


def _comparison(store: Store, others: tuple[str, ...]) -> Comparison:
    """Compare a run with its baselines, measured once as long as their files are the same."""
    states = tuple((one, current.runs().state_of(one)) for one in _served(others))
    return _compared(store, states)


@lru_cache(2)
def _compared(store: Store, states: tuple[tuple[str, Any], ...]) -> Comparison:
    measured = [_measured(one, made) for one, made in states]
    return compared(measured, replace(Steps.from_run(store.run), name=current.name(store)))


@lru_cache(_KEPT)
def _measured(run: str, _state: Any) -> Steps:
    """Measure a baseline; it need not stay open for that.

    Raises:
        InvalidArgument: it has to be read again first.
    """
    store = current.store(run)
    return replace(Steps.from_run(store.run), name=current.name(store))


def _verdict(store: Store, found: Comparison) -> Component:
    word = messages.verdict(found).lower()
    title = fmt.capital(f"{word}: {messages.headline(found)}")
    baseline, _ = messages.scope(found)
    lines = [f"Baselines: {baseline}", *messages.cautions(found)]
    return html.Div(
        [
            dmc.Title(text.tied(title), order=2, id="verdict"),
            *(html.P(text.tied(line)) for line in lines),
        ],
        className="verdict",
        **aria(f"what changed in {current.name(store)}"),
    )


def _used(store: Store, others: tuple[str, ...]) -> Component:
    """Link each baseline's comparison alone, step by step."""
    mine = selection.read(store.run_id)
    names = {entry.id: text.shown(entry.name) for entry in current.runs().look()}
    ways = [
        dcc.Link(names[run], href=links.to_comparison(store.run_id, run), className="way")
        for one in others
        if (found := selection.read(one)) and mine and (run := found.run or "") in names
    ]
    lead = html.Span("Step by step, with one of them:", className="fact-name")
    return html.Div([lead, *ways], className="ways baselines")


def _findings(store: Store, others: tuple[str, ...], found: Comparison) -> Component:
    columns = [
        dmc.GridCol(
            _listed(title, store, others, [row for row in found.findings if row.state == state]),
            span={"base": 12, "md": 4},
        )
        for state, title in STATES.items()
    ]
    return dmc.Grid(columns, gutter="sm", mt="sm")


def _listed(
    title: str, store: Store, others: tuple[str, ...], rows: list[FindingChange]
) -> Component:
    cards: list[Component] = [_finding(store, others, row) for row in rows[:SHOWN]]
    if not rows:
        cards = [html.P("No finding.", className="summary")]
    elif rows[SHOWN:]:
        cards.append(html.P(f"and {len(rows) - SHOWN} more", className="summary"))
    heading = dmc.Title(title, order=2, className="card-title", mb="xs")
    return html.Section([heading, dmc.Stack(cards, gap="xs")], **aria(title))


def _finding(store: Store, others: tuple[str, ...], row: FindingChange) -> Component:
    """Return a finding's card, of the run that has it, and what of the others is known."""
    holder = store if row.state != "gone" else _holder(others, row) or store
    card = finding_card.card(holder, row.finding)
    if row.state == "new":
        return card
    return html.Div([card, html.P(_price(row, len(others)), className="summary")])


def _holder(others: tuple[str, ...], row: FindingChange) -> Store | None:
    """Return a baseline that has a finding."""
    alike = likeness(row.finding)
    for one in others:
        found = current.other(one)
        if found and alike in map(likeness, found.report.findings):
            return found
    return None


def _price(row: FindingChange, count: int) -> str:
    """Return what a finding costs in the new run and in how many baselines, and their ratio."""
    before, after = row.before, row.after
    seen = f"in {row.baselines} of {text.count(count, 'baseline')}"
    if row.state == "gone":
        return f"{seen}, at most {text.percent(before)} of the job" if before else seen
    if not before or after is None:
        return seen
    return (
        f"{text.percent(after)} of the job, {text.percent(before)} at most {seen}: "
        f"{after / before:.2f} times as much"
    )
