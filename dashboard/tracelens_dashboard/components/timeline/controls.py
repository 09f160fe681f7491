"""What stands above the timeline: find, pin, sort, zoom; the whole run in a strip; the legend."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import Dash, Input, Output, html

from tracelens.lod.lanes import SHARD_OPS
from tracelens.lod.viewport import LEAST_ROW_PX, MOST_ROW_PX
from tracelens_dashboard import ids, text
from tracelens_dashboard import theme as themes
from tracelens_dashboard.components import chart, fields
from tracelens_dashboard.components.timeline import finding, names, notes
from tracelens_dashboard.figures import overview
from tracelens_dashboard.ids import aria
from tracelens_dashboard.runs import current
from tracelens_dashboard.theme import Theme, name_of
from tracelens_dashboard.view import row_groups
from tracelens_dashboard.view.state import MOST_PINS, SORTS, ViewState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dash.development.base_component import Component

    from tracelens_dashboard.runs.store import Store


TITLE: Final = "Timeline"
MAX_FLAGGED_RANKS: Final = 4  # that are pinned unasked
STRIP_PX: Final = 64
SORT_LABELS: Final = {
    "rank": "by rank",
    "lateness": "by residual",
    "host": "by host",
    "stage": "by stage",
}  # of `SORTS`, as addresses say it


def layout(store: Store, view: ViewState) -> Component:
    """Draw the line of controls above the plot."""
    controls = [
        _search(view),
        _pins(store, view),
        _sort(store, view),
        _row_height(view),
        path_switch(store, view),
        notes.button(),
        _zoom(),
    ]
    heading = dmc.Group(
        [
            dmc.Title(TITLE, order=1, className="card-title"),
            dmc.Group([*controls, chart.png_button(TITLE)], gap=8),
        ],
        justify="space-between",
    )
    note_line = html.P(id=names.NOTE, className="summary", role="status")
    measured_line = html.P(id=names.MEASURED, className="summary", role="status")
    matches = html.Div([measured_line, *finding.layout()])
    legend = html.Div(id=names.LEGEND, className="legend")
    return html.Div([heading, matches, note_line, legend, *notes.layout(store, view)])


def initial_pins(store: Store, view: ViewState) -> list[str]:
    """Return the ranks to pin, as texts: the address's, or, for a whole run, those with faults."""
    unpinned_view = ViewState(
        sort_key=view.sort_key,
        run_key=view.run_key,
        baseline_ids=view.baseline_ids,
        shows_path=view.shows_path,
    )
    if replace(view, opened_row_keys=None, row_px=None, notes=()) == unpinned_view:
        return [str(rank) for rank in sorted(store.flagged_ranks)[:MAX_FLAGGED_RANKS]]
    return [str(rank) for rank in view.pinned_ranks if rank in set(store.ranks)]


def _pins(store: Store, view: ViewState) -> Component:
    """Return the field of pinned ranks."""
    choices = [(str(rank), f"rank {rank}") for rank in store.ranks]
    options = {"placeholder": "Pin ranks", "searchable": True, "clearable": True, "limit": 50}
    pins, limits = initial_pins(store, view), {"maxValues": MOST_PINS, "className": "pins"}
    return fields.multi_select(names.PINS, choices, "pinned ranks", value=pins, **options, **limits)


def list_orders(store: Store) -> list[str]:
    """Return the orders of rows; those that gather ranks only where these are several groups."""
    orders_of_ranks = [name for name in SORTS if name not in row_groups.GROUP_COLUMNS]
    return [*orders_of_ranks, *row_groups.group_columns(store.run.workers)]


def _sort(store: Store, view: ViewState) -> Component:
    """Return the choice between the orders of rows."""
    orders = list_orders(store)
    data = [{"value": order, "label": SORT_LABELS[order]} for order in orders]
    value = view.sort_key if view.sort_key in orders else SORTS[0]
    return dmc.SegmentedControl(id=names.SORT, data=data, value=value, size="xs")


def _row_height(view: ViewState) -> Component:
    label = "row height in pixels; empty: as there is room"
    limits = {"min": LEAST_ROW_PX, "max": MOST_ROW_PX, "step": 4, "debounce": 300}
    options = {"value": view.row_px or "", "placeholder": "Row px", "w": 80}
    return fields.number_input(names.ROW, label, **options, **limits)


def path_switch(store: Store, view: ViewState) -> Component:
    """Return the switch of the critical path; it cannot be used where there is no path."""
    has_path = not store.analysis_table("critical_stays").is_empty()
    checked = view.shows_path and has_path
    options = {"checked": checked, "disabled": not has_path, "size": "xs"}
    return dmc.Switch(id=names.PATH, label="Critical path", **options)


def _search(view: ViewState) -> Component:
    options = {"value": view.searched_name, "debounce": 400, "className": "search"}
    return fields.text_input(names.SEARCH, "find spans by name", "Find spans (/)", **options)


def _zoom() -> Component:
    """Return the buttons; assets/timeline.js makes them work, without asking the server."""
    names_signs_and_labels = (
        ("in", "+", "zoom in"),
        ("out", "\N{MINUS SIGN}", "zoom out"),
        ("left", "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}", "earlier"),
        ("right", "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}", "later"),
        ("all", "All", "show the whole run"),
    )
    buttons = [
        dmc.Button(sign, id=f"zoom-{name}", variant="default", size="compact-sm", **aria(label))
        for name, sign, label in names_signs_and_labels
    ]
    return dmc.Group(buttons, gap=4)


def strip_layout() -> Component:
    """Return the strip, and the window over it."""
    graph = chart.graph(names.STRIP, STRIP_PX)
    strip_plot = html.Div(graph, role="img", id=names.STRIP_PLOT, **aria("the whole run"))
    window = html.Div(html.Div(id=names.WINDOW, className="window"), className="window-track")
    style = {"minHeight": f"{STRIP_PX}px"}
    return html.Div([strip_plot, window], className="strip", style=style)


def register_strip(app: Dash) -> None:
    """Draw the strip of the whole run and the legend when the scheme or the run changes."""

    @app.callback(
        Output(names.STRIP, "figure"),
        Output(names.STRIP_PLOT, "aria-label"),
        Output(names.LEGEND, "children"),
        Input(ids.SCHEME, "computedColorScheme"),
        Input(ids.RUN, "data"),
    )
    def draw(scheme: str | None, run_key: Any) -> tuple[Any, ...]:
        """Return the strip's figure with its label, and the parts of the legend."""
        store, theme = (
            current.store_of_run(run_key),
            themes.for_scheme(current.prevent_update_unless(scheme)),
        )
        drawing = overview.strip(
            store.category_times,
            store.step_windows,
            store.run_window,
            theme,
            of_hosts=store.uses_devices,
        )
        ramp = residual_ramp(store.residuals.ceiling_ns, theme)
        categories = [*store.category_times.categories, *(SHARD_OPS if store.shard_count else ())]
        return drawing.figure, drawing.summary, [*category_swatches(categories, theme), ramp]


def category_swatches(labels: Sequence[str], theme: Theme) -> list[Component]:
    """Return a swatch and a name for each category."""
    return [
        html.Span(
            [
                html.Span(
                    className="swatch", style={"background": theme.colour_by_category[label]}
                ),
                name_of(label),
            ],
            className="legend-item",
        )
        for label in labels
    ]


def residual_ramp(ceiling_ns: float, theme: Theme) -> Component:
    """Return the colours of residuals with both ends of their scale."""
    stops = ", ".join(theme.ramp_colours)
    bar = html.Span(className="ramp", style={"background": f"linear-gradient(90deg, {stops})"})
    return html.Span([bar, f"residual 0 to {text.duration(ceiling_ns)}"], className="legend-item")
