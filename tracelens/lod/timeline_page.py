"""A trace as a picture in a notebook: a row a rank, stream and shard, and what took most of each pixel.

Making it goes through all events, as an analysis does, so a large run is described in words only.
"""

from __future__ import annotations

import base64
from html import escape
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting import phases
from tracelens.lod import pyramid, raster, run_data
from tracelens.lod.colours import NAMES, PALE, STRONG, list_palette
from tracelens.lod.lanes import get_label, join_lanes
from tracelens.lod.viewport import plan_rows
from tracelens.model.fmt import duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.arrays import Bytes
    from tracelens.lod.lanes import Lane, Lanes
    from tracelens.lod.viewport import Band, Plan, Window
    from tracelens.model.trace import Trace

__all__ = ["MOST_EVENTS", "render"]

MOST_EVENTS: Final = 2_000_000  # a few seconds
_COLUMNS: Final = 960
_LEAST_PX: Final = 11  # of a row with a label
_SURFACE: Final = "#FFFFFF"
_COLOURS: Final = STRONG | PALE


def render(trace: Trace, max_events: int = MOST_EVENTS) -> str:
    """Return the picture, its rows named, with a legend and the time that it is about."""
    heading = f"<p><b>{escape(repr(trace)[len('Trace(') : -1])}</b></p>"
    if trace.steps.is_empty():
        return _render_section([heading, "<p>No step is known, so there is no timeline.</p>"])
    if int(trace.processes["events"].sum()) > max_events:
        return _render_section(
            [heading, "<p>Too many events for a picture here: tracelens serve shows them.</p>"]
        )
    run_window = run_data.find_run_window(trace)
    lanes = _make_lanes(trace)
    plan_of_rows = plan_rows(lanes)
    palette_indices = _paint(lanes, run_window, plan_of_rows)
    png = raster.encode_png(palette_indices, list_palette(_COLOURS, _SURFACE), small=True)
    return _render_section(
        [
            heading,
            _render_picture(png, lanes, plan_of_rows),
            _render_axis(run_window),
            _render_legend(palette_indices),
        ]
    )


def _make_lanes(trace: Trace) -> Lanes:
    """Make the lanes of workers, streams and shards."""
    worker_lanes = run_data.make_worker_lanes(trace, phases.run(trace))
    return join_lanes([*worker_lanes, *run_data.make_other_lanes(trace)])


def _paint(lanes: Lanes, run_window: Window, layout: Plan) -> Bytes:
    """Return palette indexes, [pixel row, pixel column]; of many lanes in a band, the first."""
    bins = pyramid.Bins.from_window(
        run_window.start_ns, run_window.end_ns, max(1, run_window.width_ns // _COLUMNS)
    )
    drawn_lanes = [band.lane_indices[0] for band in layout.bands]
    lane_rows = [pyramid.build_lane_rows(lanes, lane, [bins])[0] for lane in drawn_lanes]
    return raster.stretch_rows(layout, np.array(lane_rows, np.uint8), range(len(drawn_lanes)))


def _render_picture(png: bytes, lanes: Lanes, layout: Plan) -> str:
    """Return the picture with the labels of its bands to its left, as HTML."""
    labels = "".join(_list_labels(lanes, layout))
    png_base64 = base64.b64encode(png).decode()
    return (
        '<div style="display:flex">'
        f'<div style="position:relative;width:90px;height:{layout.bottom_px}px">{labels}</div>'
        f'<img alt="timeline" src="data:image/png;base64,{png_base64}" style="width:{_COLUMNS}px;'
        f'height:{layout.bottom_px}px;max-width:none;margin:0;image-rendering:pixelated"></div>'
    )


def _list_labels(lanes: Lanes, layout: Plan) -> Iterator[str]:
    """Yield the label of each band, as HTML, as far as they do not overlap."""
    free_px = 0.0
    for band in layout.bands:
        if band.middle_px - _LEAST_PX / 2 >= free_px:
            free_px = band.middle_px + _LEAST_PX / 2
            name = escape(_name_lane(lanes.owners[band.lane_indices[0]], band))
            style = f"position:absolute;top:{band.middle_px - 8:.0f}px;right:8px;font-size:11px"
            yield f'<span style="{style};line-height:16px">{name}</span>'


def _name_lane(lane: Lane, band: Band) -> str:
    if band.section == "shards":
        return f"PS {lane.rank}"
    return f"{lane.rank} {lane.track_name}"[:14] if lane.track_name else f"rank {lane.rank}"


def _render_axis(run_window: Window) -> str:
    return (
        f'<div style="margin-left:90px;width:{_COLUMNS}px;display:flex;justify-content:space-between;'
        f'font-size:11px"><span>0</span><span>{duration(run_window.width_ns)}</span></div>'
    )


def _render_legend(pixels: Bytes) -> str:
    """Return the legend, as HTML, of the categories that occur among palette indexes."""
    labels = dict.fromkeys(get_label(int(code)) for code in np.unique(pixels) if code)
    items = "".join(
        f'<span style="margin-right:14px"><span style="display:inline-block;width:10px;height:10px;'
        f'background:{_COLOURS[label]};border:1px solid #ccc"></span> {escape(NAMES[label])}</span>'
        for label in labels
    )
    return f'<div style="margin-left:90px;font-size:11px">{items}</div>'


def _render_section(parts: list[str]) -> str:
    style = "color:#1f2328;background:#fff;font:13px/1.4 system-ui,sans-serif;padding:8px"
    return f'<div style="{style};overflow-x:auto">{"".join(parts)}</div>'
