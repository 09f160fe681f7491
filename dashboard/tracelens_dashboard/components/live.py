"""Pages of a run that is still recorded: how old what they show is, and what is drawn anew.

Charts are drawn anew when the run that a page shows gets another edition; other parts of the page are
made anew where a page says so (`section`).
"""

from __future__ import annotations

import hashlib
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import ALL, Dash, Input, Output, State, dcc, html, no_update

from tracelens_dashboard import ids, text
from tracelens_dashboard.runs import current
from tracelens_dashboard.view import state

if TYPE_CHECKING:
    from collections.abc import Callable

    from dash.development.base_component import Component

    from tracelens_dashboard.runs.live import Freshness
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.view.state import ViewState

    Build = Callable[[Store, ViewState], Any]

POLL: Final = "live-poll"
PAUSE: Final = "live-pause"
PAUSE_BOX: Final = "live-pause-box"
STATUS: Final = "live-status"
SECTION: Final = "live"
POLL_MS: Final = 500  # a step is to be seen within 2 s, and a reading waits for two polls
MISSING: Final = "The folder of this run is missing: this is what it held when it was read."
UNREADABLE: Final = "Other files are in the folder of this run now, which cannot be read."
REPLACED: Final = "Other files are in the folder of this run now: they are being read."
IDLE_MS: Final = 5000
_SECTIONS: Final[dict[str, Build]] = {}


def section(name: str) -> Callable[[Build], Callable[[Store, ViewState], Component]]:
    """Let what a function returns be made anew while the run grows."""

    def decorate(build: Build) -> Callable[[Store, ViewState], Component]:
        _SECTIONS[name] = build

        @wraps(build)
        def built(store: Store, view: ViewState) -> Component:
            return html.Div(build(store, view), id={SECTION: name})

        return built

    return decorate


def digest_shape(store: Store) -> str:
    """Return a digest of the facts that decide a page's cards; a new digest means a new layout."""
    filled_tables = [name for name in store.run.tables if not store.analysis_table(name).is_empty()]
    has_steps = bool(store.category_times.steps)
    facts = [filled_tables, store.ranks, store.shard_count, store.sampled_ranks, has_steps]
    return hashlib.blake2b(repr(facts).encode(), digest_size=8).hexdigest()


def layout() -> Component:
    """Draw the line next to the selection, if a run is still recorded, or its folder changed."""
    return html.Div(
        [
            dcc.Interval(id=POLL, interval=POLL_MS),
            html.Span(id=STATUS, className="fact-name", role="status"),
            html.Div(dmc.Switch(id=PAUSE, label="Pause", size="xs"), id=PAUSE_BOX, hidden=True),
        ],
        className="live",
    )


def register(app: Dash) -> None:
    """Look at the run's folder, and make what is shown anew when it was read again."""

    @app.callback(
        Output(ids.RUN, "data"),
        Output(STATUS, "children"),
        Output(PAUSE_BOX, "hidden"),
        Output(POLL, "interval"),
        Input(POLL, "n_intervals"),
        Input(PAUSE, "checked"),
        current.RUN,
        prevent_initial_call=True,
    )
    def look(_times: Any, paused: Any, run: Any) -> tuple[Any, Any, bool, int]:
        """Look at the run's folder; an edition counts how often the run was read again."""
        # Return the id of a newer edition, if there is one, the status line, whether the switch is
        # hidden, and how often to look (ms); a run that is not recorded any more has no age.
        run_key = current.run_key_of(run)
        freshness = current.runs_of_app().check_freshness(run_key, paused=bool(paused))
        is_newer = freshness.edition_number > current.edition_number_of(run) and not paused
        return (
            current.with_edition(run_key, freshness.edition_number) if is_newer else no_update,
            _status(freshness, run, paused=bool(paused)),
            freshness.age_s is None,
            IDLE_MS if freshness.age_s is None else POLL_MS,
        )

    @app.callback(
        Output({SECTION: ALL}, "children"),
        Input(ids.RUN, "data"),
        State({SECTION: ALL}, "id"),
        State(ids.GO, "search"),
        prevent_initial_call=True,
    )
    def rebuild(run_key: Any, section_ids: Any, query_string: Any) -> list[Any]:
        """Return each section of the page made anew for the run and the view in the address."""
        store, view = current.store_of_run(run_key), state.read(query_string)
        return [
            _SECTIONS[section_id[SECTION]](store, view)
            if section_id.get(SECTION) in _SECTIONS
            else None
            for section_id in section_ids
        ]


def _status(freshness: Freshness, run_key: Any, *, paused: bool) -> Any:
    """Return a run's state as a sentence; None for a run that is complete and unchanged.

    `paused`: the user stopped that the page follows a run that is still recorded.
    """
    # `age_s` is the time since the last reading began, of a run that is still recorded.
    if freshness.is_missing:
        return html.Span(MISSING, role="alert")
    if freshness.is_replaced:
        return html.Span(UNREADABLE if freshness.is_unreadable else REPLACED, role="alert")
    if freshness.age_s is None:
        return None
    lost_count = sum(current.store_of_run(run_key).report.summary.dropped.values())
    losses_text = f"{text.count(lost_count, 'event')} lost" if lost_count else "nothing lost"
    state_text = "paused" if paused else "live"
    return f"\N{BLACK CIRCLE} {state_text}: as of {freshness.age_s:.0f} s ago, {losses_text}"
