"""What the critical path consists of: by rank, host or category."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl
from plotly import graph_objects as go

from tracelens.words import capital
from tracelens_dashboard import text
from tracelens_dashboard.figures.drawing import Drawing, empty, figure
from tracelens_dashboard.figures.path_strip import NO_PATH
from tracelens_dashboard.theme import name_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens_dashboard.theme import Theme

GROUPS: Final = ("rank", "category", "host")
MOST: Final = 16
SMALLEST: Final = 0.003  # of the path; what is less is in the table
OUTSIDE: Final = "outside"


def draw(shares: pl.DataFrame, hosts: Mapping[int, str], by: str, theme: Theme) -> Drawing:
    """Draw a bar a group, the largest first, each divided by category.

    `shares` as in `analyses.critical_path`, `hosts` by rank, `by` one of `GROUPS`.
    """
    if shares.is_empty():
        return empty(theme, NO_PATH)
    table = shares.with_columns(group=_group(by, hosts))
    sums = table.group_by("group").agg(pl.col("share").sum())
    order = sums.sort("share", "group", descending=[True, False])
    shown = order.head(MOST)["group"].to_list()
    parts = table.group_by("group", "category").agg(pl.col("share").sum())
    whole = parts.group_by("category").agg(pl.col("share").sum())
    seen = set(whole.filter(pl.col("share") >= SMALLEST)["category"])
    bars = [
        _bar(parts.filter(pl.col("category") == category), category, by, theme)
        for category in [*theme.categories, OUTSIDE]
        if category in seen
    ]
    drawn = figure(theme, *bars, **_axes(shown, theme))
    return Drawing(drawn, _sentence(order, table, by), _rows(parts, order))


def name(category: str) -> str:
    """Say a category of the path in words."""
    return "before the first step" if category == OUTSIDE else name_of(category)


def _group(by: str, hosts: Mapping[int, str]) -> pl.Expr:
    if by == "host":
        shown = {rank: text.safe(host) for rank, host in hosts.items()}
        return pl.col("rank").replace_strict(shown, default="?", return_dtype=pl.String)
    if by == "category":
        return pl.col("category").map_elements(name, return_dtype=pl.String)
    return pl.format("rank {}", "rank")


def _bar(part: pl.DataFrame, category: str, by: str, theme: Theme) -> go.Bar:
    return go.Bar(
        orientation="h",
        y=part["group"].to_list(),
        x=(100 * part["share"]).to_list(),
        name=name(category),
        customdata=[[by, group, category] for group in part["group"]],
        marker={"color": theme.categories.get(category, theme.quiet), "line": {"width": 0}},
        hovertemplate=f"%{{y}}, {name(category)}: %{{x:.1f}} % of the path<extra></extra>",
    )


def _sentence(order: pl.DataFrame, table: pl.DataFrame, by: str) -> str:
    group, share = order.row(0)
    mine = table.filter(pl.col("group") == group).sort("share", descending=True)
    if by == "category":
        most = mine.row(0, named=True)
        return (
            f"{text.percent(share)} of the path is {group}, most of it on rank {most['rank']}: "
            "only shortening what is on the path makes the job shorter."
        )
    phase = name(mine["category"][0])
    return f"{capital(group)} has {text.percent(share)} of the path, most of it in {phase}."


def _rows(parts: pl.DataFrame, order: pl.DataFrame) -> list[dict[str, Any]]:
    whole = order.select("group", whole="share")
    table = parts.join(whole, on="group").sort("whole", "share", descending=True)
    return [
        {"of": group, "in": name(category), "% of the path": round(100 * share, 3)}
        for group, category, share, _ in table.iter_rows()
    ]


def _axes(shown: list[str], theme: Theme) -> dict[str, Any]:
    return {
        "barmode": "stack",
        "bargap": 0.3 if len(shown) > 3 else 0.6,
        "xaxis": {"ticksuffix": " %", "fixedrange": True, "title": {"text": "of the path"}},
        "yaxis": {
            "categoryorder": "array",
            "categoryarray": shown,
            "range": [len(shown) - 0.5, -0.5],
            "ticksuffix": " ",
            "fixedrange": True,
            "tickfont": {"color": theme.text},
        },
        "showlegend": True,
        "legend": {"traceorder": "normal"},
    }
