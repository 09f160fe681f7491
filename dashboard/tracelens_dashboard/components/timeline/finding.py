"""Finding spans: what is called as asked, in the whole run, and the way from one to the next.

Spans are gone through process by process, in the order of rows, and within a process by their begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl
from dash import ClientsideFunction, Input, Output, State, dcc, html, no_update
from dash.exceptions import PreventUpdate

from tracelens.lod.tracks import names as span_names
from tracelens.lod.viewport import Window
from tracelens.model.inert import clean
from tracelens_dashboard import ids, text
from tracelens_dashboard.components.timeline import inspector, keys, names
from tracelens_dashboard.figures.timeline import plot
from tracelens_dashboard.figures.timeline.frame import SECOND
from tracelens_dashboard.runs import current
from tracelens_dashboard.runs.store import key_of
from tracelens_dashboard.view import links, viewport
from tracelens_dashboard.view.state import LONGEST_SEARCH, MOST_OPENED
from tracelens_dashboard.view.viewport import Controls, Position

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from tracelens_dashboard.components.timeline.inspector import Selection
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.view.state import ViewState

DIRECTIONS: Final = {"n": 1, "N": -1}
MOST_NAMES: Final = 8
MATCH_COLUMNS: Final = ("span", "count", "total", "processes", "longest", "")
# What leads to a span: it is selected, described, its process opened, and it is scrolled into view.
SPAN_OUTPUTS: Final = (
    Output(names.SELECTED, "data", allow_duplicate=True),
    Output(names.DETAILS, "children", allow_duplicate=True),
    Output(names.OPENED, "data", allow_duplicate=True),
    Output(keys.GOTO, "data", allow_duplicate=True),
    Output(names.SCROLL, "data", allow_duplicate=True),
)
NARROWEST: Final = 1 / 300  # of the window: a shorter span is zoomed in to
AROUND: Final = 12  # lengths of it on either side


class Hit(NamedTuple):
    """A span that is called as asked: which one of how many, and its position and end."""

    position: Position
    end_ns: int
    number: int
    total: int


def layout() -> list[Component]:
    """Lay out the answer to a search."""
    return [
        html.P(id=names.HIT, className="summary", role="status"),
        html.Div(id=names.FOUND),
        dcc.Store(id=names.SCROLL),
    ]


def register(app: Dash) -> None:
    """List what is found; lead from one to the next."""
    timeline_state = (*names.control_arguments(), current.RUN)

    @app.callback(Output(names.FOUND, "children"), Input(names.SEARCH, "value"), current.RUN)
    def find(value: Any, run: Any) -> Component | None:
        search = read_search(value)
        return list_matches(current.store(run), search) if search else None

    @app.callback(
        *SPAN_OUTPUTS,
        Output(names.HIT, "children"),
        Input(keys.PRESSED, "data"),
        State(names.SEARCH, "value"),
        *timeline_state,
        prevent_initial_call=True,
    )
    def lead_on(pressed: Any, value: Any, *values: Any) -> tuple[Any, ...]:
        press = pressed if isinstance(pressed, dict) else {}
        search = read_search(press.get("text") or value)
        if press.get("key") not in DIRECTIONS or not search:
            raise PreventUpdate
        *control_values, run = values
        store, controls = current.store(run), Controls(*control_values)
        position = viewport.read_position(store, controls.selected)
        hit = next_hit(store, search, position, DIRECTIONS[press["key"]])
        if hit is None:
            return (*(no_update,) * len(SPAN_OUTPUTS), _no_match(search))
        note = (
            f"{hit.number:,} of {hit.total:,} that match \u201c{search}\u201d; n next, N previous."
        )
        return (*_show_hit(store, hit, controls), note)

    @app.callback(
        *SPAN_OUTPUTS,
        Input(names.SPANS, "cellClicked"),
        State(names.SPANS, "rowData"),
        *timeline_state,
        prevent_initial_call=True,
    )
    def lead_to_row(cell: Any, rows: Any, *values: Any) -> tuple[Any, ...]:
        *controls, run = values
        store = current.store(run)
        return _show_hit(store, hit_of_row(store, cell, rows), Controls(*controls))

    @app.callback(
        *SPAN_OUTPUTS, Input(names.POINTED, "data"), *timeline_state, prevent_initial_call=True
    )
    def lead_to_pointed(value: Any, *values: Any) -> tuple[Any, ...]:
        *controls, run = values
        store = current.store(run)
        span = value if isinstance(value, dict) else {}
        hit = hit_of(store, span, inside=span.get("inside") is True)
        return _show_hit(store, hit, Controls(*controls))

    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "reveal"),
        Input(names.SCROLL, "data"),
        prevent_initial_call=True,
    )


def hit_of_row(store: Store, cell: Any, rows: Any) -> Hit | None:
    """Return the span whose name is clicked in a table of spans; the browser may send anything."""
    click = cell if isinstance(cell, dict) and cell.get("colId") == "span" else {}
    row_id = str(click.get("rowId", ""))
    if not isinstance(rows, list) or not row_id.isdecimal() or int(row_id) >= len(rows):
        return None
    row = rows[int(row_id)]
    return hit_of(store, row if isinstance(row, dict) else {}, inside=True)


def hit_of(store: Store, span: dict[str, Any], *, inside: bool) -> Hit | None:
    """Return the span of a row that begins `at` and lasts `until`, in ns since the start.

    It is looked for in the tracks of its process (`inside`), or in the row itself; `seq` is the number
    of a collective. None where there is no such row; the browser may send anything.
    """
    begin_position, end_position = (
        viewport.read_position(store, {"lane": span.get("row"), "at": span.get(key)})
        for key in ("at", "until")
    )
    if begin_position is None or end_position is None:
        return None
    end_ns = max(end_position.at_ns, begin_position.at_ns + 1)
    track = _find_track(store, begin_position, end_ns, span.get("seq")) if inside else None
    return Hit(begin_position._replace(track=track), end_ns, 1, 1)


def _find_track(store: Store, position: Position, end_ns: int, seq: Any = None) -> int | None:
    """Return in which track of its process a span is drawn; None of a device's stream.

    Of spans of the same time, that of a collective's number (`seq`) comes first.
    """
    if position.lane not in store.groups.values():
        return None
    group = store.opened(position.lane)
    lanes = group.scene.lanes
    begins_then = lanes.starts == position.at_ns
    items = np.flatnonzero(begins_then & (lanes.ends == end_ns))
    if not len(items):
        items = np.flatnonzero(begins_then)
    if not len(items):
        return None
    numbers = store.events_of(_process(store, position.lane))["seq"]
    events = group.rows[items].tolist()
    calls = [
        index
        for index, event in enumerate(events)
        if seq is not None and event >= 0 and numbers[event] == seq
    ]
    return _track_of(lanes.offsets, int(items[calls[0] if calls else 0]))


def _track_of(offsets: Any, item: int) -> int:
    return int(np.searchsorted(offsets, item, side="right")) - 1


def read_search(value: Any) -> str:
    """Read what the browser sends, which may be anything."""
    return value.strip()[:LONGEST_SEARCH] if isinstance(value, str) else ""


def _no_match(search: str) -> str:
    return f"Nothing in this run is called \u201c{search}\u201d."


def _show_hit(store: Store, hit: Hit | None, controls: Controls) -> tuple[Any, ...]:
    """Return the values of `SPAN_OUTPUTS` that show a span."""
    if hit is None:
        raise PreventUpdate
    lane = store.scene.lanes.lanes[hit.position.lane]
    opened = viewport.opened_in(store, controls)
    if hit.position.track is not None and key_of(lane) not in opened:
        opened = [*opened, key_of(lane)][-MOST_OPENED:]
    selection = inspector.selection_of(store, hit.position)
    frame = viewport.frame(store, controls._replace(selected=selection, opened=opened))
    tops = [span.band.top for span in frame.selected]
    window = _window_around(store, frame.seen, hit)
    return (
        selection,
        inspector.span_details(store, hit.position),
        opened,
        [window.start_ns / SECOND, window.end_ns / SECOND] if window else no_update,
        {"y": plot.TOP_PX + tops[0]} if tops else no_update,
    )


def next_hit(store: Store, search: str, position: Position | None, direction: int) -> Hit | None:
    """Return the span before or after a position with the asked name; None without one.

    After the last one of a process comes the first one of the next; after the last of all, the first.
    """
    matches = store.names.find(search).group_by("process").agg(pl.col("count").sum())
    counts_by_process = dict(matches.iter_rows())
    rows = [row for row in store.groups.values() if counts_by_process.get(_process(store, row))]
    if not rows:
        return None
    counts = [counts_by_process[_process(store, row)] for row in rows]
    process = _process(store, position.lane) if position else None
    indexes = [index for index, row in enumerate(rows) if _process(store, row) == process]
    if indexes and position:
        row_index = indexes[0]
        index = _index_after(store, search, rows[row_index], position, direction)
    else:
        row_index, index = (0, 0) if direction > 0 else (len(rows) - 1, counts[-1] - 1)
    if not 0 <= index < counts[row_index]:
        row_index = (row_index + direction) % len(rows)
        index = 0 if direction > 0 else counts[row_index] - 1
    hit_position, end_ns = _locate(store, search, rows[row_index], index)
    return Hit(hit_position, end_ns, sum(counts[:row_index]) + index + 1, sum(counts))


def _process(store: Store, row: int) -> int:
    return store.scene.lanes.lanes[row].process


def _index_after(store: Store, search: str, row: int, position: Position, direction: int) -> int:
    """Find the matching span of a process before or after a position."""
    hits = span_names.hits(store.events_of(_process(store, row)), search)
    event = -1
    if position.track is not None:
        event = store.event_row(position.lane, position.track, position.at_ns)
    same = np.flatnonzero(hits["row"].to_numpy() == event)
    if len(same):
        return int(same[0]) + direction
    index = int(np.searchsorted(hits["start_ns"].to_numpy(), position.at_ns, side="right"))
    return index if direction > 0 else index - 1


def _locate(store: Store, search: str, row: int, index: int) -> tuple[Position, int]:
    """Locate a matching span of a process in the plot, and its end in ns."""
    events = store.events_of(_process(store, row))
    event, start_ns = span_names.hits(events, search).row(index)
    group = store.opened(row)
    items = np.flatnonzero(group.rows == event)
    if not len(items):
        return Position(row, start_ns), start_ns + 1
    lanes, item = group.scene.lanes, int(items[0])
    track = _track_of(lanes.offsets, item)
    return Position(row, int(lanes.starts[item]), track), int(lanes.ends[item])


def _window_around(store: Store, shown: Window, hit: Hit) -> Window | None:
    """Return the window in which a span is seen, in ns since the start; None where it is already."""
    begin_ns, end_ns = hit.position.at_ns, hit.end_ns
    width_ns = shown.width_ns
    is_readable = width_ns * NARROWEST <= end_ns - begin_ns <= width_ns
    if is_readable and shown.start_ns <= begin_ns and end_ns <= shown.end_ns:
        return None
    margin_ns = (
        (width_ns - (end_ns - begin_ns)) // 2 if is_readable else AROUND * (end_ns - begin_ns)
    )
    window = Window(begin_ns - margin_ns, end_ns + margin_ns).clamp(store.whole)
    origin = store.whole.start_ns
    return Window(window.start_ns - origin, window.end_ns - origin)


def list_matches(store: Store, search: str) -> Component:
    """List what is called as asked, by the time that it takes in the whole run."""
    matches = store.names.find(search)
    if matches.is_empty():
        return html.P(_no_match(search), className="summary", role="status")
    by_label = matches.group_by("label").agg(
        pl.col("count", "total_ns").sum(),
        pl.col("process").n_unique().alias("processes"),
        pl.struct("process", "longest_ns", "longest_at")
        .sort_by("longest_ns")
        .last()
        .alias("longest"),
    )
    listed = by_label.sort("total_ns", "label", descending=[True, False]).head(MOST_NAMES)
    rows = [
        html.Tr([html.Td(cell) for cell in _match_cells(store, search, match)])
        for match in listed.iter_rows(named=True)
    ]
    head = html.Thead(html.Tr([html.Th(name) for name in MATCH_COLUMNS]))
    span_count = text.count(int(matches["count"].sum()), "span")
    name_count = text.count(by_label.height, "name")
    limit = f", the {MOST_NAMES} with most time" if by_label.height > MOST_NAMES else ""
    caption = (
        f"{span_count} of the run match \u201c{search}\u201d ({name_count}{limit}); "
        "n next, N previous"
    )
    parts = [html.Caption(caption), head, html.Tbody(rows)]
    return html.Table(parts, className="spans", role="status")


def _match_cells(store: Store, search: str, match: dict[str, Any]) -> list[str | Component]:
    longest = match["longest"]
    row = next(row for row in store.groups.values() if _process(store, row) == longest["process"])
    lane = store.scene.lanes.lanes[row]
    owner = f"PS {lane.rank}" if lane.role == "ps" else f"rank {lane.rank}"
    start_ns = longest["longest_at"]
    span = Window(start_ns, start_ns + max(longest["longest_ns"], 1))
    return [
        clean(match["label"]) or "unnamed",
        f"{match['count']:,}",
        text.duration(match["total_ns"]),
        f"{match['processes']:,}",
        f"{text.duration(longest['longest_ns'])} on {owner}",
        dcc.Link("Show", href=links.to_found(store, span, row, search), className="way"),
    ]


def resolve_selection(store: Store, view: ViewState) -> Selection | None:
    """Select the span that a link names, with its track."""
    selection = inspector.selection_in(view)
    position = viewport.read_position(store, selection)
    is_row = position and position.track is None and position.lane in store.groups.values()
    if not view.find or position is None or not is_row:
        return selection
    hits = span_names.hits(store.events_of(_process(store, position.lane)), view.find)
    matching = np.flatnonzero(hits["start_ns"].to_numpy() == position.at_ns)
    if not len(matching):
        return selection
    found_position, _ = _locate(store, view.find, position.lane, int(matching[0]))
    return inspector.selection_of(store, found_position)
