"""The timeline's plot: an image under axes, the few spans drawn as shapes, marks, and a note."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tracelens.lod import raster
from tracelens.lod.lanes import LABELS, get_label
from tracelens.lod.query import Bars, Picture
from tracelens_dashboard import text
from tracelens_dashboard import theme as themes
from tracelens_dashboard.figures import drawing
from tracelens_dashboard.figures.drawing import figure
from tracelens_dashboard.figures.timeline import overlays, tracks
from tracelens_dashboard.figures.timeline.frame import (
    CLOSED,
    LEFT_PX,
    NARROW,
    NS_PER_SECOND,
    OPEN,
    RIGHT_PX,
    band_label,
    cut_name,
    track_label,
)

if TYPE_CHECKING:
    import polars as pl
    from plotly import graph_objects as go

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
PLAIN_AXIS: Final = {"showgrid": False, "zeroline": False, "automargin": False}
PARTS_WITH_TRACKS: Final = ("", "receive")  # parts of processes: tracks are shown below these
LEVELS: Final = {
    "residuals": "Steps are narrow here: colour is a rank's residual against its peers in compute time. "
    "Zoom in to see what it did.",
    "dominant": "Each pixel shows what took most of its time.",
    "sampled": "Each pixel shows the span at its middle.",
    "spans": "Every span is drawn; hover or click one.",
}


def draw(frame: Frame, picture: Picture, theme: Theme) -> go.Figure:
    """Draw the whole timeline; `picture` holds the pixels and spans of `frame`."""
    changing = draw_changing(frame, picture, theme)
    plot = figure(
        theme,
        height=height_px(frame),
        margin={"l": LEFT_PX, "r": RIGHT_PX, "t": top_px(frame), "b": BOTTOM_PX},
        images=changing["images"],
        shapes=changing["shapes"],
        annotations=changing["annotations"],
        uniformtext={"mode": "hide", "minsize": 10},
        barmode="overlay",
        bargap=0,
        dragmode="pan",  # while Shift is held, assets/timeline.js makes it "select"
        selectdirection="any",  # a level drag marks time in all rows, another one some rows
        newselection={
            "mode": "immediate",
            "line": {"color": theme.text_colour, "dash": "dot", "width": 1},
        },
        hovermode="closest",
        hoveranywhere=True,
        clickanywhere=True,
        uirevision=f"{frame.visible_window.start_ns}-{frame.visible_window.end_ns}",
        xaxis=_time_axis(frame),
        xaxis2=_step_axis(frame, theme, changing["ticks"]),
        yaxis=_row_axis(frame, theme),
    )
    plot.add_traces(changing["data"])
    return plot


def height_px(frame: Frame) -> int:
    """Return the figure's height: a pixel of the plan is a pixel on the screen."""
    return frame.row_plan.bottom_px + top_px(frame) + BOTTOM_PX


def top_px(frame: Frame) -> int:
    """Return the pixels of the figure above the first row: there are steps and notes."""
    return TOP_PX + (overlays.NOTE_PX if frame.notes else 0)


def draw_changing(frame: Frame, picture: Picture, theme: Theme) -> dict[str, Any]:
    """Draw what panning, zooming and selecting change: images, traces, marks, ticks of steps."""
    frames_and_pictures = [(frame, picture)]
    frames_and_pictures += [
        (frame.frame_of_process(process), process_picture)
        for process, process_picture in zip(
            frame.opened_processes, picture.opened_pictures, strict=True
        )
    ]
    return {
        "images": [_image(*pair, theme) for pair in frames_and_pictures],
        "data": [
            _anchor(),
            *(bar for pair in frames_and_pictures for bar in span_bars(*pair, theme)),
            *(
                line
                for process, (process_frame, _) in zip(
                    frame.opened_processes, frames_and_pictures[1:], strict=True
                )
                for line in tracks.counter_lines(process_frame, process, theme)
            ),
            *overlays.arrival_marks(frame, theme),
        ],
        "shapes": [
            *(tracks.shade_ground(process, theme) for process in frame.opened_processes),
            *tracks.outline_selected(frame, theme),
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
        "ticks": step_ticks(frame.step_windows, picture, frame.visible_window),
    }


def step_ticks(
    step_windows: pl.DataFrame, picture: Picture, visible: Window
) -> list[tuple[int, int]]:
    """Choose the steps to name, (step, start in ns): round numbers, not too many in view.

    `step_windows` has one row per step: step, start_ns, end_ns. Steps left and right of the view are
    named, too, as far as pixels are drawn.
    """
    starts_ns, steps = step_windows["start_ns"].to_numpy(), step_windows["step"].to_numpy()
    first_visible, end_visible = np.searchsorted(starts_ns, [visible.start_ns, visible.end_ns])
    stride = round_stride(int(end_visible - first_visible))
    drawn = slice(*np.searchsorted(starts_ns, [picture.grid.start_ns, picture.grid.end_ns]))
    drawn_steps = zip(steps[drawn].tolist(), starts_ns[drawn].tolist(), strict=True)
    round_steps = [(step, start_ns) for step, start_ns in drawn_steps if step % stride == 0]
    return _space_ticks(round_steps, TICK_PX * picture.grid.column_ns)


def _space_ticks(ticks: list[tuple[int, int]], min_distance_ns: float) -> list[tuple[int, int]]:
    """Leave out ticks, (step, start in ns), that begin too soon after the one before."""
    spaced = ticks[:1]
    for step, start_ns in ticks[1:]:
        if start_ns - spaced[-1][1] >= min_distance_ns:
            spaced.append((step, start_ns))
    return spaced


def round_stride(step_count: int) -> int:
    """Return the distance of ticks, 1, 2, 5, 10, 20, ... steps, that leaves few enough ticks."""
    strides = (digit * 10**power for power in range(19) for digit in (1, 2, 5))
    return next(stride for stride in strides if step_count <= stride * MOST_STEP_TICKS)


def tick_texts(frame: Frame, ticks: list[tuple[int, int]]) -> dict[str, list[Any]]:
    """Return the texts and positions of the steps' ticks, (step, start in ns)."""
    return {
        "tickvals": [frame.seconds_since_start(start_ns) for _, start_ns in ticks],
        "ticktext": [str(step) for step, _ in ticks],
    }


def _image(frame: Frame, picture: Picture, theme: Theme) -> dict[str, Any]:
    """Return the picture's pixels as an image on axes of seconds and of rows in pixels."""
    png = raster.encode_png(picture.palette_pixels, themes.palette(theme.scheme))
    grid = picture.grid
    return {
        "source": "data:image/png;base64," + base64.b64encode(png).decode(),
        "xref": "x",
        "yref": "y",
        "x": frame.seconds_since_start(grid.start_ns),
        "y": frame.row_plan.top_px,
        "sizex": grid.column_count * grid.column_ns / NS_PER_SECOND,
        "sizey": frame.row_plan.bottom_px - frame.row_plan.top_px,
        "xanchor": "left",
        "yanchor": "top",
        "sizing": "stretch",
        "layer": "below",
    }


def _anchor() -> dict[str, Any]:
    """Return an invisible trace: the axis of the steps is drawn only if something is on it."""
    hidden = {"x": [None], "y": [None], "hoverinfo": "skip", "showlegend": False}
    return {"type": "scatter", "xaxis": "x2"} | hidden


def _time_axis(frame: Frame) -> dict[str, Any]:
    visible = frame.visible_window
    return {
        "range": list(map(frame.seconds_since_start, (visible.start_ns, visible.end_ns))),
        "minallowed": 0,
        "maxallowed": frame.scene.run_window.width_ns / NS_PER_SECOND,
        "ticksuffix": " s",
        "title": {"text": "time since the start", "standoff": 8},
        "nticks": max(3, min(9, frame.plot_width_px // TIME_TICK_PX)),
        "tickangle": 0,
    } | PLAIN_AXIS


def _step_axis(frame: Frame, theme: Theme, ticks: list[tuple[int, int]]) -> dict[str, Any]:
    return {
        "overlaying": "x",
        "matches": "x",
        "side": "top",
        **tick_texts(frame, ticks),
        "ticks": "outside",
        "ticklen": 4,
        "tickcolor": theme.quiet_colour,
        "gridcolor": theme.grid_colour,
        "tickangle": 0,
    } | PLAIN_AXIS


def _row_axis(frame: Frame, theme: Theme) -> dict[str, Any]:
    """Return the axis of rows, in pixels downwards, with their labels."""
    ticks = _row_labels(frame)
    return {
        "range": [frame.row_plan.bottom_px, 0],
        "fixedrange": True,
        "tickvals": [y for y, _ in ticks],
        "ticktext": [label + NARROW for _, label in ticks],
        "tickfont": {"color": theme.secondary_colour, "size": 11},
    } | PLAIN_AXIS


def _row_labels(frame: Frame) -> list[tuple[float, str]]:
    """Return (height in px, label) of rows, pinned ones in bold, and of opened tracks."""
    labels = [
        (band.middle_px, f"{opening_sign(frame, band)} {_row_label(frame, band)}")
        for band in labelled_bands(frame)
    ]
    for process in frame.opened_processes:
        track_lanes = process.track_group.scene.span_lanes.owners
        labels += [
            (band.middle_px, name)
            for band in process.row_plan.bands
            if (name := track_label(track_lanes[band.lane_indices[0]]))
        ]
    return labels


def _row_label(frame: Frame, band: Band) -> str:
    name = text.escape_name(cut_name(band.group.name)) if band.group else band_label(frame, band)
    return f"<b>{name}</b>" if band.section == "pinned" else name


def labelled_bands(frame: Frame) -> list[Band]:
    """Return the rows (strips of pixels) that get a label: those with room, pinned or open ones."""
    bands, free_from_px = [], 0.0
    for band in frame.row_plan.bands:
        if band.section == "pinned" or band.middle_px >= free_from_px or _is_open(frame, band):
            bands.append(band)
            if band.section != "pinned":
                least_px = 1 if band.height_px >= LABEL_EVERY_PX // 2 else LABEL_EVERY_PX
                free_from_px = band.middle_px + least_px
    return bands


def opening_sign(frame: Frame, band: Band) -> str:
    """Return the sign of a row that can be opened, for open or closed; empty for other rows."""
    lane = frame.scene.span_lanes.owners[band.lane_indices[0]]
    if band.group:
        return OPEN if band.group.is_opened else CLOSED
    if lane.role == "device" or lane.track_name not in PARTS_WITH_TRACKS:
        return ""
    return OPEN if _is_open(frame, band) else CLOSED


def _is_open(frame: Frame, band: Band) -> bool:
    if band.group:
        return band.group.is_opened
    return (
        len(band.lane_indices) == 1 and band.lane_indices[0] in frame.row_plan.track_top_px_by_lane
    )


def span_bars(frame: Frame, picture: Picture, theme: Theme) -> list[dict[str, Any]]:
    """Return a trace of bars for each category that has spans to draw."""
    # `picture.bars` are indexes of spans in the scene and of their bands; None: too many to draw.
    if picture.bars is None:
        return []
    category_codes = frame.scene.span_lanes.palette_codes[picture.bars.item_indices]
    traces = []
    for code in range(1, len(LABELS) + 1):
        indexes = np.flatnonzero(category_codes == code)
        if len(indexes):
            bars = Bars(picture.bars.item_indices[indexes], picture.bars.band_indices[indexes])
            traces.append(_category_bars(frame, picture, get_label(code), bars, theme))
    return traces


def _category_bars(
    frame: Frame, picture: Picture, category: str, bars: Bars, theme: Theme
) -> dict[str, Any]:
    """Return the spans of one category as bars; `bars` are their indexes in scene and plan."""
    # A bar has its name on it where it is wide enough.
    lanes, category_name = frame.scene.span_lanes, themes.name_of(category)
    bands_of_spans = [frame.row_plan.bands[band] for band in bars.band_indices.tolist()]
    starts_ns = lanes.starts_ns[bars.item_indices]
    lengths_ns = (lanes.ends_ns[bars.item_indices] - starts_ns).tolist()
    names = [
        text.escape_name(lanes.item_names[name])
        for name in lanes.name_indices[bars.item_indices].tolist()
    ]
    steps = lanes.step_numbers[bars.item_indices].tolist()
    hover_texts = [
        [band_label(frame, band), name or category_name, step, text.duration(length_ns)]
        for band, name, step, length_ns in zip(
            bands_of_spans, names, steps, lengths_ns, strict=True
        )
    ]
    return {
        "type": "bar",
        "orientation": "h",
        "name": category_name,
        "base": [frame.seconds_since_start(start_ns) for start_ns in starts_ns.tolist()],
        "x": [length_ns / NS_PER_SECOND for length_ns in lengths_ns],
        "y": [band.middle_px for band in bands_of_spans],
        "width": [band.height_px for band in bands_of_spans],
        "marker": {
            "color": theme.colour_by_category[category],
            "line": {
                "width": EDGE_PX if bands_of_spans[0].section == "tracks" else 0,
                "color": theme.surface_colour,
            },
        },
        "customdata": hover_texts,
        "text": [
            name if length_ns / picture.grid.column_ns > LETTER_PX * len(name) + 10 else ""
            for name, length_ns in zip(names, lengths_ns, strict=True)
        ],
        "unselected": {"marker": {"opacity": 1}},
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textfont": {"size": 11},
        "textangle": 0,
        "hovertemplate": (
            "<b>%{customdata[1]}</b><br>%{customdata[0]}, step %{customdata[2]}<br>"
            f"%{{customdata[3]}}, {category_name}<extra></extra>"
        ),
    }


def mark_labels(frame: Frame, theme: Theme) -> list[dict[str, Any]]:
    """Return all words and signs next to the rows."""
    return [_step_title(theme), *_pointers(frame, theme), *_mark_label(frame, theme)]


def _pointers(frame: Frame, theme: Theme) -> list[dict[str, Any]]:
    """Point at the rows of flagged ranks, which may be one pixel high."""
    lanes = frame.scene.span_lanes.owners
    edge = {"x": 0, "xref": "paper", "xanchor": "right", "xshift": 3}
    return [
        drawing.label("▶", theme.loss_colour, edge, size=9, y=band.middle_px, yref="y")
        for band in frame.row_plan.select_section("workers")
        if any(lanes[lane].rank in frame.flagged_ranks for lane in band.lane_indices)
    ]


def mark_edges(frame: Frame, theme: Theme) -> list[dict[str, Any]]:
    """Return lines at both ends of the steps that a finding is about."""
    if frame.marked_window is None:
        return []
    line = {"color": theme.loss_colour, "width": 1.5, "dash": "dot"}
    ends_ns = (frame.marked_window.start_ns, frame.marked_window.end_ns)
    return [drawing.vertical_line(frame.seconds_since_start(end_ns), line) for end_ns in ends_ns]


def _mark_label(frame: Frame, theme: Theme) -> list[dict[str, Any]]:
    """Return the label at the begin of the window that a finding marks; empty without one."""
    if frame.marked_window is None:
        return []
    x = frame.seconds_since_start(frame.marked_window.start_ns)
    position = {"x": x, "xanchor": "left", "y": 0, "yref": "paper", "yanchor": "top"}
    return [
        drawing.label(f"finding: {frame.marked_label}", theme.loss_colour, position, yshift=-26)
    ]


def _step_title(theme: Theme) -> dict[str, Any]:
    position = {"x": 0, "y": 1, "xref": "paper", "yref": "paper", "yshift": 3}
    anchor = {"xanchor": "right", "yanchor": "bottom"}
    font = {"font": {"color": theme.secondary_colour}}  # of the axes' size
    return drawing.label("step" + NARROW, theme.secondary_colour, position, anchor, font)


def describe_picture(frame: Frame, picture: Picture) -> str:
    """Describe what is drawn, and what is not, in some sentences."""
    most_ranks = (
        max(len(band.lane_indices) for band in frame.row_plan.bands) if frame.row_plan.bands else 1
    )
    grouped_text = f" A row shows the worst of up to {most_ranks} ranks." if most_ranks > 1 else ""
    hidden_text = (
        f" {text.count(picture.hidden_count, 'shorter span is', 'shorter spans are')} not drawn."
        if picture.hidden_count
        else ""
    )
    overlay_text = overlays.path_sentence(frame, picture) + tracks.describe_tracks(frame, picture)
    spans_text = f"{text.count(picture.span_count, 'span')} in view"
    return f"{spans_text}. {LEVELS[picture.detail_level]}{grouped_text}{hidden_text}{overlay_text}"
