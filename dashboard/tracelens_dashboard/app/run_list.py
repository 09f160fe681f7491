"""The list of served runs: a row each, with its step times as a sparkline and its verdict."""

from __future__ import annotations

import math
from base64 import b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
import numpy as np
from dash import ALL, Input, Output, State, ctx, dcc, html
from dash.exceptions import PreventUpdate

from tracelens.model.inert import clean
from tracelens_dashboard import ids, text
from tracelens_dashboard.ids import aria
from tracelens_dashboard.runs import current
from tracelens_dashboard.runs.catalog import NEW
from tracelens_dashboard.view import links
from tracelens_dashboard.view.state import ViewState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dash import Dash
    from dash.development.base_component import Component

    from tracelens.lod.run_data import Glance
    from tracelens_dashboard.runs.catalog import Entry, Runs

PATH: Final = "/runs"
TITLE: Final = "Runs"

LIST: Final = "run-list"
SEARCH: Final = "run-search"
SORT: Final = "run-sort"
READ: Final = "run-read"
PAIR: Final = 2
POLL: Final = "run-poll"
POLL_MS: Final = 1500
CHOSEN: Final = "run-chosen"
COMPARE: Final = "run-compare"
LONGEST_SEARCH: Final = 100
SPARKLINE_WIDTH: Final = 120
SPARKLINE_HEIGHT: Final = 28
MOST_QUANTILE: Final = 0.98  # a first step that loads libraries would flatten all others
COLUMNS: Final = ("run", "efficiency", "step time", "verdict", "")
ONLY_ONE: Final = (
    "One run is served. To see or compare several, name more of them, or a folder that holds them: "
    "tracelens serve DIR DIR ..."
)
NONE_YET: Final = (
    "No run is here yet: what is recorded into the folders that are served shows up on its own."
)
NEWEST: Final = "newest first"


@dataclass(frozen=True)
class Row:
    """A run, and what is known of it before it is opened; null = it has to be read first."""

    entry: Entry
    glance: Glance | None

    @property
    def name(self) -> str:
        """What the run is called."""
        return text.shown(self.entry.name)

    @property
    def searchable(self) -> str:
        """All that can be searched for."""
        return f"{self.entry.name} {self.glance.verdict if self.glance else ''}".casefold()


def _of(row: Row, measure: Callable[[Glance], float | None]) -> float:
    """Measure a run; those of which nothing is known come last."""
    found = measure(row.glance) if row.glance else None
    return math.inf if found is None else found


SORTS: Final[dict[str, Callable[[Row], Any]]] = {
    NEWEST: lambda row: -row.entry.changed_ns,
    "by name": lambda row: row.name.casefold(),
    "lowest efficiency first": lambda row: _of(row, lambda seen: seen.efficiency),
    "longest steps first": lambda row: _of(row, lambda seen: -seen.step_ns),
    "most ranks first": lambda row: _of(row, lambda seen: -seen.ranks),
}


def layout(runs: Runs, _view: ViewState) -> Component:
    """Return the page."""
    title = dmc.Title("Runs", order=1, className="page-title")
    if runs.alone:
        way = dcc.Link(text.shown(runs.alone.name), href="/", className="way")
        card = dmc.Card([html.P(ONLY_ONE), html.P(way)], className="card prose")
        return html.Div([title, card], className="page", id="runs")
    rows = _rows(runs)
    heading = html.Div([title, _controls(rows)], className="page-heading")
    shown = dmc.Card(html.Div(_table(rows, "", NEWEST), id=LIST), className="card")
    poll = dcc.Interval(id=POLL, interval=POLL_MS, disabled=not _busy(rows))
    return html.Div([heading, shown, poll], className="page", id="runs")


def register(app: Dash) -> None:
    """Sort and filter; read what was not read yet; follow how far that is."""

    @app.callback(
        Output(LIST, "children"),
        Output(READ, "disabled"),
        Output(POLL, "disabled"),
        Input(SEARCH, "value"),
        Input(SORT, "value"),
        Input(READ, "n_clicks"),
        Input(POLL, "n_intervals"),
        prevent_initial_call=True,
    )
    def show(wanted: Any, sort: Any, clicks: Any, _times: Any) -> tuple[Component, bool, bool]:
        runs = current.runs()
        if clicks and ctx.triggered_id == READ:
            for entry in [row.entry for row in _rows(runs) if _unread(row)]:
                runs.open(entry)
        rows = _rows(runs)
        return _table(rows, wanted, sort), not any(map(_unread, rows)), not _busy(rows)

    @app.callback(
        Output(COMPARE, "disabled"),
        Input({"type": CHOSEN, "run": ALL}, "checked"),
    )
    def choose(checked: Any) -> bool:
        return sum(map(bool, checked)) != PAIR

    @app.callback(
        Output(ids.GO, "href", allow_duplicate=True),
        Input(COMPARE, "n_clicks"),
        State({"type": CHOSEN, "run": ALL}, "checked"),
        prevent_initial_call=True,
    )
    def compare(clicks: Any, _checked: Any) -> str:
        chosen = {one["id"]["run"] for one in ctx.states_list[0] if one.get("value")}
        entries = [entry for entry in current.runs().look() if entry.id in chosen]
        if not clicks or len(entries) != PAIR:
            raise PreventUpdate
        before, after = sorted(entries, key=lambda entry: entry.changed_ns)
        return links.to_comparison(after.id, before.id)


def _rows(runs: Runs) -> list[Row]:
    return [Row(entry, runs.glance(entry)) for entry in runs.look()]


def _unread(row: Row) -> bool:
    return row.glance is None and row.entry.stage == NEW


def _busy(rows: list[Row]) -> bool:
    return any(row.entry.stage.under_way for row in rows)


def _controls(rows: list[Row]) -> Component:
    search = dmc.TextInput(
        id=SEARCH,
        placeholder="Find runs (/)",
        size="xs",
        debounce=200,
        className="search",
        **aria("find runs by name or verdict"),
    )
    names = list(SORTS)
    order = dmc.Select(
        id=SORT, data=names, value=NEWEST, size="xs", allowDeselect=False, w=180, **aria("order")
    )
    disabled = not any(map(_unread, rows))
    read = dmc.Button("Read all", id=READ, size="xs", variant="default", disabled=disabled)
    pair = dmc.Button(
        "Compare the two chosen", id=COMPARE, size="xs", variant="default", disabled=True
    )
    return dmc.Group([search, order, read, pair], gap="sm")


def _table(rows: list[Row], wanted: Any, sort: Any) -> Component:
    """List the runs whose name or verdict matches, in an order; both come from the browser."""
    asked_for = wanted.strip()[:LONGEST_SEARCH].casefold() if isinstance(wanted, str) else ""
    found = [row for row in rows if asked_for in row.searchable]
    if not found:
        return html.P(f"No run matches “{asked_for}”." if rows else NONE_YET, className="summary")
    found.sort(key=SORTS.get(str(sort), SORTS[NEWEST]))
    head = html.Thead(html.Tr([html.Th(name) for name in COLUMNS]))
    body = html.Tbody([draw_row(row) for row in found])
    return html.Table([head, body], className="spans runs")


def draw_row(row: Row) -> Component:
    """Return the row; its link covers all of it."""
    glance = row.glance
    link = dcc.Link(row.name, href=ViewState(run=row.entry.id).link("/"), className="stretched")
    choice = dmc.Checkbox(
        id={"type": CHOSEN, "run": row.entry.id},
        size="xs",
        className="way",
        persistence=True,  # as the table is drawn anew while runs are read
        persistence_type="memory",
        **aria(f"choose {row.name}"),
    )
    name = html.Div([choice, link], className="run-choice")
    cells = [
        html.Td([name, html.Div(_sizes(glance), className="fact-name")], className="run-name"),
        html.Td(_efficiency(glance), className="run-number"),
        html.Td(_pace(glance), className="run-pace"),
        html.Td(_verdict(row), className="run-verdict"),
        html.Td(label_of(row), className="run-index"),
    ]
    return html.Tr(cells, className="finding run-row")


def _sizes(glance: Glance | None) -> str:
    if glance is None:
        return ""
    parts = [
        text.count(glance.ranks, "rank"),
        text.count(glance.shards, "shard") if glance.shards else "",
        text.count(glance.steps, "step"),
        text.duration(glance.duration_ns),
    ]
    return " · ".join(part for part in parts if part)


def _efficiency(glance: Glance | None) -> Component:
    if glance is None or glance.efficiency is None:
        return html.Span("not known", className="fact-name")
    share = 100 * glance.efficiency
    meter = html.Div(className="meter-fill", style={"width": f"{share:.1f}%"})
    return html.Div([html.B(text.percent(glance.efficiency)), html.Div(meter, className="meter")])


def _pace(glance: Glance | None) -> list[Component]:
    if glance is None or not glance.steps:
        return []
    usual = f"{text.duration(glance.step_ns)} per step"
    line = sparkline(glance.pace_ns, f"step time over the run, {usual}")
    return [line, html.Div(usual, className="fact-name")]


def _verdict(row: Row) -> Component:
    stage = row.entry.stage
    if stage.kind == "failed":
        return html.Span(stage.what, role="alert", className="points-fault")
    if row.glance is None:
        return html.Span("It is read and analyzed when first opened.", className="fact-name")
    more = f" and {row.glance.faults - 1} more" if row.glance.faults > 1 else ""
    worst = html.Span(clean(row.glance.verdict))
    line = [worst, html.Span(more, className="fact-name")]
    return html.Div(line, className=f"lead lead-{row.glance.lead}")


def label_of(row: Row) -> Component:
    """Return the state of a run's index."""
    stage = row.entry.stage
    state = "ready" if row.glance else "not read yet"
    if stage.kind == "failed":
        state = "cannot be read"
    elif stage.kind == "queued":
        state = "queued"
    elif stage.under_way:
        share = f" {100 * stage.done // stage.total} %" if stage.total else ""
        state = f"{stage.what}{share}"
    kind = "busy" if stage.under_way else stage.kind
    return html.Span(state, className=f"standing standing-{kind}")


def sparkline(values: Sequence[int], label: str) -> Component:
    """Draw numbers from left to right; `label` is what a screen reader says instead."""
    if len(values) < 2:
        return html.Span(label, className="fact-name")
    mask = f"url(data:image/svg+xml;base64,{b64encode(_svg(values).encode()).decode()})"
    style = {
        "maskImage": mask,
        "WebkitMaskImage": mask,
        "width": SPARKLINE_WIDTH,
        "height": SPARKLINE_HEIGHT,
    }
    return html.Span(className="sparkline", style=style, role="img", title=label, **aria(label))


def _svg(values: Sequence[int]) -> str:
    shape = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(*_places(values), strict=True))
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {SPARKLINE_WIDTH} {SPARKLINE_HEIGHT}'>"
        f"<polyline points='{shape}' fill='none' stroke='#000' stroke-width='1.5'/></svg>"
    )


def _places(values: Sequence[int]) -> tuple[list[float], list[float]]:
    """Return where the line goes: from zero on, so that noise is drawn as noise, not as mountains."""
    series = np.asarray(values, float)
    height = np.clip(series / max(float(np.quantile(series, MOST_QUANTILE)), 1.0), 0, 1)
    return (
        np.linspace(1, SPARKLINE_WIDTH - 1, len(series)).tolist(),
        (SPARKLINE_HEIGHT - 3 - (SPARKLINE_HEIGHT - 6) * height).tolist(),
    )
