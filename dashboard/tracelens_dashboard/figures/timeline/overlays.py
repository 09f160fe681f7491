"""Over the timeline: the critical path as a line, arrivals at the selected collective, the user's notes.

The path is drawn as shapes of one stroke each, however many parts it has, so that it costs a browser
next to nothing (some thousand bars would be felt), and clicks reach the spans below.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from tracelens.lod import query
from tracelens_dashboard import text
from tracelens_dashboard.figures.timeline.frame import SECOND, lane_label

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelens.lod.query import PathStretch, Picture
    from tracelens.lod.search import Call
    from tracelens.lod.viewport import Band, Section
    from tracelens_dashboard.figures.timeline.frame import Frame, Note
    from tracelens_dashboard.theme import Theme


PATH_NAME: Final = "critical path"
MOST_JOINED: Final = 150  # changes of rank: lines between rows of more would hide what is below
TALL_PX: Final = 10  # rows in which there is room for the line beside the names of spans
EDGE_PX: Final = 3
LINE_PX: Final = 3.5
HALO_PX: Final = 7.0
JOINT_PX: Final = 1.2
MOST_RANKS_NAMED: Final = 3
MOST_MARKS: Final = 64  # of arrivals: more are a line
NOTE_PX: Final = 20  # of the line of their texts, above the steps
ABOVE_STEPS_PX: Final = 26
NOTE_LETTER_PX: Final = 6.5
NOTE_BESIDE_PX: Final = 12  # around the text of one
FEWEST_LETTERS: Final = 3
NO_TEXT: Final = "\N{BLACK FLAG}"
NOTE_GROUND: Final = "14"  # how much of the text's colour is over a stretch of time, of FF
SECTIONS: Final[tuple[Section, ...]] = ("pinned", "workers")


def path_shapes(frame: Frame, picture: Picture, theme: Theme) -> list[dict[str, Any]]:
    """Return the line with its halo, and what joins its parts; nothing where no path is asked for."""
    stretches = _path_stretches(frame, picture)
    if not stretches:
        return []
    heights = _heights(frame, "workers")
    strokes = "".join(
        _row_strokes(frame, stretches, section) for section in (heights, _heights(frame, "pinned"))
    )
    joints = _joints(frame, stretches, heights) if len(stretches) <= MOST_JOINED else ""
    lines = (
        (joints, theme.text, JOINT_PX),
        (strokes, theme.surface, HALO_PX),
        (strokes, theme.text, LINE_PX),
    )
    return [_shape(*line) for line in lines if line[0]]


def path_sentence(frame: Frame, picture: Picture) -> str:
    """Return the ranks that hold most of the path in view; empty where no path is asked for."""
    lanes, rank_ns = frame.scene.lanes.lanes, Counter[int]()
    for lane, start, end in _path_stretches(frame, picture):
        visible_ns = min(end, frame.seen.end_ns) - max(start, frame.seen.start_ns)
        rank_ns[lanes[lane].rank] += max(visible_ns, 0)
    total_ns = rank_ns.total()
    if not total_ns:
        return " The critical path is not in view." if frame.path is not None else ""
    order = sorted((-ns, rank) for rank, ns in rank_ns.items() if ns)
    shares = [
        f"rank {rank} {text.percent(-ns / total_ns)}" for ns, rank in order[:MOST_RANKS_NAMED]
    ]
    others = len(order) - MOST_RANKS_NAMED
    more = f" and {others} more" if others > 0 else ""
    return f" The line is the critical path: {', '.join(shares)}{more}."


def _path_stretches(frame: Frame, picture: Picture) -> list[PathStretch]:
    if frame.path is None or frame.path.is_empty():
        return []
    return query.path_within(frame.path, frame.scene.lanes, picture.grid)


def _heights(frame: Frame, section: Any) -> dict[int, float]:
    """Return at which height the line runs on each row of a section."""
    bands = frame.plan.section(section)
    return {lane: _height(band) for band in bands for lane in band.lanes}


def _height(band: Band) -> float:
    """Return the lower edge, within a tall row and below a low one, whose colour stays to be seen."""
    beside = -EDGE_PX if band.height >= TALL_PX else HALO_PX / 2
    return band.top + band.height + beside


def _row_strokes(frame: Frame, stretches: Iterable[PathStretch], heights: dict[int, float]) -> str:
    """Write the strokes along rows as one path."""
    return "".join(
        f"M{_write_time(frame, start)},{heights[lane]}H{_write_time(frame, end)}"
        for lane, start, end in stretches
        if lane in heights
    )


def _joints(frame: Frame, stretches: list[PathStretch], heights: dict[int, float]) -> str:
    """Write the strokes from row to row as one path."""
    return "".join(
        f"M{_write_time(frame, second.start_ns)},{heights[first.lane]}V{heights[second.lane]}"
        for first, second in itertools.pairwise(stretches)
        if first.lane in heights and second.lane in heights
    )


def _write_time(frame: Frame, at_ns: int) -> str:
    return f"{frame.seconds(at_ns):.9f}".rstrip("0").rstrip(".")


def _shape(strokes: str, colour: str, width: float) -> dict[str, Any]:
    line = {"color": colour, "width": width}
    return {"type": "path", "name": PATH_NAME, "path": strokes, "line": line, "layer": "above"}


def arrival_marks(frame: Frame, theme: Theme) -> list[dict[str, Any]]:
    """Return marks of the arrivals, or a line where rows are many; of many ranks the last one counts."""
    if frame.call is None:
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers" if len(points) <= MOST_MARKS else "lines",
            "name": "arrivals",
            "x": [frame.seconds(arrival_ns) for arrival_ns, _, _ in points],
            "y": [y for _, y, _ in points],
            "marker": {"size": 7, "color": theme.text, "symbol": "triangle-right"},
            "line": {"width": 1, "color": theme.text, "shape": "vh"},
            "customdata": [
                [label, _delay_text(frame.call, arrival_ns)] for arrival_ns, _, label in points
            ],
            "hovertemplate": "%{customdata[0]} arrives %{customdata[1]}<extra></extra>",
        }
        for points in (_points(frame, frame.call, name) for name in SECTIONS)
        if points
    ]


def arrival_line(frame: Frame, theme: Theme) -> list[dict[str, Any]]:
    """Return the moment of the last arrival, through all rows."""
    if frame.call is None:
        return []
    return [vertical_line(frame.seconds(frame.call.last_ns), {"color": theme.loss, "width": 1.5})]


def vertical_line(second: float, line: dict[str, Any]) -> dict[str, Any]:
    """Return a line through all rows, at a time in seconds since the start."""
    sides = {"x0": second, "x1": second, "yref": "paper", "y0": 0, "y1": 1}
    return {"type": "line", "line": line} | sides


def arrival_label(frame: Frame, theme: Theme) -> list[dict[str, Any]]:
    """Point an arrow at the last arrival."""
    if frame.call is None:
        return []
    lanes = frame.scene.lanes.lanes
    rows = [
        band
        for band in frame.plan.bands
        if any(lanes[lane].rank == frame.call.last_rank for lane in band.lanes)
        and lanes[band.lanes[0]].role == "worker"
    ]
    if not rows:
        return []
    is_left = frame.call.last_ns < (frame.seen.start_ns + frame.seen.end_ns) / 2
    return [
        {
            "x": frame.seconds(frame.call.last_ns),
            "y": rows[-1].middle,
            "ax": 46 if is_left else -46,
            "ay": 30 if rows[-1].middle < frame.plan.height / 2 else -30,
            "text": arrival_summary(frame.call),
            "showarrow": True,
            "arrowhead": 2,
            "arrowcolor": theme.loss,
            "bgcolor": theme.surface,
            "bordercolor": theme.loss,
            "borderpad": 3,
            "xanchor": "left" if is_left else "right",
            "font": {"size": 12, "color": theme.text},
        }
    ]


def arrival_summary(call: Call) -> str:
    """Return the last rank, and the arrival skew."""
    skew = text.duration(call.last_ns - call.first_ns)
    return f"{text.safe(call.op)} {call.seq}: rank {call.last_rank} arrives last, skew {skew}"


def _points(frame: Frame, call: Call, section: Section) -> list[tuple[int, float, str]]:
    """Return the arrival of each row of workers of a section: (time, height, label)."""
    lanes, points = frame.scene.lanes.lanes, []
    for band in frame.plan.section(section):
        ranks = [lanes[lane].rank for lane in band.lanes if lanes[lane].role == "worker"]
        entered = [(call.entered[rank], rank) for rank in ranks if rank in call.entered]
        if entered:
            arrival_ns, rank = max(entered)
            label = f"rank {rank}" if len(ranks) > 1 else lane_label(frame, band)
            points.append((arrival_ns, band.middle, label))
    return points


def _delay_text(call: Call, at_ns: int) -> str:
    skew = at_ns - call.first_ns
    return f"{text.duration(skew)} after the first" if skew else "first"


def note_shapes(frame: Frame, theme: Theme) -> list[dict[str, Any]]:
    """Return a line from each note's text through all rows; over a stretch of time a band."""
    top = 1 + ABOVE_STEPS_PX / frame.plan.height
    return [_note_shape(note, top, theme) for note in frame.notes]


def _note_shape(note: Note, top: float, theme: Theme) -> dict[str, Any]:
    ends = [end / SECOND for end in (note.start_ns, note.end_ns or note.start_ns)]
    over = {"x0": ends[0], "x1": ends[1], "yref": "paper", "y0": 0, "y1": top, "name": "note"}
    line = {"color": theme.text, "width": 1.2}
    if note.end_ns is None:
        return over | {"type": "line", "line": line}
    return over | {"type": "rect", "fillcolor": theme.text + NOTE_GROUND, "line": line}


def note_labels(frame: Frame, theme: Theme) -> list[dict[str, Any]]:
    """Return the text of each note that is in view, above its time, as long as there is room for it."""
    origin = frame.scene.whole.start_ns
    visible = [
        (max(origin + note.start_ns, frame.seen.start_ns), note)
        for note in sorted(frame.notes, key=lambda note: note.start_ns)
        if origin + note.start_ns < frame.seen.end_ns
        and origin + (note.end_ns or note.start_ns) >= frame.seen.start_ns
    ]
    px = frame.columns / max(frame.seen.width_ns, 1)
    edges_ns = [*(begin_ns for begin_ns, _ in visible), frame.seen.end_ns]
    labels = []
    for (begin_ns, note), (_, end_ns) in zip(visible, itertools.pairwise(edges_ns), strict=True):
        room = int(((end_ns - begin_ns) * px - NOTE_BESIDE_PX) / NOTE_LETTER_PX)
        label = note.text or NO_TEXT
        if len(label) > room:
            label = label[: max(room - 1, 0)] + "\N{HORIZONTAL ELLIPSIS}"
        label = label if room >= FEWEST_LETTERS else NO_TEXT
        labels.append(_note_label(frame.seconds(begin_ns), label, theme))
    return labels


def _note_label(at_s: float, words: str, theme: Theme) -> dict[str, Any]:
    return {
        "x": at_s,
        "xanchor": "left",
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "yshift": ABOVE_STEPS_PX,
        "text": text.safe(words),
        "name": "note",
        "showarrow": False,
        "bgcolor": theme.surface,
        "bordercolor": theme.text,
        "borderpad": 2,
        "font": {"size": 11, "color": theme.text},
    }
