"""The timeline: an image under axes, and over it the few spans that are drawn as shapes."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tracelens.lod import png
from tracelens_dashboard import theme as themes
from tracelens_dashboard.figures import arrivals, marks, path_line, spans
from tracelens_dashboard.figures.drawing import figure
from tracelens_dashboard.figures.frame import lane_label
from tracelens_dashboard.figures.strip import LEFT_PX, NARROW, RIGHT_PX, SECOND

if TYPE_CHECKING:
    import polars as pl
    from plotly import graph_objects as go

    from tracelens.lod.query import Picture
    from tracelens.lod.rows import Plan
    from tracelens.lod.window import Window
    from tracelens_dashboard.figures.frame import Frame
    from tracelens_dashboard.theme import Theme

TOP_PX: Final = 30
BOTTOM_PX: Final = 44
LABEL_EVERY_PX: Final = 26
MOST_STEP_TICKS: Final = 12
TICK_PX: Final = 28  # from one to the next: room for three digits
TIME_TICK_PX: Final = 70


def draw(frame: Frame, picture: Picture, theme: Theme) -> go.Figure:
    """Draw everything anew."""
    parts = changing(frame, picture, theme)
    drawn = figure(
        theme,
        height=height(frame.plan),
        margin={"l": LEFT_PX, "r": RIGHT_PX, "t": TOP_PX, "b": BOTTOM_PX},
        images=parts["images"],
        shapes=parts["shapes"],
        annotations=parts["annotations"],
        uniformtext={"mode": "hide", "minsize": 10},
        barmode="overlay",
        bargap=0,
        dragmode="pan",  # while Shift is held, assets/timeline.js makes it "select"
        selectdirection="h",
        newselection={
            "mode": "immediate",
            "line": {"color": theme.text, "dash": "dot", "width": 1},
        },
        hovermode="closest",
        hoveranywhere=True,
        clickanywhere=True,
        uirevision=f"{frame.seen.start_ns}-{frame.seen.end_ns}",
        xaxis=_time_axis(frame),
        xaxis2=_step_axis(frame, theme, parts["ticks"]),
        yaxis=_row_axis(frame, theme),
    )
    drawn.add_traces(parts["data"])
    return drawn


def height(plan: Plan) -> int:
    """Return the figure's height: one pixel of the plan is one on the screen."""
    return plan.height + TOP_PX + BOTTOM_PX


def changing(frame: Frame, picture: Picture, theme: Theme) -> dict[str, Any]:
    """Return what panning, zooming and selecting change: images, traces, marks, ticks of the steps."""
    return {
        "images": [_image(frame, picture, theme)],
        "data": [
            _anchor(),
            *spans.bars(frame, picture, theme),
            *arrivals.traces(frame, theme),
        ],
        "shapes": [
            *marks.edges(frame, theme),
            *path_line.shapes(frame, picture, theme),
            *arrivals.shapes(frame, theme),
        ],
        "annotations": [*marks.words(frame, theme), *arrivals.words(frame, theme)],
        "ticks": step_ticks(frame.windows, picture, frame.seen),
    }


def step_ticks(windows: pl.DataFrame, picture: Picture, seen: Window) -> list[tuple[int, int]]:
    """Choose (step, start in ns) of the steps to name: round numbers, not too many in view."""
    starts, steps = windows["start_ns"].to_numpy(), windows["step"].to_numpy()
    in_view = np.searchsorted(starts, [seen.start_ns, seen.end_ns])
    stride = round_stride(int(in_view[1] - in_view[0]))
    drawn = slice(*np.searchsorted(starts, [picture.grid.start_ns, picture.grid.end_ns]))
    pairs = zip(steps[drawn].tolist(), starts[drawn].tolist(), strict=True)
    named = [(step, start) for step, start in pairs if step % stride == 0]
    return _apart(named, TICK_PX * picture.grid.step_ns)


def _apart(ticks: list[tuple[int, int]], least_ns: float) -> list[tuple[int, int]]:
    """Leave out what would be written over the one before: steps that are shorter than others."""
    kept = ticks[:1]
    for step, start in ticks[1:]:
        if start - kept[-1][1] >= least_ns:
            kept.append((step, start))
    return kept


def round_stride(number: int) -> int:
    """Return 1, 2, 5, 10, 20, ... such that so many steps get few enough ticks."""
    strides = (digit * 10**power for power in range(19) for digit in (1, 2, 5))
    return next(stride for stride in strides if number <= stride * MOST_STEP_TICKS)


def tick_texts(frame: Frame, ticks: list[tuple[int, int]]) -> dict[str, list[Any]]:
    """Return the texts and places of the steps' ticks."""
    return {
        "tickvals": [frame.seconds(start) for _, start in ticks],
        "ticktext": [str(step) for step, _ in ticks],
    }


def _image(frame: Frame, picture: Picture, theme: Theme) -> dict[str, Any]:
    data = png.encode(picture.pixels, themes.palette(theme.name))
    grid = picture.grid
    return {
        "source": "data:image/png;base64," + base64.b64encode(data).decode(),
        "xref": "x",
        "yref": "y",
        "x": frame.seconds(grid.start_ns),
        "y": 0,
        "sizex": grid.columns * grid.step_ns / SECOND,
        "sizey": frame.plan.height,
        "xanchor": "left",
        "yanchor": "top",
        "sizing": "stretch",
        "layer": "below",
    }


def _anchor() -> dict[str, Any]:
    """Return an invisible trace: the axis of the steps is drawn only if something is on it."""
    return {
        "type": "scatter",
        "x": [None],
        "y": [None],
        "xaxis": "x2",
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _time_axis(frame: Frame) -> dict[str, Any]:
    whole = frame.scene.whole
    return {
        "range": [frame.seconds(frame.seen.start_ns), frame.seconds(frame.seen.end_ns)],
        "minallowed": 0,
        "maxallowed": whole.width_ns / SECOND,
        "ticksuffix": " s",
        "title": {"text": "time since the start", "standoff": 8},
        "showgrid": False,
        "zeroline": False,
        "automargin": False,
        "nticks": max(3, min(9, frame.columns // TIME_TICK_PX)),
        "tickangle": 0,
    }


def _step_axis(frame: Frame, theme: Theme, ticks: list[tuple[int, int]]) -> dict[str, Any]:
    return {
        "overlaying": "x",
        "matches": "x",
        "side": "top",
        **tick_texts(frame, ticks),
        "ticks": "outside",
        "ticklen": 4,
        "tickcolor": theme.quiet,
        "gridcolor": theme.grid,
        "showgrid": False,
        "zeroline": False,
        "automargin": False,
        "tickangle": 0,
    }


def _row_axis(frame: Frame, theme: Theme) -> dict[str, Any]:
    ticks = _row_labels(frame)
    return {
        "range": [frame.plan.height, 0],
        "fixedrange": True,
        "tickvals": [y for y, _ in ticks],
        "ticktext": [label + NARROW for _, label in ticks],
        "tickfont": {"color": theme.secondary, "size": 11},
        "showgrid": False,
        "zeroline": False,
        "automargin": False,
    }


def _row_labels(frame: Frame) -> list[tuple[float, str]]:
    """Label pinned rows in bold, the others as closely as they can be read."""
    labels, free = [], 0.0
    for band in frame.plan.bands:
        if band.section == "pinned":
            labels.append((band.middle, f"<b>{lane_label(frame, band)}</b>"))
        elif band.middle >= free:
            labels.append((band.middle, lane_label(frame, band)))
            free = band.middle + (LABEL_EVERY_PX if band.height < LABEL_EVERY_PX // 2 else 1)
    return labels
