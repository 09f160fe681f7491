"""Which code takes the time, and which of it does a late rank spend longer in than its peers?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import Input, Output, State, dcc, html
from dash.exceptions import PreventUpdate

from tracelens.lod import stacks
from tracelens.lod.window import Window
from tracelens_dashboard import ids, links, sight, text
from tracelens_dashboard.components import chart, follow
from tracelens_dashboard.components.aria import aria
from tracelens_dashboard.figures import frame_bars, frame_times, icicle
from tracelens_dashboard.theme import name_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dash import Dash
    from dash.development.base_component import Component

    from tracelens.lod.stacks import Stack
    from tracelens_dashboard.figures.drawing import Drawing
    from tracelens_dashboard.state import ViewState
    from tracelens_dashboard.store import Store
    from tracelens_dashboard.theme import Theme

PATH: Final = "/stacks"
TITLE: Final = "Stacks"

CALLS: Final = "stack-calls"
FRAMES: Final = "stack-frames"
TIMES: Final = "stack-times"
RANK: Final = "stack-rank"
PHASE: Final = "stack-phase"
VIEW: Final = "stack-view"
FRAME: Final = "stack-frame"
ALL: Final = "all time"
MOST_PEERS: Final = 6
LONGEST_FRAME: Final = 2000
NONE_HERE: Final = (
    "No call stacks were sampled in this run. With py-spy installed (pip install py-spy), record it "
    "with"
)
COMMAND: Final = "tracelens record --sample -- COMMAND"
WHAT_IT_SHOWS: Final = (
    "Then this page shows in which code a rank spends its time, in a phase and some steps, beside its "
    "peers; a late rank's verdict names the function."
)


@dataclass(frozen=True)
class Asked:
    """What the page is asked for: a rank and its peers, a phase (null: all time), a window."""

    rank: int
    peers: tuple[int, ...]
    phase: str | None
    window: Window


def layout(store: Store, view: ViewState) -> Component:
    """Return the page, or say how to record what it shows."""
    title = dmc.Title("Which code takes the time?", order=1, className="page-title")
    if not store.sampled:
        return html.Div([title, _explanation()], className="page", id="no-stacks")
    seen = _window(store, view)
    times = max(200, 100 + 26 * min(len(store.sampled), MOST_PEERS + 1))
    cards = (
        chart.card(CALLS, "Calls, the redder the longer than on its peers", 380),
        chart.card(FRAMES, "Frames with most time beyond the peers'", 400),
        chart.card(TIMES, "When it was on the stack", times),
    )
    return html.Div(
        [
            dcc.Store(id=VIEW, data=[seen.start_ns, seen.end_ns]),
            dcc.Store(id=FRAME),
            dmc.Group([title, _controls(store, view)], justify="space-between", mb="xs"),
            html.P(_said(store, view, seen), className="summary"),
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
    follow.bind(app, TIMES, _to_moment)
    for source in (CALLS, FRAMES):
        _register_choice(app, source)


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
    names = [ALL, *store.times.categories]
    phases = [{"value": name, "label": name_of(name)} for name in names]
    rank = _first_rank(store, view)
    common: dict[str, Any] = {"size": "xs", "allowDeselect": False}
    return dmc.Group(
        [
            dmc.Select(
                id=RANK, data=ranks, value=str(rank), searchable=True, limit=50,
                **common, **aria("rank"),
            ),
            dmc.Select(
                id=PHASE, data=phases, value=_first_phase(store, rank), **common, **aria("phase")
            ),
        ],
        gap="xs",
    )  # fmt: skip


def _first_rank(store: Store, view: ViewState) -> int:
    """Begin with the rank of the link, else with one that a fault names."""
    wanted = (*view.pins, *sorted(store.flagged), *store.sampled)
    return next(rank for rank in wanted if rank in store.sampled)


def _first_phase(store: Store, rank: int) -> str:
    """Begin with the phase that a finding about the rank speaks of."""
    about = [f.phase for f in store.report.findings if rank in f.ranks]
    return next((phase for phase in about if phase in store.times.categories), ALL)


def _window(store: Store, view: ViewState) -> Window:
    """Return the window of the link, else that of its steps, else the whole run."""
    steps = store.window_of(*view.steps) if view.steps and view.start_ns is None else None
    if steps:
        return steps
    seen, origin = sight.window_of(store, view), store.whole.start_ns
    return Window(origin + seen.start_ns, origin + seen.end_ns)


def _said(store: Store, view: ViewState, seen: Window) -> list[Any]:
    """Say what part of the run is looked at, and offer all of it."""
    if seen == store.whole:
        return ["Of the whole run; a finding's link “Its code” shows its part of it."]
    begin = text.duration(seen.start_ns - store.whole.start_ns)
    where = (
        text.steps(*view.steps) if view.steps else f"{text.duration(seen.width_ns)} from {begin} on"
    )
    whole = dcc.Link("show the whole run", href=links.to_stacks(store), className="way")
    return [f"Of a part of the run: {where}; ", whole, "."]


def _asked(store: Store, rank: Any, phase: Any, seen: Any) -> Asked:
    """Read what the browser says; all of it may be anything."""
    first = next(iter(store.sampled), -1)
    mine = int(rank) if str(rank).isdecimal() and int(rank) in store.sampled else first
    others = sorted(set(store.sampled) - {mine}, key=lambda one: (one in store.flagged, one))
    sane = isinstance(seen, list) and len(seen) == 2 and all(isinstance(v, int) for v in seen)
    return Asked(
        rank=mine,
        peers=tuple(sorted(others[:MOST_PEERS])),
        phase=phase if phase in store.times.categories else None,
        window=Window(*seen).clamp(store.whole) if sane else store.whole,
    )


def _spent(store: Store, asked: Asked, rank: int) -> Mapping[Stack, float]:
    lane = store.lane_of(rank)
    if lane is None or rank not in store.sampled:
        return {}
    inside = stacks.pieces(store.scene.lanes, lane, asked.window, asked.phase)
    return stacks.spent(store.samples(rank), inside)


def _compared(
    store: Store, asked: Asked
) -> tuple[Mapping[Stack, float], list[Mapping[Stack, float]]]:
    """Return the stacks of the rank, and of those peers of which enough was seen."""
    peers = (_spent(store, asked, peer) for peer in asked.peers)
    return _spent(store, asked, asked.rank), [found for found in peers if found]


def _calls(store: Store, theme: Theme, *values: Any) -> Drawing:
    asked = _asked(store, *values)
    mine, peers = _compared(store, asked)
    return icicle.draw(stacks.calls(mine, peers), asked.rank, len(peers), theme)


def _frames(store: Store, theme: Theme, *values: Any) -> Drawing:
    asked = _asked(store, *values)
    return frame_bars.draw(stacks.frames(*_compared(store, asked)), asked.rank, theme)


def _times(store: Store, theme: Theme, *values: Any) -> Drawing:
    """Draw when the chosen frame ran; before one is chosen, that with the largest excess."""
    *choice, frame = values
    asked = _asked(store, *choice)
    if not isinstance(frame, str):
        found = stacks.frames(*_compared(store, asked))
        frame = "" if found.is_empty() else str(found["frame"][0])
    shares = {
        rank: stacks.when(store.samples(rank), frame, asked.window, frame_times.BINS)
        for rank in (asked.rank, *asked.peers)
        if frame
    }
    return frame_times.draw(shares, frame, asked.window, store.whole.start_ns, theme)


def _to_moment(store: Store, point: dict[str, Any]) -> str | None:
    rank, start, end = point.get("customdata") or (None, None, None)
    if rank not in store.ranks or not (isinstance(start, int) and isinstance(end, int)):
        return None
    origin = store.whole.start_ns
    return links.to_moment(store, Window(origin + start, origin + end), (int(rank),))


def _explanation() -> Component:
    command = dmc.Code(COMMAND, block=True)
    return dmc.Card([html.P(NONE_HERE), command, html.P(WHAT_IT_SHOWS)], className="card prose")
