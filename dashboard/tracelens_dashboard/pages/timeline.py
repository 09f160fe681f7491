"""What happened then? Every rank's time, from the whole run down to single spans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import ClientsideFunction, Input, Output, Patch, State, dcc, html
from dash.exceptions import PreventUpdate

from tracelens.lod.codes import SHARD_OPS
from tracelens_dashboard import asked, ids, sight, text
from tracelens_dashboard import theme as themes
from tracelens_dashboard.components import (
    chart,
    details,
    keys,
    legend,
    matches,
    measured,
    opened_rank,
)
from tracelens_dashboard.components.aria import aria
from tracelens_dashboard.figures import strip, timeline
from tracelens_dashboard.state import MOST_PINS, SORTS, ViewState

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from tracelens.lod.query import Picture
    from tracelens.lod.rows import Plan
    from tracelens_dashboard.figures.frame import Frame
    from tracelens_dashboard.store import Store

PATH: Final = "/timeline"
TITLE: Final = "Timeline"

GRAPH: Final = "timeline"
PLOT: Final = "timeline-plot"
STRIP: Final = "timeline-strip"
WINDOW: Final = "timeline-window"
VIEW: Final = "timeline-view"
WIDE: Final = "timeline-wide"  # the plot's width in pixels
PINS: Final = "timeline-pins"
SORT: Final = "timeline-sort"
NOTE: Final = "timeline-note"
LEGEND: Final = "timeline-legend"
DETAILS: Final = "timeline-details"
SEARCH: Final = "timeline-search"
FOUND: Final = "timeline-found"
SELECTED: Final = "timeline-selected"
MEASURED: Final = "timeline-measured"
MOST_FLAGGED: Final = 4  # that are pinned unasked
STRIP_PX: Final = 64
LEVELS: Final = {
    "lateness": "Steps are narrow here: colour says how late a rank was in a step, by its own work. "
    "Zoom in to see what it did.",
    "dominant": "Each pixel shows what took most of its time.",
    "sampled": "Each pixel shows what ran at its moment.",
    "spans": "Every span is drawn; hover or click one.",
}


def layout(store: Store, view: ViewState) -> Component:
    """Return the page."""
    seen = sight.window_of(store, view)
    data: dict[str, Any] = {"t0": seen.start_ns, "t1": seen.end_ns, "whole": store.whole.width_ns}
    data["steps"] = list(view.steps) if view.steps else None
    graph = html.Div(chart.graph(GRAPH), role="img", id=PLOT)
    return html.Div(
        [
            dcc.Store(id=VIEW, data=data),
            dcc.Store(id=WIDE),
            dcc.Store(id=SELECTED, data=_clicked(view)),
            keys.layout(),
            dmc.Card([_controls(store, view), _strip(), graph], className="card"),
            dmc.Card(_described(store, view), id=DETAILS, className="card", mt="sm"),
            opened_rank.layout(store),
        ],
        className="page",
    )


def register(app: Dash) -> None:
    """Draw, follow zoom and drag, describe what is clicked, keep the address bar true."""
    _register_drawing(app)
    _register_following(app)
    _register_strip(app)
    _register_details(app)
    _register_search(app)
    _register_measure(app)
    opened_rank.register(app, VIEW, WIDE)
    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "wide"),
        Output(WIDE, "data"),
        Input(ids.SCHEME, "computedColorScheme"),
    )
    keys.register(app, GRAPH, VIEW, SELECTED, (PINS, SORT))
    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "moved"),
        Output(VIEW, "data"),
        Input(GRAPH, "relayoutData"),
        State(VIEW, "data"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "remember"),
        Output(WINDOW, "style"),
        Input(VIEW, "data"),
        Input(PINS, "value"),
        Input(SORT, "value"),
        Input(SELECTED, "data"),
    )


def _register_drawing(app: Dash) -> None:
    @app.callback(
        Output(GRAPH, "figure"),
        Output(GRAPH, "style"),
        Output(NOTE, "children"),
        Output(PLOT, "aria-label"),
        Input(ids.SCHEME, "computedColorScheme"),
        Input(WIDE, "data"),
        Input(PINS, "value"),
        Input(SORT, "value"),
        State(VIEW, "data"),
        State(SELECTED, "data"),
        asked.RUN,
    )
    def draw(scheme: str | None, *shown: Any) -> tuple[Any, ...]:
        if scheme is None:
            raise PreventUpdate
        frame = _frame(*shown)
        picture = sight.picture(frame)
        figure = timeline.draw(frame, picture, themes.of(scheme))
        note = _note(picture, frame.plan)
        return figure, {"height": f"{timeline.height(frame.plan)}px"}, note, note


def _register_following(app: Dash) -> None:
    """Answer zoom and drag with what they change; all else of the figure stays."""

    @app.callback(
        Output(GRAPH, "figure", allow_duplicate=True),
        Output(NOTE, "children", allow_duplicate=True),
        Output(PLOT, "aria-label", allow_duplicate=True),
        Input(VIEW, "data"),
        Input(SELECTED, "data"),
        State(ids.SCHEME, "computedColorScheme"),
        State(PINS, "value"),
        State(SORT, "value"),
        State(WIDE, "data"),
        asked.RUN,
        prevent_initial_call=True,
    )
    def follow(view: Any, call: Any, scheme: str | None, *how: Any) -> tuple[Any, ...]:
        pins, sort, wide, run = how
        frame = _frame(wide, pins, sort, view, call, run)
        picture = sight.picture(frame)
        note = _note(picture, frame.plan)
        return _patch(frame, picture, themes.of(scheme)), note, note


def _frame(wide: Any, pins: Any, sort: Any, *seen: Any) -> Frame:
    view, call, run = seen
    return sight.frame(asked.store(run), view, pins, sort, call, wide=wide)


def _patch(frame: Frame, picture: Picture, theme: themes.Theme) -> Patch:
    parts = timeline.changing(frame, picture, theme)
    patch = Patch()
    patch["data"] = parts["data"]
    for name in ("images", "shapes", "annotations"):
        patch["layout"][name] = parts[name]
    for name, texts in timeline.tick_texts(frame, parts["ticks"]).items():
        patch["layout"]["xaxis2"][name] = texts
    return patch


def _register_strip(app: Dash) -> None:
    @app.callback(
        Output(STRIP, "figure"),
        Output("timeline-strip-plot", "aria-label"),
        Output(LEGEND, "children"),
        Input(ids.SCHEME, "computedColorScheme"),
        asked.RUN,
    )
    def draw(scheme: str | None, run: Any) -> tuple[Any, ...]:
        if scheme is None:
            raise PreventUpdate
        store, theme = asked.store(run), themes.of(scheme)
        drawing = strip.draw(store.times, store.windows, store.whole, theme)
        ramp = legend.ramp(store.lateness.ceiling_ns, theme)
        return drawing.figure, drawing.summary, [*legend.categories(_present(store), theme), ramp]


def _register_details(app: Dash) -> None:
    @app.callback(
        Output(DETAILS, "children"),
        Output(SELECTED, "data"),
        Input(GRAPH, "clickData"),
        State(PINS, "value"),
        State(SORT, "value"),
        State(VIEW, "data"),
        State(WIDE, "data"),
        asked.RUN,
        prevent_initial_call=True,
    )
    def describe(click: Any, *shown: Any) -> tuple[Component, Any]:
        pins, sort, view, wide, run = shown
        store = asked.store(run)
        found = sight.at(sight.frame(store, view, pins, sort, wide=wide), click)
        if found is None:
            raise PreventUpdate
        lane, at_ns = found
        return details.of_span(store, *found), {"lane": lane, "at": at_ns - store.whole.start_ns}


def _register_search(app: Dash) -> None:
    @app.callback(
        Output(FOUND, "children"),
        Input(SEARCH, "value"),
        Input(VIEW, "data"),
        asked.RUN,
        prevent_initial_call=True,
    )
    def find(wanted: Any, view: Any, run: Any) -> Component | None:
        store = asked.store(run)
        return matches.of_text(store, wanted, sight.frame(store, view, [], None).seen)


def _register_measure(app: Dash) -> None:
    @app.callback(
        Output(MEASURED, "children"),
        Input(GRAPH, "selectedData"),
        asked.RUN,
        prevent_initial_call=True,
    )
    def measure(selected: Any, run: Any) -> str:
        return measured.sentence(asked.store(run), selected)


def _clicked(view: ViewState) -> dict[str, int] | None:
    return {"lane": view.selected[0], "at": view.selected[1]} if view.selected else None


def _described(store: Store, view: ViewState) -> Component:
    """Describe what a link selects; else say what a click would do."""
    place = sight.place_of(store, _clicked(view))
    return details.of_span(store, *place) if place else details.hint()


def _pinned(store: Store, view: ViewState) -> list[str]:
    """Pin what a link names; on the whole run, whom faults name."""
    if view == ViewState(sort=view.sort, run=view.run, compare=view.compare):
        return [str(rank) for rank in sorted(store.flagged)[:MOST_FLAGGED]]
    return [str(rank) for rank in view.pins if rank in set(store.ranks)]


def _present(store: Store) -> list[str]:
    """List the categories that occur, in their order."""
    names = list(store.times.categories)
    return [*names, *SHARD_OPS] if store.shard_count else names


def _note(picture: Picture, plan: Plan) -> str:
    """Say what is drawn, and what is not."""
    most = max(len(band.lanes) for band in plan.bands) if plan.bands else 1
    grouped = f" A row shows the latest of up to {most} ranks." if most > 1 else ""
    hidden = (
        f" {text.count(picture.hidden, 'shorter span is', 'shorter spans are')} not drawn."
        if picture.hidden
        else ""
    )
    return f"{text.count(picture.spans, 'span')} in view. {LEVELS[picture.level]}{grouped}{hidden}"


def _controls(store: Store, view: ViewState) -> Component:
    pins = dmc.MultiSelect(
        id=PINS,
        data=[{"value": str(rank), "label": f"rank {rank}"} for rank in store.ranks],
        value=_pinned(store, view),
        placeholder="Pin ranks",
        searchable=True,
        clearable=True,
        limit=50,
        maxValues=MOST_PINS,
        size="xs",
        className="pins",
        **aria("pinned ranks"),
    )
    data = [{"value": name, "label": f"by {name}"} for name in SORTS]
    sort = dmc.SegmentedControl(id=SORT, data=data, value=view.sort, size="xs")
    heading = dmc.Group(
        [
            dmc.Title("Timeline", order=1, className="card-title"),
            dmc.Group([_search(), pins, sort, _zoom(), chart.picture("Timeline")], gap="sm"),
        ],
        justify="space-between",
    )
    note = html.P(id=NOTE, className="summary", role="status")
    found = html.Div([html.P(id=MEASURED, className="summary", role="status"), html.Div(id=FOUND)])
    return html.Div([heading, found, note, html.Div(id=LEGEND, className="legend")])


def _search() -> Component:
    return dmc.TextInput(
        id=SEARCH,
        placeholder="Find spans (/)",
        size="xs",
        debounce=400,
        className="search",
        **aria("find spans by name"),
    )


def _zoom() -> Component:
    """Return the buttons; assets/timeline.js makes them work, without asking the server."""
    names = (
        ("in", "+", "zoom in"),
        ("out", "\N{MINUS SIGN}", "zoom out"),
        ("left", "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}", "earlier"),
        ("right", "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}", "later"),
        ("all", "All", "show the whole run"),
    )
    buttons = [
        dmc.Button(sign, id=f"zoom-{name}", variant="default", size="compact-sm", **aria(say))
        for name, sign, say in names
    ]
    return dmc.Group(buttons, gap=4)


def _strip() -> Component:
    plot = html.Div(chart.graph(STRIP, STRIP_PX), role="img", id="timeline-strip-plot")
    window = html.Div(html.Div(id=WINDOW, className="window"), className="window-track")
    return html.Div([plot, window], className="strip")
