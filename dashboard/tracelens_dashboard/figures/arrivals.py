"""The selected collective over the timeline: who entered when, and whom all waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tracelens_dashboard import text
from tracelens_dashboard.figures.frame import lane_label

if TYPE_CHECKING:
    from tracelens.lod.calls import Call
    from tracelens.lod.rows import Section
    from tracelens_dashboard.figures.frame import Frame
    from tracelens_dashboard.theme import Theme

MOST_MARKS: Final = 64
SECTIONS: Final[tuple[Section, ...]] = ("pinned", "workers")


def traces(frame: Frame, theme: Theme) -> list[dict[str, Any]]:
    """Return marks of the arrivals, or a line where rows are many; of many ranks the last one counts."""
    if frame.call is None:
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers" if len(points) <= MOST_MARKS else "lines",
            "name": "entered",
            "x": [frame.seconds(at) for at, _, _ in points],
            "y": [y for _, y, _ in points],
            "marker": {"size": 7, "color": theme.text, "symbol": "triangle-right"},
            "line": {"width": 1, "color": theme.text, "shape": "vh"},
            "customdata": [[label, _after(frame.call, at)] for at, _, label in points],
            "hovertemplate": "%{customdata[0]} enters %{customdata[1]}<extra></extra>",
        }
        for points in (_points(frame, frame.call, name) for name in SECTIONS)
        if points
    ]


def shapes(frame: Frame, theme: Theme) -> list[dict[str, Any]]:
    """Return the moment at which all had entered, through all rows."""
    if frame.call is None:
        return []
    at = frame.seconds(frame.call.last_ns)
    line = {"color": theme.loss, "width": 1.5}
    return [{"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1, "line": line}]


def words(frame: Frame, theme: Theme) -> list[dict[str, Any]]:
    """Point an arrow at who entered last."""
    if frame.call is None:
        return []
    lanes = frame.scene.lanes.lanes
    rows = [
        band
        for band in frame.plan.bands
        if any(lanes[lane].rank == frame.call.last_rank for lane in band.lanes)
        and lanes[band.lanes[0]].role == "worker"
    ]
    left = frame.call.last_ns < (frame.seen.start_ns + frame.seen.end_ns) / 2
    return (
        [
            {
                "x": frame.seconds(frame.call.last_ns),
                "y": rows[-1].middle,
                "ax": 46 if left else -46,
                "ay": 30 if rows[-1].middle < frame.plan.height / 2 else -30,
                "text": summary(frame.call),
                "showarrow": True,
                "arrowhead": 2,
                "arrowcolor": theme.loss,
                "bgcolor": theme.surface,
                "bordercolor": theme.loss,
                "borderpad": 3,
                "xanchor": "left" if left else "right",
                "font": {"size": 12, "color": theme.text},
            }
        ]
        if rows
        else []
    )


def summary(call: Call) -> str:
    """Say who came last, and how late."""
    late = text.duration(call.last_ns - call.first_ns)
    return f"{text.safe(call.op)} {call.seq}: rank {call.last_rank} enters last, {late} after the first"


def _points(frame: Frame, call: Call, section: Section) -> list[tuple[int, float, str]]:
    """Return when each row of workers of a section entered: (time, height, label)."""
    lanes, found = frame.scene.lanes.lanes, []
    for band in frame.plan.section(section):
        ranks = [lanes[lane].rank for lane in band.lanes if lanes[lane].role == "worker"]
        entered = [(call.entered[rank], rank) for rank in ranks if rank in call.entered]
        if entered:
            at, rank = max(entered)
            many = len(ranks) > 1
            found.append((at, band.middle, f"rank {rank}" if many else lane_label(frame, band)))
    return found


def _after(call: Call, at_ns: int) -> str:
    late = at_ns - call.first_ns
    return f"{text.duration(late)} after the first" if late else "first"
