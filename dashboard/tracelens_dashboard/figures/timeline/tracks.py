"""The tracks of opened processes: their ground, counters as lines, an outline of the selection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tracelens_dashboard import text
from tracelens_dashboard.figures.timeline.frame import Frame, OpenedProcess, band_label

if TYPE_CHECKING:
    from tracelens.arrays import Indices
    from tracelens.lod.query import Picture
    from tracelens.lod.tracks.group import Counter
    from tracelens_dashboard.theme import Theme

GROUND_OPACITY: Final = 0.05  # how much of the text's colour is in the ground of an opened process
OUTLINE_PX: Final = 2
MOST_POINTS: Final = 600  # of a counter's line
LABELS: Final = {True: "process is opened", False: "processes are opened"}


def shade_ground(process: OpenedProcess, theme: Theme) -> dict[str, Any]:
    """Shade the background of a process's tracks."""
    return {
        "type": "rect",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": process.row_plan.top_px,
        "y1": process.row_plan.bottom_px,
        "fillcolor": theme.text_colour,
        "opacity": GROUND_OPACITY,
        "line": {"width": 0},
        "layer": "below",
    }


def outline_selected(frame: Frame, theme: Theme) -> list[dict[str, Any]]:
    """Return a frame around the selected span, in each row that shows it."""
    return [
        {
            "type": "rect",
            "name": "selected",
            "x0": frame.seconds_since_start(span.start_ns),
            "x1": frame.seconds_since_start(span.end_ns),
            "y0": span.band.top_px - 1,
            "y1": span.band.top_px + span.band.height_px + 1,
            "line": {"color": theme.text_colour, "width": OUTLINE_PX},
            "fillcolor": "rgba(0,0,0,0)",
        }
        for span in frame.selected_spans
    ]


def counter_lines(frame: Frame, process: OpenedProcess, theme: Theme) -> list[dict[str, Any]]:
    """Return a line for each counter of a process, from zero to its largest reading in view."""
    return [
        _draw_counter(frame, process, track, counter, theme)
        for track, counter in process.track_group.counter_by_lane.items()
        if len(_select_readings(frame, counter))
    ]


def _draw_counter(
    frame: Frame, process: OpenedProcess, track_index: int, counter: Counter, theme: Theme
) -> dict[str, Any]:
    """Draw a counter of an opened process as a line in its track, from zero to its maximum."""
    band = process.row_plan.bands[track_index]
    reading_indexes = _select_readings(frame, counter)
    values = counter.values[reading_indexes]
    least, most = min(0.0, float(values.min())), max(float(values.max()), 0.0)
    height_shares = (values - least) / ((most - least) or 1.0)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": text.escape_name(counter.name),
        "x": [
            frame.seconds_since_start(at_ns) for at_ns in counter.times_ns[reading_indexes].tolist()
        ],
        "y": (band.top_px + band.height_px * (1 - height_shares)).tolist(),
        "line": {"width": 1.5, "color": theme.accent_colour, "shape": "hv"},
        "customdata": values.tolist(),
        "hovertemplate": f"{band_label(frame, band)}: %{{customdata:,.6g}}<extra></extra>",
        "showlegend": False,
    }


def _select_readings(frame: Frame, counter: Counter) -> Indices:
    """Return the indexes of the readings to draw: of many neighbours the least and greatest."""
    # The readings beside the view are drawn, too, as dragging shows them, and the last one before.
    margin_ns = frame.visible_window.width_ns // 3
    ends_ns = [frame.visible_window.start_ns - margin_ns, frame.visible_window.end_ns + margin_ns]
    first_index, end_index = np.searchsorted(counter.times_ns, ends_ns).tolist()
    indexes = np.arange(max(first_index - 1, 0), end_index)
    if len(indexes) <= MOST_POINTS:
        return indexes
    extremes = [
        (group[counter.values[group].argmin()], group[counter.values[group].argmax()])
        for group in np.array_split(indexes, MOST_POINTS // 2)
    ]
    return np.unique(extremes)


def describe_tracks(frame: Frame, picture: Picture) -> str:
    """Describe how many spans are in opened processes' tracks; empty if none is opened."""
    if not frame.opened_processes:
        return ""
    span_count = sum(inside.span_count for inside in picture.opened_pictures)
    hidden_count = sum(process.track_group.hidden_count for process in frame.opened_processes)
    hidden_text = f", {hidden_count:,} have no room" if hidden_count else ""
    opened_text = LABELS[len(frame.opened_processes) == 1]
    return (
        f" {len(frame.opened_processes)} {opened_text}: {span_count:,} recorded spans in "
        f"view{hidden_text}."
    )
