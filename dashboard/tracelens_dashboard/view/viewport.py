"""What the timeline shows just now: from the address bar, the controls and the mouse to a picture."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tracelens.lod import query, viewport
from tracelens.lod.viewport import Window
from tracelens_dashboard import text
from tracelens_dashboard.figures.timeline.frame import SECOND, Frame
from tracelens_dashboard.view.state import MOST_PINS, ViewState

if TYPE_CHECKING:
    from tracelens.lod.query import Picture
    from tracelens.lod.search import Call
    from tracelens_dashboard.runs.store import Store


FEWEST_COLUMNS: Final = 160
MOST_COLUMNS: Final = 2400


def window_of(store: Store, view: ViewState) -> Window:
    """Return the window of a link, in ns since the start; the whole run where it names none."""
    whole = Window(0, store.whole.width_ns)
    if view.start_ns is None or view.end_ns is None:
        return whole
    return Window(view.start_ns, view.end_ns).clamp(whole)


def frame(
    store: Store,
    view: Any,
    pins: Any,
    sort: Any,
    selected: Any = None,
    *,
    wide: Any = None,
    path: Any = False,
) -> Frame:
    """Build the timeline's frame from the page's view, pinned ranks, the others' order, a selection.

    `wide` is the plot's width in pixels: of an image with more columns a browser would drop some;
    `path` says whether the critical path is drawn.
    All come from the browser and are taken for what they may be: anything.
    """
    now = seen(store, view)
    origin = store.whole.start_ns
    steps = _marked_steps(view)
    return Frame(
        scene=store.scene,
        plan=viewport.plan(store.scene.lanes, _lanes(store, pins), _order(store, sort)),
        seen=Window(origin + now.start_ns, origin + now.end_ns),
        windows=store.windows,
        flagged=store.flagged,
        marked=marked(store, view),
        marked_label=text.steps(*steps) if steps else "",
        call=_selected(store, selected),
        path=store.table("critical_stays") if path is True else None,
        columns=_columns(wide),
    )


def seen(store: Store, view: Any) -> Window:
    """Read what the page's view shows, in ns since the start."""
    known = view if isinstance(view, dict) else {}
    asked = ViewState(_natural(known.get("t0")), _natural(known.get("t1")))
    return window_of(store, asked)


def marked(store: Store, view: Any) -> Window | None:
    """Read which steps the page's view marks; null = none."""
    steps = _marked_steps(view)
    return store.window_of(*steps) if steps else None


def place_of(store: Store, selected: Any) -> tuple[int, int] | None:
    """Read the row and the moment that a click left; None where there is no such row."""
    known = selected if isinstance(selected, dict) else {}
    lane, at = _natural(known.get("lane")), _natural(known.get("at"))
    if lane is None or at is None or lane >= len(store.scene.lanes.lanes):
        return None
    return lane, store.whole.start_ns + at


def opened(store: Store, view: Any, rank: Any, *, wide: Any = None) -> Frame | None:
    """Build the frame of one rank's threads, in the page's window; None where there is no such rank."""
    if not str(rank).isdecimal() or int(rank) not in store.ranks:
        return None
    scene = store.opened(int(rank))
    now = frame(store, view, [], None, wide=wide)
    return replace(
        now, scene=scene, plan=viewport.plan(scene.lanes), flagged=frozenset(), opened=True
    )


def picture(now: Frame) -> Picture:
    """Draw it."""
    return query.look(now.scene, now.seen, now.plan, now.columns)


def at(now: Frame, click: Any) -> tuple[int, int] | None:
    """Return the lane and the moment that a click meant; None beside the rows."""
    place = _place(click)
    if place is None:
        return None
    seconds, height = place
    lane = query.lane_at(now.scene, now.seen, now.plan, height, now.columns)
    moment = now.scene.whole.start_ns + int(seconds * SECOND)
    return None if lane is None else (lane, moment)


def _place(click: Any) -> tuple[float, float] | None:
    """Read where the mouse was, on a shape or beside it."""
    if not isinstance(click, dict):
        return None
    xs, ys = click.get("xvals"), click.get("yvals")
    if not (isinstance(xs, list) and isinstance(ys, list) and xs and ys):
        return None
    numbers = isinstance(xs[0], (int, float)) and isinstance(ys[0], (int, float))
    return (float(xs[0]), float(ys[0])) if numbers else None


def _selected(store: Store, selected: Any) -> Call | None:
    """Return the collective that was under way where a click was."""
    place = place_of(store, selected)
    if place is None:
        return None
    lane = store.scene.lanes.lanes[place[0]]
    return None if lane.role == "ps" else store.call_at(lane.rank, place[1])


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
