"""Keys of the timeline that need to know the run: fit, pin, open, the step or finding before and after.

What the browser sends is taken for what it may be: anything. Windows are in ns since the run's start.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any, Final

from dash import ClientsideFunction, Input, Output, State, dcc, html
from dash.exceptions import PreventUpdate

from tracelens.lod.viewport import Window
from tracelens_dashboard import ids
from tracelens_dashboard.components.timeline import names
from tracelens_dashboard.figures.timeline.frame import SECOND
from tracelens_dashboard.runs import current
from tracelens_dashboard.runs.store import key_of
from tracelens_dashboard.view import viewport
from tracelens_dashboard.view.links import MARGIN
from tracelens_dashboard.view.state import MOST_PINS
from tracelens_dashboard.view.viewport import Rows

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from tracelens_dashboard.figures.timeline.frame import Frame
    from tracelens_dashboard.runs.store import Store


PRESSED: Final = "timeline-key"  # assets/timeline.js says there which key was pressed
GOTO: Final = "timeline-goto"
FIT: Final = "f"
PIN: Final = "p"
OPEN: Final = "o"
SHAPE: Final = ((names.OPENED, "data"), (names.ROW, "value"), (names.TALL, "data"))
WAYS: Final = {"[": -1, "]": 1}
FEW_STEPS: Final = 40  # in view: steps can be distinguished, so a key leads from step to step
AROUND_SPAN: Final = 1.0  # of a span's length, on either side


def layout() -> Component:
    """Return the stores through which keys reach the server."""
    return html.Div([dcc.Store(id=PRESSED), dcc.Store(id=GOTO)])


def register(app: Dash, graph: str, view: str, selected: str, rows: tuple[str, str]) -> None:
    """Answer keys; the arguments name the timeline's components, `rows` the pins and their order."""
    pins, sort = rows
    shown_now = (
        State(view, "data"),
        State(pins, "value"),
        State(sort, "value"),
        State(graph, "hoverData"),
        State(selected, "data"),
        *(State(*part) for part in SHAPE),
        current.RUN,
    )

    @app.callback(
        Output(GOTO, "data"),
        Input(PRESSED, "data"),
        State(view, "data"),
        State(selected, "data"),
        current.RUN,
        prevent_initial_call=True,
    )
    def go(pressed: Any, seen: Any, chosen: Any, run: Any) -> list[float]:
        found = destination(current.store(run), _pressed_key(pressed), seen, chosen)
        if found is None:
            raise PreventUpdate
        return [found.start_ns / SECOND, found.end_ns / SECOND]

    @app.callback(
        Output(pins, "value"),
        Input(PRESSED, "data"),
        *shown_now,
        prevent_initial_call=True,
    )
    def pin(pressed: Any, *shown: Any) -> list[str]:
        if _pressed_key(pressed) != PIN:
            raise PreventUpdate
        store, pinned = current.store(shown[-1]), shown[1]
        changed = with_pin(store, pinned, rank_of(store, _meant(store, *shown[:-1])))
        if changed is None:
            raise PreventUpdate
        return changed

    @app.callback(
        Output(names.TOGGLE, "data"),
        Input(PRESSED, "data"),
        *shown_now,
        prevent_initial_call=True,
    )
    def open_or_close(pressed: Any, *shown: Any) -> dict[str, Any]:
        store = current.store(shown[-1])
        key = _key_meant(store, *shown[:-1]) if _pressed_key(pressed) == OPEN else None
        if key is None:
            raise PreventUpdate
        return {"key": key, "presses": pressed.get("presses")}

    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "go"), Input(GOTO, "data"), prevent_initial_call=True
    )


def _meant(store: Store, *shown: Any) -> int | None:
    """Return the row that is under the mouse, else the selected one."""
    frame, hover, chosen = _drawn(store, *shown)
    place = viewport.at(store, frame, hover) or viewport.place_of(store, chosen)
    return place.lane if place else None


def _drawn(store: Store, *shown: Any) -> tuple[Frame, Any, Any]:
    """Return what is drawn, what is under the mouse, and what is selected."""
    seen, pinned, order, hover, chosen, *rows = shown
    return viewport.frame(store, seen, pinned, order, rows=Rows(*rows)), hover, chosen


def _key_meant(store: Store, *shown: Any) -> str | None:
    """Return what addresses call the group or process that is under the mouse, else the selected one."""
    frame, hover, chosen = _drawn(store, *shown)
    point = viewport.mouse(hover)
    band = frame.plan.band_at(point[1]) if point else None
    if band and band.group:
        return band.group.key
    place = viewport.at(store, frame, hover) or viewport.place_of(store, chosen)
    return key_of(store.scene.lanes.lanes[place.lane]) if place else None


def _pressed_key(pressed: Any) -> object:
    return pressed.get("key") if isinstance(pressed, dict) else None


def destination(store: Store, key: object, view: Any, selected: Any) -> Window | None:
    """Return where a key leads from what is seen; None where it leads nowhere."""
    if key == FIT:
        return _fitted(store, view, selected)
    if key not in WAYS or not store.windows.height:
        return None
    seen, findings = viewport.seen(store, view), _finding_windows(store)
    if seen not in findings and seen.width_ns <= FEW_STEPS * store.scene.step_ns:
        return _step_beside(store, seen, WAYS[str(key)])
    return _finding_beside(findings, seen, WAYS[str(key)])


def with_pin(store: Store, pins: Any, rank: int | None) -> list[str] | None:
    """Pin a rank, or unpin it if it is pinned; None where there is nothing to do."""
    known = [pin for pin in pins if isinstance(pin, str)] if isinstance(pins, list) else []
    if rank is None or rank not in store.ranks:
        return None
    if str(rank) in known:
        return [pin for pin in known if pin != str(rank)]
    return [*known, str(rank)][-MOST_PINS:]


def rank_of(store: Store, lane: int | None) -> int | None:
    """Return the rank of a worker's, or its device's, row."""
    if lane is None or store.scene.lanes.lanes[lane].role == "ps":
        return None
    return store.scene.lanes.lanes[lane].rank


def _fitted(store: Store, view: Any, selected: Any) -> Window | None:
    """Show the selected span, else the steps that are marked."""
    place = viewport.place_of(store, selected)
    if place:
        inside = place.track is not None
        lanes = store.opened(place.lane).scene.lanes if inside else store.scene.lanes
        lane = place.lane if place.track is None else place.track
        part = (
            lanes.items_between(lane, place.at_ns, place.at_ns + 1)
            if lane < len(lanes)
            else slice(0)
        )
        if (part.start or 0) < part.stop:
            span = Window(int(lanes.starts[part.start]), int(lanes.ends[part.start]))
            return _wider(store, span, AROUND_SPAN)
    marked = viewport.marked(store, view)
    return _wider(store, marked, MARGIN) if marked else None


def _step_beside(store: Store, seen: Window, way: int) -> Window:
    """Bring the step before or after the one in the middle to the middle."""
    origin = store.whole.start_ns
    starts = store.windows["start_ns"].to_list()
    middle = bisect_right(starts, origin + (seen.start_ns + seen.end_ns) // 2) - 1
    row = store.windows.row(max(0, min(middle + way, len(starts) - 1)), named=True)
    begin = (row["start_ns"] + row["end_ns"]) // 2 - origin - seen.width_ns // 2
    return Window(begin, begin + seen.width_ns).clamp(Window(0, store.whole.width_ns))


def _finding_windows(store: Store) -> list[Window]:
    """Return what findings with steps of their own look like, in the order of time."""
    spans = {store.window_of(*one.steps) for one in store.report.findings if one.steps}
    found = [_wider(store, span, MARGIN) for span in spans if span]
    return sorted(found, key=lambda one: (one.start_ns, one.end_ns))


def _finding_beside(found: list[Window], seen: Window, way: int) -> Window | None:
    """Show the finding before or after what is shown."""
    if seen in found:
        return found[max(0, min(found.index(seen) + way, len(found) - 1))]
    place = bisect_left([one.start_ns for one in found], seen.start_ns)
    place = place if way > 0 else place - 1
    return found[place] if 0 <= place < len(found) else None


def _wider(store: Store, span: Window, margin: float) -> Window:
    beside = int(span.width_ns * margin)
    wide = Window(span.start_ns - beside, span.end_ns + beside).clamp(store.whole)
    origin = store.whole.start_ns
    return Window(wide.start_ns - origin, wide.end_ns - origin)
