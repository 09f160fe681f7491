"""The page of the requested run, or the reason why it is not ready yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html, no_update

from tracelens_dashboard import ids, text
from tracelens_dashboard.app import run_list, shell
from tracelens_dashboard.components import live, selection_bar
from tracelens_dashboard.components.heading import page_in_words
from tracelens_dashboard.ids import aria
from tracelens_dashboard.runs import current
from tracelens_dashboard.view import links, state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dash.development.base_component import Component

    from tracelens_dashboard.pages import Page
    from tracelens_dashboard.runs.catalog import Entry, Runs, Stage
    from tracelens_dashboard.view.state import ViewState

PATIENCE_S: Final = 1.0  # within which a run with an index is open
POLL_MS: Final = 500
POLL: Final = "arriving-poll"
PROGRESS: Final = "arriving-progress"
AGAIN: Final = "arriving-again"
SHAPE: Final = "live-shape"
CARDS: Final = "live-cards"
UNCHANGING_PAGE_PATHS: Final = {
    links.OVERVIEW,
    links.TIMELINE,
}  # have the same cards whatever is recorded
STAGES: Final = {
    "queued": "Another run is being read; this one is next.",
    "reading": "Its files are read, clocks are aligned and collectives matched.",
    "analyzing": "Its time is being analyzed: phases, stragglers, wait states.",
    "indexing": "Results are being written to an index; the run will open at once from now on.",
}


def lay_out_page(page: Page, runs: Runs, view: ViewState) -> Component:
    """Return a page, or its placeholder until it is ready."""
    return html.Div(_content(page, runs, view), id=ids.BODY)


def register(app: Dash, pages: Sequence[Page]) -> None:
    """Poll the progress of opening a run, and show its page once it is open."""
    page_by_path = {page.PATH: page for page in pages}

    @app.callback(
        Output(ids.BODY, "children", allow_duplicate=True),
        Output(PROGRESS, "children"),
        Output(ids.HEADING, "children", allow_duplicate=True),
        Input(POLL, "n_intervals"),
        State(ids.GO, "pathname"),
        State(ids.GO, "search"),
        prevent_initial_call=True,
    )
    def poll(_times: Any, path: Any, query_string: Any) -> tuple[Any, Any, Any]:
        """Show the progress of a run that is being opened, then the page instead."""
        runs, view, page = (
            current.runs_of_app(),
            state.read(query_string),
            page_by_path.get(str(path), pages[0]),
        )
        pending_entry = _find_pending(page, runs, view, patience_s=0)
        if pending_entry and pending_entry.stage.is_under_way:
            return no_update, _progress(pending_entry), no_update
        return _content(page, runs, view), no_update, shell.heading(runs, view)

    @app.callback(
        Output(ids.BODY, "children", allow_duplicate=True),
        Input(AGAIN, "n_clicks"),
        State(ids.GO, "pathname"),
        State(ids.GO, "search"),
        prevent_initial_call=True,
    )
    def retry(clicks: Any, path: Any, query_string: Any) -> Any:
        """Open a run again that could not be opened, and show that it is."""
        runs, view, page = (
            current.runs_of_app(),
            state.read(query_string),
            page_by_path.get(str(path), pages[0]),
        )
        entry = _find_pending(page, runs, view, patience_s=0)
        entry = current.prevent_update_unless(entry if clicks else None)
        runs.retry_opening(entry)
        runs.open_store(entry)
        return _waiting(entry)


def register_growth(app: Dash, pages: Sequence[Page]) -> None:
    """Lay a page out anew when a recorded run has something to show that it had not."""
    page_by_path = {page.PATH: page for page in pages if page.PATH not in UNCHANGING_PAGE_PATHS}

    @app.callback(
        Output(CARDS, "children"),
        Output(SHAPE, "data"),
        Input(ids.RUN, "data"),
        State(SHAPE, "data"),
        State(ids.GO, "pathname"),
        State(ids.GO, "search"),
        prevent_initial_call=True,
    )
    def lay_out(
        run_key: Any, shape_before: Any, path: Any, query_string: Any
    ) -> tuple[Component, str]:
        """Lay out the page again if it has other parts since the run was read again; also its shape."""
        page = current.prevent_update_unless(
            page_by_path.get(str(path)) if current.edition_number_of(run_key) else None
        )
        store = current.store_of_run(run_key)
        shape = live.digest_shape(store)
        current.prevent_update_unless(shape != shape_before)
        return page.layout(store, state.read(query_string)), shape


def _content(page: Page, runs: Runs, view: ViewState) -> Component:
    """Return the page of the requested run, or the reason why it is not shown yet."""
    if runs.only_store and view.run_key is None:
        return _show_page(page, "", runs.only_store, view)
    if view.run_key is None:
        return run_list.layout(runs, view)
    entry = runs.find_entry(view.run_key)
    if entry is None:
        return _message_not_served()
    pending_entry = _find_pending(page, runs, view, patience_s=PATIENCE_S)
    store = runs.open_store(entry, PATIENCE_S)
    if pending_entry is None and store:
        return _show_page(page, entry.run_key, store, view)
    unopened = pending_entry or entry
    return _failed(unopened) if unopened.stage.kind == "failed" else _waiting(unopened)


def _find_pending(page: Page, runs: Runs, view: ViewState, *, patience_s: float) -> Entry | None:
    """Return the run that is not open yet: the page's own, or one it is compared with; or None."""
    run_keys = [view.run_key, *view.baseline_keys] if page.PATH == links.COMPARE else [view.run_key]
    entries = [entry for entry in map(runs.find_entry, run_keys) if entry]
    return next((entry for entry in entries if not runs.open_store(entry, patience_s)), None)


def _show_page(page: Page, run_key: str, store: Any, view: ViewState) -> Component:
    """Return the page below the bar of the selection, with what it keeps in the browser."""
    bars = [selection_bar.layout(store, view, page.PATH), live.layout()]
    shape = live.digest_shape(store) if current.runs_of_app().is_recorded(run_key) else None
    stores = [dcc.Store(id=ids.RUN, data=run_key), dcc.Store(id=SHAPE, data=shape)]
    cards = html.Div(page.layout(store, view), id=CARDS)
    return html.Div([*stores, html.Div(bars, className="top"), cards])


def _waiting(entry: Entry) -> Component:
    return _message(
        f"{entry.name} is being opened",
        html.Div(_progress(entry), id=PROGRESS, role="status"),
        html.P("This page shows the run as soon as it can; other runs can be looked at meanwhile."),
        dcc.Interval(id=POLL, interval=POLL_MS),
    )


def _progress(entry: Entry) -> list[Component]:
    """Describe what is being done to a run, with a bar of how much of it is done."""
    stage = entry.stage
    percent = 100 * stage.done_part_count / stage.total_part_count if stage.total_part_count else 0
    bar = dmc.Progress(value=percent or 100, animated=True, mt="xs", **aria("progress"))
    return [html.P(_stage_text(stage)), bar]


def _stage_text(stage: Stage) -> str:
    sentence = STAGES.get(stage.activity or stage.kind, "Queued for reading.")
    if not stage.total_part_count:
        return sentence
    return f"{sentence} {stage.done_part_count:,} of {stage.total_part_count:,}."


def _failed(entry: Entry) -> Component:
    return _message(
        f"{entry.name} cannot be shown",
        html.P(entry.stage.failure_sentence, role="alert"),
        dmc.Button("Try again", id=AGAIN, variant="default", size="xs", mt="xs"),
    )


def _message_not_served() -> Component:
    return _message(
        "This run is not served here",
        html.P("The address names a run that is not (or no longer) served here."),
    )


def _message(title: str, *lines: Component) -> Component:
    link = html.P(dcc.Link("All runs", href=run_list.PATH, className="way"))
    heading = dmc.Title(text.clean_name(title), order=1, className="page-title")
    return page_in_words([heading], *lines, link, identity="message")
