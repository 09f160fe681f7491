"""Beside the timeline: a button for each row that opens, and edges by which rows are made taller.

The labels themselves are the plot's, so that they are in pictures, too; the buttons lie over them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dash import Input, Output, dcc, html
from dash.exceptions import PreventUpdate

from tracelens_dashboard.components.timeline import names
from tracelens_dashboard.figures.timeline import plot
from tracelens_dashboard.figures.timeline.frame import OPEN, lane_label
from tracelens_dashboard.ids import aria
from tracelens_dashboard.runs import current
from tracelens_dashboard.runs.store import key_of
from tracelens_dashboard.view import row_groups, viewport
from tracelens_dashboard.view.state import MOST_OPENED
from tracelens_dashboard.view.viewport import Controls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dash import Dash
    from dash.development.base_component import Component

    from tracelens.lod.viewport import Band
    from tracelens_dashboard.figures.timeline.frame import Frame
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.view.state import ViewState

LEAST_PX: Final = 16  # of a button, however low its row is


def stores(view: ViewState) -> list[Component]:
    """Lay out the stores in which the browser keeps rows."""
    opened = None if view.opened is None else list(view.opened)
    return [
        dcc.Store(id=names.TALL),
        dcc.Store(id=names.OPENED, data=opened),
        dcc.Store(id=names.TOGGLE),
    ]


def layout(frame: Frame) -> list[Component]:
    """Return the buttons and edges of the drawn rows."""
    top = plot.top(frame)
    return [part for band in plot.labelled(frame) for part in _lay_out_row(frame, band, top)]


def _lay_out_row(frame: Frame, band: Band, top: int) -> Iterator[Component]:
    sign = plot.sign(frame, band)
    if not sign:
        return
    key = band.group.key if band.group else key_of(frame.scene.lanes.lanes[band.lanes[0]])
    is_open, name = sign == OPEN, lane_label(frame, band)
    height = max(band.height, LEAST_PX)
    attributes: dict[str, Any] = {"aria-expanded": str(is_open).lower(), "data-track": key}
    yield html.Button(
        className="row-button",
        title=f"{'Close' if is_open else 'Open'} {name}",
        style={"top": f"{top + band.middle - height / 2:.0f}px", "height": f"{height}px"},
        **aria(f"{'ranks' if band.group else 'tracks'} of {name}"),
        **attributes,
    )
    edge = top + band.top + band.height
    height_px: dict[str, Any] = {"data-height": str(band.height)}
    yield html.Div(className="row-edge", style={"top": f"{edge}px"}, **height_px)


def register(app: Dash) -> None:
    """Open and close."""

    @app.callback(
        Output(names.OPENED, "data"),
        Input(names.TOGGLE, "data"),
        *names.control_arguments(),
        current.RUN,
        prevent_initial_call=True,
    )
    def toggle(asked: Any, *values: Any) -> list[str]:
        *controls, run = values
        key = asked.get("key") if isinstance(asked, dict) else None
        opened = toggle_key(current.store(run), key, Controls(*controls))
        if opened is None:
            raise PreventUpdate
        return opened


def toggle_key(store: Store, key: object, controls: Controls) -> list[str] | None:
    """Open or close a process or group; None for another key.

    Returns:
        The keys of opened rows afterwards. Closing a group closes the rows in it.
    """
    opened = viewport.opened_in(store, controls)
    groups = {group.key: group for group in row_groups.gather(store, controls.sort, opened)}
    if not isinstance(key, str) or not (key in store.groups or key in groups):
        return None
    lanes = groups[key].lanes if key in groups else ()
    closed = {key, *(key_of(store.scene.lanes.lanes[lane]) for lane in lanes)}
    still_opened = [known for known in opened if known not in closed]
    return still_opened if still_opened != opened else [*opened, key][-MOST_OPENED:]
