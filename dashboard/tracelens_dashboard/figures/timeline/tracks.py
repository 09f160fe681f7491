"""The tracks of opened processes: their ground, counters as lines, an outline of the selection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tracelens_dashboard import text
from tracelens_dashboard.figures.timeline.frame import lane_label

if TYPE_CHECKING:
    from tracelens.arrays import Indices
    from tracelens.lod.query import Picture
    from tracelens.lod.tracks.group import Counter
    from tracelens_dashboard.figures.timeline.frame import Frame, Opened
    from tracelens_dashboard.theme import Theme

GROUND: Final = 0.05  # how much of the text's colour is in the ground of an opened process
OUTLINE_PX: Final = 2
MOST_POINTS: Final = 600  # of a counter's line
LABELS: Final = {True: "process is opened", False: "processes are opened"}


def ground(opened: Opened, theme: Theme) -> dict[str, Any]:
    """Shade the background of a process's tracks."""
    return {
        "type": "rect",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": opened.plan.top,
        "y1": opened.plan.height,
        "fillcolor": theme.text,
        "opacity": GROUND,
        "line": {"width": 0},
        "layer": "below",
    }


def outlines(frame: Frame, theme: Theme) -> list[dict[str, Any]]:
    """Return a frame around the selected span, in each row that shows it."""
    return [
        {
            "type": "rect",
            "name": "selected",
            "x0": frame.seconds(span.start_ns),
            "x1": frame.seconds(span.end_ns),
            "y0": span.band.top - 1,
            "y1": span.band.top + span.band.height + 1,
            "line": {"color": theme.text, "width": OUTLINE_PX},
            "fillcolor": "rgba(0,0,0,0)",
        }
        for span in frame.selected
    ]


def counter_lines(frame: Frame, opened: Opened, theme: Theme) -> list[dict[str, Any]]:
    """Return a line for each counter of a process, from zero to its largest reading in view."""
    return [
        _line(frame, opened, lane, counter, theme)
        for lane, counter in opened.group.counters.items()
        if len(_select_readings(frame, counter))
    ]


def _line(
    frame: Frame, opened: Opened, lane: int, counter: Counter, theme: Theme
) -> dict[str, Any]:
    band = opened.plan.bands[lane]
    indexes = _select_readings(frame, counter)
    values = counter.values[indexes]
    least, most = min(0.0, float(values.min())), max(float(values.max()), 0.0)
    share = (values - least) / ((most - least) or 1.0)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": text.safe(counter.name),
        "x": [frame.seconds(at) for at in counter.at_ns[indexes].tolist()],
        "y": (band.top + band.height * (1 - share)).tolist(),
        "line": {"width": 1.5, "color": theme.accent, "shape": "hv"},
        "customdata": values.tolist(),
        "hovertemplate": f"{lane_label(frame, band)}: %{{customdata:,.6g}}<extra></extra>",
        "showlegend": False,
    }


def _select_readings(frame: Frame, counter: Counter) -> Indices:
    """Choose the readings to draw: of many in a stretch of time, the least and the greatest."""
    margin_ns = frame.seen.width_ns // 3
    ends_ns = [frame.seen.start_ns - margin_ns, frame.seen.end_ns + margin_ns]
    first, last = np.searchsorted(counter.at_ns, ends_ns).tolist()
    indexes = np.arange(max(first - 1, 0), last)
    if len(indexes) <= MOST_POINTS:
        return indexes
    extremes = [
        (group[counter.values[group].argmin()], group[counter.values[group].argmax()])
        for group in np.array_split(indexes, MOST_POINTS // 2)
    ]
    return np.unique(extremes)


def sentence(frame: Frame, picture: Picture) -> str:
    """Describe how much is in the tracks; empty where nothing is opened."""
    if not frame.opened:
        return ""
    spans = sum(inside.spans for inside in picture.inside)
    hidden = sum(process.group.hidden for process in frame.opened)
    left_out = f", {hidden:,} have no room" if hidden else ""
    label = LABELS[len(frame.opened) == 1]
    return f" {len(frame.opened)} {label}: {spans:,} recorded spans in view{left_out}."
