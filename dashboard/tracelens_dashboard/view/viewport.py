"""What the timeline shows just now: from the address bar, the controls and the mouse to a picture."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from tracelens.lod import query, viewport
from tracelens.lod.viewport import Window
from tracelens_dashboard import text
from tracelens_dashboard.figures.timeline.frame import SECOND, Frame, Opened, Selected
from tracelens_dashboard.view import notes as noted
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
MOST_READ_UNASKED: Final = 300_000  # recorded spans
MOST_ROWS_UNASKED: Final = 24


def window_of(store: Store, view: ViewState) -> Window:
    """Return the window of a link, in ns since the start; the whole run where it names none."""
    whole = Window(0, store.whole.width_ns)
    if view.start_ns is None or view.end_ns is None:
        return whole
    return Window(view.start_ns, view.end_ns).clamp(whole)


class Rows(NamedTuple):
    """What the browser says of rows: what is opened, rows' height, the window's height, their order."""

    opened: Any = ()
    px: Any = None
    tall: Any = None
    sort: Any = None


NO_ROWS: Final = Rows()


def frame(
    store: Store,
    view: Any,
    pins: Any,
    sort: Any,
    selected: Any = None,
    *,
    wide: Any = None,
    path: Any = False,
    rows: Rows = NO_ROWS,
    notes: Any = (),
) -> Frame:
    """Build the timeline's frame from the page's view, pinned ranks, the others' order, a selection.

    `wide` is the plot's width in pixels: of an image with more columns a browser would drop some;
    `path` says whether the critical path is drawn; of `rows`, null opens as many as there is room for;
    `notes` are the user's, as `view.notes.for_browser` returned them.
    All come from the browser and are taken for what they may be: anything.
    """
    now = seen(store, view)
    origin = store.whole.start_ns
    steps = _marked_steps(view)
    plan, opened = _laid_out(store, _lanes(store, pins), rows._replace(sort=sort))
    found = Frame(
        scene=store.scene,
        plan=plan,
        seen=Window(origin + now.start_ns, origin + now.end_ns),
        windows=store.windows,
        flagged=store.flagged,
        marked=marked(store, view),
        marked_label=text.steps(*steps) if steps else "",
        call=call_of(store, place_of(store, selected)),
        opened=opened,
        path=store.table("critical_stays") if path is True else None,
        columns=_columns(wide),
        notes=noted.of_browser(notes),
    )
    place = place_of(store, selected)
    return replace(found, selected=tuple(_outlined(store, found, place))) if place else found


def _laid_out(store: Store, pinned: list[int], rows: Rows) -> tuple[Plan, tuple[Opened, ...]]:
    """Assign rows to all lanes, and to the tracks of what is opened, in the order of rows."""
    lanes, px = store.scene.lanes, row_height(rows.px)
    tall = min(_natural(rows.tall) or 0, MOST_TALL_PX)
    keys = opened_in(store, rows, len(set(pinned)))
    processes = {store.groups[key]: key for key in keys if key in store.groups}
    order, gathered = _order(store, rows.sort), row_groups.gathered(store, rows.sort, keys)

    def drawn(px: int | None, track_px: int | None) -> Plan:
        heights = {row: tracks_of(store, row, 0, track_px).height for row in processes}
        return viewport.plan(
            lanes, pinned, order, groups=gathered, opened=heights, room=tall, row_px=px
        )

    plan, track_px = drawn(px, px), px
    every = sum(len(store.opened(row).scene.lanes) for row in processes)
    more = (tall - plan.height) // every if every and not px else 0
    if more > 0:
        track_px = min(viewport.TRACK_PX + more, viewport.TALLEST_TRACK_PX)
        plan = drawn(px, track_px)
    opened = tuple(
        Opened(processes[row], store.opened(row), tracks_of(store, row, top, track_px))
        for row, top in sorted(plan.slots.items(), key=lambda slot: slot[1])
    )
    return plan, opened


def tracks_of(store: Store, row: int, top: int, track_px: int | None) -> Plan:
    """Assign rows to the tracks of a process, from `top` on."""
    return viewport.tracks(store.opened(row).scene.lanes, top, track_px)


def opened_in(store: Store, rows: Rows, pinned: int = 0) -> list[str]:
    """Return what is opened: what is asked for, or, if nothing is, what there is room for.

    Only few recorded spans are read unasked; groups are not opened unasked.
    """
    gathered = {group.key for group in row_groups.gathered(store, rows.sort)}
    if rows.opened is not None:
        known = store.groups.keys() | gathered
        return [key for key in opened_keys(rows.opened) if key in known]
    if gathered:
        return []
    tall, lanes = _natural(rows.tall) or 0, store.scene.lanes
    if store.report.summary.spans > MOST_READ_UNASKED or len(lanes) > MOST_ROWS_UNASKED:
        return []
    left = tall - viewport.plan(lanes).height - viewport.PINNED_PX * pinned
    first = sorted(store.groups, key=lambda key: (not _is_flagged(store, key), store.groups[key]))
    chosen: list[str] = []
    for key in first[: MOST_OPENED if left > 0 else 0]:
        left -= viewport.tracks(store.opened(store.groups[key]).scene.lanes).height
        if left < 0:
            break
        chosen.append(key)
    return chosen


def _is_flagged(store: Store, key: str) -> bool:
    return key.isdecimal() and int(key) in store.flagged


def _outlined(store: Store, now: Frame, place: Place) -> Iterator[Selected]:
    """Find the selected span in the rows that show it."""
    for one in now.opened:
        if store.groups[one.key] == place.lane and place.track is not None:
            yield from _spans_at(one.group.scene.lanes, one.plan, place.track, place.at_ns)
    if place.track is None:
        yield from _spans_at(store.scene.lanes, now.plan, place.lane, place.at_ns)


def _spans_at(lanes: Lanes, plan: Plan, lane: int, at_ns: int) -> Iterator[Selected]:
    items = lanes.items_between(lane, at_ns, at_ns + 1) if lane < len(lanes) else slice(0, 0)
    if items.start < items.stop:
        begin, end = int(lanes.starts[items.start]), int(lanes.ends[items.start])
        yield from (Selected(band, begin, end) for band in plan.bands if band.lanes == (lane,))


def seen(store: Store, view: Any) -> Window:
    """Read what the page's view shows, in ns since the start."""
    known = view if isinstance(view, dict) else {}
    asked = ViewState(_natural(known.get("t0")), _natural(known.get("t1")))
    return window_of(store, asked)


def marked(store: Store, view: Any) -> Window | None:
    """Read which steps the page's view marks; null = none."""
    steps = _marked_steps(view)
    return store.window_of(*steps) if steps else None


class Place(NamedTuple):
    """A row of the scene and a moment; `track` is the row within the process, if it is one of those."""

    lane: int
    at_ns: int
    track: int | None = None


def place_of(store: Store, selected: Any) -> Place | None:
    """Read the row and the moment that a click left; None where there is no such row."""
    known = selected if isinstance(selected, dict) else {}
    lane, at = _natural(known.get("lane")), _natural(known.get("at"))
    if lane is None or at is None or lane >= len(store.scene.lanes.lanes):
        return None
    return Place(lane, store.whole.start_ns + at, _natural(known.get("track")))


def picture(now: Frame) -> Picture:
    """Draw it."""
    most = query.MOST_BARS // (1 + len(now.opened))
    inside = tuple(
        query.look(one.group.scene, now.seen, one.plan, now.columns, most) for one in now.opened
    )
    drawn = query.look(now.scene, now.seen, now.plan, now.columns, most)
    return replace(drawn, inside=inside)


def at(store: Store, now: Frame, click: Any) -> Place | None:
    """Return the row and the moment that a click meant; None beside the rows."""
    place = mouse(click)
    if place is None:
        return None
    seconds, height = place
    moment = now.scene.whole.start_ns + int(seconds * SECOND)
    for one in now.opened:
        band = one.plan.band_at(height)
        if band:
            return Place(store.groups[one.key], moment, band.lanes[0])
    lane = query.lane_at(now.scene, now.seen, now.plan, height, now.columns)
    return None if lane is None else Place(lane, moment)


def mouse(click: Any) -> tuple[float, float] | None:
    """Read where the mouse was, on a shape or beside it: seconds since the start, pixels of the plan."""
    if not isinstance(click, dict):
        return None
    xs, ys = click.get("xvals"), click.get("yvals")
    if not (isinstance(xs, list) and isinstance(ys, list) and xs and ys):
        return None
    numbers = isinstance(xs[0], (int, float)) and isinstance(ys[0], (int, float))
    return (float(xs[0]), float(ys[0])) if numbers else None


def call_of(store: Store, place: Place | None) -> Call | None:
    """Return the collective that was under way at a place; None where there was none."""
    if place is None:
        return None
    if place.track is not None:
        return store.call_of(place.lane, place.track, place.at_ns)
    lane = store.scene.lanes.lanes[place.lane]
    return None if lane.role == "ps" else store.call_at(lane.rank, place.at_ns)


def _marked_steps(view: Any) -> tuple[int, int] | None:
    return _steps(view.get("steps")) if isinstance(view, dict) else None


def _columns(wide: Any) -> int:
    known = _natural(wide)
    return query.COLUMNS if known is None else min(max(known, FEWEST_COLUMNS), MOST_COLUMNS)


def _natural(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) and 0 <= value < 1 << 62 else None


def _steps(value: Any) -> tuple[int, int] | None:
    sane = isinstance(value, list) and len(value) == 2 and all(isinstance(v, int) for v in value)
    return (value[0], value[1]) if sane else None


def _lanes(store: Store, pins: Any) -> list[int]:
    chosen = pins[:MOST_PINS] if isinstance(pins, list) else []
    ranks = [int(pin) for pin in chosen if str(pin).isdecimal()]
    found = [(store.lane_of(rank), store.streams_of(rank)) for rank in ranks]
    return [row for lane, streams in found if lane is not None for row in (lane, *streams)]


def _order(store: Store, sort: Any) -> list[int] | None:
    if sort != "lateness":
        return None
    return [int(i) for i in np.argsort(-store.residuals.total_ns, kind="stable")]
