"""What one shard holds: its largest tensors, and the one that bounds every placement of whole ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from plotly import graph_objects as go

from tracelens_dashboard import text
from tracelens_dashboard.figures.drawing import Drawing, empty, figure
from tracelens_dashboard.figures.units import BYTES, scaled

if TYPE_CHECKING:
    from tracelens_dashboard.theme import Theme

MOST: Final = 14  # that are drawn; the table has more
FEW: Final = 5  # bars would be as thick as a page's heading
UNTOLD: Final = "The requests do not tell what shard {shard}'s bytes consist of."


def draw(tensors: pl.DataFrame, shard: int, mean_bytes: float | None, theme: Theme) -> Drawing:
    """Draw a bar a tensor, the largest first; red is one that alone outweighs the mean shard.

    `tensors` as in `analyses.shards`; `mean_bytes` is what a worker moves one way to the mean shard in
    a step.
    """
    mine = tensors if tensors.is_empty() else tensors.filter(pl.col("shard") == shard)
    if mine.is_empty():
        return empty(theme, UNTOLD.format(shard=shard))
    top = mine.head(MOST)
    unit, sizes = scaled(top["step_bytes"].to_numpy().astype(float), BYTES)
    labels = [text.safe(name) for name in top["tensor"]]
    bounding = top["step_bytes"].to_numpy() > (mean_bytes or np.inf)
    bars = go.Bar(
        orientation="h",
        y=list(range(len(labels))),
        x=sizes,
        marker={"color": np.where(bounding, theme.loss, theme.accent), "line": {"width": 0}},
        customdata=[[shard, row] for row in range(len(labels))],
        text=[text.percent(share) for share in top["share"]],
        textposition="outside",
        cliponaxis=False,
        hovertext=labels,
        hovertemplate=f"%{{hovertext}}: %{{x:,.2f}} {unit} a step<extra></extra>",
    )
    drawn = figure(theme, bars, **_axes(labels, sizes, unit, theme))
    if mean_bytes:
        _mean_line(drawn, mean_bytes * sizes[0] / top["step_bytes"][0], theme)
    return Drawing(drawn, _sentence(mine, shard, mean_bytes), _rows(mine))


def _sentence(mine: pl.DataFrame, shard: int, mean_bytes: float | None) -> str:
    first = mine.row(0, named=True)
    name, size = text.safe(first["tensor"]), text.size(first["step_bytes"])
    held = text.count(mine.height, "tensor")
    share = text.percent(first["share"])
    said = f"Shard {shard} serves {held}; {name} ({size} a step, one way) is {share} of its bytes"
    if mean_bytes and first["step_bytes"] > mean_bytes:
        return (
            f"{said}. Alone it is more than the mean shard's {text.size(mean_bytes)}: as long as it "
            "is whole, no placement makes its shard lighter than that."
        )
    return f"{said}."


def _rows(mine: pl.DataFrame) -> list[dict[str, Any]]:
    lasted = (pl.col("longest_end_ns") - pl.col("longest_start_ns")) / 1e6
    return mine.select(
        "tensor",
        pl.col("step_bytes").alias("bytes a step, one way"),
        (100 * pl.col("share")).round(2).alias("% of the shard"),
        pl.col("bytes").alias("bytes in all"),
        "requests",
        lasted.round(3).alias("longest request (ms)"),
        pl.col("rank").alias("of rank"),
    ).to_dicts()


def _axes(
    labels: list[str], sizes: np.ndarray[Any, Any], unit: str, theme: Theme
) -> dict[str, Any]:
    return {
        "xaxis": {
            "fixedrange": True,
            "range": [0, 1.15 * float(sizes.max(initial=0)) or 1],
            "title": {"text": f"{unit} a step, one way"},
        },
        "yaxis": {
            "tickvals": list(range(len(labels))),
            "ticktext": [f"{label} " for label in labels],
            "range": [len(labels) - 0.5, -0.5],
            "fixedrange": True,
            "tickfont": {"color": theme.text},
        },
        "bargap": 0.3 if len(labels) > FEW else 0.6,
        "margin": {"t": 26},
    }


def _mean_line(drawn: go.Figure, at: float, theme: Theme) -> None:
    drawn.add_vline(x=at, line={"dash": "dot", "color": theme.secondary, "width": 1.5})
    drawn.add_annotation(
        x=at, y=1, yref="paper", yanchor="bottom", text="mean shard", showarrow=False,
        font={"color": theme.secondary, "size": 11},
    )  # fmt: skip
