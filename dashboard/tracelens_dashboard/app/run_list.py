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
from tracelens_dashboard.components import fields, heading
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


class Query(NamedTuple):
    """Which runs are listed, and how; all of it comes from the browser. `chosen` are ids."""

    search: str = ""
    sort: str = NEWEST
    group: str = UNGROUPED
    tags: frozenset[str] = frozenset()
    chosen: frozenset[str] = frozenset()

    @property
    def filters(self) -> tuple[object, ...]:
        """Its values that change the list."""
        return self.search, self.sort, self.group, sorted(self.tags)


def layout(runs: Runs, _view: ViewState) -> Component:
    """Return the page."""
    title = dmc.Title("Runs", order=1, className="page-title")
    if runs.alone:
        link = dcc.Link(text.shown(runs.alone.name), href="/", className="way")
        return heading.page_in_words([title], ONLY_ONE, html.P(link), identity="runs")
    rows = _list_rows(runs)
    sections = [
        html.Div([title, _controls(rows)], className="page-heading"),
        html.Div([_survey_switch(runs, rows), _actions()], className="page-heading"),
        dmc.Card(html.Div(_list_table(rows, Query()), id=LIST), className="card"),
        dcc.Interval(id=POLL, interval=_poll_interval(rows)),
        dcc.Store(id=SHOWN),
        dcc.Store(id=CHOICE),
        dcc.Store(id=TAGS_CHANGED),
    ]
    return html.Div(sections, className="page", id="runs")


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
    def show(*values: Any) -> tuple[Any, ...]:
        typed, sort, group, tagged, survey, _, _, choice, digest_before = values
        runs = current.runs()
        is_surveying = bool(survey) if ctx.triggered_id == SURVEY else runs.surveying
        runs.survey(on=is_surveying)
        rows = _list_rows(runs)
        search = typed.strip()[:LONGEST_SEARCH].casefold() if isinstance(typed, str) else ""
        query = Query(search, str(sort), str(group), _read_texts(tagged), _read_texts(choice))
        digest = _digest([query.filters, is_surveying, *(row.content for row in rows)])
        if digest == digest_before:
            raise PreventUpdate
        return (
            _list_table(rows, query),
            _progress(rows, is_surveying=is_surveying),
            _tags_of(rows),
            _poll_interval(rows),
            digest,
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
        entries = _find_chosen(choice)
        if not entries or not tags.fit(tag):
            raise PreventUpdate
        current.runs().tags.add([entry.path for entry in entries], tag)
        return _count_change(changes), ""

    @app.callback(
        Output(TAGS_CHANGED, "data", allow_duplicate=True),
        Input({"type": UNTAG, "run": ALL, "tag": ALL}, "n_clicks"),
        State(TAGS_CHANGED, "data"),
        prevent_initial_call=True,
    )
    def remove(clicks: Any, changes: Any) -> int:
        button = ctx.triggered_id
        entry = current.runs().entry(button.get("run")) if isinstance(button, dict) else None
        if entry is None or not any(clicks):
            raise PreventUpdate
        current.runs().tags.remove(entry.path, str(button.get("tag")))
        return _count_change(changes)


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
        readable = [entry for entry in _find_chosen(choice) if entry.stage.kind != "failed"]
        if not clicks or len(readable) < FEWEST:
            raise PreventUpdate
        newest, *others = sorted(readable, key=lambda entry: -entry.changed_ns)
        return links.to_comparison(newest.id, *(entry.id for entry in others))


def _find_chosen(choice: Any) -> list[Entry]:
    """Return the runs that are chosen, also where the list does not show them at the moment."""
    run_ids = _read_texts(choice)
    return [entry for entry in current.runs().look() if entry.id in run_ids]


def _read_texts(value: Any) -> frozenset[str]:
    """Return the texts of a list that a browser sends."""
    items = value if isinstance(value, list) else []
    return frozenset(item for item in items if isinstance(item, str))


def _count_change(changes: Any) -> int:
    return changes + 1 if isinstance(changes, int) else 1


def _list_rows(runs: Runs) -> list[Row]:
    entries = runs.look()
    folders = runs.folders(entries)
    return [
        Row(entry, runs.glance(entry), runs.tags.tags_of(entry.path), folders[entry.id])
        for entry in entries
    ]


def _digest(content: Iterable[object]) -> str:
    """Return a text that changes when anything that is shown does, so that no more is drawn."""
    return hashlib.blake2b(repr(list(content)).encode(errors="replace"), digest_size=8).hexdigest()


def _poll_interval(rows: list[Row]) -> int:
    return BUSY_MS if any(row.entry.stage.under_way for row in rows) else IDLE_MS


def _tags_of(rows: list[Row]) -> list[str]:
    return sorted({tag for row in rows for tag in row.tags}, key=str.casefold)


def _controls(rows: list[Row]) -> Component:
    label = "find runs by name, verdict or tag"
    search = fields.text_input(SEARCH, label, "Find runs (/)", debounce=200, className="search")
    tag_options = {"placeholder": "Tags", "clearable": True, "className": "tagged"}
    label = "only runs with these tags"
    tagged = fields.multi_select(TAGGED, _tags_of(rows), label, value=[], **tag_options)
    order = fields.select(SORT, SORTS, "order", w=180)
    group = fields.select(GROUP, GROUPS, "groups", w=180)
    return dmc.Group([search, tagged, group, order], gap="sm")


def _survey_switch(runs: Runs, rows: list[Row]) -> Component:
    switch = dmc.Switch(
        id=SURVEY, label="Analyze in the background", size="xs", checked=runs.surveying
    )
    progress = html.Div(
        _progress(rows, is_surveying=runs.surveying),
        id=PROGRESS,
        role="status",
        className="run-progress",
    )
    return dmc.Group([progress, switch], gap="md")


def _progress(rows: list[Row], *, is_surveying: bool) -> list[Component]:
    """Describe how many of all runs are analyzed, and why the others are not."""
    analyzed = sum(row.glance is not None for row in rows)
    failed = sum(row.failed for row in rows)
    recorded = sum(row.entry.recorded and row.glance is None for row in rows)
    facts = [
        f"Analyzed {analyzed} of {text.count(len(rows), 'run')}",
        f"{failed} cannot be read" if failed else "",
        f"{recorded} still recorded" if recorded else "",
        "" if is_surveying or analyzed + failed + recorded == len(rows) else "paused",
    ]
    sentence = html.Span(", ".join(filter(None, facts)), className="fact-name")
    if not any(row.entry.stage.under_way for row in rows):
        return [sentence]
    share = 100 * (analyzed + failed) / len(rows)
    return [sentence, dmc.Progress(value=share, size="sm", w=120, **aria("analyzed runs"))]


def _actions() -> Component:
    """List the buttons that do something with the runs that are chosen."""
    tag = fields.text_input(NEW_TAG, "tag for the chosen runs", "Tag the chosen runs", w=160)
    add = fields.button("Add tag", ADD_TAG, disabled=True)
    compare = fields.button("Compare chosen", COMPARE, disabled=True)
    return dmc.Group([tag, add, compare], gap="sm")


def _list_table(rows: list[Row], query: Query) -> Component:
    """List the runs that match, and have all of some tags."""
    if not rows:
        return html.P(NONE_YET, className="summary")
    matching = [
        row for row in rows if query.search in row.searchable and query.tags <= set(row.tags)
    ]
    if not matching:
        search = f" “{query.search}”" if query.search else ""
        return html.P(f"No run matches{search}.", className="summary")
    return table(matching, query.sort, query.group, query.chosen)
