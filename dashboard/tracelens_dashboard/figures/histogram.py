"""Distributions of durations: bars, with marks at quantiles."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from plotly import graph_objects as go

from tracelens_dashboard import text
from tracelens_dashboard.figures import axes, drawing, quantity
from tracelens_dashboard.figures.drawing import Rows, figure, pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Floats
    from tracelens_dashboard.theme import Theme

QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True)
class Series:
    """How many durations lie between neighbouring edges; `bin_examples` lead from a bar to a span."""

    name: str
    bin_edges_ns: Floats
    bin_counts: Floats
    colour: str
    bin_examples: Sequence[object] = field(default_factory=tuple)


def choose_edges(durations_ns: Floats, bin_count: int = 60) -> Floats:
    """Return the edges (ns) of bins: of equal ratio for a wide spread, else of equal width."""
    least_ns, most_ns = float(durations_ns.min()), float(durations_ns.max())
    if least_ns > 0 and most_ns > 4 * float(np.median(durations_ns)):
        return np.geomspace(least_ns, most_ns * 1.0001, bin_count + 1)
    return np.linspace(least_ns * 0.999, max(most_ns * 1.001, least_ns + 1.0), bin_count + 1)


def from_table(
    table: pl.DataFrame, name_column: str, example_columns: Sequence[str], theme: Theme
) -> list[Series]:
    """Take a series for each value of `name_column` from counts by bins of equal ratio.

    `table` has one row per value and bin: `from_ns`, `to_ns`, `count`, and `example_columns`, which
    lead from the bar to a span. Bins begin at powers of their ratio; empty bins between full ones
    are filled in. All series have the same bins.
    """
    bin_ratio = float(table["to_ns"][0] / table["from_ns"][0])
    ends_ns = table.select(pl.col("from_ns").min(), pl.col("to_ns").max()).row(0)
    first_power, last_power = (
        round(float(np.log(float(ns)) / np.log(bin_ratio))) for ns in ends_ns
    )
    edges_ns: Floats = np.power(bin_ratio, np.arange(first_power, last_power + 1, dtype=np.float64))
    all_series = []
    for series_index, bins in enumerate(table.partition_by(name_column, maintain_order=True)):
        powers = (np.log(bins["from_ns"].to_numpy()) / np.log(bin_ratio)).round().astype(int)
        bin_indexes = powers - first_power
        counts = np.zeros(len(edges_ns) - 1)
        counts[bin_indexes] = bins["count"].to_numpy()
        examples: list[object] = [None] * len(counts)
        bin_examples = bins.select(example_columns).rows()
        for bin_index, example in zip(bin_indexes.tolist(), bin_examples, strict=True):
            examples[bin_index] = list(example)
        colour = theme.series_colours[series_index % len(theme.series_colours)]
        name = text.escape_name(str(bins[name_column][0]))
        all_series.append(Series(name, edges_ns, counts, colour, examples))
    return all_series


def quantile(table: pl.DataFrame, share: float) -> float:
    """Return the quantile of counted durations at `share`: the geometric middle of its bin, in ns."""
    # `table` has one row per bin: `from_ns`, `to_ns`, `count`.
    bins = table.sort("from_ns")
    cumulated_shares = bins["count"].cum_sum().to_numpy() / max(int(table["count"].sum()), 1)
    bin_index = min(int(np.searchsorted(cumulated_shares, share)), table.height - 1)
    bin_begin_ns, bin_end_ns = bins["from_ns"][bin_index], bins["to_ns"][bin_index]
    return float((bin_begin_ns * bin_end_ns) ** 0.5)


def draw(
    all_series: Sequence[Series], duration_name: str, count_name: str, theme: Theme
) -> go.Figure:
    """Draw series over each other; `duration_name` and `count_name` are the titles of the axes."""
    edges_ns = all_series[0].bin_edges_ns
    begin_ns, end_ns, widths_ns = float(edges_ns[0]), float(edges_ns[-1]), np.diff(edges_ns)
    is_geometric = len(widths_ns) > 1 and widths_ns[-1] > 1.05 * widths_ns[0]
    axis = axes.durations(end_ns, begin_ns)
    if is_geometric:
        axis = axes.log_durations(begin_ns, end_ns)
    count_axis = {"title": {"text": count_name}, "rangemode": "tozero", "nticks": 5}
    layout: dict[str, Any] = {
        "barmode": "stack",
        "bargap": 0.06,
        "xaxis": axis | {"title": {"text": duration_name}, "showgrid": False},
        "yaxis": count_axis | {"fixedrange": True},
        "margin": {"t": 30},
    }
    if len(all_series) > 1:
        layout |= {"showlegend": True, "margin": {"t": 46}}
    return figure(theme, *(_draw_series(series, count_name) for series in all_series), **layout)


def mark(plot: go.Figure, marks: Sequence[tuple[str, float]], theme: Theme) -> go.Figure:
    """Draw lines at durations, (name, ns), with their names and values one below the other."""
    is_log = plot.layout.xaxis.type == "log"
    for label_row, (name, ns) in enumerate(marks):
        plot.add_vline(x=ns, line={"dash": "dot", "width": 1, "color": theme.secondary_colour})
        x = float(np.log10(max(ns, 1e-9))) if is_log else ns
        position = {"x": x, "xanchor": "left", "yshift": -15 * label_row} | drawing.AT_TOP
        ground = {"bgcolor": theme.surface_colour, "opacity": 0.92}
        words = f" {name}: {text.duration(ns)}"
        plot.add_annotation(drawing.label(words, theme.secondary_colour, position, ground))
    return plot


def rows(all_series: Sequence[Series], count_name: str) -> Rows:
    """List the bins of all series that are not empty, a row each."""
    return [
        {
            **({"of": series.name} if len(all_series) > 1 else {}),
            "from": quantity.time(float(series.bin_edges_ns[bin_index])),
            "to": quantity.time(float(series.bin_edges_ns[bin_index + 1])),
            count_name: int(series.bin_counts[bin_index]),
        }
        for series in all_series
        for bin_index in np.flatnonzero(series.bin_counts)
    ]


def _draw_series(series: Series, count_name: str) -> go.Bar:
    """Draw a series as bars, one per bin; each leads to its example, a span."""
    begins_ns, ends_ns = series.bin_edges_ns[:-1], series.bin_edges_ns[1:]
    bin_texts = [
        f"{text.duration(begin)} to {text.duration(end)}"
        for begin, end in zip(begins_ns.tolist(), ends_ns.tolist(), strict=True)
    ]
    examples = list(series.bin_examples) or [None] * len(bin_texts)
    return go.Bar(
        name=series.name,
        x=begins_ns,
        width=ends_ns - begins_ns,
        offset=0,
        y=series.bin_counts,
        marker={"color": series.colour, "line": {"width": 0}},
        customdata=pairs(bin_texts, examples),
        hovertemplate=f"%{{customdata[0]}}: %{{y:,}} {count_name}<extra></extra>",
    )
