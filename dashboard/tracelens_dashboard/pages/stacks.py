"""Which code takes the time, and in which of it does a straggler spend more than its peers?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import Input, Output, State, dcc, html
from dash.exceptions import PreventUpdate

from tracelens.lod import stacks
from tracelens.lod.viewport import Window
from tracelens_dashboard import ids, text
from tracelens_dashboard.components import chart, heading
from tracelens_dashboard.figures import sampled_stacks
from tracelens_dashboard.ids import aria
from tracelens_dashboard.runs import current
from tracelens_dashboard.theme import name_of
from tracelens_dashboard.view import links, peer_stacks, state, viewport

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from tracelens_dashboard.figures.drawing import Drawing
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.theme import Theme
    from tracelens_dashboard.view.state import ViewState

PATH: Final = "/stacks"
TITLE: Final = "Stacks"
QUESTION: Final = "Which code takes the time?"

CALLS: Final = "stack-calls"
FRAMES: Final = "stack-frames"
TIMES: Final = "stack-times"
RANK: Final = "stack-rank"
PHASE: Final = "stack-phase"
VIEW: Final = "stack-view"
FRAME: Final = "stack-frame"
LONGEST_FRAME: Final = 2000
NO_DATA: Final = (
    "No call stacks were sampled in this run. With py-spy installed (pip install py-spy), record it "
    "with"
)
COMMAND: Final = "tracelens record --sample -- COMMAND"
WHAT_IT_SHOWS: Final = (
    "Then this page shows in which code a rank spends its time, in a phase and steps, compared with "
    "its peers; a straggler's finding names the function."
)


def layout(store: Store, view: ViewState) -> Component:
    """Return the page, or say how to record what it shows."""
    title = heading.page_title("Sampled stacks")
    if not store.sampled:
        return html.Div([title, _explanation()], className="page", id="no-stacks")
    seen = _window(store, view)
    times = max(200, 100 + 26 * min(len(store.sampled), peer_stacks.MOST_PEERS + 1))
    cards = (
        chart.card(CALLS, "Calls (red: longer than on peers)", 380),
        chart.card(FRAMES, "Functions by residual against peers", 400),
        chart.card(TIMES, "Time on the stack", times),
    )
    return html.Div(
        [
            dcc.Store(id=VIEW, data=[seen.start_ns, seen.end_ns]),
            dcc.Store(id=FRAME),
            html.Div([title, _controls(store, view)], className="page-heading"),
            html.P(_scope(store, view, seen), className="summary"),
            dmc.Grid([dmc.GridCol(card, span=12) for card in cards], gutter="sm"),
        ],
        className="page",
    )


def register(app: Dash) -> None:
    """Draw the charts; a click on a frame shows when it ran, one there leads to its spans."""
    chosen = (Input(RANK, "value"), Input(PHASE, "value"), Input(VIEW, "data"))
    chart.bind(app, CALLS, _calls, *chosen)
    chart.bind(app, FRAMES, _frames, *chosen)
    chart.bind(app, TIMES, _times, *chosen, Input(FRAME, "data"))
    chart.follow_clicks(app, TIMES, _to_moment)
    for source in (CALLS, FRAMES):
        _register_choice(app, source)

    @app.callback(
        Output(VIEW, "data"),
        Input(ids.RUN, "data"),
        State(ids.GO, "search"),
        prevent_initial_call=True,
    )
    def renew(run: Any, search: Any) -> list[int]:
        if not current.edition(run):
            raise PreventUpdate
        seen = _window(current.store(run), state.read(search))
        return [seen.start_ns, seen.end_ns]


def _register_choice(app: Dash, source: str) -> None:
    """Let a click on a chart, or on a row of its table, choose a frame."""

    @app.callback(
        Output(FRAME, "data", allow_duplicate=True),
        Input(ids.part(source, "graph"), "clickData"),
        prevent_initial_call=True,
    )
    def by_mark(click: Any) -> str:
        points = (click or {}).get("points")
        return _frame(points[0].get("customdata") if points else None)

    @app.callback(
        Output(FRAME, "data", allow_duplicate=True),
        Input(ids.part(source, "rows"), "cellClicked"),
        State(ids.part(source, "rows"), "rowData"),
        prevent_initial_call=True,
    )
    def by_row(cell: Any, rows: Any) -> str:
        place = str((cell or {}).get("rowId"))
        row = rows[int(place)] if rows and place.isdecimal() and int(place) < len(rows) else {}
        return _frame(row.get("call") or row.get("frame"))


def _frame(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_FRAME:
        raise PreventUpdate
    return value


def _controls(store: Store, view: ViewState) -> Component:
    ranks = [{"value": str(rank), "label": f"rank {rank}"} for rank in store.sampled]
    names = [peer_stacks.ALL_TIME, *store.times.categories]
    phases = [{"value": name, "label": name_of(name)} for name in names]
    rank = peer_stacks.first_rank(store, view.pins)
    common: dict[str, Any] = {"size": "xs", "allowDeselect": False}
    return dmc.Group(
        [
            dmc.Select(
                id=RANK, data=ranks, value=str(rank), searchable=True, limit=50,
                **common, **aria("rank"),
            ),
            dmc.Select(
                id=PHASE, data=phases, value=peer_stacks.first_phase(store, rank),
                **common, **aria("phase"),
            ),
        ],
        gap="xs",
    )  # fmt: skip


def _window(store: Store, view: ViewState) -> Window:
    """Return the window of the link, else that of its steps, else the whole run."""
    steps = store.window_of(*view.steps) if view.steps and view.start_ns is None else None
    if steps:
        return steps
    seen, origin = viewport.window_of(store, view), store.whole.start_ns
    return Window(origin + seen.start_ns, origin + seen.end_ns)


def _scope(store: Store, view: ViewState, seen: Window) -> list[Any]:
    """Return which part of the run is shown, with a link to all of it."""
    if seen == store.whole:
        return [f"{QUESTION} The whole run; a finding's link “Sampled code” narrows it."]
    begin = text.duration(seen.start_ns - store.whole.start_ns)
    where = (
        text.steps(*view.steps) if view.steps else f"{text.duration(seen.width_ns)} from {begin} on"
    )
    whole = dcc.Link("show the whole run", href=links.to_stacks(store), className="way")
    return [f"{QUESTION} A part of the run: {where}; ", whole, "."]


def _calls(store: Store, theme: Theme, *values: Any) -> Drawing:
    asked = peer_stacks.read(store, *values)
    mine, peers = peer_stacks.stacks_of(store, asked)
    return sampled_stacks.icicle(stacks.calls(mine, peers), asked.rank, len(peers), theme)


def _frames(store: Store, theme: Theme, *values: Any) -> Drawing:
    asked = peer_stacks.read(store, *values)
    return sampled_stacks.by_function(
        stacks.frames(*peer_stacks.stacks_of(store, asked)), asked.rank, theme
    )


def _times(store: Store, theme: Theme, *values: Any) -> Drawing:
    """Draw when the chosen frame ran; before one is chosen, the one with the largest residual."""
    *choice, frame = values
    asked = peer_stacks.read(store, *choice)
    if not isinstance(frame, str):
        found = stacks.frames(*peer_stacks.stacks_of(store, asked))
        frame = "" if found.is_empty() else str(found["frame"][0])
    shares = {
        rank: stacks.share_over_time(store.samples(rank), frame, asked.window, sampled_stacks.BINS)
        for rank in (asked.rank, *asked.peers)
        if frame
    }
    return sampled_stacks.over_time(shares, frame, asked.window, store.whole.start_ns, theme)


def _to_moment(store: Store, point: dict[str, Any]) -> str | None:
    rank, start, end = point.get("customdata") or (None, None, None)
    if rank not in store.ranks or not (isinstance(start, int) and isinstance(end, int)):
        return None
    origin = store.whole.start_ns
    return links.to_moment(store, Window(origin + start, origin + end), (int(rank),))


def _explanation() -> Component:
    command = dmc.Code(COMMAND, block=True)
    return dmc.Card([html.P(NO_DATA), command, html.P(WHAT_IT_SHOWS)], className="card prose")
