"""Finding spans: what is called as asked, in the whole run, and the way from one to the next.

Spans are gone through process by process, in the order of rows, and within a process by their begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl
from dash import ClientsideFunction, Input, Output, State, dcc, html, no_update
from dash.exceptions import PreventUpdate

from tracelens.lod.tracks import names as counted
from tracelens.lod.viewport import Window
from tracelens.model.inert import clean
from tracelens_dashboard import ids, text
from tracelens_dashboard.components.timeline import answers, inspector, keys, names
from tracelens_dashboard.figures.timeline import plot
from tracelens_dashboard.figures.timeline.frame import SECOND
from tracelens_dashboard.runs import current
from tracelens_dashboard.runs.store import key_of
from tracelens_dashboard.view import links, viewport
from tracelens_dashboard.view.state import LONGEST_SEARCH, MOST_OPENED
from tracelens_dashboard.view.viewport import Place, Rows

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.view.state import ViewState

WAYS: Final = {"n": 1, "N": -1}
MOST_NAMES: Final = 8
MATCH_COLUMNS: Final = ("span", "count", "total", "processes", "longest", "")
ENDS: Final = ("at", "until")  # of a row of the table of spans
LED: Final = (
    Output(names.SELECTED, "data", allow_duplicate=True),
    Output(names.DETAILS, "children", allow_duplicate=True),
    Output(names.OPENED, "data", allow_duplicate=True),
    Output(keys.GOTO, "data", allow_duplicate=True),
    Output(names.SCROLL, "data", allow_duplicate=True),
)
NARROWEST: Final = 1 / 300  # of the window: a shorter span is zoomed in to
AROUND: Final = 12  # lengths of it on either side


class Hit(NamedTuple):
    """A span that is called as asked: which one of how many, and its place and length."""

    place: Place
    end_ns: int
    number: int
    total: int


def layout() -> list[Component]:
    """Return what a search shows."""
    return [
        html.P(id=names.HIT, className="summary", role="status"),
        html.Div(id=names.FOUND),
        dcc.Store(id=names.SCROLL),
    ]


def register(app: Dash) -> None:
    """List what is found; lead from one to the next."""

    @app.callback(Output(names.FOUND, "children"), Input(names.SEARCH, "value"), current.RUN)
    def find(wanted: Any, run: Any) -> Component | None:
        asked = asked_for(wanted)
        return matches_of(current.store(run), asked) if asked else None

    @app.callback(
        *LED,
        Output(names.HIT, "children"),
        Input(keys.PRESSED, "data"),
        State(names.SEARCH, "value"),
        State(names.VIEW, "data"),
        State(names.PINS, "value"),
        State(names.SORT, "value"),
        State(names.SELECTED, "data"),
        *(State(*part) for part in keys.SHAPE),
        current.RUN,
        prevent_initial_call=True,
    )
    def lead(pressed: Any, wanted: Any, *shown: Any) -> tuple[Any, ...]:
        known = pressed if isinstance(pressed, dict) else {}
        asked = asked_for(known.get("text") or wanted)
        if known.get("key") not in WAYS or not asked:
            raise PreventUpdate
        return _led(current.store(shown[-1]), asked, WAYS[known["key"]], *shown[:-1])

    @app.callback(
        *LED,
        Input(names.SPANS, "cellClicked"),
        State(names.SPANS, "rowData"),
        State(names.VIEW, "data"),
        State(names.PINS, "value"),
        State(names.SORT, "value"),
        *(State(*part) for part in keys.SHAPE),
        current.RUN,
        prevent_initial_call=True,
    )
    def lead_to_row(cell: Any, rows: Any, *shown: Any) -> tuple[Any, ...]:
        store = current.store(shown[-1])
        hit = of_row(store, cell, rows)
        if hit is None:
            raise PreventUpdate
        return _seen(store, hit, *shown[:-1])

    @app.callback(
        *LED,
        Input(names.POINTED, "data"),
        State(names.VIEW, "data"),
        State(names.PINS, "value"),
        State(names.SORT, "value"),
        *(State(*part) for part in keys.SHAPE),
        current.RUN,
        prevent_initial_call=True,
    )
    def lead_to_pointed(span: Any, *shown: Any) -> tuple[Any, ...]:
        store = current.store(shown[-1])
        known = span if isinstance(span, dict) else {}
        hit = hit_of(store, known, inside=known.get("inside") is True)
        if hit is None:
            raise PreventUpdate
        return _seen(store, hit, *shown[:-1])

    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "reveal"),
        Input(names.SCROLL, "data"),
        prevent_initial_call=True,
    )


def of_row(store: Store, cell: Any, rows: Any) -> Hit | None:
    """Return the span whose name is clicked in a table of spans; the browser may send anything."""
    clicked = cell if isinstance(cell, dict) and cell.get("colId") == "span" else {}
    number = str(clicked.get("rowId", ""))
    if not isinstance(rows, list) or not number.isdecimal() or int(number) >= len(rows):
        return None
    row = rows[int(number)] if isinstance(rows[int(number)], dict) else {}
    return hit_of(store, row, inside=True)


def hit_of(store: Store, span: dict[str, Any], *, inside: bool) -> Hit | None:
    """Return the span of a row that begins `at` and lasts `until`, in ns since the start.

    It is looked for in the tracks of its process (`inside`), or in the row itself; `seq` is the number
    of a collective. None where there is no such row; the browser may send anything.
    """
    place, until = (
        viewport.place_of(store, {"lane": span.get("row"), "at": span.get(end)}) for end in ENDS
    )
    if place is None or until is None:
        return None
    end_ns = max(until.at_ns, place.at_ns + 1)
    track = _track(store, place, end_ns, span.get("seq")) if inside else None
    return Hit(place._replace(track=track), end_ns, 1, 1)


def _track(store: Store, place: Place, end_ns: int, seq: Any = None) -> int | None:
    """Return in which track of its process a span is drawn; None of a device's stream.

    Of spans of the same time, that of a collective's number (`seq`) comes first.
    """
    if place.lane not in store.groups.values():
        return None
    group = store.opened(place.lane)
    lanes = group.scene.lanes
    there = np.flatnonzero((lanes.starts == place.at_ns) & (lanes.ends == end_ns))
    if not len(there):
        there = np.flatnonzero(lanes.starts == place.at_ns)
    if not len(there):
        return None
    numbers = store.events_of(_process(store, place.lane))["seq"]
    rows = group.rows[there].tolist()
    same = [i for i, row in enumerate(rows) if seq is not None and row >= 0 and numbers[row] == seq]
    item = int(there[same[0] if same else 0])
    return int(np.searchsorted(lanes.offsets, item, side="right")) - 1


def asked_for(wanted: Any) -> str:
    """Read what the browser sends, which may be anything."""
    return wanted.strip()[:LONGEST_SEARCH] if isinstance(wanted, str) else ""


def _led(store: Store, asked: str, way: int, *shown: Any) -> tuple[Any, ...]:
    view, pins, sort, chosen, *rows = shown
    hit = next_hit(store, asked, viewport.place_of(store, chosen), way)
    if hit is None:
        return (no_update,) * len(LED) + (f"Nothing in this run is called \u201c{asked}\u201d.",)
    found = f"{hit.number:,} of {hit.total:,} that match \u201c{asked}\u201d; n next, N previous."
    return (*_seen(store, hit, view, pins, sort, *rows), found)


def _seen(store: Store, hit: Hit, view: Any, pins: Any, sort: Any, *rows: Any) -> tuple[Any, ...]:
    """Return what `LED` gets for a span: it is selected, its process opened, and it is in view."""
    lane = store.scene.lanes.lanes[hit.place.lane]
    opened = viewport.opened_in(store, Rows(*rows)._replace(sort=sort))
    if hit.place.track is not None and key_of(lane) not in opened:
        opened = [*opened, key_of(lane)][-MOST_OPENED:]
    selected = answers.selected(store, hit.place)
    now = viewport.frame(store, view, pins, sort, selected, rows=Rows(opened, *rows[1:]))
    tops = [one.band.top for one in now.selected]
    goto = _window(store, now.seen, hit)
    return (
        selected,
        inspector.span_details(store, hit.place),
        opened,
        [goto.start_ns / SECOND, goto.end_ns / SECOND] if goto else no_update,
        {"y": plot.TOP_PX + tops[0]} if tops else no_update,
    )


def next_hit(store: Store, asked: str, place: Place | None, way: int) -> Hit | None:
    """Return the span before or after a place that is called as asked; None where there is none.

    After the last one of a process comes the first one of the next; after the last of all, the first.
    """
    found = store.names.find(asked).group_by("process").agg(pl.col("count").sum())
    counts = dict(found.iter_rows())
    rows = [row for row in store.groups.values() if counts.get(_process(store, row))]
    if not rows:
        return None
    every = [counts[_process(store, row)] for row in rows]
    at = next((i for i, row in enumerate(rows) if place and _same(store, row, place.lane)), None)
    if at is None or place is None:
        at, index = (0, 0) if way > 0 else (len(rows) - 1, every[-1] - 1)
    else:
        index = _beside(store, asked, rows[at], place, way)
    if not 0 <= index < every[at]:
        at = (at + way) % len(rows)
        index = 0 if way > 0 else every[at] - 1
    there, end_ns = _place(store, asked, rows[at], index)
    return Hit(there, end_ns, sum(every[:at]) + index + 1, sum(every))


def _process(store: Store, row: int) -> int:
    return store.scene.lanes.lanes[row].process


def _same(store: Store, row: int, other: int) -> bool:
    return _process(store, row) == _process(store, other)


def _beside(store: Store, asked: str, row: int, place: Place, way: int) -> int:
    """Return which one of a process's spans comes before or after a place."""
    found = counted.hits(store.events_of(_process(store, row)), asked)
    event = -1 if place.track is None else store.event_row(place.lane, place.track, place.at_ns)
    same = np.flatnonzero(found["row"].to_numpy() == event)
    if len(same):
        return int(same[0]) + way
    after = int(np.searchsorted(found["start_ns"].to_numpy(), place.at_ns, side="right"))
    return after if way > 0 else after - 1


def _place(store: Store, asked: str, row: int, index: int) -> tuple[Place, int]:
    """Return where a span of a process is drawn, and its end."""
    events = store.events_of(_process(store, row))
    event, start = counted.hits(events, asked).row(index)
    group = store.opened(row)
    items = np.flatnonzero(group.rows == event)
    if not len(items):
        return Place(row, start), start + 1
    lanes, item = group.scene.lanes, int(items[0])
    track = int(np.searchsorted(lanes.offsets, item, side="right")) - 1
    return Place(row, int(lanes.starts[item]), track), int(lanes.ends[item])


def _window(store: Store, seen: Window, hit: Hit) -> Window | None:
    """Return the window in which a span is seen, in ns since the start; None where it is already."""
    begin, end = hit.place.at_ns, hit.end_ns
    wide = seen.width_ns
    readable = wide * NARROWEST <= end - begin <= wide
    if readable and seen.start_ns <= begin and end <= seen.end_ns:
        return None
    beside = (wide - (end - begin)) // 2 if readable else AROUND * (end - begin)
    found = Window(begin - beside, end + beside).clamp(store.whole)
    origin = store.whole.start_ns
    return Window(found.start_ns - origin, found.end_ns - origin)


def matches_of(store: Store, asked: str) -> Component:
    """List what is called as asked, by the time that it takes in the whole run."""
    found = store.names.find(asked)
    if found.is_empty():
        words = f"Nothing in this run is called \u201c{asked}\u201d."
        return html.P(words, className="summary", role="status")
    alike = found.group_by("label").agg(
        pl.col("count", "total_ns").sum(),
        pl.col("process").n_unique().alias("processes"),
        pl.struct("process", "longest_ns", "longest_at").sort_by("longest_ns").last().alias("one"),
    )
    first = alike.sort("total_ns", "label", descending=[True, False]).head(MOST_NAMES)
    rows = [html.Tr([html.Td(cell) for cell in _match_row(store, asked, row)])
            for row in first.iter_rows(named=True)]  # fmt: skip
    head = html.Thead(html.Tr([html.Th(name) for name in MATCH_COLUMNS]))
    spans, kinds = text.count(int(found["count"].sum()), "span"), text.count(alike.height, "name")
    more = f", the {MOST_NAMES} with most time" if alike.height > MOST_NAMES else ""
    words = f"{spans} of the run match \u201c{asked}\u201d ({kinds}{more}); n next, N previous"
    return html.Table(
        [html.Caption(words), head, html.Tbody(rows)], className="spans", role="status"
    )


def _match_row(store: Store, asked: str, row: dict[str, Any]) -> list[str | Component]:
    one = row["one"]
    lane = next(i for i in store.groups.values() if _process(store, i) == one["process"])
    owner = store.scene.lanes.lanes[lane]
    where = f"PS {owner.rank}" if owner.role == "ps" else f"rank {owner.rank}"
    span = Window(one["longest_at"], one["longest_at"] + max(one["longest_ns"], 1))
    href = links.to_found(store, span, lane, asked)
    return [
        clean(row["label"]) or "unnamed",
        f"{row['count']:,}",
        text.duration(row["total_ns"]),
        f"{row['processes']:,}",
        f"{text.duration(one['longest_ns'])} on {where}",
        dcc.Link("Show", href=href, className="way"),
    ]


def resolved(store: Store, view: ViewState) -> answers.Chosen | None:
    """Return what a link selects; of what it found, the track, too."""
    chosen = answers.clicked(view)
    place = viewport.place_of(store, chosen)
    if (
        not view.find
        or place is None
        or place.track is not None
        or place.lane not in store.groups.values()
    ):
        return chosen
    found = counted.hits(store.events_of(_process(store, place.lane)), view.find)
    same = np.flatnonzero(found["start_ns"].to_numpy() == place.at_ns)
    if not len(same):
        return chosen
    return answers.selected(store, _place(store, view.find, place.lane, int(same[0]))[0])
