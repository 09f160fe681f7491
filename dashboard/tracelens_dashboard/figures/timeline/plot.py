"""The timeline's plot: an image under axes, the few spans drawn as shapes, marks, and a note."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tracelens.lod import raster
from tracelens.lod.lanes import LABELS, label_of
from tracelens.lod.query import Bars
from tracelens_dashboard import text
from tracelens_dashboard import theme as themes
from tracelens_dashboard.figures.drawing import figure
from tracelens_dashboard.figures.timeline import overlays, tracks
from tracelens_dashboard.figures.timeline.frame import (
    CLOSED,
    LEFT_PX,
    NARROW,
    OPEN,
    RIGHT_PX,
    SECOND,
    fitting,
    lane_label,
    track_label,
)

if TYPE_CHECKING:
    import polars as pl
    from plotly import graph_objects as go

    from tracelens.lod.query import Picture
    from tracelens.lod.viewport import Band, Window
    from tracelens_dashboard.figures.timeline.frame import Frame
    from tracelens_dashboard.theme import Theme


TOP_PX: Final = 30
BOTTOM_PX: Final = 44
LABEL_EVERY_PX: Final = 26
MOST_STEP_TICKS: Final = 12
TICK_PX: Final = 28  # from one to the next: room for three digits
TIME_TICK_PX: Final = 70
LETTER_PX: Final = 7
EDGE_PX: Final = 0.5  # between spans of a track: neighbours of one kind are distinguished
OPENING: Final = ("", "receive")  # parts of processes: tracks are shown below these
LEVELS: Final = {
    "residuals": "Steps are narrow here: colour is a rank's residual against its peers in compute time. "
    "Zoom in to see what it did.",
    "dominant": "Each pixel shows what took most of its time.",
    "sampled": "Each pixel shows the span at its middle.",
    "spans": "Every span is drawn; hover or click one.",
}


def draw(frame: Frame, picture: Picture, theme: Theme) -> go.Figure:
    """Draw everything anew."""
    content = changing(frame, picture, theme)
    drawn = figure(
        theme,
        height=height(frame),
        margin={"l": LEFT_PX, "r": RIGHT_PX, "t": top(frame), "b": BOTTOM_PX},
        images=content["images"],
        shapes=content["shapes"],
        annotations=content["annotations"],
        uniformtext={"mode": "hide", "minsize": 10},
        barmode="overlay",
        bargap=0,
        dragmode="pan",  # while Shift is held, assets/timeline.js makes it "select"
        selectdirection="any",  # a level drag marks time in all rows, another one some rows
        newselection={
            "mode": "immediate",
            "line": {"color": theme.text, "dash": "dot", "width": 1},
        },
        hovermode="closest",
        hoveranywhere=True,
        clickanywhere=True,
        uirevision=f"{frame.seen.start_ns}-{frame.seen.end_ns}",
        xaxis=_time_axis(frame),
        xaxis2=_step_axis(frame, theme, content["ticks"]),
        yaxis=_row_axis(frame, theme),
    )
    drawn.add_traces(content["data"])
    return drawn


def height(frame: Frame) -> int:
    """Return the figure's height: a pixel of the plan is a pixel on the screen."""
    return frame.plan.height + top(frame) + BOTTOM_PX


def top(frame: Frame) -> int:
    """Count the pixels of the figure above the first row: there are steps and notes."""
    return TOP_PX + (overlays.NOTE_PX if frame.notes else 0)


def changing(frame: Frame, picture: Picture, theme: Theme) -> dict[str, Any]:
    """Draw what panning, zooming and selecting change: images, traces, marks, ticks of steps."""
    layers = [(frame, picture)]
    layers += [
        (frame.frame_of(process), pixels)
        for process, pixels in zip(frame.opened, picture.inside, strict=True)
    ]
    return {
        "images": [_image(*layer, theme) for layer in layers],
        "data": [
            _anchor(),
            *(bar for layer in layers for bar in span_bars(*layer, theme)),
            *(
                line
                for process, (process_frame, _) in zip(frame.opened, layers[1:], strict=True)
                for line in tracks.counter_lines(process_frame, process, theme)
            ),
            *overlays.arrival_marks(frame, theme),
        ],
        "shapes": [
            *(tracks.ground(process, theme) for process in frame.opened),
            *tracks.outlines(frame, theme),
            *overlays.note_shapes(frame, theme),
            *mark_edges(frame, theme),
            *overlays.path_shapes(frame, picture, theme),
            *overlays.arrival_line(frame, theme),
        ],
        "annotations": [
            *mark_labels(frame, theme),
            *overlays.note_labels(frame, theme),
            *overlays.arrival_label(frame, theme),
        ],
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
    return _space_ticks(named, TICK_PX * picture.grid.step_ns)


def _space_ticks(ticks: list[tuple[int, int]], least_ns: float) -> list[tuple[int, int]]:
    """Leave out what would be written over the one before: steps that are shorter than others."""
    spaced = ticks[:1]
    for step, start in ticks[1:]:
        if start - spaced[-1][1] >= least_ns:
            spaced.append((step, start))
    return spaced


def round_stride(number: int) -> int:
    """Return the distance of ticks, 1, 2, 5, 10, 20, ... steps, that leaves few enough ticks."""
    strides = (digit * 10**power for power in range(19) for digit in (1, 2, 5))
    return next(stride for stride in strides if number <= stride * MOST_STEP_TICKS)


def tick_texts(frame: Frame, ticks: list[tuple[int, int]]) -> dict[str, list[Any]]:
    """Return the texts and bands_of_spans of the steps' ticks."""
    return {
        "tickvals": [frame.seconds(start) for _, start in ticks],
        "ticktext": [str(step) for step, _ in ticks],
    }


def _image(frame: Frame, picture: Picture, theme: Theme) -> dict[str, Any]:
    data = raster.encode_png(picture.pixels, themes.palette(theme.name))
    grid = picture.grid
    return {
        "source": "data:image/png;base64," + base64.b64encode(data).decode(),
        "xref": "x",
        "yref": "y",
        "x": frame.seconds(grid.start_ns),
        "y": frame.plan.top,
        "sizex": grid.columns * grid.step_ns / SECOND,
        "sizey": frame.plan.height - frame.plan.top,
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
    return {
        "range": [frame.seconds(frame.seen.start_ns), frame.seconds(frame.seen.end_ns)],
        "minallowed": 0,
        "maxallowed": frame.scene.whole.width_ns / SECOND,
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
    """Label pinned rows in bold, the others as closely as they can be read, and tracks below theirs."""
    labels = [
        (band.middle, f"{sign(frame, band)} {_row_label(frame, band)}") for band in labelled(frame)
    ]
    for process in frame.opened:
        lanes = process.group.scene.lanes.lanes
        names = [(band.middle, track_label(lanes[band.lanes[0]])) for band in process.plan.bands]
        labels += [(y, name) for y, name in names if name]
    return labels


def _row_label(frame: Frame, band: Band) -> str:
    name = text.safe(fitting(band.group.name)) if band.group else lane_label(frame, band)
    return f"<b>{name}</b>" if band.section == "pinned" else name


def labelled(frame: Frame) -> list[Band]:
    """Return the rows that have room for a label."""
    bands, free = [], 0.0
    for band in frame.plan.bands:
        if band.section == "pinned" or band.middle >= free or _is_open(frame, band):
            bands.append(band)
            if band.section != "pinned":
                least_px = 1 if band.height >= LABEL_EVERY_PX // 2 else LABEL_EVERY_PX
                free = band.middle + least_px
    return bands


def sign(frame: Frame, band: Band) -> str:
    """Return the sign of a row that opens; nothing for other rows, such as those of streams."""
    lane = frame.scene.lanes.lanes[band.lanes[0]]
    if band.group:
        return OPEN if band.group.opened else CLOSED
    if lane.role == "device" or lane.part not in OPENING:
        return ""
    return OPEN if _is_open(frame, band) else CLOSED


def _is_open(frame: Frame, band: Band) -> bool:
    if band.group:
        return band.group.opened
    return len(band.lanes) == 1 and band.lanes[0] in frame.plan.slots


def span_bars(frame: Frame, picture: Picture, theme: Theme) -> list[dict[str, Any]]:
    """Return a trace for each category that has spans to draw."""
    if picture.bars is None:
        return []
    lanes = frame.scene.lanes
    codes = lanes.codes[picture.bars.items]
    traces = []
    for code in range(1, len(LABELS) + 1):
        chosen = np.flatnonzero(codes == code)
        if len(chosen):
            bars = Bars(picture.bars.items[chosen], picture.bars.bands[chosen])
            traces.append(_category_bars(frame, picture, label_of(code), bars, theme))
    return traces


def _category_bars(
    frame: Frame, picture: Picture, label: str, bars: Bars, theme: Theme
) -> dict[str, Any]:
    lanes = frame.scene.lanes
    bands_of_spans = [frame.plan.bands[band] for band in bars.bands.tolist()]
    starts = lanes.starts[bars.items]
    lengths = (lanes.ends[bars.items] - starts).tolist()
    names = [text.safe(lanes.words[name]) for name in lanes.names[bars.items].tolist()]
    steps = lanes.steps[bars.items].tolist()
    details = [
        [lane_label(frame, band), name or themes.name_of(label), step, text.duration(length)]
        for band, name, step, length in zip(bands_of_spans, names, steps, lengths, strict=True)
    ]
    return {
        "type": "bar",
        "orientation": "h",
        "name": themes.name_of(label),
        "base": [frame.seconds(start) for start in starts.tolist()],
        "x": [length / SECOND for length in lengths],
        "y": [band.middle for band in bands_of_spans],
        "width": [band.height for band in bands_of_spans],
        "marker": {
            "color": theme.categories[label],
            "line": {
                "width": EDGE_PX if bands_of_spans[0].section == "tracks" else 0,
                "color": theme.surface,
            },
        },
        "customdata": details,
        "text": [
            name if length / picture.grid.step_ns > LETTER_PX * len(name) + 10 else ""
            for name, length in zip(names, lengths, strict=True)
        ],
        "unselected": {"marker": {"opacity": 1}},
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textfont": {"size": 11},
        "textangle": 0,
        "hovertemplate": (
            "<b>%{customdata[1]}</b><br>%{customdata[0]}, step %{customdata[2]}<br>"
            f"%{{customdata[3]}}, {themes.name_of(label)}<extra></extra>"
        ),
    }


def mark_labels(frame: Frame, theme: Theme) -> list[dict[str, Any]]:
    """Return all words and signs next to the rows."""
    return [_step_title(theme), *_pointers(frame, theme), *_mark_label(frame, theme)]


def _pointers(frame: Frame, theme: Theme) -> list[dict[str, Any]]:
    """Point at the rows of flagged ranks, which may be one pixel high."""
    lanes = frame.scene.lanes.lanes
    return [
        {
            "x": 0,
            "xref": "paper",
            "xanchor": "right",
            "y": band.middle,
            "yref": "y",
            "text": "▶",
            "showarrow": False,
            "font": {"size": 9, "color": theme.loss},
            "xshift": 3,
        }
        for band in frame.plan.section("workers")
        if any(lanes[lane].rank in frame.flagged for lane in band.lanes)
    ]


def mark_edges(frame: Frame, theme: Theme) -> list[dict[str, Any]]:
    """Frame the steps that a finding speaks of."""
    if frame.marked is None:
        return []
    line = {"color": theme.loss, "width": 1.5, "dash": "dot"}
    ends = (frame.marked.start_ns, frame.marked.end_ns)
    return [overlays.vertical_line(frame.seconds(end), line) for end in ends]


def _mark_label(frame: Frame, theme: Theme) -> list[dict[str, Any]]:
    if frame.marked is None:
        return []
    return [
        {
            "x": frame.seconds(frame.marked.start_ns),
            "xanchor": "left",
            "y": 0,
            "yref": "paper",
            "yanchor": "top",
            "yshift": -26,
            "text": f"finding: {frame.marked_label}",
            "showarrow": False,
            "font": {"size": 11, "color": theme.loss},
        }
    ]


def _step_title(theme: Theme) -> dict[str, Any]:
    return {
        "text": "step" + NARROW,
        "x": 0,
        "xref": "paper",
        "xanchor": "right",
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "yshift": 3,
        "showarrow": False,
        "font": {"color": theme.secondary},
    }


def note(frame: Frame, picture: Picture) -> str:
    """Describe what is drawn, and what is not."""
    most = max(len(band.lanes) for band in frame.plan.bands) if frame.plan.bands else 1
    grouped = f" A row shows the worst of up to {most} ranks." if most > 1 else ""
    hidden = (
        f" {text.count(picture.hidden, 'shorter span is', 'shorter spans are')} not drawn."
        if picture.hidden
        else ""
    )
    path = overlays.path_sentence(frame, picture) + tracks.sentence(frame, picture)
    return f"{text.count(picture.spans, 'span')} in view. {LEVELS[picture.level]}{grouped}{hidden}{path}"
