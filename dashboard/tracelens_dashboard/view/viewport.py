"""What the timeline shows just now: from the address bar, the controls and the mouse to a picture."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from tracelens.lod import query, viewport
from tracelens.lod.viewport import Plan, Window
from tracelens_dashboard import text
from tracelens_dashboard.figures.timeline.frame import (
    NS_PER_SECOND,
    Frame,
    OpenedProcess,
    SelectedSpan,
)
from tracelens_dashboard.view import notes as address_notes
from tracelens_dashboard.view import row_groups
from tracelens_dashboard.view.state import (
    MOST_OPENED,
    MOST_PINS,
    ViewState,
    read_opened_keys,
    read_row_height,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.lod.lanes import Lanes
    from tracelens.lod.query import Picture
    from tracelens.lod.search import Call
    from tracelens_dashboard.runs.store import Store

FEWEST_COLUMNS: Final = 160
MOST_COLUMNS: Final = 2400
MOST_TALL_PX: Final = 4000
MOST_SPANS_READ_UNASKED: Final = 300_000
MOST_ROWS_UNASKED: Final = 24


class Controls(NamedTuple):
    """What the browser says of the timeline; each value may be anything.

    `view_data` holds a window (`t0`, `t1`) and marked `steps`, in ns since the run's start;
    `selected_point` a row, a moment and perhaps a track; `opened_row_keys` is None for as many
    processes as there is room for. `room_height_px` and `plot_width_px` are the room for the plot:
    of an image with more columns a browser would drop some. `notes` are as `view.notes.for_browser`
    writes them.
    """

    view_data: Any = None
    pinned_ranks: Any = ()
    sort_key: Any = None
    selected_point: Any = None
    opened_row_keys: Any = ()
    row_px: Any = None
    room_height_px: Any = None
    plot_width_px: Any = None
    shows_path: Any = False
    notes: Any = ()


class Position(NamedTuple):
    """A row of the scene, an absolute moment, and a track of the row's process, if any."""

    scene_row: int
    moment_ns: int
    track_index: int | None = None


def window_of_view(store: Store, view: ViewState) -> Window:
    """Return the window of a link, in ns since the run's start; all of the run without one."""
    run_window = Window(start_ns=0, end_ns=store.run_window.width_ns)
    if view.start_ns is None or view.end_ns is None:
        return run_window
    return Window(view.start_ns, view.end_ns).clamp(run_window)


def frame(store: Store, controls: Controls) -> Frame:
    """Return everything that one picture of the timeline is drawn from."""
    # Windows and positions are absolute, in ns; the browser counts from the run's start.
    window = read_window(store, controls.view_data)
    marked_steps = _read_steps(controls.view_data)
    plan, opened_processes = _plan_timeline(store, controls)
    plot_px = _read_natural(controls.plot_width_px)
    position = read_position(store, controls.selected_point)
    unselected = Frame(
        scene=store.scene,
        row_plan=plan,
        visible_window=window.shift(store.run_window.start_ns),
        step_windows=store.step_windows,
        flagged_ranks=store.flagged_ranks,
        marked_window=store.window_of_steps(*marked_steps) if marked_steps else None,
        marked_label=text.steps(*marked_steps) if marked_steps else "",
        selected_call=call_of(store, position),
        opened_processes=opened_processes,
        path_stretches=store.analysis_table("critical_stays")
        if controls.shows_path is True
        else None,
        plot_width_px=query.COLUMNS if plot_px is None else _clamp_columns(plot_px),
        notes=address_notes.from_browser(controls.notes),
    )
    outlines = _outline_selected(store, unselected, position) if position else ()
    return replace(unselected, selected_spans=tuple(outlines))


def _clamp_columns(plot_px: int) -> int:
    return min(max(plot_px, FEWEST_COLUMNS), MOST_COLUMNS)


def _plan_timeline(store: Store, controls: Controls) -> tuple[Plan, tuple[OpenedProcess, ...]]:
    """Plan the rows of all lanes, and the opened processes' tracks, which share the spare room."""
    # Rows are of the scene, by index; a plan says at which height in pixels each is drawn.
    row_px = read_row_height(controls.row_px)  # None: as there is room
    room_px = min(_read_natural(controls.room_height_px) or 0, MOST_TALL_PX)
    pinned_rows = _pinned_rows(store, controls.pinned_ranks)
    opened_keys = choose_opened(store, controls)
    key_by_row = {
        store.scene_row_by_key[key]: key for key in opened_keys if key in store.scene_row_by_key
    }
    row_order = None
    if controls.sort_key == "lateness":
        row_order = [int(row) for row in np.argsort(-store.residuals.total_delay_ns, kind="stable")]
    groups = row_groups.gather(store, controls.sort_key, opened_keys)

    def plan_rows(track_px: int | None) -> Plan:
        """Plan the rows of processes and of groups of them; below an opened process are its tracks.

        `track_px` is the height of a track in pixels, None for the usual one. A row is the index of a
        process' lane in the scene.
        """
        track_px_by_row = {
            row: _plan_tracks(store, row, top_px=0, track_px=track_px).bottom_px
            for row in key_by_row
        }
        return viewport.plan_rows(
            store.scene.span_lanes,
            pinned_rows,
            row_order,
            groups=groups,
            track_px_by_lane=track_px_by_row,
            room_px=room_px,
            row_px=row_px,
        )

    plan, track_px = plan_rows(row_px), row_px
    track_count = sum(len(store.open_process_tracks(row).scene.span_lanes) for row in key_by_row)
    # What is left of the room, for each track; a height that is asked for is kept.
    spare_px = (room_px - plan.bottom_px) // track_count if track_count and not row_px else 0
    if spare_px > 0:
        track_px = min(viewport.TRACK_PX + spare_px, viewport.TALLEST_TRACK_PX)
        plan = plan_rows(track_px)
    opened_processes = [
        OpenedProcess(
            key_by_row[row],
            store.open_process_tracks(row),
            _plan_tracks(store, row, top_px=top_px, track_px=track_px),
        )
        for row, top_px in plan.track_top_px_by_lane.items()  # from top to bottom
    ]
    return plan, tuple(opened_processes)


def _plan_tracks(store: Store, scene_row: int, *, top_px: int, track_px: int | None) -> Plan:
    return viewport.plan_tracks(
        store.open_process_tracks(scene_row).scene.span_lanes, top_px, track_px
    )


def choose_opened(store: Store, controls: Controls) -> list[str]:
    """Return the keys of opened processes and groups: those asked for, else what has room."""
    # Unasked, processes open only in a small run without groups; those that faults name first.
    group_keys = {group.address_key for group in row_groups.gather(store, controls.sort_key)}
    if controls.opened_row_keys is not None:
        known_keys = store.scene_row_by_key.keys() | group_keys
        return [key for key in read_opened_keys(controls.opened_row_keys) if key in known_keys]
    lanes = store.scene.span_lanes
    span_count = store.report.summary.spans
    is_large = span_count > MOST_SPANS_READ_UNASKED or len(lanes) > MOST_ROWS_UNASKED
    if group_keys or is_large:
        return []
    pinned_px = viewport.PINNED_PX * len(set(_pinned_rows(store, controls.pinned_ranks)))
    room_px = (
        (_read_natural(controls.room_height_px) or 0)
        - viewport.plan_rows(lanes).bottom_px
        - pinned_px
    )
    chosen_keys: list[str] = []
    if room_px <= 0:
        return chosen_keys
    row_by_key = store.scene_row_by_key
    ordered_keys = sorted(row_by_key, key=lambda k: (not _is_flagged(store, k), row_by_key[k]))
    for key in ordered_keys[:MOST_OPENED]:
        room_px -= viewport.plan_tracks(
            store.open_process_tracks(row_by_key[key]).scene.span_lanes
        ).bottom_px
        if room_px < 0:
            break
        chosen_keys.append(key)
    return chosen_keys


def _is_flagged(store: Store, key: str) -> bool:
    return key.isdecimal() and int(key) in store.flagged_ranks


def _outline_selected(store: Store, frame: Frame, position: Position) -> Iterator[SelectedSpan]:
    """Yield the selected span for each band (strip of pixels) that shows it.

    It lies in the row of a rank, or in a track of an opened process.
    """
    if position.track_index is None:
        yield from _outline_span(
            store.scene.span_lanes, frame.row_plan, position.scene_row, position.moment_ns
        )
        return
    for process in frame.opened_processes:
        if store.scene_row_by_key[process.process_key] == position.scene_row:
            lanes = process.track_group.scene.span_lanes
            yield from _outline_span(
                lanes, process.row_plan, position.track_index, position.moment_ns
            )


def _outline_span(lanes: Lanes, plan: Plan, lane: int, moment_ns: int) -> Iterator[SelectedSpan]:
    """Yield the span of a lane at a moment, for each band of that lane alone."""
    item = lanes.find_item_at(lane, moment_ns)
    if item is not None:
        extent_ns = lanes.find_extent_ns(item)
        yield from (
            SelectedSpan(band, *extent_ns) for band in plan.bands if band.lane_indices == (lane,)
        )


def read_window(store: Store, view_data: Any) -> Window:
    """Read the window that the page shows, in ns since the run's start."""
    values = view_data if isinstance(view_data, dict) else {}
    ends_ns = _read_natural(values.get("t0")), _read_natural(values.get("t1"))
    return window_of_view(store, ViewState(*ends_ns))


def read_marked_window(store: Store, view_data: Any) -> Window | None:
    """Return the absolute window of the steps that the page's view marks; None without any."""
    steps = _read_steps(view_data)
    return store.window_of_steps(*steps) if steps else None


def read_position(store: Store, selected_point: Any) -> Position | None:
    """Read a selected row, moment (sent in ns since the start) and track; None without a row."""
    values = selected_point if isinstance(selected_point, dict) else {}
    row, offset_ns = _read_natural(values.get("lane")), _read_natural(values.get("at"))
    if row is None or offset_ns is None or row >= len(store.scene.span_lanes.owners):
        return None
    return Position(row, store.run_window.start_ns + offset_ns, _read_natural(values.get("track")))


def picture(frame: Frame) -> Picture:
    """Draw the rows of a frame, and the tracks of opened processes, as pixels and spans."""
    # All of them together draw at most `MOST_BARS` spans as shapes.
    window, most_bars = frame.visible_window, query.MOST_BARS // (1 + len(frame.opened_processes))
    process_pictures = tuple(
        query.draw_picture(
            process.track_group.scene, window, process.row_plan, frame.plot_width_px, most_bars
        )
        for process in frame.opened_processes
    )
    row_picture = query.draw_picture(
        frame.scene, window, frame.row_plan, frame.plot_width_px, most_bars
    )
    return replace(row_picture, opened_pictures=process_pictures)


def find_position(store: Store, frame: Frame, click_data: Any) -> Position | None:
    """Return the row, and the track of an opened process, of a click; None outside the rows."""
    mouse = read_mouse(click_data)
    if mouse is None:
        return None
    offset_s, height_px = mouse  # since the run's start, from the top
    at_ns = frame.scene.run_window.start_ns + int(offset_s * NS_PER_SECOND)
    for process in frame.opened_processes:
        band = process.row_plan.find_band(height_px)
        if band:
            return Position(
                store.scene_row_by_key[process.process_key], at_ns, band.lane_indices[0]
            )
    row = query.find_lane_at(
        frame.scene, frame.visible_window, frame.row_plan, height_px, frame.plot_width_px
    )
    return None if row is None else Position(row, at_ns)


def read_mouse(click_data: Any) -> tuple[float, float] | None:
    """Read the mouse's position in a click: seconds since the run's start, pixels from the top."""
    match click_data:
        case {
            "xvals": [int() | float() as offset_s, *_],
            "yvals": [int() | float() as height_px, *_],
        }:
            return float(offset_s), float(height_px)
    return None


def call_of(store: Store, position: Position | None) -> Call | None:
    """Return the collective under way at a position, or None."""
    if position is None:
        return None
    if position.track_index is not None:
        return store.find_call_of_span(position.scene_row, position.track_index, position.moment_ns)
    lane = store.scene.span_lanes.owners[position.scene_row]
    return None if lane.role == "ps" else store.find_call_at(lane.rank, position.moment_ns)


def _read_natural(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) and 0 <= value < 1 << 62 else None


def _read_steps(view_data: Any) -> tuple[int, int] | None:
    steps = view_data.get("steps") if isinstance(view_data, dict) else None
    match steps:
        case [int(first), int(last)]:
            return first, last
    return None


def _pinned_rows(store: Store, pinned_ranks: Any) -> list[int]:
    """Return the rows of pinned ranks, each before those of its devices' streams."""
    pins = pinned_ranks[:MOST_PINS] if isinstance(pinned_ranks, list) else []
    ranks = [int(pin) for pin in pins if str(pin).isdecimal()]
    ranks = [rank for rank in ranks if rank in store.ranks]
    return [
        row
        for rank in ranks
        for row in (store.ranks.index(rank), *store.scene_rows_of_streams(rank))
    ]
