"""Where variables could lie: the fullest shard by placement, what bounds it, and what it saves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl
from plotly import graph_objects as go

from tracelens_dashboard import text
from tracelens_dashboard.figures.drawing import Drawing, empty, figure
from tracelens_dashboard.figures.units import BYTES, scaled

if TYPE_CHECKING:
    from tracelens_dashboard.theme import Theme

NAMES: Final = {
    "now": "as it is now",
    "greedy": "each to the emptiest shard",
    "largest_first": "the largest first",
    "chunked": "cut into chunks",
}
BESIDE: Final = "\N{NO-BREAK SPACE}" * 3  # where the diamond is
WORTH_IT: Final = 0.005  # of the job: less is no reason to move anything


def draw(placements: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw a bar a placement; the diamond is the least that any placement of its kind could have."""
    if placements.is_empty():
        return empty(theme, "No request tells its bytes, so no placement can be tried.")
    rows = placements.to_dicts()
    unit, most = scaled(placements["most_bytes"].to_numpy().astype(float), BYTES)
    factor = rows[0]["most_bytes"] / most[0]
    labels = [f"{NAMES.get(row['placement'], row['placement'])} " for row in rows]
    colours = [theme.quiet if row["placement"] == "now" else theme.accent for row in rows]
    bars = go.Bar(
        orientation="h",
        y=labels,
        x=most,
        marker={"color": colours, "line": {"width": 0}},
        text=[_gain(row) for row in rows],
        textposition="outside",
        cliponaxis=False,
        customdata=[f"{row['effective_shards']:.1f}" for row in rows],
        hovertemplate=(
            f"%{{y}}: %{{x:,.2f}} {unit} on the fullest shard, they work like %{{customdata}}"
            "<extra></extra>"
        ),
    )
    bounds = go.Scatter(
        x=placements["least_bytes"].to_numpy() / factor,
        y=labels,
        mode="markers",
        marker={"symbol": "diamond", "size": 10, "color": theme.text},
        hovertemplate=f"no such placement has less than %{{x:,.2f}} {unit}<extra></extra>",
    )
    drawn = figure(theme, bars, bounds, **_axes(labels, float(most.max()), unit, theme))
    drawn.add_vline(
        x=rows[0]["mean_bytes"] / factor,
        line={"dash": "dot", "color": theme.secondary, "width": 1.5},
        annotation={
            "text": "mean shard",
            "yanchor": "bottom",
            "font": {"size": 11, "color": theme.secondary},
        },
        annotation_position="top",
    )
    return Drawing(drawn, sentence(placements), _table(placements))


def sentence(placements: pl.DataFrame) -> str:
    """Say what the best placement would save, and what stands in its way."""
    rows = {row["placement"]: row for row in placements.to_dicts()}
    now = rows.pop("now")
    shards = round(now["effective_shards"] * now["most_bytes"] / max(now["mean_bytes"], 1))
    works = f"{text.count(shards, 'shard')} work like {now['effective_shards']:.1f}"
    best = max(rows.values(), key=lambda row: row["saving"], default=now)
    if best["saving"] < WORTH_IT:
        return f"{works}; no other placement of the variables would make the job shorter."
    how = NAMES.get(best["placement"], best["placement"])
    return (
        f"{works}; with the variables placed anew ({how}) they would work like "
        f"{best['effective_shards']:.1f}, and the job would be {text.percent(best['saving'])} "
        "shorter, as far as replaying its requests tells."
    )


def _gain(row: dict[str, Any]) -> str:
    if row["placement"] == "now":
        return ""
    if row["saving"] < WORTH_IT:
        return f"{BESIDE}saves nothing"
    return f"{BESIDE}saves {text.percent(row['saving'])}"


def _axes(labels: list[str], most: float, unit: str, theme: Theme) -> dict[str, Any]:
    return {
        "xaxis": {
            "fixedrange": True,
            "range": [0, 1.3 * most or 1],
            "title": {"text": f"{unit} a step on the fullest shard"},
        },
        "yaxis": {
            "fixedrange": True,
            "range": [len(labels) - 0.5, -0.5],
            "tickfont": {"color": theme.text},
        },
        "bargap": 0.35,
        "margin": {"t": 22},
    }


def _table(placements: pl.DataFrame) -> list[dict[str, Any]]:
    return placements.select(
        pl.col("placement").replace(NAMES),
        pl.col("most_bytes").alias("fullest shard (bytes)"),
        pl.col("mean_bytes").alias("mean shard (bytes)"),
        pl.col("least_bytes").alias("least possible (bytes)"),
        pl.col("effective_shards").round(2).alias("work like so many shards"),
        (100 * pl.col("saving")).round(2).alias("saves % of the job"),
    ).to_dicts()
