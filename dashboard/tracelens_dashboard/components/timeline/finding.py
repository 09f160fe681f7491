"""Finding spans: what is called as asked, in the whole run, and the way from one to the next.

Spans are gone through process by process, in the order of rows, and within a process by their begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl
from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update

from tracelens.lod.tracks import names as span_names
from tracelens.lod.viewport import Window
from tracelens.model.inert import clean
from tracelens_dashboard import ids, text
from tracelens_dashboard.components.timeline import inspector, keys, names
from tracelens_dashboard.figures.timeline import plot
from tracelens_dashboard.figures.timeline.frame import NS_PER_SECOND
from tracelens_dashboard.runs import current
from tracelens_dashboard.runs.store import Store, key_of
from tracelens_dashboard.view import links, viewport
from tracelens_dashboard.view.state import LONGEST_SEARCH, MOST_OPENED, ViewState
from tracelens_dashboard.view.viewport import Controls, Position

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from tracelens_dashboard.components.timeline.inspector import Selection

DIRECTIONS: Final = {"n": 1, "N": -1}
MAX_LISTED_NAMES: Final = 8
MATCH_COLUMNS: Final = ("span", "count", "total", "processes", "longest", "")
# What leads to a span: it is selected, described, its process opened, and it is scrolled into view.
SPAN_OUTPUTS: Final = (
    Output(names.SELECTED, "data", allow_duplicate=True),
    Output(names.DETAILS, "children", allow_duplicate=True),
    Output(names.OPENED, "data", allow_duplicate=True),
    Output(keys.GOTO, "data", allow_duplicate=True),
    Output(names.SCROLL, "data", allow_duplicate=True),
)
MIN_READABLE_SHARE: Final = 1 / 300  # of the window: a shorter span is zoomed in to
MARGIN_SPAN_LENGTHS: Final = 12  # lengths of it on either side


class Hit(NamedTuple):
    """A span that is called as asked: its position and end, and which match it is of how many."""

    position: Position
    end_ns: int
    match_number: int = 1
    match_count: int = 1


def layout() -> list[Component]:
    """Lay out the answer to a search."""
    return [
        html.P(id=names.HIT, className="summary", role="status"),
        html.Div(id=names.FOUND),
        dcc.Store(id=names.SCROLL),
    ]


def register(app: Dash) -> None:
    """List what is found; lead from one match to the next."""
    timeline_state = names.control_arguments()

    @app.callback(Output(names.FOUND, "children"), Input(names.SEARCH, "value"), current.RUN)
    def find(search_text: Any, run_key: Any) -> Component | None:
        """List what matches the text of the search field; nothing without a text."""
        search = read_search(search_text)
        return list_matches(current.store_of_run(run_key), search) if search else None

    @app.callback(
        *SPAN_OUTPUTS,
        Output(names.HIT, "children"),
        Input(keys.PRESSED, "data"),
        State(names.SEARCH, "value"),
        *timeline_state,
        prevent_initial_call=True,
    )
    def lead_on(pressed: Any, value: Any, *values: Any) -> tuple[Any, ...]:
        """Return the values that select the next or previous match, and a note on it."""
        press = pressed if isinstance(pressed, dict) else {}
        search = read_search(press.get("text") or value)
        current.prevent_update_unless(press.get("key") in DIRECTIONS and bool(search))
        store, controls = names.read_arguments(values)
        position = viewport.read_position(store, controls.selected_point)
        hit = find_next_hit(store, search, position, DIRECTIONS[press["key"]])
        if hit is None:
            return (*(no_update,) * len(SPAN_OUTPUTS), _no_match(search))
        count_text = f"{hit.match_number:,} of {hit.match_count:,}"
        note = f"{count_text} that match \u201c{search}\u201d; n next, N previous."
        return (*_show_hit(store, hit, controls), note)

    @app.callback(
        *SPAN_OUTPUTS,
        Input(names.SPANS, "cellClicked"),
        State(names.SPANS, "rowData"),
        *timeline_state,
        prevent_initial_call=True,
    )
    def lead_to_row(clicked_cell: Any, rows: Any, *values: Any) -> tuple[Any, ...]:
        """Show the span of a clicked row of the table; `values` are those of the controls."""
        store, controls = names.read_arguments(values)
        return _show_hit(store, hit_of_row(store, clicked_cell, rows), controls)

    @app.callback(
        *SPAN_OUTPUTS, Input(names.POINTED, "data"), *timeline_state, prevent_initial_call=True
    )
    def lead_to_pointed(pointed_span: Any, *values: Any) -> tuple[Any, ...]:
        """Show the span that a link points to; `values` are those of the controls."""
        store, controls = names.read_arguments(values)
        span = pointed_span if isinstance(pointed_span, dict) else {}
        hit = hit_of(store, span, inside=span.get("inside") is True)
        return _show_hit(store, hit, controls)

    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "reveal"),
        Input(names.SCROLL, "data"),
        prevent_initial_call=True,
    )


def hit_of_row(store: Store, clicked_cell: Any, rows: Any) -> Hit | None:
    """Return the span whose name is clicked in a table of spans (`rows`), if that is possible."""
    click = (
        clicked_cell
        if isinstance(clicked_cell, dict) and clicked_cell.get("colId") == "span"
        else {}
    )
    row_id = str(click.get("rowId", ""))
    if not isinstance(rows, list) or not row_id.isdecimal() or int(row_id) >= len(rows):
        return None
    row = rows[int(row_id)]
    return hit_of(store, row if isinstance(row, dict) else {}, inside=True)


def hit_of(store: Store, span: dict[str, Any], *, inside: bool) -> Hit | None:
    """Return the span of a row that begins `at` and lasts `until`, in ns since the run's start.

    It is looked for in the tracks of its process (`inside`), or in the row itself; `seq` is the
    number of a collective. None where there is no such row; the browser may send anything. A hit's
    times are absolute.
    """
    begin_position, end_position = (
        viewport.read_position(store, {"lane": span.get("row"), "at": span.get(key)})
        for key in ("at", "until")
    )
    if begin_position is None or end_position is None:
        return None
    end_ns = max(end_position.moment_ns, begin_position.moment_ns + 1)
    track = _find_track(store, begin_position, end_ns, span.get("seq")) if inside else None
    return Hit(begin_position._replace(track_index=track), end_ns)


def _find_track(store: Store, position: Position, end_ns: int, call_seq: Any = None) -> int | None:
    """Return the track that draws a span; None on a device's stream, or if none begins then."""
    # Of several spans with its times, the first one of collective `call_seq` is meant.
    if position.scene_row not in store.scene_row_by_key.values():
        return None
    tracks = store.open_process_tracks(position.scene_row)
    lanes = tracks.scene.span_lanes
    begins_then = lanes.starts_ns == position.moment_ns
    items_of_time = np.flatnonzero(begins_then & (lanes.ends_ns == end_ns))
    if not len(items_of_time):
        items_of_time = np.flatnonzero(begins_then)
    if not len(items_of_time):
        return None
    event_seqs = store.events_of_process(_process(store, position.scene_row))["seq"]
    event_rows = tracks.event_row_by_item[items_of_time].tolist()  # -1: the item is no event
    matching_indexes = [
        index
        for index, event_row in enumerate(event_rows)
        if call_seq is not None and event_row >= 0 and event_seqs[event_row] == call_seq
    ]
    return _track_of_item(lanes.item_offsets, int(items_of_time[next(iter(matching_indexes), 0)]))


def _track_of_item(offsets: Any, item: int) -> int:
    return int(np.searchsorted(offsets, item, side="right")) - 1


def read_search(value: Any) -> str:
    """Read the searched name that the browser sends, which may be anything; empty without one."""
    return value.strip()[:LONGEST_SEARCH] if isinstance(value, str) else ""


def _no_match(searched_name: str) -> str:
    return f"Nothing in this run is called \u201c{searched_name}\u201d."


def _show_hit(store: Store, hit: Hit | None, controls: Controls) -> tuple[Any, ...]:
    """Return the values of `SPAN_OUTPUTS` that select a span, open its process and scroll to it."""
    hit = current.prevent_update_unless(hit)
    position, key = hit.position, key_of(store.scene.span_lanes.owners[hit.position.scene_row])
    opened_keys = viewport.choose_opened(store, controls)
    if position.track_index is not None and key not in opened_keys:
        opened_keys = [*opened_keys, key][-MOST_OPENED:]
    selection = inspector.selection_of(store, position)
    frame = viewport.frame(
        store, controls._replace(selected_point=selection, opened_row_keys=opened_keys)
    )
    tops_px = [span.band.top_px for span in frame.selected_spans]
    window = _window_around(store, frame.visible_window, hit)  # since the run's start
    return (
        selection,
        inspector.span_details(store, position),
        opened_keys,
        [window.start_ns / NS_PER_SECOND, window.end_ns / NS_PER_SECOND] if window else no_update,
        {"y": plot.TOP_PX + tops_px[0]} if tops_px else no_update,
    )


def find_next_hit(
    store: Store, searched_name: str, position: Position | None, direction: int
) -> Hit | None:
    """Return the match after (`direction` 1) or before (-1) a position, cyclically, if any."""
    # Matches are ordered by the rows of their processes in the scene, and within a process by time.
    count_rows = (
        store.span_names.find_names(searched_name).group_by("process").agg(pl.col("count").sum())
    )
    count_by_process = dict(count_rows.iter_rows())
    rows = [
        row for row in store.scene_row_by_key.values() if count_by_process.get(_process(store, row))
    ]
    if not rows:
        return None
    counts = [count_by_process[_process(store, row)] for row in rows]  # of matches, by row
    process = _process(store, position.scene_row) if position else None
    own_indexes = [index for index, row in enumerate(rows) if _process(store, row) == process]
    if own_indexes and position:
        row_index = own_indexes[0]
        match_index = _index_after(store, searched_name, rows[row_index], position, direction)
    else:
        row_index, match_index = (0, 0) if direction > 0 else (len(rows) - 1, counts[-1] - 1)
    if not 0 <= match_index < counts[row_index]:  # on to the next process
        row_index = (row_index + direction) % len(rows)
        match_index = 0 if direction > 0 else counts[row_index] - 1
    hit_position, end_ns = _locate(store, searched_name, rows[row_index], match_index)
    match_number = sum(counts[:row_index]) + match_index + 1
    return Hit(hit_position, end_ns, match_number, match_count=sum(counts))


def _process(store: Store, scene_row: int) -> int:
    return store.scene.span_lanes.owners[scene_row].process


def _index_after(
    store: Store, searched_name: str, scene_row: int, position: Position, direction: int
) -> int:
    """Return the index, among the matching spans of a process, of the one next to a position."""
    # It is -1, or their number, if the match is in another process; `matches` are spans by time.
    matches = span_names.find_hits(
        store.events_of_process(_process(store, scene_row)), searched_name
    )
    event_row = -1  # of the selected span
    if position.track_index is not None:
        event_row = store.find_event_row(
            position.scene_row, position.track_index, position.moment_ns
        )
    selected_indexes = np.flatnonzero(matches["row"].to_numpy() == event_row)
    if len(selected_indexes):
        return int(selected_indexes[0]) + direction
    next_index = int(
        np.searchsorted(matches["start_ns"].to_numpy(), position.moment_ns, side="right")
    )
    return next_index if direction > 0 else next_index - 1


def _locate(
    store: Store, searched_name: str, scene_row: int, match_index: int
) -> tuple[Position, int]:
    """Return the position and the end (ns) of a process's matching span, by its index."""
    # One for which there was no track is at its begin in the process's row, 1 ns long.
    events = store.events_of_process(_process(store, scene_row))
    event_row, start_ns = span_names.find_hits(events, searched_name).row(match_index)
    tracks = store.open_process_tracks(scene_row)
    drawn_items = np.flatnonzero(tracks.event_row_by_item == event_row)
    if not len(drawn_items):
        return Position(scene_row, start_ns), start_ns + 1
    lanes, item = tracks.scene.span_lanes, int(drawn_items[0])
    track = _track_of_item(lanes.item_offsets, item)
    return Position(scene_row, int(lanes.starts_ns[item]), track), int(lanes.ends_ns[item])


def _window_around(store: Store, visible: Window, hit: Hit) -> Window | None:
    """Return the window (ns since the start) that shows a span; None if `visible` does."""
    begin_ns, end_ns = hit.position.moment_ns, hit.end_ns
    visible_ns, length_ns = visible.width_ns, end_ns - begin_ns
    is_readable = visible_ns * MIN_READABLE_SHARE <= length_ns <= visible_ns
    if is_readable and visible.start_ns <= begin_ns and end_ns <= visible.end_ns:
        return None
    margin_ns = (visible_ns - length_ns) // 2 if is_readable else MARGIN_SPAN_LENGTHS * length_ns
    return store.window_since_start(
        Window(begin_ns, end_ns).widen(margin_ns).clamp(store.run_window)
    )


def list_matches(store: Store, searched_name: str) -> Component:
    """Return a table of the span names that match, by their time in the whole run."""
    matching_names = store.span_names.find_names(
        searched_name
    )  # a row per process and name, with its label
    if matching_names.is_empty():
        return html.P(_no_match(searched_name), className="summary", role="status")
    by_label = matching_names.group_by("label").agg(
        pl.col("count", "total_ns").sum(),
        pl.col("process").n_unique().alias("processes"),
        pl.struct("process", "longest_ns", "longest_at")
        .sort_by("longest_ns")
        .last()
        .alias("longest"),
    )
    listed = by_label.sort("total_ns", "label", descending=[True, False]).head(MAX_LISTED_NAMES)
    table_rows = [
        html.Tr([html.Td(cell) for cell in _match_cells(store, searched_name, match)])
        for match in listed.iter_rows(named=True)
    ]
    head = html.Thead(html.Tr([html.Th(name) for name in MATCH_COLUMNS]))
    span_count = text.count(int(matching_names["count"].sum()), "span")
    name_count = text.count(by_label.height, "name")
    limit_text = (
        f", the {MAX_LISTED_NAMES} with most time" if by_label.height > MAX_LISTED_NAMES else ""
    )
    caption = (
        f"{span_count} of the run match \u201c{searched_name}\u201d ({name_count}{limit_text}); "
        "n next, N previous"
    )
    table_parts = [html.Caption(caption), head, html.Tbody(table_rows)]
    return html.Table(table_parts, className="spans", role="status")


def _match_cells(store: Store, searched_name: str, match: dict[str, Any]) -> list[str | Component]:
    """Return the cells of one name; `match` has its sums over processes, and its longest span."""
    longest = match["longest"]
    rows = store.scene_row_by_key.values()
    process_row = next(row for row in rows if _process(store, row) == longest["process"])
    lane = store.scene.span_lanes.owners[process_row]
    owner = f"PS {lane.rank}" if lane.role == "ps" else f"rank {lane.rank}"
    start_ns = longest["longest_at"]
    longest_window = Window(start_ns, start_ns + max(longest["longest_ns"], 1))
    return [
        clean(match["label"]) or "unnamed",
        f"{match['count']:,}",
        text.duration(match["total_ns"]),
        f"{match['processes']:,}",
        f"{text.duration(longest['longest_ns'])} on {owner}",
        dcc.Link(
            "Show",
            href=links.to_found(store, longest_window, process_row, searched_name),
            className="way",
        ),
    ]


def resolve_selection(store: Store, view: ViewState) -> Selection | None:
    """Return the selected span of a link; one that was found by its name with its track."""
    selection = inspector.selection_in(view)
    position = viewport.read_position(store, selection)
    is_row = (
        position
        and position.track_index is None
        and position.scene_row in store.scene_row_by_key.values()
    )
    if not view.searched_name or position is None or not is_row:
        return selection
    events = store.events_of_process(_process(store, position.scene_row))
    matching_spans = span_names.find_hits(events, view.searched_name)
    match_indexes = np.flatnonzero(matching_spans["start_ns"].to_numpy() == position.moment_ns)
    if not len(match_indexes):
        return selection
    found_position, _ = _locate(
        store, view.searched_name, position.scene_row, int(match_indexes[0])
    )
    return inspector.selection_of(store, found_position)
