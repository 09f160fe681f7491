"""Slack: how much later each rank could be without delaying the job, the least slack on top."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from plotly import graph_objects as go

from tracelens_dashboard import text
from tracelens_dashboard.figures import axes
from tracelens_dashboard.figures.drawing import Drawing, empty, figure

if TYPE_CHECKING:
    import polars as pl

    from tracelens_dashboard.theme import Theme

MOST: Final = 24
OFTEN: Final = 0.5  # of the steps on the path: drawn in red
UNKNOWN: Final = "No full collectives between ranks were recorded, so slack is unknown."
ALONE: Final = "A single rank waits for no other: all of its time is on the path."


def draw(slack: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw the median slack of a step as a dot, the least as a ring; `slack` as in `slack.py`."""
    if slack.is_empty():
        return empty(theme, UNKNOWN)
    if slack.height == 1:
        return empty(theme, ALONE)
    ordered = slack.sort("slack_ns", "rank")
    shown = ordered.head(MOST)
    medians = shown["slack_ns"].to_numpy().astype(float)
    critical = shown["critical_steps"].to_numpy()
    labels = [f"rank {rank} " for rank in shown["rank"]]
    common: dict[str, Any] = {"y": labels, "mode": "markers", "cliponaxis": False}
    common["customdata"] = [
        [
            row["rank"],
            text.percent(row["critical_steps"]),
            _length(row, "slack_ns"),
            _length(row, "least_slack_ns"),
        ]
        for row in shown.iter_rows(named=True)
    ]
    dots = go.Scatter(
        x=medians,
        name="median step",
        marker={"size": 11, "color": np.where(critical > OFTEN, theme.loss, theme.accent)},
        hovertemplate=(
            "%{y}slack %{customdata[2]} in the median step, none in %{customdata[1]} of steps"
            "<extra></extra>"
        ),
        **common,
    )
    rings = go.Scatter(
        x=shown["least_slack_ns"].to_numpy(),
        name="least",
        marker={"size": 9, "symbol": "circle-open", "color": theme.secondary},
        hovertemplate="%{y}slack at least %{customdata[3]}<extra></extra>",
        **common,
    )
    return Drawing(
        figure(theme, rings, dots, **_axes(labels, float(medians.max()), theme)),
        sentence(ordered),
        _rows(ordered),
    )


def sentence(ordered: pl.DataFrame) -> str:
    """Return the rank with least slack, and the one with most."""
    first, last = ordered.row(0, named=True), ordered.row(-1, named=True)
    critical = ordered.sort("critical_steps", descending=True).row(0, named=True)
    most = f"rank {last['rank']} has {text.duration(last['slack_ns'])} of slack in most steps"
    if critical["critical_steps"] > OFTEN:
        return (
            f"Rank {critical['rank']} has no slack in "
            f"{text.percent(critical['critical_steps'])} of steps; {most}."
        )
    return (
        f"No rank is always on the path: rank {first['rank']} has least slack, "
        f"{text.duration(first['slack_ns'])} in the median step, and {most}."
    )


def _rows(ordered: pl.DataFrame) -> list[dict[str, Any]]:
    return [
        {
            "rank": rank,
            "slack, median (ms)": round(middle / 1e6, 4),
            "slack, min (ms)": round(least / 1e6, 4),
            "% of steps without slack": round(100 * critical, 2),
        }
        for rank, middle, least, critical in ordered.iter_rows()
    ]


def _length(row: dict[str, Any], column: str) -> str:
    return text.duration(row[column])


def _axes(labels: list[str], most: float, theme: Theme) -> dict[str, Any]:
    return {
        "xaxis": axes.durations(most) | {"zeroline": False, "title": {"text": "slack per step"}},
        "yaxis": {
            "fixedrange": True,
            "range": [len(labels) - 0.5, -0.5],
            "tickfont": {"color": theme.text},
            "ticksuffix": " ",
        },
        "showlegend": True,
        "legend": {"traceorder": "reversed"},
    }
