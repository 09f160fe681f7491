"""Layers of every step's time, stacked; of neighbours that share a bar, the step with most of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from plotly import graph_objects as go

from tracelens.lod import step_times
from tracelens_dashboard import text
from tracelens_dashboard.figures import axes, quantity
from tracelens_dashboard.figures.drawing import figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from tracelens_dashboard.figures.drawing import Rows
    from tracelens_dashboard.theme import Theme

MOST_BARS: Final = 320
SCALE_QUANTILE: Final = 0.99  # of the bars: a first step may be very long


class Layer(NamedTuple):
    """A column of the table (ns), what it is called, and its colour."""

    column: str
    name: str
    colour: str


def draw(table: pl.DataFrame, layers: Sequence[Layer], theme: Theme) -> go.Figure:
    """Draw a table with a row a step, in order of `step`; a bar's `customdata` ends with its step."""
    times_ns = table.select(layer.column for layer in layers).to_numpy()
    totals_ns = times_ns.sum(axis=1)
    neighbours = step_times.split_evenly(table.height, MOST_BARS)
    rows = [part.start + int(totals_ns[part].argmax()) for part in neighbours]
    steps = table["step"].to_numpy()[rows].tolist()
    traces = []
    for column, layer in enumerate(layers):
        drawn_ns = times_ns[rows, column]
        data = zip(map(text.duration, drawn_ns.tolist()), steps, strict=True)
        trace = go.Bar(
            name=layer.name,
            x=steps,
            y=drawn_ns,
            width=_widths(steps),
            marker={"color": layer.colour, "line": {"width": 0}},
            customdata=[list(pair) for pair in data],
            hovertemplate=f"step %{{x}}, {layer.name}: %{{customdata[0]}}<extra></extra>",
        )
        traces.append(trace)
    high_ns = max(float(np.quantile(totals_ns[rows], SCALE_QUANTILE)), 1.0) * 1.1
    time_axis = axes.durations(high_ns) | {"range": [0, high_ns]}
    bar_layout = {"barmode": "stack", "bargap": 0} | axes.LEGEND
    return figure(theme, *traces, xaxis=axes.STEPS, yaxis=time_axis, **bar_layout)


def rows(table: pl.DataFrame, layers: Sequence[Layer], most: int = 500) -> Rows:
    """List the steps with most of it."""
    totals = table.select(layer.column for layer in layers).sum_horizontal()
    longest = table.with_columns(total=totals).sort("total", descending=True).head(most)
    columns: quantity.Columns = {
        "step": "step", **{layer.name: (layer.column, quantity.time) for layer in layers}
    }  # fmt: skip
    return quantity.tabulate(longest, columns)


def _widths(steps: list[int]) -> list[float]:
    gaps = np.diff(steps, append=steps[-1] + 1)
    median_gap = max(float(np.median(gaps)), 1.0)
    return np.minimum(np.maximum(gaps, 1), median_gap).astype(float).tolist()
