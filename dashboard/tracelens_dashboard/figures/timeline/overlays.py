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
from tracelens_dashboard.figures import drawing
from tracelens_dashboard.figures.timeline.frame import NS_PER_SECOND, Frame, Note, band_label

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelens.lod.query import PathStretch, Picture
    from tracelens.lod.search import Call
    from tracelens.lod.viewport import Band, Section
    from tracelens_dashboard.theme import Theme


PATH_NAME: Final = "critical path"
MAX_JOINED_STRETCHES: Final = (
    150  # changes of rank: lines between rows of more would hide what is below
)
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
    """Return the line of the critical path with its halo and its joints; empty without a path."""
    stretches = _path_stretches(frame, picture)
    if not stretches:
        return []
    heights = _line_heights(frame, "workers")
    strokes = _row_strokes(frame, stretches, heights)
    strokes += _row_strokes(frame, stretches, _line_heights(frame, "pinned"))
    joints = (
        _joint_strokes(frame, stretches, heights) if len(stretches) <= MAX_JOINED_STRETCHES else ""
    )
    strokes_and_styles = (
        (joints, theme.text_colour, JOINT_PX),
        (strokes, theme.surface_colour, HALO_PX),
        (strokes, theme.text_colour, LINE_PX),
    )
    return [_path_shape(*line) for line in strokes_and_styles if line[0]]


def path_sentence(frame: Frame, picture: Picture) -> str:
    """Return the ranks that hold most of the path in view; empty if it is not drawn."""
    lanes, ns_by_rank = frame.scene.span_lanes.owners, Counter[int]()
    for row, begin_ns, end_ns in _path_stretches(frame, picture):
        visible_begin_ns = max(begin_ns, frame.visible_window.start_ns)
        visible_ns = min(end_ns, frame.visible_window.end_ns) - visible_begin_ns
        ns_by_rank[lanes[row].rank] += max(visible_ns, 0)
    total_ns = ns_by_rank.total()
    if not total_ns:
        return " The critical path is not in view." if frame.path_stretches is not None else ""
    ranks_by_time = sorted((-ns, rank) for rank, ns in ns_by_rank.items() if ns)
    share_texts = [
        f"rank {rank} {text.percent(-negative_ns / total_ns)}"
        for negative_ns, rank in ranks_by_time[:MOST_RANKS_NAMED]
    ]
    other_count = len(ranks_by_time) - MOST_RANKS_NAMED
    others_text = f" and {other_count} more" if other_count > 0 else ""
    return f" The line is the critical path: {', '.join(share_texts)}{others_text}."


def _path_stretches(frame: Frame, picture: Picture) -> list[PathStretch]:
    if frame.path_stretches is None or frame.path_stretches.is_empty():
        return []
    return query.find_path_stretches(frame.path_stretches, frame.scene.span_lanes, picture.grid)


def _line_heights(frame: Frame, section: Any) -> dict[int, float]:
    """Return by row of the scene at which height (pixels) the path runs on it, in one section."""
    bands = frame.row_plan.select_section(section)
    return {row: _line_height(band) for band in bands for row in band.lane_indices}


def _line_height(band: Band) -> float:
    """Return the lower edge of a band: within a tall row, below a low one, which it would hide."""
    offset_px = -EDGE_PX if band.height_px >= TALL_PX else HALO_PX / 2
    return band.top_px + band.height_px + offset_px


def _row_strokes(frame: Frame, stretches: Iterable[PathStretch], heights: dict[int, float]) -> str:
    """Write the path's strokes along rows as an SVG path; `heights` are by row (pixels)."""
    return "".join(
        f"M{_write_time(frame, begin_ns)},{heights[row]}H{_write_time(frame, end_ns)}"
        for row, begin_ns, end_ns in stretches
        if row in heights
    )


def _joint_strokes(frame: Frame, stretches: list[PathStretch], heights: dict[int, float]) -> str:
    """Write the strokes from each row to the next one as an SVG path; `heights` are by row."""
    return "".join(
        f"M{_write_time(frame, second.start_ns)},"
        f"{heights[first.lane_index]}V{heights[second.lane_index]}"
        for first, second in itertools.pairwise(stretches)
        if first.lane_index in heights and second.lane_index in heights
    )


def _write_time(frame: Frame, moment_ns: int) -> str:
    return f"{frame.seconds_since_start(moment_ns):.9f}".rstrip("0").rstrip(".")


def _path_shape(strokes: str, colour: str, width: float) -> dict[str, Any]:
    line = {"color": colour, "width": width}
    return {"type": "path", "name": PATH_NAME, "path": strokes, "line": line, "layer": "above"}


def arrival_marks(frame: Frame, theme: Theme) -> list[dict[str, Any]]:
    """Return marks of the selected call's arrivals, for pinned rows and for all workers."""
    if frame.selected_call is None:
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers" if len(arrivals) <= MOST_MARKS else "lines",
            "name": "arrivals",
            "x": [frame.seconds_since_start(arrival_ns) for arrival_ns, _, _ in arrivals],
            "y": [height_px for _, height_px, _ in arrivals],
            "marker": {"size": 7, "color": theme.text_colour, "symbol": "triangle-right"},
            "line": {"width": 1, "color": theme.text_colour, "shape": "vh"},
            "customdata": [
                [label, _delay_text(frame.selected_call, arrival_ns)]
                for arrival_ns, _, label in arrivals
            ],
            "hovertemplate": "%{customdata[0]} arrives %{customdata[1]}<extra></extra>",
        }
        for arrivals in (
            _find_arrivals(frame, frame.selected_call, section) for section in SECTIONS
        )
        if arrivals
    ]


def arrival_line(frame: Frame, theme: Theme) -> list[dict[str, Any]]:
    """Return the moment of the last arrival, through all rows."""
    if frame.selected_call is None:
        return []
    line = {"color": theme.loss_colour, "width": 1.5}
    return [
        drawing.vertical_line(frame.seconds_since_start(frame.selected_call.last_arrival_ns), line)
    ]


def arrival_label(frame: Frame, theme: Theme) -> list[dict[str, Any]]:
    """Return the label, with an arrow, of the selected call's last arrival, if any."""
    if frame.selected_call is None:
        return []
    lanes = frame.scene.span_lanes.owners
    bands_of_last_rank = [
        band
        for band in frame.row_plan.bands
        if any(
            lanes[row].rank == frame.selected_call.last_arriving_rank for row in band.lane_indices
        )
        and lanes[band.lane_indices[0]].role == "worker"
    ]
    if not bands_of_last_rank:
        return []
    middle_ns = (frame.visible_window.start_ns + frame.visible_window.end_ns) / 2
    is_left_half = frame.selected_call.last_arrival_ns < middle_ns
    return [
        {
            "x": frame.seconds_since_start(frame.selected_call.last_arrival_ns),
            "y": bands_of_last_rank[-1].middle_px,
            "ax": 46 if is_left_half else -46,
            "ay": 30 if bands_of_last_rank[-1].middle_px < frame.row_plan.bottom_px / 2 else -30,
            "text": arrival_summary(frame.selected_call),
            "showarrow": True,
            "arrowhead": 2,
            "arrowcolor": theme.loss_colour,
            "bgcolor": theme.surface_colour,
            "bordercolor": theme.loss_colour,
            "borderpad": 3,
            "xanchor": "left" if is_left_half else "right",
            "font": {"size": 12, "color": theme.text_colour},
        }
    ]


def arrival_summary(call: Call) -> str:
    """Return the last rank, and the arrival skew."""
    operation = text.escape_name(call.op)
    skew = text.duration(call.last_arrival_ns - call.first_arrival_ns)
    return f"{operation} {call.seq}: rank {call.last_arriving_rank} arrives last, skew {skew}"


def _find_arrivals(frame: Frame, call: Call, section: Section) -> list[tuple[int, float, str]]:
    """Return the last arrival of each row of workers: (time in ns, height in pixels, label)."""
    lanes, arrivals = frame.scene.span_lanes.owners, []
    for band in frame.row_plan.select_section(section):
        ranks = [lanes[row].rank for row in band.lane_indices if lanes[row].role == "worker"]
        arrivals_in_row = [
            (call.entered_ns_by_rank[rank], rank)
            for rank in ranks
            if rank in call.entered_ns_by_rank
        ]
        if arrivals_in_row:
            arrival_ns, rank = max(arrivals_in_row)
            label = f"rank {rank}" if len(ranks) > 1 else band_label(frame, band)
            arrivals.append((arrival_ns, band.middle_px, label))
    return arrivals


def _delay_text(call: Call, arrival_ns: int) -> str:
    delay_ns = arrival_ns - call.first_arrival_ns
    return f"{text.duration(delay_ns)} after the first" if delay_ns else "first"


def note_shapes(frame: Frame, theme: Theme) -> list[dict[str, Any]]:
    """Return a line from each note's text through all rows; over a stretch of time a band."""
    top_share = 1 + ABOVE_STEPS_PX / frame.row_plan.bottom_px
    return [_note_shape(note, top_share, theme) for note in frame.notes]


def _note_shape(note: Note, top_share: float, theme: Theme) -> dict[str, Any]:
    """Return the line or the band of a note, up to `top_share` of the plot's height."""
    begin_s, end_s = note.start_ns / NS_PER_SECOND, (note.end_ns or note.start_ns) / NS_PER_SECOND
    extent: dict[str, Any] = {"x0": begin_s, "x1": end_s}
    extent |= {"yref": "paper", "y0": 0, "y1": top_share, "name": "note"}
    line = {"color": theme.text_colour, "width": 1.2}
    if note.end_ns is None:
        return extent | {"type": "line", "line": line}
    return extent | {"type": "rect", "fillcolor": theme.text_colour + NOTE_GROUND, "line": line}


def note_labels(frame: Frame, theme: Theme) -> list[dict[str, Any]]:
    """Return the text of each note in view, above its time, cut where the next one begins."""
    origin_ns = frame.scene.run_window.start_ns
    visible_notes = [
        (max(origin_ns + note.start_ns, frame.visible_window.start_ns), note)
        for note in sorted(frame.notes, key=lambda note: note.start_ns)
        if origin_ns + note.start_ns < frame.visible_window.end_ns
        and origin_ns + (note.end_ns or note.start_ns) >= frame.visible_window.start_ns
    ]
    px_per_ns = frame.plot_width_px / max(frame.visible_window.width_ns, 1)
    label_begins_ns = [*(begin_ns for begin_ns, _ in visible_notes), frame.visible_window.end_ns]
    labels = []
    for (begin_ns, note), next_ns in zip(visible_notes, label_begins_ns[1:], strict=True):
        room_letters = int(((next_ns - begin_ns) * px_per_ns - NOTE_BESIDE_PX) / NOTE_LETTER_PX)
        label_text = note.text or NO_TEXT
        if len(label_text) > room_letters:
            label_text = label_text[: max(room_letters - 1, 0)] + "\N{HORIZONTAL ELLIPSIS}"
        label_text = label_text if room_letters >= FEWEST_LETTERS else NO_TEXT  # a flag
        labels.append(_note_label(frame.seconds_since_start(begin_ns), label_text, theme))
    return labels


def _note_label(at_s: float, words: str, theme: Theme) -> dict[str, Any]:
    """Return the label of a note above the steps, at a time in seconds since the start."""
    box = {
        "bgcolor": theme.surface_colour,
        "bordercolor": theme.text_colour,
        "borderpad": 2,
        "name": "note",
    }
    position = {"x": at_s, "xanchor": "left", "y": 1, "yref": "paper", "yanchor": "bottom"}
    return drawing.label(
        text.escape_name(words), theme.text_colour, position, box, yshift=ABOVE_STEPS_PX
    )
