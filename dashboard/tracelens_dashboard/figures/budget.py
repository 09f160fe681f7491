"""Time for background work, such as writing a checkpoint, between the weight updates of each rank."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from plotly import graph_objects as go

from tracelens.analyses.chains import steps_to_write
from tracelens_dashboard import text
from tracelens_dashboard.figures import duration_axis
from tracelens_dashboard.figures.drawing import Drawing, empty, figure
from tracelens_dashboard.figures.update_gaps import NO_GAPS

if TYPE_CHECKING:
    import polars as pl

    from tracelens_dashboard.theme import Theme

MOST_RANKS: Final = 24
MIB: Final = 1 << 20


def draw(background: pl.DataFrame, mebibytes: float, gbytes_per_s: float, theme: Theme) -> Drawing:
    """Draw a row a rank, those with least time; `background` as `_background.BUDGET_COLUMNS`."""
    if background.is_empty():
        return empty(theme, NO_GAPS)
    shown = background.sort("usable_ns", "rank").head(MOST_RANKS)
    labels = [f"rank {rank} " for rank in shown["rank"]]
    drawn = figure(
        theme,
        _bars(shown, labels, "gap_ns", "between updates", theme.quiet),
        _bars(shown, labels, "usable_ns", "usable", theme.categories["update"]),
        _least(shown, labels, theme),
        **_axes(shown, theme),
    )
    return Drawing(drawn, summary(background, mebibytes, gbytes_per_s), table(background))


def summary(background: pl.DataFrame, mebibytes: float, gbytes_per_s: float) -> str:
    """Say in how many steps so much can be written without delaying anybody."""
    least = background.sort("usable_ns").row(0, named=True)
    begin = (
        f"Rank {least['rank']} has least: {text.duration(least['usable_ns'])} of "
        f"{text.duration(least['gap_ns'])} between the updates of two steps, in long enough pieces."
    )
    steps = steps_to_write(background, int(mebibytes * MIB), gbytes_per_s)
    amount = f"{text.size(mebibytes * MIB)} a rank at {gbytes_per_s:g} GB/s"
    if math.isinf(steps):
        return f"{begin} There is no room to write {amount} without delaying anybody."
    return (
        f"{begin} Writing {amount} takes the free time of {text.count(math.ceil(steps), 'step')}."
    )


def table(background: pl.DataFrame) -> list[dict[str, Any]]:
    """List all ranks, those with least first."""
    return [
        {
            "rank": row["rank"],
            "between updates": text.duration(row["gap_ns"]),
            "usable": text.duration(row["usable_ns"]),
            "in 9 of 10 steps": text.duration(row["usable_p10_ns"]),
            "of all time": text.percent(row["share"]),
        }
        for row in background.sort("usable_ns", "rank").iter_rows(named=True)
    ]


def _bars(shown: pl.DataFrame, labels: list[str], column: str, name: str, colour: str) -> go.Bar:
    return go.Bar(
        orientation="h",
        name=name,
        y=labels,
        x=shown[column].to_list(),
        marker={"color": colour, "line": {"width": 0}},
        customdata=[
            [text.duration(ns), rank] for ns, rank in shown.select(column, "rank").iter_rows()
        ],
        hovertemplate=f"%{{y}}{name}: %{{customdata[0]}} a step<extra></extra>",
    )


def _least(shown: pl.DataFrame, labels: list[str], theme: Theme) -> go.Scatter:
    return go.Scatter(
        name="usable in 9 of 10 steps",
        x=shown["usable_p10_ns"].to_list(),
        y=labels,
        mode="markers",
        marker={"symbol": "line-ns", "size": 12, "line": {"width": 2, "color": theme.text}},
        customdata=[
            [text.duration(ns), rank]
            for ns, rank in shown.select("usable_p10_ns", "rank").iter_rows()
        ],
        hovertemplate="%{y}in 9 of 10 steps at least %{customdata[0]}<extra></extra>",
    )


def _axes(shown: pl.DataFrame, theme: Theme) -> dict[str, Any]:
    high = float(shown["gap_ns"].to_numpy().max())
    return {
        "barmode": "overlay",
        "bargap": 0.35,
        "xaxis": duration_axis.linear(high * 1.05),
        "yaxis": {"autorange": "reversed", "fixedrange": True, "tickfont": {"color": theme.text}},
        "showlegend": True,
        "legend": {"traceorder": "normal"},
        "margin": {"t": 30},
    }
