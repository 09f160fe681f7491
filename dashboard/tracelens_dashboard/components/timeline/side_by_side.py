"""Two timelines, one above the other, that show the same time around a step of both runs."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html

from tracelens.lod import raster
from tracelens.lod.viewport import Window
from tracelens_dashboard import ids
from tracelens_dashboard import theme as themes
from tracelens_dashboard.components import chart, fields
from tracelens_dashboard.components.heading import card_title
from tracelens_dashboard.components.timeline.controls import residual_ramp
from tracelens_dashboard.figures.timeline import plot
from tracelens_dashboard.figures.timeline.frame import NS_PER_SECOND
from tracelens_dashboard.ids import aria
from tracelens_dashboard.runs import current
from tracelens_dashboard.theme import TIMELINE_CONFIG
from tracelens_dashboard.view import viewport
from tracelens_dashboard.view.viewport import Controls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dash.development.base_component import Component
    from plotly import graph_objects as go

    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.view.state import ViewState

UPPER: Final = "together-here"
LOWER: Final = "together-there"
SYNC: Final = "together-view"
STEP: Final = "together-step"
SCALE: Final = "together-scale"
MARGIN_STEPS: Final = 1.5  # steps on either side of one that is looked at
EXPLANATION: Final = (
    "Two runs at the same step; both timelines have one time axis and one colour scale."
)
HINT: Final = (
    "Both timelines show the same duration, aligned at the chosen step (counted from each run's "
    "first). Zoom and drag either; a click in the map above chooses a step."
)


def layout(store: Store, other_store: Store, view: ViewState) -> Component:
    """Return the card; the timelines are aligned at a link's first marked step, else at the first."""
    # A step's index counts from each run's first one.
    last_index = min(store.step_windows.height, other_store.step_windows.height) - 1
    if last_index < 0:
        return html.Div()
    step_index = min(
        index_of_step(store, view.marked_steps[0]) if view.marked_steps else 0, last_index
    )
    sync_data = (
        view_step(store, other_store, step_index)
        if view.marked_steps
        else view_whole(store, other_store)
    )
    options = {"value": step_index, "min": 0, "max": last_index, "w": 100}
    step_field = fields.number_input(STEP, "step to align at", **options)
    label = html.Span("aligned at step", className="fact-name")
    choice = dmc.Group([label, step_field], gap="xs")
    title = card_title("Side by side", EXPLANATION)
    heading = dmc.Group([title, choice], justify="space-between")
    plots = [
        _lay_out_plot(current.name_run(store), UPPER),
        _lay_out_plot(current.name_run(other_store), LOWER),
    ]
    hint = html.P(HINT, className="summary")
    colour_scale = html.Div(id=SCALE, className="legend")
    parts = [dcc.Store(id=SYNC, data=sync_data), heading, hint, colour_scale, *plots]
    return dmc.Card(parts, className="card", mt="sm")


def register(app: Dash, other_id: str, graph_id: Any) -> None:
    """Move both timelines when one moves, a step is chosen, or a mark of `graph_id` is clicked."""
    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "aligned"), Input(SYNC, "data"), prevent_initial_call=True
    )
    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "together"),
        Output(SYNC, "data"),
        Input(UPPER, "relayoutData"),
        Input(LOWER, "relayoutData"),
        State(SYNC, "data"),
        prevent_initial_call=True,
    )
    _register_steps(app, other_id, graph_id)
    _register_drawing(app, other_id)


def _register_steps(app: Dash, other_id: str, graph_id: Any) -> None:
    """Align both timelines at a step that is clicked or typed."""

    @app.callback(
        Output(STEP, "value"), Input(graph_id, "clickData"), current.RUN, prevent_initial_call=True
    )
    def choose_step(click_data: Any, run_key: Any) -> int:
        """Return the index of the step whose cell was clicked."""
        point = current.prevent_update_unless(chart.clicked_point(click_data))
        return index_of_step(current.store_of_run(run_key), int(point["x"]))

    @app.callback(
        Output(SYNC, "data", allow_duplicate=True),
        Input(STEP, "value"),
        current.RUN,
        State(other_id, "data"),
        prevent_initial_call=True,
    )
    def align(step_index: Any, run_key: Any, other_run: Any) -> dict[str, Any]:
        """Return the view in which both timelines show the chosen step."""
        other_store = current.prevent_update_unless(current.find_store(other_run))
        current.prevent_update_unless(isinstance(step_index, int) and step_index >= 0)
        return view_step(current.store_of_run(run_key), other_store, step_index)


def _register_drawing(app: Dash, other_id: str) -> None:
    """Draw both timelines, in one colour scale of residuals."""

    @app.callback(
        Output(UPPER, "figure"),
        Output(LOWER, "figure"),
        Output(UPPER, "style"),
        Output(LOWER, "style"),
        Output(f"{UPPER}-plot", "aria-label"),
        Output(f"{LOWER}-plot", "aria-label"),
        Output(SCALE, "children"),
        Input(SYNC, "data"),
        Input(ids.SCHEME, "computedColorScheme"),
        current.RUN,
        State(other_id, "data"),
    )
    def draw(sync: Any, scheme: str | None, run_key: Any, other_run: Any) -> tuple[Any, ...]:
        """Return figures, heights and labels of both timelines, and the colour scale."""
        theme = themes.for_scheme(current.prevent_update_unless(scheme))
        stores = (current.store_of_run(run_key), current.find_store(other_run))
        ceiling_ns = common_ceiling(stores)
        figures = [
            _draw_timeline(store, _read_window(sync, run_index), theme, ceiling_ns)
            for run_index, store in enumerate(stores)
        ]
        heights = [{"height": f"{figure.layout.height or 0}px"} for figure in figures]
        labels = [f"timeline of {current.name_run(store)}" if store else "" for store in stores]
        return *figures, *heights, *labels, residual_ramp(ceiling_ns, theme)


def common_ceiling(stores: Sequence[Store | None]) -> float:
    """Choose the end of the scale of residuals, in ns: one for both runs."""
    return max((store.residuals.ceiling_ns for store in stores if store), default=1.0)


def index_of_step(store: Store, step: int) -> int:
    """Count the steps before one."""
    return int(store.step_windows["step"].search_sorted(step))


def view_whole(store: Store, other_store: Store) -> dict[str, Any]:
    """Return the view of both runs from their first step to the end of the longer one."""
    # `begins`: of the first step (ns since each run's start), from which `t0` and `t1` count.
    begins_ns = [_step_begin_ns(run, step_index=0) for run in (store, other_store)]
    length_ns = max(run.run_window.width_ns for run in (store, other_store))
    return {"begins": begins_ns, "t0": -max(begins_ns), "t1": length_ns}


def view_step(store: Store, other_store: Store, step_index: int) -> dict[str, Any]:
    """Return the view of a step of both runs, some steps wide."""
    # `begins`: of the step (ns since each run's start), from which `t0` and `t1` (ns) count.
    begins_ns = [_step_begin_ns(run, step_index) for run in (store, other_store)]
    margin_ns = round(MARGIN_STEPS * max(run.scene.median_step_ns for run in (store, other_store)))
    steps = store.step_windows["step"]
    step = int(steps[step_index]) if step_index < len(steps) else None
    return {"begins": begins_ns, "t0": -margin_ns, "t1": 2 * margin_ns, "step": step}


def _step_begin_ns(store: Store, step_index: int) -> int:
    """Return the begin of the step with an index, in ns since the run's start."""
    starts_ns = store.step_windows["start_ns"]
    return int(starts_ns[min(step_index, len(starts_ns) - 1)]) - store.run_window.start_ns


def _lay_out_plot(name: str, identity: str) -> Component:
    title = html.Div(name, className="fact together-name")
    return html.Div(
        [
            title,
            html.Div(
                chart.graph(identity, config=TIMELINE_CONFIG),
                role="img",
                id=f"{identity}-plot",
                **aria("timeline"),
            ),
        ]
    )


def _draw_timeline(
    store: Store | None, window: Window | None, theme: themes.Theme, ceiling_ns: float
) -> go.Figure:
    """Draw a run's timeline over a window (since its start); residuals end at `ceiling_ns`."""
    if store is None or window is None:
        return themes.blank()
    drawn_window = window.clamp(Window(start_ns=0, end_ns=store.run_window.width_ns))
    view = {"t0": drawn_window.start_ns, "t1": drawn_window.end_ns}
    frame = viewport.frame(store, Controls(view))
    picture = viewport.picture(frame)
    figure = plot.draw(frame, picture, theme)
    palette = themes.palette(theme.scheme, store.residuals.ceiling_ns / ceiling_ns)
    png = base64.b64encode(raster.encode_png(picture.palette_pixels, palette)).decode()
    figure.layout.images[0].source = f"data:image/png;base64,{png}"
    unlimited = {"minallowed": None, "maxallowed": None, "title": None}
    ends_s = [window.start_ns / NS_PER_SECOND, window.end_ns / NS_PER_SECOND]
    figure.update_layout(xaxis={"range": ends_s} | unlimited)
    return figure


def _read_window(sync_data: Any, run_index: int) -> Window | None:
    """Read the window of run 0 or 1, in ns since its start, from what the browser sends."""
    match sync_data:
        case {"begins": [int(), int()] as begins_ns, "t0": int(start_ns), "t1": int(end_ns)}:
            times_ns = (start_ns, end_ns, *begins_ns)
            if start_ns < end_ns and all(abs(ns) < 1 << 62 for ns in times_ns):
                return Window(start_ns, end_ns).shift(begins_ns[run_index])
    return None
