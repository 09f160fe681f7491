"""Which runs are there? The first page where several are served."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import Input, Output, ctx, dcc, html

from tracelens_dashboard import asked, text
from tracelens_dashboard.components import run_row
from tracelens_dashboard.components.aria import aria
from tracelens_dashboard.components.run_row import Row
from tracelens_dashboard.entries import NEW

if TYPE_CHECKING:
    from collections.abc import Callable

    from dash import Dash
    from dash.development.base_component import Component

    from tracelens.lod.glance import Glance
    from tracelens_dashboard.runs import Runs
    from tracelens_dashboard.state import ViewState

PATH: Final = "/runs"
TITLE: Final = "Runs"

LIST: Final = "run-list"
SEARCH: Final = "run-search"
SORT: Final = "run-sort"
READ: Final = "run-read"
POLL: Final = "run-poll"
POLL_MS: Final = 1500
LONGEST_SEARCH: Final = 100
COLUMNS: Final = ("run", "useful work", "step time", "verdict", "")
ONLY_ONE: Final = (
    "One run is served. To see several, and to compare two, name more of them, or a folder that holds "
    "them: tracelens serve DIR DIR ..."
)
NONE_YET: Final = (
    "No run is here yet: what is recorded into the folders that are served shows up on its own."
)
NEWEST: Final = "newest first"
SORTS: Final[dict[str, Callable[[Row], Any]]] = {
    NEWEST: lambda row: -row.entry.changed_ns,
    "by name": lambda row: row.name.casefold(),
    "least useful work first": lambda row: _of(row, lambda seen: seen.efficiency),
    "longest steps first": lambda row: _of(row, lambda seen: -seen.step_ns),
    "most ranks first": lambda row: _of(row, lambda seen: -seen.ranks),
}


def _of(row: Row, measure: Callable[[Glance], float | None]) -> float:
    """Measure a run; those of which nothing is known come last."""
    found = measure(row.glance) if row.glance else None
    return math.inf if found is None else found


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
        runs = asked.runs()
        if clicks and ctx.triggered_id == READ:
            for entry in [row.entry for row in _rows(runs) if _unread(row)]:
                runs.open(entry)
        rows = _rows(runs)
        return _table(rows, wanted, sort), not any(map(_unread, rows)), not _busy(rows)


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
    return dmc.Group([search, order, read], gap="sm")


def _table(rows: list[Row], wanted: Any, sort: Any) -> Component:
    """List what is called so, or found so, in an order; both come from the browser."""
    asked_for = wanted.strip()[:LONGEST_SEARCH].casefold() if isinstance(wanted, str) else ""
    found = [row for row in rows if asked_for in row.words]
    if not found:
        return html.P(f"No run is called “{asked_for}”." if rows else NONE_YET, className="summary")
    found.sort(key=SORTS.get(str(sort), SORTS[NEWEST]))
    head = html.Thead(html.Tr([html.Th(name) for name in COLUMNS]))
    body = html.Tbody([run_row.draw(row) for row in found])
    return html.Table([head, body], className="spans runs")
