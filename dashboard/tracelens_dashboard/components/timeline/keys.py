"""Keys of the timeline that need to know the run: fit, pin, open, the step or finding before and after.

What the browser sends is taken for what it may be: anything. Windows are in ns since the run's start.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any, Final

from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html

from tracelens.lod.viewport import Window
from tracelens_dashboard import ids
from tracelens_dashboard.components.timeline import names
from tracelens_dashboard.figures.timeline.frame import NS_PER_SECOND, Frame
from tracelens_dashboard.runs import current
from tracelens_dashboard.runs.store import Store, key_of
from tracelens_dashboard.view import viewport
from tracelens_dashboard.view.links import MARGIN_SHARE
from tracelens_dashboard.view.state import MOST_PINS

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from tracelens_dashboard.view.viewport import Controls, Position

PRESSED: Final = "timeline-key"  # assets/timeline.js says there which key was pressed
GOTO: Final = "timeline-goto"
FIT: Final = "f"
PIN: Final = "p"
OPEN: Final = "o"
DIRECTIONS: Final = {"[": -1, "]": 1}
FEW_STEPS: Final = 40  # in view: steps can be distinguished, so a key leads from step to step
MARGIN_SPAN_LENGTHS: Final = 1.0  # of a span's length, on either side


def layout() -> Component:
    """Return the stores through which keys reach the server."""
    return html.Div([dcc.Store(id=PRESSED), dcc.Store(id=GOTO)])


def register(app: Dash) -> None:
    """Answer keys: go to a window, pin a rank, open a group or a process."""
    under_mouse = (State(names.GRAPH, "hoverData"), *names.control_arguments())

    @app.callback(
        Output(GOTO, "data"),
        Input(PRESSED, "data"),
        State(names.VIEW, "data"),
        State(names.SELECTED, "data"),
        current.RUN,
        prevent_initial_call=True,
    )
    def go(pressed: Any, view_data: Any, selected_point: Any, run_key: Any) -> list[float]:
        """Return the window (begin, end in seconds) to which a pressed key leads."""
        key = _pressed_key(pressed)
        window = current.prevent_update_unless(
            find_destination(current.store_of_run(run_key), key, view_data, selected_point)
        )
        return [window.start_ns / NS_PER_SECOND, window.end_ns / NS_PER_SECOND]

    @app.callback(
        Output(names.PINS, "value"), Input(PRESSED, "data"), *under_mouse, prevent_initial_call=True
    )
    def pin(pressed: Any, hover_data: Any, *values: Any) -> list[str]:
        """Pin the rank under the mouse, or the selected one, or release it; return all pinned ranks."""
        current.prevent_update_unless(_pressed_key(pressed) == PIN)
        store, controls = names.read_arguments(values)
        position = _meant_position(store, viewport.frame(store, controls), hover_data, controls)
        rank = rank_of(store, position.scene_row if position else None)
        return current.prevent_update_unless(toggle_pin(store, controls.pinned_ranks, rank))

    @app.callback(
        Output(names.TOGGLE, "data"),
        Input(PRESSED, "data"),
        *under_mouse,
        prevent_initial_call=True,
    )
    def open_or_close(pressed: Any, hover_data: Any, *values: Any) -> dict[str, Any]:
        """Return the key of the row to open or close: the one under the mouse, or the selected one."""
        current.prevent_update_unless(_pressed_key(pressed) == OPEN)
        store, controls = names.read_arguments(values)
        key = current.prevent_update_unless(_meant_key(store, hover_data, controls))
        return {"key": key, "presses": pressed.get("presses")}

    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "go"), Input(GOTO, "data"), prevent_initial_call=True
    )


def _meant_position(
    store: Store, frame: Frame, hover_data: Any, controls: Controls
) -> Position | None:
    """Choose the position under the mouse, else the selected one."""
    hovered = viewport.find_position(store, frame, hover_data)
    return hovered or viewport.read_position(store, controls.selected_point)


def _meant_key(store: Store, hover_data: Any, controls: Controls) -> str | None:
    """Name the group or process under the mouse, else the selected one, as addresses do."""
    frame, mouse = viewport.frame(store, controls), viewport.read_mouse(hover_data)
    band = frame.row_plan.find_band(mouse[1]) if mouse else None  # by pixels from the top
    if band and band.group:
        return band.group.address_key
    position = _meant_position(store, frame, hover_data, controls)
    return key_of(store.scene.span_lanes.owners[position.scene_row]) if position else None


def _pressed_key(pressed: Any) -> object:
    return pressed.get("key") if isinstance(pressed, dict) else None


def find_destination(
    store: Store, key: object, view_data: Any, selected_point: Any
) -> Window | None:
    """Return the window (ns since the start) to which a key leads; None where it leads nowhere."""
    if key == FIT:
        return _fit_to_selected(store, view_data, selected_point)
    if key not in DIRECTIONS or not store.step_windows.height:
        return None
    window, finding_windows = viewport.read_window(store, view_data), _finding_windows(store)
    # From a finding on to the next one; else where steps can be distinguished, from step to step.
    if window not in finding_windows and window.width_ns <= FEW_STEPS * store.scene.median_step_ns:
        return _go_to_step(store, window, DIRECTIONS[str(key)])
    return _go_to_finding(finding_windows, window, DIRECTIONS[str(key)])


def toggle_pin(store: Store, value: Any, rank: int | None) -> list[str] | None:
    """Return the pinned ranks after a rank is pinned or unpinned; None without such a rank."""
    pinned_ranks = [pin for pin in value if isinstance(pin, str)] if isinstance(value, list) else []
    if rank is None or rank not in store.ranks:
        return None
    if str(rank) in pinned_ranks:
        return [pin for pin in pinned_ranks if pin != str(rank)]
    return [*pinned_ranks, str(rank)][-MOST_PINS:]


def rank_of(store: Store, row: int | None) -> int | None:
    """Return the rank of a worker's, or its device's, row."""
    if row is None or store.scene.span_lanes.owners[row].role == "ps":
        return None
    return store.scene.span_lanes.owners[row].rank


def _fit_to_selected(store: Store, view_data: Any, selected_point: Any) -> Window | None:
    """Return the window (ns since the start) of the selected span, else of marked steps, if any."""
    position = viewport.read_position(store, selected_point)
    if position:
        lanes, lane_index = store.scene.span_lanes, position.scene_row
        if position.track_index is not None:
            lanes, lane_index = (
                store.open_process_tracks(position.scene_row).scene.span_lanes,
                position.track_index,
            )
        item = lanes.find_item_at(lane_index, position.moment_ns)
        if item is not None:
            return _widen(store, Window(*lanes.find_extent_ns(item)), MARGIN_SPAN_LENGTHS)
    marked_window = viewport.read_marked_window(store, view_data)
    return _widen(store, marked_window, MARGIN_SHARE) if marked_window else None


def _go_to_step(store: Store, window: Window, direction: int) -> Window:
    """Return the window, as wide, around the step before or after the one in its middle."""
    # Windows are in ns since the run's start; `direction` is -1 or 1.
    origin_ns, middle_ns = store.run_window.start_ns, (window.start_ns + window.end_ns) // 2
    starts_ns = store.step_windows["start_ns"].to_list()
    middle_index = bisect_right(starts_ns, origin_ns + middle_ns) - 1
    step_index = max(0, min(middle_index + direction, len(starts_ns) - 1))
    step_row = store.step_windows.row(step_index, named=True)
    begin_ns = (step_row["start_ns"] + step_row["end_ns"]) // 2 - origin_ns - window.width_ns // 2
    return Window(begin_ns, begin_ns + window.width_ns).clamp(
        Window(start_ns=0, end_ns=store.run_window.width_ns)
    )


def _finding_windows(store: Store) -> list[Window]:
    """Return the windows of findings with steps of their own, in the order of time."""
    step_windows = {
        store.window_of_steps(*finding.steps) for finding in store.report.findings if finding.steps
    }
    windows = [
        _widen(store, step_window, MARGIN_SHARE) for step_window in step_windows if step_window
    ]
    return sorted(windows, key=lambda window: (window.start_ns, window.end_ns))


def _go_to_finding(windows: list[Window], visible: Window, direction: int) -> Window | None:
    """Return the finding's window before (`direction` -1) or after (1) the visible one, if any."""
    # `windows` are those of findings, in the order of time.
    if visible in windows:
        return windows[max(0, min(windows.index(visible) + direction, len(windows) - 1))]
    index = bisect_left([window.start_ns for window in windows], visible.start_ns)
    index -= direction < 0
    return windows[index] if 0 <= index < len(windows) else None


def _widen(store: Store, window: Window, margin_share: float) -> Window:
    """Add a share of an absolute window's length on either side; the result is since the start."""
    margin_ns = int(window.width_ns * margin_share)
    return store.window_since_start(window.widen(margin_ns).clamp(store.run_window))
