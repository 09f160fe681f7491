"""What the timeline shows just now: from the address bar, the controls and the mouse to a picture."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from tracelens.lod import query, viewport
from tracelens.lod.viewport import Window
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
    from tracelens.lod.viewport import Plan
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
    """A row of the scene and a moment; `track` is the row within the process, or None."""

    lane: int
    at_ns: int
    track: int | None = None


def window_of(store: Store, view: ViewState) -> Window:
    """Return the window of a link, in ns since the start; the whole run where it names none."""
    run_window = Window(0, store.whole.width_ns)
    if view.start_ns is None or view.end_ns is None:
        return run_window
    return Window(view.start_ns, view.end_ns).clamp(run_window)


def frame(store: Store, controls: Controls) -> Frame:
    """Build what a picture of the timeline stands on."""
    window, origin = read_window(store, controls.view), store.whole.start_ns
    steps = _read_steps(controls.view)
    plan, opened = _lay_out(store, controls)
    columns = _read_natural(controls.wide_px)
    position = read_position(store, controls.selected)
    built = Frame(
        scene=store.scene,
        plan=plan,
        seen=Window(origin + window.start_ns, origin + window.end_ns),
        windows=store.windows,
        flagged=store.flagged,
        marked=store.window_of(*steps) if steps else None,
        marked_label=text.steps(*steps) if steps else "",
        call=call_of(store, position),
        opened=opened,
        path=store.table("critical_stays") if controls.path is True else None,
        columns=query.COLUMNS
        if columns is None
        else min(max(columns, FEWEST_COLUMNS), MOST_COLUMNS),
        notes=address_notes.of_browser(controls.notes),
    )
    return replace(built, selected=tuple(_outline(store, built, position))) if position else built


def _lay_out(store: Store, controls: Controls) -> tuple[Plan, tuple[Opened, ...]]:
    """Assign rows to all lanes, and to the tracks of opened processes, in the order of rows."""
    px = row_height(controls.row_px)
    tall_px = min(_read_natural(controls.tall_px) or 0, MOST_TALL_PX)
    pinned, keys = _pinned_lanes(store, controls.pins), opened_in(store, controls)
    processes = {store.groups[key]: key for key in keys if key in store.groups}
    order = None
    if controls.sort == "lateness":
        order = [int(row) for row in np.argsort(-store.residuals.total_ns, kind="stable")]
    groups = row_groups.gather(store, controls.sort, keys)

    def plan_rows(track_px: int | None) -> Plan:
        heights = {row: _plan_tracks(store, row, 0, track_px).height for row in processes}
        return viewport.plan(
            store.scene.lanes, pinned, order, groups=groups, opened=heights, room=tall_px, row_px=px
        )

    plan, track_px = plan_rows(px), px
    track_count = sum(len(store.opened(row).scene.lanes) for row in processes)
    spare_px = (tall_px - plan.height) // track_count if track_count and not px else 0
    if spare_px > 0:
        track_px = min(viewport.TRACK_PX + spare_px, viewport.TALLEST_TRACK_PX)
        plan = plan_rows(track_px)
    opened = tuple(
        Opened(processes[row], store.opened(row), _plan_tracks(store, row, top, track_px))
        for row, top in sorted(plan.slots.items(), key=lambda slot: slot[1])
    )
    return plan, opened


def _plan_tracks(store: Store, row: int, top: int, track_px: int | None) -> Plan:
    return viewport.tracks(store.opened(row).scene.lanes, top, track_px)


def opened_in(store: Store, controls: Controls) -> list[str]:
    """Choose what is opened: what is asked for, or, if nothing is, what there is room for.

    Only few recorded spans are read unasked; groups are not opened unasked.
    """
    groups = {group.key for group in row_groups.gather(store, controls.sort)}
    if controls.opened is not None:
        known = store.groups.keys() | groups
        return [key for key in opened_keys(controls.opened) if key in known]
    lanes = store.scene.lanes
    is_large = (
        store.report.summary.spans > MOST_SPANS_READ_UNASKED or len(lanes) > MOST_ROWS_UNASKED
    )
    if groups or is_large:
        return []
    pinned_px = viewport.PINNED_PX * len(set(_pinned_lanes(store, controls.pins)))
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


def _outline(store: Store, shown: Frame, position: Position) -> Iterator[Selected]:
    """Find the selected span in the rows that show it."""
    if position.track is None:
        yield from _spans_at(store.scene.lanes, shown.plan, position.lane, position.at_ns)
        return
    for process in shown.opened:
        if store.groups[process.key] == position.lane:
            lanes = process.group.scene.lanes
            yield from _spans_at(lanes, process.plan, position.track, position.at_ns)


def _spans_at(lanes: Lanes, plan: Plan, lane: int, at_ns: int) -> Iterator[Selected]:
    items = lanes.items_between(lane, at_ns, at_ns + 1) if lane < len(lanes) else slice(0, 0)
    if items.start < items.stop:
        begin, end = int(lanes.starts[items.start]), int(lanes.ends[items.start])
        yield from (Selected(band, begin, end) for band in plan.bands if band.lanes == (lane,))


def read_window(store: Store, view: Any) -> Window:
    """Read what the page's view shows, in ns since the start."""
    values = view if isinstance(view, dict) else {}
    ends = _read_natural(values.get("t0")), _read_natural(values.get("t1"))
    return window_of(store, ViewState(*ends))


def read_marked_window(store: Store, view: Any) -> Window | None:
    """Read which steps the page's view marks; null = none."""
    steps = _read_steps(view)
    return store.window_of(*steps) if steps else None


def read_position(store: Store, selected: Any) -> Position | None:
    """Read the row and the moment that a click left; None where there is no such row."""
    values = selected if isinstance(selected, dict) else {}
    lane, at_ns = _read_natural(values.get("lane")), _read_natural(values.get("at"))
    if lane is None or at_ns is None or lane >= len(store.scene.lanes.lanes):
        return None
    return Position(lane, store.whole.start_ns + at_ns, _read_natural(values.get("track")))


def picture(shown: Frame) -> Picture:
    """Draw the rows of a frame, and the tracks of opened processes, as pixels and spans."""
    most_bars = query.MOST_BARS // (1 + len(shown.opened))
    process_pictures = tuple(
        query.look(process.group.scene, shown.seen, process.plan, shown.columns, most_bars)
        for process in shown.opened
    )
    rows = query.look(shown.scene, shown.seen, shown.plan, shown.columns, most_bars)
    return replace(rows, inside=process_pictures)


def find_position(store: Store, shown: Frame, click: Any) -> Position | None:
    """Return the row and the moment of a click; None outside the rows."""
    point = read_mouse(click)
    if point is None:
        return None
    seconds, height_px = point
    at_ns = shown.scene.whole.start_ns + int(seconds * SECOND)
    for process in shown.opened:
        band = process.plan.band_at(height_px)
        if band:
            return Position(store.groups[process.key], at_ns, band.lanes[0])
    lane = query.lane_at(shown.scene, shown.seen, shown.plan, height_px, shown.columns)
    return None if lane is None else Position(lane, at_ns)


def read_mouse(click: Any) -> tuple[float, float] | None:
    """Read where the mouse was, on a shape or not: seconds since the start, pixels of the plan."""
    if not isinstance(click, dict):
        return None
    xs, ys = click.get("xvals"), click.get("yvals")
    if not (isinstance(xs, list) and isinstance(ys, list) and xs and ys):
        return None
    are_numbers = isinstance(xs[0], (int, float)) and isinstance(ys[0], (int, float))
    return (float(xs[0]), float(ys[0])) if are_numbers else None


def call_of(store: Store, position: Position | None) -> Call | None:
    """Return the collective that was under way at a position; None where there was none."""
    if position is None:
        return None
    if position.track is not None:
        return store.call_of(position.lane, position.track, position.at_ns)
    lane = store.scene.lanes.lanes[position.lane]
    return None if lane.role == "ps" else store.call_at(lane.rank, position.at_ns)


def _read_natural(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) and 0 <= value < 1 << 62 else None


def _read_steps(view: Any) -> tuple[int, int] | None:
    steps = view.get("steps") if isinstance(view, dict) else None
    match steps:
        case [int(first), int(last)]:
            return first, last
    return None


def _pinned_lanes(store: Store, pins: Any) -> list[int]:
    chosen = pins[:MOST_PINS] if isinstance(pins, list) else []
    ranks = [int(pin) for pin in chosen if str(pin).isdecimal()]
    rows = [(store.lane_of(rank), store.streams_of(rank)) for rank in ranks]
    return [row for lane, streams in rows if lane is not None for row in (lane, *streams)]
