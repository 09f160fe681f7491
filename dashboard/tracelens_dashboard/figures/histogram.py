"""Distributions of durations: bars, with marks at quantiles."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from plotly import graph_objects as go

from tracelens_dashboard import text
from tracelens_dashboard.figures import axes, quantity
from tracelens_dashboard.figures.drawing import figure, pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Floats
    from tracelens_dashboard.figures.drawing import Rows
    from tracelens_dashboard.theme import Theme

QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True)
class Series:
    """How many durations lie between neighbouring `edges` (ns); `examples` lead from a bar to spans."""

    name: str
    edges: Floats
    counts: Floats
    colour: str
    examples: Sequence[object] = field(default_factory=tuple)


def choose_edges(values: Floats, most: int = 60) -> Floats:
    """Choose edges for some durations: of equal ratio where they spread far, else of equal width."""
    low, high = float(values.min()), float(values.max())
    if low > 0 and high > 4 * float(np.median(values)):
        return np.geomspace(low, high * 1.0001, most + 1)
    return np.linspace(low * 0.999, max(high * 1.001, low + 1.0), most + 1)


def from_table(
    table: pl.DataFrame, name_column: str, example_columns: Sequence[str], theme: Theme
) -> list[Series]:
    """Take series from counts by bins of equal ratio (`from_ns`, `to_ns`, `count`), one a word in `by`.

    Empty bins between full ones are filled in.
    """
    ratio = float(table["to_ns"][0] / table["from_ns"][0])
    ends = table.select(pl.col("from_ns").min(), pl.col("to_ns").max()).row(0)
    first_power, last_power = (round(float(np.log(float(ns)) / np.log(ratio))) for ns in ends)
    edges: Floats = np.power(ratio, np.arange(first_power, last_power + 1, dtype=np.float64))
    listed = []
    for number, bins in enumerate(table.partition_by(name_column, maintain_order=True)):
        indexes = (np.log(bins["from_ns"].to_numpy()) / np.log(ratio)).round().astype(
            int
        ) - first_power
        counts = np.zeros(len(edges) - 1)
        counts[indexes] = bins["count"].to_numpy()
        examples: list[object] = [None] * len(counts)
        for index, row in zip(indexes.tolist(), bins.select(example_columns).rows(), strict=True):
            examples[index] = list(row)
        colour = theme.series[number % len(theme.series)]
        listed.append(Series(text.safe(str(bins[name_column][0])), edges, counts, colour, examples))
    return listed


def quantile(table: pl.DataFrame, share: float) -> float:
    """Return a quantile of counted values: the middle of its bin."""
    ordered = table.sort("from_ns")
    shares_below = ordered["count"].cum_sum().to_numpy() / max(int(table["count"].sum()), 1)
    index = min(int(np.searchsorted(shares_below, share)), table.height - 1)
    low, high = ordered["from_ns"][index], ordered["to_ns"][index]
    return float((low * high) ** 0.5)


def draw(listed: Sequence[Series], title: str, counted: str, theme: Theme) -> go.Figure:
    """Draw series over each other; `title` names the duration, `counted` what is counted."""
    edges = listed[0].edges
    low, high = float(edges[0]), float(edges[-1])
    is_geometric = len(edges) > 2 and float(edges[-1] - edges[-2]) > 1.05 * float(
        edges[1] - edges[0]
    )
    axis = axes.log_durations(low, high) if is_geometric else axes.durations(high, low)
    layout: dict[str, Any] = {
        "barmode": "stack",
        "bargap": 0.06,
        "xaxis": axis | {"title": {"text": title}, "showgrid": False},
        "yaxis": {
            "title": {"text": counted},
            "fixedrange": True,
            "rangemode": "tozero",
            "nticks": 5,
        },
        "margin": {"t": 30},
    }
    if len(listed) > 1:
        layout |= {"showlegend": True, "margin": {"t": 46}}
    return figure(theme, *(_trace(series, counted) for series in listed), **layout)


def mark(drawn: go.Figure, marks: Sequence[tuple[str, float]], theme: Theme) -> go.Figure:
    """Draw lines at some durations (ns), each with its name and value; close ones share a label."""
    log = drawn.layout.xaxis.type == "log"
    for row, (name, ns) in enumerate(marks):
        drawn.add_vline(x=ns, line={"dash": "dot", "width": 1, "color": theme.secondary})
        drawn.add_annotation(
            x=float(np.log10(max(ns, 1e-9))) if log else ns,
            y=1,
            yref="paper",
            yanchor="top",
            xanchor="left",
            yshift=-15 * row,
            text=f" {name}: {text.duration(ns)}",
            showarrow=False,
            bgcolor=theme.surface,
            opacity=0.92,
            font={"size": 11, "color": theme.secondary},
        )
    return drawn


def rows(listed: Sequence[Series], counted: str) -> Rows:
    """List all bars that hold anything."""
    return [
        {
            **({"of": series.name} if len(listed) > 1 else {}),
            "from": quantity.time(float(series.edges[index])),
            "to": quantity.time(float(series.edges[index + 1])),
            counted: int(series.counts[index]),
        }
        for series in listed
        for index in np.flatnonzero(series.counts)
    ]


def _trace(series: Series, counted: str) -> go.Bar:
    begins, ends = series.edges[:-1], series.edges[1:]
    extents = [
        f"{text.duration(begin)} to {text.duration(end)}"
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
    ]
    examples = list(series.examples) or [None] * len(extents)
    return go.Bar(
        name=series.name,
        x=begins,
        width=ends - begins,
        offset=0,
        y=series.counts,
        marker={"color": series.colour, "line": {"width": 0}},
        customdata=pairs(extents, examples),
        hovertemplate=f"%{{customdata[0]}}: %{{y:,}} {counted}<extra></extra>",
    )
