"""Distributions of durations: bars, with marks at quantiles."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from plotly import graph_objects as go

from tracelens_dashboard import text
from tracelens_dashboard.figures import axes, quantity
from tracelens_dashboard.figures.drawing import figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Floats
    from tracelens_dashboard.theme import Theme

NAMED: Final = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))


@dataclass(frozen=True)
class Bars:
    """How many durations lie between neighbouring `edges` (ns); `examples` lead from a bar to spans."""

    name: str
    edges: Floats
    counts: Floats
    colour: str
    examples: Sequence[object] = field(default_factory=tuple)


def edges_of(values: Floats, most: int = 60) -> Floats:
    """Choose edges for some durations: of equal ratio where they spread far, else of equal width."""
    low, high = float(values.min()), float(values.max())
    if low > 0 and high > 4 * float(np.median(values)):
        return np.geomspace(low, high * 1.0001, most + 1)
    return np.linspace(low * 0.999, max(high * 1.001, low + 1.0), most + 1)


def of_table(table: pl.DataFrame, by: str, lead: Sequence[str], theme: Theme) -> list[Bars]:
    """Take bars from counts by bins of equal ratio (`from_ns`, `to_ns`, `count`), a set a word in `by`.

    A bar's example holds the columns `lead`; empty bins between full ones are filled in.
    """
    ratio = float(table["to_ns"][0] / table["from_ns"][0])
    first, last = (round(float(np.log(ns) / np.log(ratio))) for ns in _reach(table))
    edges: Floats = np.power(ratio, np.arange(first, last + 1, dtype=np.float64))
    found = []
    for number, part in enumerate(table.partition_by(by, maintain_order=True)):
        places = (np.log(part["from_ns"].to_numpy()) / np.log(ratio)).round().astype(int) - first
        counts = np.zeros(len(edges) - 1)
        examples: list[object] = [None] * (len(edges) - 1)
        counts[places] = part["count"].to_numpy()
        for place, row in zip(places.tolist(), part.select(lead).rows(), strict=True):
            examples[place] = list(row)
        colour = theme.series[number % len(theme.series)]
        found.append(Bars(text.safe(str(part[by][0])), edges, counts, colour, examples))
    return found


def quantile(table: pl.DataFrame, share: float) -> float:
    """Return a quantile of what is counted: the middle of its bin."""
    ordered = table.sort("from_ns")
    below = ordered["count"].cum_sum().to_numpy() / max(int(table["count"].sum()), 1)
    place = min(int(np.searchsorted(below, share)), table.height - 1)
    low, high = ordered["from_ns"][place], ordered["to_ns"][place]
    return float((low * high) ** 0.5)


def draw(bars: Sequence[Bars], what: str, counted: str, theme: Theme) -> go.Figure:
    """Draw them over each other; `what` names the duration, `counted` what is counted."""
    edges = bars[0].edges
    log = _is_geometric(edges)
    low, high = float(edges[0]), float(edges[-1])
    axis = axes.log_durations(low, high) if log else axes.durations(high, low)
    traces = [_trace(part, counted) for part in bars]
    layout: dict[str, Any] = {
        "barmode": "stack",
        "bargap": 0.06,
        "xaxis": axis | {"title": {"text": what}, "showgrid": False},
        "yaxis": {
            "title": {"text": counted},
            "fixedrange": True,
            "rangemode": "tozero",
            "nticks": 5,
        },
        "margin": {"t": 30},
    }
    if len(bars) > 1:
        layout |= {"showlegend": True, "margin": {"t": 46}}
    return figure(theme, *traces, **layout)


def mark(drawn: go.Figure, named: Sequence[tuple[str, float]], theme: Theme) -> go.Figure:
    """Draw lines at some durations (ns), each with its name and value; close ones share a label."""
    log = drawn.layout.xaxis.type == "log"
    for row, (name, value) in enumerate(named):
        drawn.add_vline(x=value, line={"dash": "dot", "width": 1, "color": theme.secondary})
        drawn.add_annotation(
            x=float(np.log10(max(value, 1e-9))) if log else value,
            y=1,
            yref="paper",
            yanchor="top",
            xanchor="left",
            yshift=-15 * row,
            text=f" {name}: {text.duration(value)}",
            showarrow=False,
            bgcolor=theme.surface,
            opacity=0.92,
            font={"size": 11, "color": theme.secondary},
        )
    return drawn


def rows(bars: Sequence[Bars], counted: str) -> list[dict[str, Any]]:
    """List all bars that hold anything."""
    return [
        {
            **({"of": part.name} if len(bars) > 1 else {}),
            "from": quantity.time(float(part.edges[place])),
            "to": quantity.time(float(part.edges[place + 1])),
            counted: int(part.counts[place]),
        }
        for part in bars
        for place in np.flatnonzero(part.counts)
    ]


def _trace(part: Bars, counted: str) -> go.Bar:
    begins, ends = part.edges[:-1], part.edges[1:]
    spans = [
        f"{text.duration(a)} to {text.duration(b)}"
        for a, b in zip(begins.tolist(), ends.tolist(), strict=True)
    ]
    examples = list(part.examples) or [None] * len(spans)
    return go.Bar(
        name=part.name,
        x=begins,
        width=ends - begins,
        offset=0,
        y=part.counts,
        marker={"color": part.colour, "line": {"width": 0}},
        customdata=[list(pair) for pair in zip(spans, examples, strict=True)],
        hovertemplate=f"%{{customdata[0]}}: %{{y:,}} {counted}<extra></extra>",
    )


def _reach(table: pl.DataFrame) -> tuple[float, float]:
    low, high = table.select(low=pl.col("from_ns").min(), high=pl.col("to_ns").max()).row(0)
    return float(low), float(high)


def _is_geometric(edges: Floats) -> bool:
    return len(edges) > 2 and float(edges[-1] - edges[-2]) > 1.05 * float(edges[1] - edges[0])
