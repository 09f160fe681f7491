"""Parts of every step's time, stacked; of neighbours that share a bar, the step with most of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from plotly import graph_objects as go

from tracelens.lod import step_times
from tracelens_dashboard import text
from tracelens_dashboard.figures import axes, quantity
from tracelens_dashboard.figures.drawing import figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from tracelens_dashboard.theme import Theme

MOST_BARS: Final = 320
_HIGH: Final = 0.99


@dataclass(frozen=True)
class Part:
    """A column of the table (ns), what it is called, and its colour."""

    column: str
    name: str
    colour: str


def draw(table: pl.DataFrame, parts: Sequence[Part], theme: Theme) -> go.Figure:
    """Draw a table with a row a step, in order of `step`; a bar's `customdata` ends with its step."""
    values = table.select(part.column for part in parts).to_numpy()
    total = values.sum(axis=1)
    columns = step_times.split_evenly(table.height, MOST_BARS)
    at = [column.start + int(total[column].argmax()) for column in columns]
    steps = table["step"].to_numpy()[at].tolist()
    bars = [
        go.Bar(
            name=part.name,
            x=steps,
            y=values[at, place],
            width=_widths(steps),
            marker={"color": part.colour, "line": {"width": 0}},
            customdata=[
                [text.duration(float(ns)), step]
                for ns, step in zip(values[at, place], steps, strict=True)
            ],
            hovertemplate=f"step %{{x}}, {part.name}: %{{customdata[0]}}<extra></extra>",
        )
        for place, part in enumerate(parts)
    ]
    high = max(float(np.quantile(total[at], _HIGH)), 1.0) * 1.1
    layout: dict[str, Any] = {
        "barmode": "stack",
        "bargap": 0,
        "xaxis": {"title": {"text": "step"}, "showgrid": False, "fixedrange": True},
        "yaxis": axes.durations(high) | {"range": [0, high]},
        "showlegend": True,
        "legend": {"traceorder": "normal"},
        "margin": {"t": 30},
    }
    return figure(theme, *bars, **layout)


def rows(table: pl.DataFrame, parts: Sequence[Part], most: int = 500) -> list[dict[str, Any]]:
    """List the steps with most of it."""
    total = table.select(part.column for part in parts).sum_horizontal()
    longest = table.with_columns(total=total).sort("total", descending=True).head(most)
    return [
        {"step": row["step"]} | {part.name: quantity.time(row[part.column]) for part in parts}
        for row in longest.iter_rows(named=True)
    ]


def _widths(steps: list[int]) -> list[float]:
    gaps = np.diff(steps, append=steps[-1] + 1)
    usual = float(np.median(gaps))
    return np.minimum(np.maximum(gaps, 1), max(usual, 1.0)).astype(float).tolist()
