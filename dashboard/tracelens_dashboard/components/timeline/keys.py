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
from tracelens_dashboard.view.viewport import Controls

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from tracelens_dashboard.figures.timeline.frame import Frame
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.view.viewport import Position


PRESSED: Final = "timeline-key"  # assets/timeline.js says there which key was pressed
GOTO: Final = "timeline-goto"
FIT: Final = "f"
PIN: Final = "p"
OPEN: Final = "o"
DIRECTIONS: Final = {"[": -1, "]": 1}
FEW_STEPS: Final = 40  # in view: steps can be distinguished, so a key leads from step to step
AROUND_SPAN: Final = 1.0  # of a span's length, on either side


def layout() -> Component:
    """Return the stores through which keys reach the server."""
    return html.Div([dcc.Store(id=PRESSED), dcc.Store(id=GOTO)])


def register(app: Dash) -> None:
    """Answer keys."""
    under_mouse = (State(names.GRAPH, "hoverData"), *names.control_arguments(), current.RUN)

    @app.callback(
        Output(GOTO, "data"),
        Input(PRESSED, "data"),
        State(names.VIEW, "data"),
        State(names.SELECTED, "data"),
        current.RUN,
        prevent_initial_call=True,
    )
    def go(pressed: Any, view: Any, selected: Any, run: Any) -> list[float]:
        window = destination(current.store(run), _pressed_key(pressed), view, selected)
        if window is None:
            raise PreventUpdate
        return [window.start_ns / SECOND, window.end_ns / SECOND]

    @app.callback(
        Output(names.PINS, "value"),
        Input(PRESSED, "data"),
        *under_mouse,
        prevent_initial_call=True,
    )
    def pin(pressed: Any, hover: Any, *values: Any) -> list[str]:
        if _pressed_key(pressed) != PIN:
            raise PreventUpdate
        *control_values, run = values
        store, controls = current.store(run), Controls(*control_values)
        position = _meant_position(store, viewport.frame(store, controls), hover, controls)
        pins = toggle_pin(store, controls.pins, rank_of(store, position.lane if position else None))
        if pins is None:
            raise PreventUpdate
        return pins

    @app.callback(
        Output(names.TOGGLE, "data"),
        Input(PRESSED, "data"),
        *under_mouse,
        prevent_initial_call=True,
    )
    def open_or_close(pressed: Any, hover: Any, *values: Any) -> dict[str, Any]:
        *control_values, run = values
        is_asked = _pressed_key(pressed) == OPEN
        key = _meant_key(current.store(run), hover, Controls(*control_values)) if is_asked else None
        if key is None:
            raise PreventUpdate
        return {"key": key, "presses": pressed.get("presses")}

    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "go"), Input(GOTO, "data"), prevent_initial_call=True
    )


def _meant_position(store: Store, frame: Frame, hover: Any, controls: Controls) -> Position | None:
    """Choose the position under the mouse, else the selected one."""
    return viewport.find_position(store, frame, hover) or viewport.read_position(
        store, controls.selected
    )


def _meant_key(store: Store, hover: Any, controls: Controls) -> str | None:
    """Name the group or process under the mouse, else the selected one, as addresses do."""
    frame, point = viewport.frame(store, controls), viewport.read_mouse(hover)
    band = frame.plan.band_at(point[1]) if point else None
    if band and band.group:
        return band.group.key
    position = _meant_position(store, frame, hover, controls)
    return key_of(store.scene.lanes.lanes[position.lane]) if position else None


def _pressed_key(pressed: Any) -> object:
    return pressed.get("key") if isinstance(pressed, dict) else None


def destination(store: Store, key: object, view: Any, selected: Any) -> Window | None:
    """Follow a key from what is seen; None where it leads nowhere."""
    if key == FIT:
        return _fit(store, view, selected)
    if key not in DIRECTIONS or not store.windows.height:
        return None
    window, findings = viewport.read_window(store, view), _finding_windows(store)
    if window not in findings and window.width_ns <= FEW_STEPS * store.scene.step_ns:
        return _next_step(store, window, DIRECTIONS[str(key)])
    return _next_finding(findings, window, DIRECTIONS[str(key)])


def toggle_pin(store: Store, value: Any, rank: int | None) -> list[str] | None:
    """Pin a rank, or unpin it if it is pinned; None where there is nothing to do."""
    pins = [pin for pin in value if isinstance(pin, str)] if isinstance(value, list) else []
    if rank is None or rank not in store.ranks:
        return None
    if str(rank) in pins:
        return [pin for pin in pins if pin != str(rank)]
    return [*pins, str(rank)][-MOST_PINS:]


def rank_of(store: Store, lane: int | None) -> int | None:
    """Return the rank of a worker's, or its device's, row."""
    if lane is None or store.scene.lanes.lanes[lane].role == "ps":
        return None
    return store.scene.lanes.lanes[lane].rank


def _fit(store: Store, view: Any, selected: Any) -> Window | None:
    """Show the selected span, else the steps that are marked."""
    position = viewport.read_position(store, selected)
    if position:
        is_track = position.track is not None
        lanes = store.opened(position.lane).scene.lanes if is_track else store.scene.lanes
        lane = position.lane if position.track is None else position.track
        at_ns = position.at_ns
        items = lanes.items_between(lane, at_ns, at_ns + 1) if lane < len(lanes) else slice(0, 0)
        if items.start < items.stop:
            span = Window(int(lanes.starts[items.start]), int(lanes.ends[items.start]))
            return _widen(store, span, AROUND_SPAN)
    marked = viewport.read_marked_window(store, view)
    return _widen(store, marked, MARGIN) if marked else None


def _next_step(store: Store, window: Window, direction: int) -> Window:
    """Bring the step before or after the one in the middle to the middle."""
    origin = store.whole.start_ns
    starts = store.windows["start_ns"].to_list()
    index = bisect_right(starts, origin + (window.start_ns + window.end_ns) // 2) - 1 + direction
    step = store.windows.row(max(0, min(index, len(starts) - 1)), named=True)
    start_ns = (step["start_ns"] + step["end_ns"]) // 2 - origin - window.width_ns // 2
    return Window(start_ns, start_ns + window.width_ns).clamp(Window(0, store.whole.width_ns))


def _finding_windows(store: Store) -> list[Window]:
    """Return the views of findings with steps of their own, in the order of time."""
    spans = {store.window_of(*one.steps) for one in store.report.findings if one.steps}
    windows = [_widen(store, span, MARGIN) for span in spans if span]
    return sorted(windows, key=lambda window: (window.start_ns, window.end_ns))


def _next_finding(windows: list[Window], window: Window, direction: int) -> Window | None:
    """Show the finding before or after what is shown."""
    if window in windows:
        return windows[max(0, min(windows.index(window) + direction, len(windows) - 1))]
    index = bisect_left([one.start_ns for one in windows], window.start_ns)
    index -= direction < 0
    return windows[index] if 0 <= index < len(windows) else None


def _widen(store: Store, span: Window, margin: float) -> Window:
    """Add a share of a span's length on either side; the result is in ns since the start."""
    margin_ns = int(span.width_ns * margin)
    window = Window(span.start_ns - margin_ns, span.end_ns + margin_ns).clamp(store.whole)
    origin = store.whole.start_ns
    return Window(window.start_ns - origin, window.end_ns - origin)
