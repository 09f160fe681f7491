"""Spans as shapes: one trace of bars a category, for the few spans that can be told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tracelens.lod.codes import LABELS, label_of
from tracelens_dashboard import text
from tracelens_dashboard import theme as themes
from tracelens_dashboard.figures.frame import lane_label
from tracelens_dashboard.figures.strip import SECOND

if TYPE_CHECKING:
    from tracelens.lod.query import Picture
    from tracelens_dashboard.figures.frame import Frame
    from tracelens_dashboard.theme import Theme

LETTER_PX: Final = 7


def bars(frame: Frame, picture: Picture, theme: Theme) -> list[dict[str, Any]]:
    """Return a trace for each category that has spans to draw."""
    if picture.bars is None:
        return []
    lanes = frame.scene.lanes
    codes = lanes.codes[picture.bars.items]
    traces = []
    for code in range(1, len(LABELS) + 1):
        chosen = np.flatnonzero(codes == code)
        if len(chosen):
            items, bands = picture.bars.items[chosen], picture.bars.bands[chosen]
            traces.append(_category(frame, picture, items.tolist(), bands.tolist(), theme))
    return traces


def _category(
    frame: Frame, picture: Picture, items: list[int], bands: list[int], theme: Theme
) -> dict[str, Any]:
    lanes = frame.scene.lanes
    label = label_of(int(lanes.codes[items[0]]))
    places = [frame.plan.bands[band] for band in bands]
    lengths = [int(lanes.ends[item] - lanes.starts[item]) for item in items]
    names = [text.safe(lanes.words[lanes.names[item]]) for item in items]
    details = [
        [lane_label(frame, band), name or themes.name_of(label), int(lanes.steps[item]),
         text.duration(length)]
        for item, band, name, length in zip(items, places, names, lengths, strict=True)
    ]  # fmt: skip
    return {
        "type": "bar",
        "orientation": "h",
        "name": themes.name_of(label),
        "base": [frame.seconds(int(lanes.starts[item])) for item in items],
        "x": [length / SECOND for length in lengths],
        "y": [band.middle for band in places],
        "width": [band.height for band in places],
        "marker": {"color": theme.categories[label], "line": {"width": 0}},
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
