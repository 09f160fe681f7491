"""What points into the timeline: the flagged ranks, the steps of a finding, the name of an axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracelens_dashboard.figures.strip import NARROW

if TYPE_CHECKING:
    from tracelens_dashboard.figures.frame import Frame
    from tracelens_dashboard.theme import Theme


def words(frame: Frame, theme: Theme) -> list[dict[str, Any]]:
    """Return all words and signs beside the rows."""
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


def edges(frame: Frame, theme: Theme) -> list[dict[str, Any]]:
    """Frame the steps that a finding speaks of."""
    if frame.marked is None:
        return []
    edge = {"color": theme.loss, "width": 1.5, "dash": "dot"}
    sides = (frame.marked.start_ns, frame.marked.end_ns)
    return [
        {
            "type": "line",
            "x0": frame.seconds(side),
            "x1": frame.seconds(side),
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "line": edge,
        }
        for side in sides
    ]


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
