"""The list of served runs: found, ordered, grouped, tagged and chosen; analyzed in the background."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import dash_mantine_components as dmc
from dash import ALL, ClientsideFunction, Input, Output, State, ctx, dcc, html
from dash.exceptions import PreventUpdate

from tracelens_dashboard import ids, text
from tracelens_dashboard.app.run_table import (
    CHOSEN,
    GROUPS,
    NEWEST,
    SORTS,
    UNGROUPED,
    UNTAG,
    Row,
    table,
)
from tracelens_dashboard.ids import aria
from tracelens_dashboard.runs import current, tags
from tracelens_dashboard.view import links

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dash import Dash
    from dash.development.base_component import Component

    from tracelens_dashboard.runs.catalog import Entry, Runs
    from tracelens_dashboard.view.state import ViewState

PATH: Final = "/runs"
TITLE: Final = "Runs"

LIST: Final = "run-list"
SEARCH: Final = "run-search"
SORT: Final = "run-sort"
GROUP: Final = "run-group"
TAGGED: Final = "run-tagged"
NEW_TAG: Final = "run-new-tag"
ADD_TAG: Final = "run-add-tag"
TAGS_CHANGED: Final = "run-tags-changed"
SURVEY: Final = "run-survey"
PROGRESS: Final = "run-progress"
SHOWN: Final = "run-shown"
CHOICE: Final = "run-choice"
FEWEST: Final = 2  # runs to compare
POLL: Final = "run-poll"
BUSY_MS: Final = 1500
IDLE_MS: Final = 6000  # new runs are found
COMPARE: Final = "run-compare"
LONGEST_SEARCH: Final = 100
ONLY_ONE: Final = (
    "One run is served. To see or compare several, name more of them, or a folder that holds them: "
    "tracelens serve DIR DIR ..."
)
NONE_YET: Final = (
    "No run is here yet: what is recorded into the folders that are served shows up on its own."
)


class Asked(NamedTuple):
    """Which runs are listed, and how; all of it comes from the browser. `chosen` are ids."""

    search: str = ""
    sort: str = NEWEST
    group: str = UNGROUPED
    tags: frozenset[str] = frozenset()
    chosen: frozenset[str] = frozenset()

    @property
    def listed(self) -> tuple[object, ...]:
        """What of it changes the list."""
        return self.search, self.sort, self.group, sorted(self.tags)


def layout(runs: Runs, _view: ViewState) -> Component:
    """Return the page."""
    title = dmc.Title("Runs", order=1, className="page-title")
    if runs.alone:
        way = dcc.Link(text.shown(runs.alone.name), href="/", className="way")
        card = dmc.Card([html.P(ONLY_ONE), html.P(way)], className="card prose")
        return html.Div([title, card], className="page", id="runs")
    rows = _rows(runs)
    heading = html.Div([title, _controls(rows)], className="page-heading")
    below = html.Div([_survey(runs, rows), _actions()], className="page-heading")
    shown = dmc.Card(html.Div(_table(rows, Asked()), id=LIST), className="card")
    hidden = [
        dcc.Interval(id=POLL, interval=_pace(rows)),
        dcc.Store(id=SHOWN),
        dcc.Store(id=CHOICE),
        dcc.Store(id=TAGS_CHANGED),
    ]
    return html.Div([heading, below, shown, *hidden], className="page", id="runs")


def register(app: Dash) -> None:
    """Sort, filter and group; follow how far the analysis of all runs is; tag and compare."""
    _register_table(app)
    _register_tags(app)
    _register_choice(app)


def _register_table(app: Dash) -> None:
    @app.callback(
        Output(LIST, "children"),
        Output(PROGRESS, "children"),
        Output(TAGGED, "data"),
        Output(POLL, "interval"),
        Output(SHOWN, "data"),
        Input(SEARCH, "value"),
        Input(SORT, "value"),
        Input(GROUP, "value"),
        Input(TAGGED, "value"),
        Input(SURVEY, "checked"),
        Input(POLL, "n_intervals"),
        Input(TAGS_CHANGED, "data"),
        State(CHOICE, "data"),
        State(SHOWN, "data"),
        prevent_initial_call=True,
    )
    def show(*given: Any) -> tuple[Any, ...]:
        wanted, sort, group, tagged, survey, _, _, chosen, seen = given
        runs = current.runs()
        on = bool(survey) if ctx.triggered_id == SURVEY else runs.surveying
        runs.survey(on=on)
        rows = _rows(runs)
        search = wanted.strip()[:LONGEST_SEARCH].casefold() if isinstance(wanted, str) else ""
        asked = Asked(search, str(sort), str(group), _texts(tagged), _texts(chosen))
        now = _digest([asked.listed, on, *(row.seen for row in rows)])
        if now == seen:
            raise PreventUpdate
        return (
            _table(rows, asked),
            _progress(rows, on=on),
            _tags_of(rows),
            _pace(rows),
            now,
        )


def _register_tags(app: Dash) -> None:
    @app.callback(
        Output(TAGS_CHANGED, "data"),
        Output(NEW_TAG, "value"),
        Input(ADD_TAG, "n_clicks"),
        Input(NEW_TAG, "n_submit"),
        State(NEW_TAG, "value"),
        State(TAGS_CHANGED, "data"),
        State(CHOICE, "data"),
        prevent_initial_call=True,
    )
    def add(_clicks: Any, _submits: Any, tag: Any, changes: Any, choice: Any) -> tuple[int, str]:
        entries = _chosen(choice)
        if not entries or not tags.fit(tag):
            raise PreventUpdate
        current.runs().tags.add([entry.path for entry in entries], tag)
        return _after(changes), ""

    @app.callback(
        Output(TAGS_CHANGED, "data", allow_duplicate=True),
        Input({"type": UNTAG, "run": ALL, "tag": ALL}, "n_clicks"),
        State(TAGS_CHANGED, "data"),
        prevent_initial_call=True,
    )
    def remove(clicks: Any, changes: Any) -> int:
        one = ctx.triggered_id
        entry = current.runs().entry(one.get("run")) if isinstance(one, dict) else None
        if entry is None or not any(clicks):
            raise PreventUpdate
        current.runs().tags.remove(entry.path, str(one.get("tag")))
        return _after(changes)


def _register_choice(app: Dash) -> None:
    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "chosen"),
        Output(CHOICE, "data"),
        Output(ADD_TAG, "disabled"),
        Output(COMPARE, "disabled"),
        Output(COMPARE, "children"),
        Input({"type": CHOSEN, "run": ALL}, "checked"),
        State(CHOICE, "data"),
    )

    @app.callback(
        Output(ids.GO, "href", allow_duplicate=True),
        Input(COMPARE, "n_clicks"),
        State(CHOICE, "data"),
        prevent_initial_call=True,
    )
    def compare(clicks: Any, choice: Any) -> str:
        readable = [entry for entry in _chosen(choice) if entry.stage.kind != "failed"]
        if not clicks or len(readable) < FEWEST:
            raise PreventUpdate
        newest, *others = sorted(readable, key=lambda entry: -entry.changed_ns)
        return links.to_comparison(newest.id, *(entry.id for entry in others))


def _chosen(choice: Any) -> list[Entry]:
    """Return the runs that are chosen, also where the list does not show them at the moment."""
    marked = _texts(choice)
    return [entry for entry in current.runs().look() if entry.id in marked]


def _texts(given: Any) -> frozenset[str]:
    """Return the texts of a list that a browser sends."""
    return (
        frozenset(one for one in given if isinstance(one, str))
        if isinstance(given, list)
        else frozenset()
    )


def _after(changes: Any) -> int:
    return changes + 1 if isinstance(changes, int) else 1


def _rows(runs: Runs) -> list[Row]:
    entries = runs.look()
    folders = runs.folders(entries)
    return [
        Row(entry, runs.glance(entry), runs.tags.of(entry.path), folders[entry.id])
        for entry in entries
    ]


def _digest(seen: Iterable[object]) -> str:
    """Return what changes when anything that is shown does, so that no more than that is drawn."""
    return hashlib.blake2b(repr(list(seen)).encode(errors="replace"), digest_size=8).hexdigest()


def _pace(rows: list[Row]) -> int:
    return BUSY_MS if any(row.entry.stage.under_way for row in rows) else IDLE_MS


def _tags_of(rows: list[Row]) -> list[str]:
    return sorted({tag for row in rows for tag in row.tags}, key=str.casefold)


def _controls(rows: list[Row]) -> Component:
    search = dmc.TextInput(
        id=SEARCH,
        placeholder="Find runs (/)",
        size="xs",
        debounce=200,
        className="search",
        **aria("find runs by name, verdict or tag"),
    )
    tagged = dmc.MultiSelect(
        id=TAGGED,
        data=_tags_of(rows),
        placeholder="Tags",
        clearable=True,
        size="xs",
        className="tagged",
        **aria("only runs with these tags"),
    )
    order, group = _select(SORT, SORTS, "order"), _select(GROUP, GROUPS, "groups")
    return dmc.Group([search, tagged, group, order], gap="sm")


def _select(name: str, choices: Iterable[str], label: str) -> Component:
    values = list(choices)
    return dmc.Select(
        id=name, data=values, value=values[0], size="xs", allowDeselect=False, w=180, **aria(label)
    )


def _survey(runs: Runs, rows: list[Row]) -> Component:
    switch = dmc.Switch(
        id=SURVEY, label="Analyze in the background", size="xs", checked=runs.surveying
    )
    progress = html.Div(
        _progress(rows, on=runs.surveying), id=PROGRESS, role="status", className="run-progress"
    )
    return dmc.Group([progress, switch], gap="md")


def _progress(rows: list[Row], *, on: bool) -> list[Component]:
    """Return how many of all runs are analyzed, and what of the others is known."""
    known = sum(row.glance is not None for row in rows)
    failed = sum(row.failed for row in rows)
    recorded = sum(row.entry.recorded and row.glance is None for row in rows)
    parts = [
        f"Analyzed {known} of {text.count(len(rows), 'run')}",
        f"{failed} cannot be read" if failed else "",
        f"{recorded} still recorded" if recorded else "",
        "" if on or known + failed + recorded == len(rows) else "paused",
    ]
    sentence = html.Span(", ".join(part for part in parts if part), className="fact-name")
    if not any(row.entry.stage.under_way for row in rows):
        return [sentence]
    share = 100 * (known + failed) / len(rows)
    return [sentence, dmc.Progress(value=share, size="sm", w=120, **aria("analyzed runs"))]


def _actions() -> Component:
    """Return what can be done with the runs that are chosen."""
    tag = dmc.TextInput(
        id=NEW_TAG,
        placeholder="Tag the chosen runs",
        debounce=True,  # Enter sends what is typed with it
        size="xs",
        w=160,
        **aria("tag for the chosen runs"),
    )
    add = dmc.Button("Add tag", id=ADD_TAG, size="xs", variant="default", disabled=True)
    pair = dmc.Button("Compare chosen", id=COMPARE, size="xs", variant="default", disabled=True)
    return dmc.Group([tag, add, pair], gap="sm")


def _table(rows: list[Row], asked: Asked) -> Component:
    """List the runs that match, and have all of some tags."""
    found = [row for row in rows if asked.search in row.searchable and asked.tags <= set(row.tags)]
    if not rows:
        return html.P(NONE_YET, className="summary")
    if not found:
        of = f" “{asked.search}”" if asked.search else ""
        return html.P(f"No run matches{of}.", className="summary")
    return table(found, asked.sort, asked.group, asked.chosen)
