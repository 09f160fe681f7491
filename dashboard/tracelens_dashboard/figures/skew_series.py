"""How far apart ranks come to collectives, step by step: the widest call, and who was last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from plotly import graph_objects as go

from tracelens.lod import grid
from tracelens_dashboard import text
from tracelens_dashboard.figures import duration_axis
from tracelens_dashboard.figures.drawing import Drawing, empty, figure
from tracelens_dashboard.figures.exchange import NONE_IN_STEPS

if TYPE_CHECKING:
    from tracelens_dashboard.theme import Theme

MOST_POINTS: Final = 500
NAMED: Final = 3  # ranks with a colour of their own
TABLE_ROWS: Final = 500


def draw(by_step: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw a point a step; `by_step` as `arrivals.STEP_COLUMNS`. Of many steps the worst are kept."""
    if by_step.is_empty():
        return empty(theme, NONE_IN_STEPS)
    skew = by_step["skew_max_ns"].to_numpy()
    columns = grid.parts(by_step.height, MOST_POINTS)
    kept = by_step[[part.start + int(skew[part].argmax()) for part in columns]]
    lost = (
        kept.group_by("last_rank").agg(pl.col("skew_max_ns").sum()).sort("skew_max_ns", "last_rank")
    )
    named = lost["last_rank"].reverse().to_list()[:NAMED]
    strong = (theme.loss, theme.categories["data"], theme.accent)
    points = [
        _points(kept.filter(pl.col("last_rank") == rank), f"rank {rank} last", colour)
        for rank, colour in zip(named, strong, strict=False)
    ]
    others = kept.filter(~pl.col("last_rank").is_in(named))
    if others.height:
        points.insert(0, _points(others, "another rank last", theme.quiet))
    low = float(np.maximum(skew, 1).min())
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "step"}, "showgrid": False, "fixedrange": True},
        "yaxis": duration_axis.logarithmic(low, float(skew.max())),
        "showlegend": True,
        "margin": {"t": 30},
    }
    return Drawing(figure(theme, *points, **layout), summary(by_step), table(by_step))


def summary(by_step: pl.DataFrame) -> str:
    """Say how far apart ranks usually come, and when farthest."""
    worst = by_step.sort("skew_max_ns").row(-1, named=True)
    usual = float(np.median(by_step["skew_ns"].to_numpy()))
    return (
        f"In a usual step ranks come {text.duration(usual)} apart to a collective; farthest in step "
        f"{worst['step']}: {text.duration(worst['skew_max_ns'])}, rank {worst['last_rank']} was last."
    )


def table(by_step: pl.DataFrame) -> list[dict[str, Any]]:
    """List the steps in which ranks came farthest apart."""
    worst = by_step.sort("skew_max_ns", descending=True).head(TABLE_ROWS)
    return [
        {
            "step": row["step"],
            "calls": row["calls"],
            "apart, median": text.duration(row["skew_ns"]),
            "apart, most": text.duration(row["skew_max_ns"]),
            "then last": row["last_rank"],
        }
        for row in worst.iter_rows(named=True)
    ]


def _points(rows: pl.DataFrame, name: str, colour: str) -> go.Scatter:
    wanted = ("skew_max_ns", "first_ns", "over_ns", "last_rank")
    return go.Scatter(
        name=name,
        x=rows["step"].to_list(),
        y=rows["skew_max_ns"].clip(lower_bound=1).to_list(),
        mode="markers",
        marker={"size": 6, "color": colour},
        customdata=[
            [f"{text.duration(skew)} apart, rank {rank} last", [first, over, rank]]
            for skew, first, over, rank in rows.select(wanted).iter_rows()
        ],
        hovertemplate="step %{x}: %{customdata[0]}<extra></extra>",
    )
