"""Two timelines, one above the other, that show the same time around a step of both runs."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import ClientsideFunction, Input, Output, State, dcc, html
from dash.exceptions import PreventUpdate

from tracelens.lod import raster
from tracelens.lod.viewport import Window
from tracelens_dashboard import ids
from tracelens_dashboard import theme as themes
from tracelens_dashboard.components import chart
from tracelens_dashboard.components.heading import card_title
from tracelens_dashboard.components.timeline.controls import residual_ramp
from tracelens_dashboard.figures.timeline import plot
from tracelens_dashboard.figures.timeline.frame import SECOND
from tracelens_dashboard.ids import aria
from tracelens_dashboard.runs import current
from tracelens_dashboard.theme import TIMELINE_CONFIG
from tracelens_dashboard.view import viewport
from tracelens_dashboard.view.viewport import Controls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dash import Dash
    from dash.development.base_component import Component
    from plotly import graph_objects as go

    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.view.state import ViewState

UPPER: Final = "together-here"
LOWER: Final = "together-there"
SYNC: Final = "together-view"
STEP: Final = "together-step"
SCALE: Final = "together-scale"
AROUND: Final = 1.5  # steps on either side of one that is looked at
EXPLANATION: Final = (
    "Two runs at the same step; both timelines have one time axis and one colour scale."
)
HINT: Final = (
    "Both timelines show the same duration, aligned at the chosen step (counted from each run's first). "
    "Zoom and drag either; a click in the map above chooses a step."
)


def layout(store: Store, other: Store, view: ViewState) -> Component:
    """Return the card; a link's steps say which one is aligned."""
    last_index = min(store.windows.height, other.windows.height) - 1
    if last_index < 0:
        return html.Div()
    index = min(index_of_step(store, view.steps[0]) if view.steps else 0, last_index)
    data = view_step(store, other, index) if view.steps else view_whole(store, other)
    number = dmc.NumberInput(
        id=STEP, value=index, min=0, max=last_index, size="xs", w=100, **aria("step to align at")
    )
    label = html.Span("aligned at step", className="fact-name")
    heading = dmc.Group(
        [
            card_title("Side by side", EXPLANATION),
            dmc.Group([label, number], gap="xs"),
        ],
        justify="space-between",
    )
    plots = [_plot(current.name(store), UPPER), _plot(current.name(other), LOWER)]
    hint = html.P(HINT, className="summary")
    scale = html.Div(id=SCALE, className="legend")
    return dmc.Card(
        [dcc.Store(id=SYNC, data=data), heading, hint, scale, *plots], className="card", mt="sm"
    )


def register(app: Dash, other: str, chosen: Any) -> None:
    """Move both when one is moved, a step is chosen, or a mark of the graph `chosen` is clicked.

    `other` is the component that knows the other run's id.
    """
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
    _register_steps(app, other, chosen)
    _register_drawing(app, other)


def _register_steps(app: Dash, other: str, chosen: Any) -> None:
    @app.callback(
        Output(STEP, "value"),
        Input(chosen, "clickData"),
        current.RUN,
        prevent_initial_call=True,
    )
    def choose(click: Any, run: Any) -> int:
        points = (click or {}).get("points")
        if not points:
            raise PreventUpdate
        return index_of_step(current.store(run), int(points[0]["x"]))

    @app.callback(
        Output(SYNC, "data", allow_duplicate=True),
        Input(STEP, "value"),
        current.RUN,
        State(other, "data"),
        prevent_initial_call=True,
    )
    def align(index: Any, run: Any, other_run: Any) -> dict[str, Any]:
        second = current.find_store(other_run)
        if second is None or not isinstance(index, int) or index < 0:
            raise PreventUpdate
        return view_step(current.store(run), second, index)


def _register_drawing(app: Dash, other: str) -> None:
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
        State(other, "data"),
    )
    def draw(sync: Any, scheme: str | None, run: Any, other_run: Any) -> tuple[Any, ...]:
        if scheme is None:
            raise PreventUpdate
        stores = (current.store(run), current.find_store(other_run))
        theme, ceiling = themes.of(scheme), common_ceiling(stores)
        figures = [
            _figure(store, _read_window(sync, number), theme, ceiling)
            for number, store in enumerate(stores)
        ]
        heights = [{"height": f"{figure.layout.height or 0}px"} for figure in figures]
        labels = [f"timeline of {current.name(store)}" if store else "" for store in stores]
        return *figures, *heights, *labels, residual_ramp(ceiling, theme)


def common_ceiling(stores: Sequence[Store | None]) -> float:
    """Choose the end of the scale of residuals, in ns: one for both runs."""
    return max((store.residuals.ceiling_ns for store in stores if store), default=1.0)


def index_of_step(store: Store, step: int) -> int:
    """Count the steps before one."""
    return int(store.windows["step"].search_sorted(step))


def view_whole(store: Store, other: Store) -> dict[str, Any]:
    """Show both runs from their first step to the end of the longer one."""
    begins = [_begin(run, 0) for run in (store, other)]
    length = max(run.whole.width_ns for run in (store, other))
    return {"begins": begins, "t0": -max(begins), "t1": length}


def view_step(store: Store, other: Store, index: int) -> dict[str, Any]:
    """Show a step of both, and some time around it."""
    begins = [_begin(run, index) for run in (store, other)]
    margin_ns = round(AROUND * max(run.scene.step_ns for run in (store, other)))
    step = int(store.windows["step"][index]) if index < store.windows.height else None
    return {"begins": begins, "t0": -margin_ns, "t1": 2 * margin_ns, "step": step}


def _begin(store: Store, index: int) -> int:
    starts = store.windows["start_ns"]
    return int(starts[min(index, len(starts) - 1)]) - store.whole.start_ns


def _plot(name: str, identity: str) -> Component:
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


def _figure(
    store: Store | None, window: Window | None, theme: themes.Theme, ceiling: float
) -> go.Figure:
    if store is None or window is None:
        return themes.blank()
    inside = window.clamp(Window(0, store.whole.width_ns))
    frame = viewport.frame(store, Controls({"t0": inside.start_ns, "t1": inside.end_ns}))
    picture = viewport.picture(frame)
    figure = plot.draw(frame, picture, theme)
    palette = themes.palette(theme.name, store.residuals.ceiling_ns / ceiling)
    data = base64.b64encode(raster.encode_png(picture.pixels, palette)).decode()
    figure.layout.images[0].source = f"data:image/png;base64,{data}"
    ends = [window.start_ns / SECOND, window.end_ns / SECOND]
    figure.update_layout(
        xaxis={"range": ends, "minallowed": None, "maxallowed": None, "title": None}
    )
    return figure


def _read_window(sync: Any, number: int) -> Window | None:
    """Read the window of run 0 or 1 from what the browser sends, which may be anything."""
    values = sync if isinstance(sync, dict) else {}
    begins = values.get("begins")
    numbers = [values.get("t0"), values.get("t1"), *(begins if isinstance(begins, list) else [])]
    if len(numbers) != 4 or not all(isinstance(n, int) and abs(n) < 1 << 62 for n in numbers):
        return None
    start, end, begin = numbers[0], numbers[1], numbers[2 + number]
    return Window(begin + start, begin + end) if start < end else None
