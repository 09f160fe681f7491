"""Layers of every step's time, stacked; of neighbours that share a bar, the step with most of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from plotly import graph_objects as go

from tracelens.lod import step_times
from tracelens_dashboard import text
from tracelens_dashboard.figures import axes, quantity
from tracelens_dashboard.figures.drawing import Rows, figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from tracelens_dashboard.theme import Theme

MOST_BARS: Final = 320
SCALE_QUANTILE: Final = 0.99  # of the bars: a first step may be very long


class Layer(NamedTuple):
    """A column of the table (ns), what it is called, and its colour."""

    column_name: str
    label: str
    colour: str


def draw(table: pl.DataFrame, layers: Sequence[Layer], theme: Theme) -> go.Figure:
    """Stack the layers (columns, ns) of each step (row); of steps that share a bar the longest."""
    times_ns = table.select(layer.column_name for layer in layers).to_numpy()  # [step, layer]
    totals_ns = times_ns.sum(axis=1)
    step_groups = step_times.split_evenly(table.height, MOST_BARS)
    drawn_rows = [group.start + int(totals_ns[group].argmax()) for group in step_groups]
    steps = table["step"].to_numpy()[drawn_rows].tolist()
    traces = []
    for layer_index, layer in enumerate(layers):
        layer_ns = times_ns[drawn_rows, layer_index]
        texts_and_steps = zip(map(text.duration, layer_ns.tolist()), steps, strict=True)
        trace = go.Bar(
            name=layer.label,
            x=steps,
            y=layer_ns,
            width=_choose_widths(steps),
            marker={"color": layer.colour, "line": {"width": 0}},
            customdata=[list(pair) for pair in texts_and_steps],
            hovertemplate=f"step %{{x}}, {layer.label}: %{{customdata[0]}}<extra></extra>",
        )
        traces.append(trace)
    high_ns = max(float(np.quantile(totals_ns[drawn_rows], SCALE_QUANTILE)), 1.0) * 1.1
    time_axis = axes.durations(high_ns) | {"range": [0, high_ns]}
    bar_layout = {"barmode": "stack", "bargap": 0} | axes.LEGEND
    return figure(theme, *traces, xaxis=axes.STEPS, yaxis=time_axis, **bar_layout)


def rows(table: pl.DataFrame, layers: Sequence[Layer], most_rows: int = 500) -> Rows:
    """List the longest steps, at most `most_rows`; `table` as in `draw`."""
    totals_ns = table.select(layer.column_name for layer in layers).sum_horizontal()
    longest = table.with_columns(total=totals_ns).sort("total", descending=True).head(most_rows)
    columns: quantity.Columns = {
        "step": "step", **{layer.label: (layer.column_name, quantity.time) for layer in layers}
    }  # fmt: skip
    return quantity.tabulate(longest, columns)


def _choose_widths(steps: list[int]) -> list[float]:
    """Return the width of each bar, in steps: up to the next, but at most the median bar's."""
    gaps = np.diff(steps, append=steps[-1] + 1)
    median_gap = max(float(np.median(gaps)), 1.0)
    return np.minimum(np.maximum(gaps, 1), median_gap).astype(float).tolist()
