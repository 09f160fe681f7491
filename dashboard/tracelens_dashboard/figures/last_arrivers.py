"""Who comes last to collectives: how often, against what chance explains, and how long all waited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from plotly import graph_objects as go
from plotly.subplots import make_subplots

from tracelens_dashboard import text
from tracelens_dashboard import theme as themes
from tracelens_dashboard.figures import duration_axis
from tracelens_dashboard.figures.drawing import Drawing, empty

if TYPE_CHECKING:
    from tracelens_dashboard.theme import Theme

MOST_RANKS: Final = 32
NOBODY: Final = "No call to which several ranks came was recorded."


def draw(last: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw a row a rank, of many those that are last beyond chance, or that others wait for longest."""
    if last.is_empty():
        return empty(theme, NOBODY)
    beyond = pl.col("last") - pl.col("chance")
    ordered = last.sort("alone_ns", descending=True)
    shown = (
        last
        if last.height <= MOST_RANKS
        else pl.concat([last.sort(beyond, descending=True).head(MOST_RANKS // 2), ordered])
        .unique("rank", maintain_order=True)
        .head(MOST_RANKS)
        .sort("rank")
    )
    drawn = make_subplots(
        cols=2,
        shared_yaxes=True,
        horizontal_spacing=0.06,
        subplot_titles=["calls to which it came last", "all waited for it alone"],
    )
    labels = [f"rank {rank} " for rank in shown["rank"]]
    drawn.add_trace(_counts(shown, labels, theme), row=1, col=1)
    drawn.add_trace(_chance(shown, labels, theme), row=1, col=1)
    drawn.add_trace(_alone(shown, labels, theme), row=1, col=2)
    _finish(drawn, shown, theme)
    return Drawing(drawn, summary(last), table(last))


def summary(last: pl.DataFrame) -> str:
    """Say who is last more often than chance explains, and whom all waited for longest."""
    longest = last.sort("alone_ns").row(-1, named=True)
    waited = (
        f"All waited longest for rank {longest['rank']} alone: "
        f"{text.duration(longest['alone_ns'])} over the run."
    )
    often = last.filter(pl.col("last") > pl.col("chance")).sort("last", descending=True)
    if often.is_empty():
        return f"No rank comes last more often than chance explains. {waited}"
    first = often.row(0, named=True)
    others = f", as do {text.count(often.height - 1, 'other')}" if often.height > 1 else ""
    return (
        f"Rank {first['rank']} comes last to {first['last']:,} of {first['calls']:,} calls, more often "
        f"than chance explains (at most {first['chance']:,.0f}){others}. {waited}"
    )


def table(last: pl.DataFrame) -> list[dict[str, Any]]:
    """List all ranks, those first that others waited for longest."""
    return [
        {
            "rank": row["rank"],
            "calls": row["calls"],
            "came last to": row["last"],
            "by chance about": round(row["expected"], 1),
            "by chance at most": round(row["chance"], 1),
            "all waited for it alone": text.duration(row["alone_ns"]),
            "it waited": text.duration(row["wait_ns"]),
            "its transfer": text.duration(row["transfer_ns"]),
        }
        for row in last.sort("alone_ns", descending=True).iter_rows(named=True)
    ]


def _leads(shown: pl.DataFrame) -> list[list[Any] | None]:
    """Return the call that waited longest for each rank."""
    return [
        None if begin is None else [begin, end, rank]
        for rank, begin, end in shown.select("rank", "first_ns", "over_ns").iter_rows()
    ]


def _counts(shown: pl.DataFrame, labels: list[str], theme: Theme) -> go.Bar:
    beyond = shown["last"].to_numpy() > shown["chance"].to_numpy()
    said = [
        f"{last:,} of {calls:,} calls" for last, calls in shown.select("last", "calls").iter_rows()
    ]
    return go.Bar(
        orientation="h",
        y=labels,
        x=shown["last"].to_list(),
        marker={"color": np.where(beyond, theme.loss, theme.accent).tolist()},
        customdata=[list(pair) for pair in zip(said, _leads(shown), strict=True)],
        hovertemplate="%{y}is last in %{customdata[0]}<extra></extra>",
    )


def _chance(shown: pl.DataFrame, labels: list[str], theme: Theme) -> go.Scatter:
    """Mark what chance gives, and up to where it does."""
    reach = shown["chance"].to_numpy() - shown["expected"].to_numpy()
    return go.Scatter(
        x=shown["expected"].to_list(),
        y=labels,
        mode="markers",
        marker={"symbol": "line-ns", "size": 11, "line": {"width": 2, "color": theme.text}},
        error_x={
            "array": reach.tolist(),
            "arrayminus": [0] * len(reach),
            "color": theme.text,
            "width": 3,
        },
        customdata=[
            [f"{about:.0f}, at most {most:.0f}", None]
            for about, most in shown.select("expected", "chance").iter_rows()
        ],
        hovertemplate="by chance: %{customdata[0]}<extra></extra>",
    )


def _alone(shown: pl.DataFrame, labels: list[str], theme: Theme) -> go.Bar:
    said = [text.duration(ns) for ns in shown["alone_ns"]]
    return go.Bar(
        orientation="h",
        y=labels,
        x=shown["alone_ns"].to_list(),
        marker={"color": theme.categories["data"]},
        customdata=[list(pair) for pair in zip(said, _leads(shown), strict=True)],
        hovertemplate="all waited for %{y}alone: %{customdata[0]}<extra></extra>",
    )


def _finish(drawn: go.Figure, shown: pl.DataFrame, theme: Theme) -> None:
    drawn.update_layout(template=themes.template(theme.name), margin={"t": 34}, bargap=0.35)
    drawn.update_annotations(font={"size": 12, "color": theme.secondary})
    drawn.update_xaxes(fixedrange=True, nticks=5, rangemode="tozero")
    most = float(shown["alone_ns"].to_numpy().max())
    drawn.update_xaxes(duration_axis.linear(most * 1.05, most=4), row=1, col=2)
    stride = max(-(-shown.height // MOST_RANKS), 1)
    drawn.update_yaxes(fixedrange=True, autorange="reversed", dtick=stride)
