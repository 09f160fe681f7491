"""How much later each rank could be at no cost: those that can spare least on top."""

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
UNKNOWN: Final = (
    "No full collectives between ranks were recorded, so what a rank could spare cannot be told."
)
ALONE: Final = "One rank alone waits for nobody: all of its work is on the path."


def draw(slack: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw the median slack of a step as a dot, the least as a ring; `slack` as in `slack.py`."""
    if slack.is_empty():
        return empty(theme, UNKNOWN)
    if slack.height == 1:
        return empty(theme, ALONE)
    ordered = slack.sort("slack_ns", "rank")
    shown = ordered.head(MOST)
    spare = shown["slack_ns"].to_numpy().astype(float)
    critical = shown["critical_steps"].to_numpy()
    labels = [f"rank {rank} " for rank in shown["rank"]]
    common: dict[str, Any] = {"y": labels, "mode": "markers", "cliponaxis": False}
    common["customdata"] = [
        [
            row["rank"],
            text.percent(row["critical_steps"]),
            _say(row, "slack_ns"),
            _say(row, "least_slack_ns"),
        ]
        for row in shown.iter_rows(named=True)
    ]
    dots = go.Scatter(
        x=spare,
        name="median step",
        marker={"size": 11, "color": np.where(critical > OFTEN, theme.loss, theme.accent)},
        hovertemplate=(
            "%{y}can spare %{customdata[2]} in the median step, nothing in %{customdata[1]}"
            "<extra></extra>"
        ),
        **common,
    )
    rings = go.Scatter(
        x=shown["least_slack_ns"].to_numpy(),
        name="least",
        marker={"size": 9, "symbol": "circle-open", "color": theme.secondary},
        hovertemplate="%{y}at least %{customdata[3]}<extra></extra>",
        **common,
    )
    return Drawing(
        figure(theme, rings, dots, **_axes(labels, float(spare.max()), theme)),
        sentence(ordered),
        _rows(ordered),
    )


def sentence(ordered: pl.DataFrame) -> str:
    """Say who can spare nothing, and who most."""
    first, last = ordered.row(0, named=True), ordered.row(-1, named=True)
    critical = ordered.sort("critical_steps", descending=True).row(0, named=True)
    spare = f"rank {last['rank']} could be {text.duration(last['slack_ns'])} later in most steps"
    if critical["critical_steps"] > OFTEN:
        return (
            f"Rank {critical['rank']} can spare nothing in "
            f"{text.percent(critical['critical_steps'])} of the steps; {spare} at no cost."
        )
    return (
        f"Nobody is on the path all the time: rank {first['rank']} can spare least, "
        f"{text.duration(first['slack_ns'])} in the median step, and {spare}."
    )


def _rows(ordered: pl.DataFrame) -> list[dict[str, Any]]:
    return [
        {
            "rank": rank,
            "can spare, median (ms)": round(middle / 1e6, 4),
            "can spare, least (ms)": round(least / 1e6, 4),
            "% of steps without any": round(100 * critical, 2),
        }
        for rank, middle, least, critical in ordered.iter_rows()
    ]


def _say(row: dict[str, Any], column: str) -> str:
    return text.duration(row[column])


def _axes(labels: list[str], most: float, theme: Theme) -> dict[str, Any]:
    return {
        "xaxis": axes.durations(most)
        | {"zeroline": False, "title": {"text": "later in a step, at no cost"}},
        "yaxis": {
            "fixedrange": True,
            "range": [len(labels) - 0.5, -0.5],
            "tickfont": {"color": theme.text},
            "ticksuffix": " ",
        },
        "showlegend": True,
        "legend": {"traceorder": "reversed"},
    }
