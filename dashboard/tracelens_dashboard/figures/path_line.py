"""The critical path over the timeline: a line that runs along the row whose work the job is as long as.

Drawn as shapes of one path each, however many stays there are, so that it costs a browser next to
nothing (some thousand bars would be felt), and clicks reach the spans below.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from tracelens.lod import path
from tracelens_dashboard import text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelens.lod.path import Stay
    from tracelens.lod.query import Picture
    from tracelens.lod.rows import Band
    from tracelens_dashboard.figures.frame import Frame
    from tracelens_dashboard.theme import Theme

NAME: Final = "critical path"
MOST_JOINED: Final = (
    150  # changes of rank: of more, the lines between rows would hide what is below
)
TALL_PX: Final = 10  # rows in which there is room for the line beside the names of spans
EDGE_PX: Final = 3
LINE_PX: Final = 3.5
HALO_PX: Final = 7.0
JOINT_PX: Final = 1.2
MOST_NAMED: Final = 3


def shapes(frame: Frame, picture: Picture, theme: Theme) -> list[dict[str, Any]]:
    """Return the line with its halo, and what joins its parts; nothing where no path is asked for."""
    stays = _stays(frame, picture)
    if not stays:
        return []
    places = _heights(frame, "workers")
    along = _along(frame, stays, places) + _along(frame, stays, _heights(frame, "pinned"))
    joints = _joints(frame, stays, places) if len(stays) <= MOST_JOINED else ""
    lines = (
        (joints, theme.text, JOINT_PX),
        (along, theme.surface, HALO_PX),
        (along, theme.text, LINE_PX),
    )
    return [_shape(*line) for line in lines if line[0]]


def sentence(frame: Frame, picture: Picture) -> str:
    """Say on which ranks the path in view mostly is; nothing where no path is asked for."""
    lanes, spent = frame.scene.lanes.lanes, dict[int, int]()
    for lane, start, end in _stays(frame, picture):
        inside = min(end, frame.seen.end_ns) - max(start, frame.seen.start_ns)
        if inside > 0:
            spent[lanes[lane].rank] = spent.get(lanes[lane].rank, 0) + inside
    whole = sum(spent.values())
    if not whole:
        return " The critical path is not in view." if frame.path is not None else ""
    first = sorted(spent.items(), key=lambda item: (-item[1], item[0]))
    shares = [f"rank {rank} {text.percent(ns / whole)}" for rank, ns in first[:MOST_NAMED]]
    more = f" and {len(first) - MOST_NAMED} more" if len(first) > MOST_NAMED else ""
    return f" The line is the critical path: {', '.join(shares)}{more}."


def _stays(frame: Frame, picture: Picture) -> list[Stay]:
    if frame.path is None or frame.path.is_empty():
        return []
    return path.within(frame.path, frame.scene.lanes, picture.grid)


def _heights(frame: Frame, section: Any) -> dict[int, float]:
    """Return at which height the line runs on each row of a section."""
    bands = frame.plan.section(section)
    return {lane: _height(band) for band in bands for lane in band.lanes}


def _height(band: Band) -> float:
    """Return the lower edge, within a tall row and below a low one, whose colour stays to be seen."""
    beside = -EDGE_PX if band.height >= TALL_PX else HALO_PX / 2
    return band.top + band.height + beside


def _along(frame: Frame, stays: Iterable[Stay], places: dict[int, float]) -> str:
    """Write the strokes along rows as one path."""
    return "".join(
        f"M{_at(frame, start)},{places[lane]}H{_at(frame, end)}"
        for lane, start, end in stays
        if lane in places
    )


def _joints(frame: Frame, stays: list[Stay], places: dict[int, float]) -> str:
    """Write the strokes from row to row as one path."""
    return "".join(
        f"M{_at(frame, after.start_ns)},{places[before.lane]}V{places[after.lane]}"
        for before, after in itertools.pairwise(stays)
        if before.lane in places and after.lane in places
    )


def _at(frame: Frame, at_ns: int) -> str:
    return f"{frame.seconds(at_ns):.9f}".rstrip("0").rstrip(".")


def _shape(strokes: str, colour: str, width: float) -> dict[str, Any]:
    line = {"color": colour, "width": width}
    return {"type": "path", "name": NAME, "path": strokes, "line": line, "layer": "above"}
