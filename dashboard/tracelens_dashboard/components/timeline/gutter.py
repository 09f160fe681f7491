"""Beside the timeline: a button for each row that opens, and edges by which rows are made taller.

The labels themselves are the plot's, so that they are in pictures, too; the buttons lie over them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dash import Dash, Input, Output, dcc, html

from tracelens_dashboard.components.timeline import names
from tracelens_dashboard.figures.timeline import plot
from tracelens_dashboard.figures.timeline.frame import OPEN, Frame, band_label
from tracelens_dashboard.ids import aria
from tracelens_dashboard.runs import current
from tracelens_dashboard.runs.store import Store, key_of
from tracelens_dashboard.view import row_groups, viewport
from tracelens_dashboard.view.state import MOST_OPENED, ViewState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dash.development.base_component import Component

    from tracelens.lod.viewport import Band
    from tracelens_dashboard.view.viewport import Controls

LEAST_PX: Final = 16  # of a button, however low its row is


def stores(view: ViewState) -> list[Component]:
    """Lay out the stores in which the browser keeps rows."""
    opened_keys = None if view.opened_row_keys is None else list(view.opened_row_keys)
    return [
        dcc.Store(id=names.TALL),
        dcc.Store(id=names.OPENED, data=opened_keys),
        dcc.Store(id=names.TOGGLE),
    ]


def layout(frame: Frame) -> list[Component]:
    """Return the buttons and edges of the drawn rows."""
    top_px = plot.top_px(frame)
    return [
        part for band in plot.labelled_bands(frame) for part in _lay_out_row(frame, band, top_px)
    ]


def _lay_out_row(frame: Frame, band: Band, top_px: int) -> Iterator[Component]:
    """Yield the button and the lower edge of a row that can be opened; nothing for another row."""
    # `band` is the row's strip of pixels, below `top_px`; `key` is what addresses call it.
    sign = plot.opening_sign(frame, band)
    if not sign:
        return
    key = (
        band.group.address_key
        if band.group
        else key_of(frame.scene.span_lanes.owners[band.lane_indices[0]])
    )
    is_open, name = sign == OPEN, band_label(frame, band)
    button_px = max(band.height_px, LEAST_PX)
    attributes: dict[str, Any] = {"aria-expanded": str(is_open).lower(), "data-track": key}
    yield html.Button(
        className="row-button",
        title=f"{'Close' if is_open else 'Open'} {name}",
        style={
            "top": f"{top_px + band.middle_px - button_px / 2:.0f}px",
            "height": f"{button_px}px",
        },
        **aria(f"{'ranks' if band.group else 'tracks'} of {name}"),
        **attributes,
    )
    edge_px = top_px + band.top_px + band.height_px
    height_data: dict[str, Any] = {"data-height": str(band.height_px)}
    yield html.Div(className="row-edge", style={"top": f"{edge_px}px"}, **height_data)


def register(app: Dash) -> None:
    """Open and close."""

    @app.callback(
        Output(names.OPENED, "data"),
        Input(names.TOGGLE, "data"),
        *names.control_arguments(),
        prevent_initial_call=True,
    )
    def toggle(toggled: Any, *values: Any) -> list[str]:
        """Open or close the row with the key that `toggled` has; return the keys of all open rows."""
        store, controls = names.read_arguments(values)
        key = toggled.get("key") if isinstance(toggled, dict) else None
        return current.prevent_update_unless(toggle_key(store, key, controls))


def toggle_key(store: Store, key: object, controls: Controls) -> list[str] | None:
    """Return the opened rows' keys after one is opened or closed; None for an unknown key."""
    opened_keys = viewport.choose_opened(store, controls)
    groups = row_groups.gather(store, controls.sort_key, opened_keys)
    group_by_key = {group.address_key: group for group in groups}
    if not isinstance(key, str) or not (key in store.scene_row_by_key or key in group_by_key):
        return None
    member_rows = group_by_key[key].lane_indices if key in group_by_key else ()
    closed_keys = {key, *(key_of(store.scene.span_lanes.owners[row]) for row in member_rows)}
    remaining_keys = [opened_key for opened_key in opened_keys if opened_key not in closed_keys]
    return remaining_keys if remaining_keys != opened_keys else [*opened_keys, key][-MOST_OPENED:]
