"""What the timeline shows just now: from the address bar, the controls and the mouse to a picture."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from tracelens.lod import query, viewport
from tracelens.lod.viewport import Plan, Window
from tracelens_dashboard import text
from tracelens_dashboard.figures.timeline.frame import SECOND, Frame, Opened, Selected
from tracelens_dashboard.view import notes as address_notes
from tracelens_dashboard.view import row_groups
from tracelens_dashboard.view.state import (
    MOST_OPENED,
    MOST_PINS,
    ViewState,
    opened_keys,
    row_height,
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

    `view` holds a window (`t0`, `t1`) and marked `steps`, in ns since the run's start; `selected` a row,
    a moment and perhaps a track; `opened` the keys of opened processes and groups, None for as many as
    there is room for. `tall_px` and `wide_px` are the room for the plot: of an image with more columns a
    browser would drop some. `notes` are as `view.notes.for_browser` writes them.
    """

    view: Any = None
    pins: Any = ()
    sort: Any = None
    selected: Any = None
    opened: Any = ()
    row_px: Any = None
    tall_px: Any = None
    wide_px: Any = None
    path: Any = False
    notes: Any = ()


class Position(NamedTuple):
    """A row of the scene, by its index, and a moment; `track` is one of its process, or None."""

    row: int
    at_ns: int
    track: int | None = None


def window_of(store: Store, view: ViewState) -> Window:
    """Return the window of a link, in ns since the run's start; all of the run without one."""
    run_window = Window(0, store.run_window.width_ns)
    if view.start_ns is None or view.end_ns is None:
        return run_window
    return Window(view.start_ns, view.end_ns).clamp(run_window)


def frame(store: Store, controls: Controls) -> Frame:
    """Return everything that one picture of the timeline is drawn from."""
    window = read_window(store, controls.view)
    marked_steps = _read_steps(controls.view)
    plan, opened_processes = _plan_timeline(store, controls)
    plot_px = _read_natural(controls.wide_px)
    position = read_position(store, controls.selected)
    unselected = Frame(
        scene=store.scene,
        plan=plan,
        visible=window.shift(store.run_window.start_ns),
        windows=store.windows,
        flagged=store.flagged,
        marked=store.window_of(*marked_steps) if marked_steps else None,
        marked_label=text.steps(*marked_steps) if marked_steps else "",
        call=call_of(store, position),
        opened=opened_processes,
        path=store.table("critical_stays") if controls.path is True else None,
        columns=query.COLUMNS if plot_px is None else _clamp_columns(plot_px),
        notes=address_notes.of_browser(controls.notes),
    )
    outlines = _outline_selected(store, unselected, position) if position else ()
    return replace(unselected, selected=tuple(outlines))


def _clamp_columns(plot_px: int) -> int:
    return min(max(plot_px, FEWEST_COLUMNS), MOST_COLUMNS)


def _plan_timeline(store: Store, controls: Controls) -> tuple[Plan, tuple[Opened, ...]]:
    """Plan the rows of all lanes, and the opened processes' tracks, which share the spare room."""
    row_px = row_height(controls.row_px)
    tall_px = min(_read_natural(controls.tall_px) or 0, MOST_TALL_PX)
    pinned_rows, opened_keys = _pinned_rows(store, controls.pins), choose_opened(store, controls)
    key_by_row = {store.groups[key]: key for key in opened_keys if key in store.groups}
    row_order = None
    if controls.sort == "lateness":
        row_order = [int(row) for row in np.argsort(-store.residuals.total_ns, kind="stable")]
    groups = row_groups.gather(store, controls.sort, opened_keys)

    def plan_rows(track_px: int | None) -> Plan:
        """Plan the rows, with tracks of a height in pixels; None: of the usual one."""
        track_heights = {row: _plan_tracks(store, row, 0, track_px).height for row in key_by_row}
        return viewport.plan(
            store.scene.lanes,
            pinned_rows,
            row_order,
            groups=groups,
            opened=track_heights,
            room=tall_px,
            row_px=row_px,
        )

    plan, track_px = plan_rows(row_px), row_px
    track_count = sum(len(store.opened(row).scene.lanes) for row in key_by_row)
    spare_px = (tall_px - plan.height) // track_count if track_count and not row_px else 0
    if spare_px > 0:
        track_px = min(viewport.TRACK_PX + spare_px, viewport.TALLEST_TRACK_PX)
        plan = plan_rows(track_px)
    opened_processes = tuple(
        Opened(key_by_row[row], store.opened(row), _plan_tracks(store, row, top, track_px))
        for row, top in sorted(plan.slots.items(), key=lambda slot: slot[1])
    )
    return plan, opened_processes


def _plan_tracks(store: Store, row: int, top: int, track_px: int | None) -> Plan:
    return viewport.tracks(store.opened(row).scene.lanes, top, track_px)


def choose_opened(store: Store, controls: Controls) -> list[str]:
    """Return the keys of what is opened: as asked, else of few recorded spans what has room."""
    group_keys = {group.key for group in row_groups.gather(store, controls.sort)}
    if controls.opened is not None:
        known_keys = store.groups.keys() | group_keys
        return [key for key in opened_keys(controls.opened) if key in known_keys]
    lanes = store.scene.lanes
    span_count = store.report.summary.spans
    is_large = span_count > MOST_SPANS_READ_UNASKED or len(lanes) > MOST_ROWS_UNASKED
    if group_keys or is_large:
        return []
    pinned_px = viewport.PINNED_PX * len(set(_pinned_rows(store, controls.pins)))
    room_px = (_read_natural(controls.tall_px) or 0) - viewport.plan(lanes).height - pinned_px
    opened: list[str] = []
    if room_px <= 0:
        return opened
    order = sorted(store.groups, key=lambda key: (not _is_flagged(store, key), store.groups[key]))
    for key in order[:MOST_OPENED]:
        room_px -= viewport.tracks(store.opened(store.groups[key]).scene.lanes).height
        if room_px < 0:
            break
        opened.append(key)
    return opened


def _is_flagged(store: Store, key: str) -> bool:
    return key.isdecimal() and int(key) in store.flagged


def _outline_selected(store: Store, frame: Frame, position: Position) -> Iterator[Selected]:
    """Yield the selected span for each band that shows it."""
    if position.track is None:
        yield from _spans_at(store.scene.lanes, frame.plan, position.row, position.at_ns)
        return
    for process in frame.opened:
        if store.groups[process.key] == position.row:
            lanes = process.group.scene.lanes
            yield from _spans_at(lanes, process.plan, position.track, position.at_ns)


def _spans_at(lanes: Lanes, plan: Plan, lane: int, at_ns: int) -> Iterator[Selected]:
    """Yield the span of a lane at a moment, for each band of that lane alone."""
    item = lanes.item_at(lane, at_ns)
    if item is not None:
        extent_ns = lanes.extent_of(item)
        yield from (Selected(band, *extent_ns) for band in plan.bands if band.lanes == (lane,))


def read_window(store: Store, view: Any) -> Window:
    """Read the window that the page shows, in ns since the run's start."""
    values = view if isinstance(view, dict) else {}
    ends = _read_natural(values.get("t0")), _read_natural(values.get("t1"))
    return window_of(store, ViewState(*ends))


def read_marked_window(store: Store, view: Any) -> Window | None:
    """Read which steps the page's view marks; null = none."""
    steps = _read_steps(view)
    return store.window_of(*steps) if steps else None


def read_position(store: Store, selected: Any) -> Position | None:
    """Read a selected row and moment (ns since the start); None where there is no such row."""
    values = selected if isinstance(selected, dict) else {}
    row, offset_ns = _read_natural(values.get("lane")), _read_natural(values.get("at"))
    if row is None or offset_ns is None or row >= len(store.scene.lanes.lanes):
        return None
    return Position(row, store.run_window.start_ns + offset_ns, _read_natural(values.get("track")))


def picture(frame: Frame) -> Picture:
    """Draw the rows of a frame, and the tracks of opened processes, as pixels and spans."""
    most_bars = query.MOST_BARS // (1 + len(frame.opened))
    process_pictures = tuple(
        query.look(process.group.scene, frame.visible, process.plan, frame.columns, most_bars)
        for process in frame.opened
    )
    row_picture = query.look(frame.scene, frame.visible, frame.plan, frame.columns, most_bars)
    return replace(row_picture, inside=process_pictures)


def find_position(store: Store, frame: Frame, click: Any) -> Position | None:
    """Return the row, and the track of an opened process, of a click; None outside the rows."""
    mouse = read_mouse(click)
    if mouse is None:
        return None
    seconds, height_px = mouse
    at_ns = frame.scene.whole.start_ns + int(seconds * SECOND)
    for process in frame.opened:
        band = process.plan.band_at(height_px)
        if band:
            return Position(store.groups[process.key], at_ns, band.lanes[0])
    row = query.lane_at(frame.scene, frame.visible, frame.plan, height_px, frame.columns)
    return None if row is None else Position(row, at_ns)


def read_mouse(click: Any) -> tuple[float, float] | None:
    """Read the mouse's position in a click: seconds since the run's start, pixels from the top."""
    if not isinstance(click, dict):
        return None
    xs, ys = click.get("xvals"), click.get("yvals")
    if not (isinstance(xs, list) and isinstance(ys, list) and xs and ys):
        return None
    are_numbers = isinstance(xs[0], (int, float)) and isinstance(ys[0], (int, float))
    return (float(xs[0]), float(ys[0])) if are_numbers else None


def call_of(store: Store, position: Position | None) -> Call | None:
    """Return the collective under way at a position; None where there is none."""
    if position is None:
        return None
    if position.track is not None:
        return store.call_of(position.row, position.track, position.at_ns)
    lane = store.scene.lanes.lanes[position.row]
    return None if lane.role == "ps" else store.call_at(lane.rank, position.at_ns)


def _read_natural(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) and 0 <= value < 1 << 62 else None


def _read_steps(view: Any) -> tuple[int, int] | None:
    steps = view.get("steps") if isinstance(view, dict) else None
    match steps:
        case [int(first), int(last)]:
            return first, last
    return None


def _pinned_rows(store: Store, pins: Any) -> list[int]:
    chosen = pins[:MOST_PINS] if isinstance(pins, list) else []
    ranks = [int(pin) for pin in chosen if str(pin).isdecimal()]
    rows = [(store.row_of_rank(rank), store.streams_of(rank)) for rank in ranks]
    return [row for lane, streams in rows if lane is not None for row in (lane, *streams)]
