"""The list of served runs: found, ordered, grouped, tagged and chosen; analyzed in the background."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import dash_mantine_components as dmc
from dash import ALL, ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html

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
MIN_COMPARED_RUNS: Final = 2  # runs to compare
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
    """Which runs are listed, and how; all of it comes from the browser."""

    searched_text: str = ""
    sort_name: str = NEWEST
    group_name: str = UNGROUPED
    required_tags: frozenset[str] = frozenset()
    chosen_ids: frozenset[str] = frozenset()

    @property
    def list_options(self) -> tuple[object, ...]:
        """Its values that change the list."""
        return self.searched_text, self.sort_name, self.group_name, sorted(self.required_tags)


def layout(runs: Runs, _view: ViewState) -> Component:
    """Return the page."""
    title = dmc.Title("Runs", order=1, className="page-title")
    if runs.only_store:
        link = dcc.Link(text.clean_name(runs.only_store.name), href="/", className="way")
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
    """List the runs anew when the query, a run or a tag changes."""

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
        """List the runs anew; nothing changes while they would be drawn as they are.

        A tag that no run has any more does not filter.
        """
        # Return the table, the progress, all tags, how often to poll (ms), a digest of the content.
        typed, sort, group, chosen_tags, is_switched_on, _, _, chosen_ids, digest_before = values
        runs = current.runs_of_app()
        is_surveying = bool(is_switched_on) if ctx.triggered_id == SURVEY else runs.is_surveying
        runs.survey(enabled=is_surveying)
        rows = _list_rows(runs)
        search = typed.strip()[:LONGEST_SEARCH].casefold() if isinstance(typed, str) else ""
        all_tags = _tags_of(rows)
        tags_and_ids = _read_texts(chosen_tags) & {*all_tags}, _read_texts(chosen_ids)
        query = Query(search, str(sort), str(group), *tags_and_ids)
        digest = _digest([query.list_options, is_surveying, *(row.shown_values for row in rows)])
        current.prevent_update_unless(digest != digest_before)
        return (
            _list_table(rows, query),
            _progress(rows, is_surveying=is_surveying),
            all_tags,
            _poll_interval(rows),
            digest,
        )


def _register_tags(app: Dash) -> None:
    """Add a tag to the chosen runs; take a tag off a run."""

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
    def add_tag(
        _clicks: Any, _submits: Any, tag: Any, changes: Any, choice: Any
    ) -> tuple[int, str]:
        """Add a tag to the chosen runs; `changes` counts the changes of tags. Empty the field."""
        entries = _find_chosen(choice)
        current.prevent_update_unless(bool(entries and tags.clean_tag(tag)))
        current.runs_of_app().tags.add([entry.path for entry in entries], tag)
        return _count_change(changes), ""

    @app.callback(
        Output(TAGS_CHANGED, "data", allow_duplicate=True),
        Input({"type": UNTAG, "run": ALL, "tag": ALL}, "n_clicks"),
        State(TAGS_CHANGED, "data"),
        prevent_initial_call=True,
    )
    def remove_tag(clicks: Any, changes: Any) -> int:
        """Remove a tag from the run beside whose name it was clicked; count the change."""
        button = ctx.triggered_id
        entry = (
            current.runs_of_app().find_entry(button.get("run"))
            if isinstance(button, dict)
            else None
        )
        entry = current.prevent_update_unless(entry if any(clicks) else None)
        current.runs_of_app().tags.remove(entry.path, str(button.get("tag")))
        return _count_change(changes)


def _register_choice(app: Dash) -> None:
    """Keep the chosen runs in the browser; compare them."""
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
        """Link to the comparison of the newest chosen run with the others."""
        readable_runs = [entry for entry in _find_chosen(choice) if entry.stage.kind != "failed"]
        current.prevent_update_unless(bool(clicks) and len(readable_runs) >= MIN_COMPARED_RUNS)
        newest, *others = sorted(readable_runs, key=lambda entry: -entry.modified_ns)
        return links.to_comparison(newest.run_key, *(entry.run_key for entry in others))


def _find_chosen(choice: Any) -> list[Entry]:
    """Return the runs that are chosen, also where the list does not show them at the moment."""
    run_ids = _read_texts(choice)
    return [entry for entry in current.runs_of_app().list_entries() if entry.run_key in run_ids]


def _read_texts(value: Any) -> frozenset[str]:
    """Return the texts of a list that a browser sends."""
    items = value if isinstance(value, list) else []
    return frozenset(item for item in items if isinstance(item, str))


def _count_change(changes: Any) -> int:
    return changes + 1 if isinstance(changes, int) else 1


def _list_rows(runs: Runs) -> list[Row]:
    """Return a row for each run that is served, with all that is known before it is opened."""
    entries = runs.list_entries()
    folder_by_id = runs.name_folders(entries)
    return [
        Row(
            entry,
            runs.find_glance(entry),
            runs.tags.tags_of(entry.path),
            folder_by_id[entry.run_key],
        )
        for entry in entries
    ]


def _digest(content: Iterable[object]) -> str:
    """Return a text that changes when anything that is shown does, so that no more is drawn."""
    return hashlib.blake2b(repr(list(content)).encode(errors="replace"), digest_size=8).hexdigest()


def _poll_interval(rows: list[Row]) -> int:
    return BUSY_MS if any(row.entry.stage.is_under_way for row in rows) else IDLE_MS


def _tags_of(rows: list[Row]) -> list[str]:
    return sorted({tag for row in rows for tag in row.tags}, key=str.casefold)


def _controls(rows: list[Row]) -> Component:
    """Return the fields by which runs are found, filtered, grouped and ordered."""
    search_label, tag_label = "find runs by name, verdict or tag", "only runs with these tags"
    search_field = fields.text_input(
        SEARCH, search_label, "Find runs (/)", debounce=200, className="search"
    )
    tag_options = {"placeholder": "Tags", "clearable": True, "className": "tagged"}
    tag_field = fields.multi_select(TAGGED, _tags_of(rows), tag_label, value=[], **tag_options)
    sort_field = fields.select(SORT, SORTS, "order", w=180)
    group_field = fields.select(GROUP, GROUPS, "groups", w=180)
    return dmc.Group([search_field, tag_field, group_field, sort_field], gap="sm")


def _survey_switch(runs: Runs, rows: list[Row]) -> Component:
    """Return the switch of the analysis in the background, with its progress."""
    switch = dmc.Switch(
        id=SURVEY, label="Analyze in the background", size="xs", checked=runs.is_surveying
    )
    progress_line = html.Div(
        _progress(rows, is_surveying=runs.is_surveying),
        id=PROGRESS,
        role="status",
        className="run-progress",
    )
    return dmc.Group([progress_line, switch], gap="md")


def _progress(rows: list[Row], *, is_surveying: bool) -> list[Component]:
    """Describe how many runs are analyzed, and why the others are not; with a bar while reading.

    `is_surveying` is False if the user paused the analysis of the others.
    """
    analyzed_count = sum(row.glance is not None for row in rows)
    failed_count = sum(row.has_failed for row in rows)
    recorded_count = sum(row.entry.is_recorded and row.glance is None for row in rows)
    is_complete = analyzed_count + failed_count + recorded_count == len(rows)
    facts = [
        f"Analyzed {analyzed_count} of {text.count(len(rows), 'run')}",
        f"{failed_count} cannot be read" if failed_count else "",
        f"{recorded_count} still recorded" if recorded_count else "",
        "" if is_surveying or is_complete else "paused",
    ]
    progress_text = html.Span(", ".join(filter(None, facts)), className="fact-name")
    if not any(row.entry.stage.is_under_way for row in rows):
        return [progress_text]
    percent = 100 * (analyzed_count + failed_count) / len(rows)
    return [progress_text, dmc.Progress(value=percent, size="sm", w=120, **aria("analyzed runs"))]


def _actions() -> Component:
    """Return the field and the buttons that do something with the chosen runs."""
    tag_field = fields.text_input(NEW_TAG, "tag for the chosen runs", "Tag the chosen runs", w=160)
    tag_button = fields.button("Add tag", ADD_TAG, disabled=True)
    compare_button = fields.button("Compare chosen", COMPARE, disabled=True)
    return dmc.Group([tag_field, tag_button, compare_button], gap="sm")


def _list_table(rows: list[Row], query: Query) -> Component:
    """Return the table of the runs that match the query, or why it is empty."""
    if not rows:
        return html.P(NONE_YET, className="summary")
    matching_rows = [
        row
        for row in rows
        if query.searched_text in row.searchable_text and query.required_tags <= set(row.tags)
    ]
    if not matching_rows:
        search_text = f" “{query.searched_text}”" if query.searched_text else ""
        return html.P(f"No run matches{search_text}.", className="summary")
    return table(matching_rows, query.sort_name, query.group_name, query.chosen_ids)
